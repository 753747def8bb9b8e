//! The end of `MPI_Init`, just to notice it: the moment of the first checkpoint. Before it, helper threads of some libraries make the start of a rank
//! something that does not replay (docs/design.md).
//!
//! redhook declares these, and does not look up what is behind them: the program's library may be loaded later than the constructor runs, and most
//! programs have none.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use radic_wire::process::ToNode;

use crate::layer;

/// MPI_ERR_OTHER of MPICH and Intel MPI; any failure is as good.
const FAILED: c_int = 15;

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type FortranInit = unsafe extern "C" fn(*mut c_int);
type FortranInitThread = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int);

redhook::hook! {
    unsafe fn MPI_Init(argc: *mut c_int, argv: *mut *mut *mut c_char) -> c_int => on_init {
        unsafe { call(c"MPI_Init", |next| std::mem::transmute::<*mut c_void, Init>(next)(argc, argv)) }
    }
}

redhook::hook! {
    unsafe fn MPI_Init_thread(
        argc: *mut c_int, argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int
    ) -> c_int => on_init_thread {
        let next = |next| unsafe { std::mem::transmute::<*mut c_void, InitThread>(next)(argc, argv, required, provided) };
        unsafe { call(c"MPI_Init_thread", next) }
    }
}

redhook::hook! {
    unsafe fn mpi_init_(error: *mut c_int) => on_fortran_init {
        let next = |next| unsafe { std::mem::transmute::<*mut c_void, FortranInit>(next)(error) };
        unsafe { call_fortran(c"mpi_init_", error, next) }
    }
}

redhook::hook! {
    unsafe fn mpi_init_thread_(required: *mut c_int, provided: *mut c_int, error: *mut c_int) => on_fortran_init_thread {
        let next = |next| unsafe { std::mem::transmute::<*mut c_void, FortranInitThread>(next)(required, provided, error) };
        unsafe { call_fortran(c"mpi_init_thread_", error, next) }
    }
}

/// Initializes by the function of this name.
unsafe fn call(name: &CStr, how: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let next = next(name);
    if next.is_null() {
        return FAILED;
    }
    let result = how(next);
    if result == 0 {
        initialized();
    }
    result
}

/// The same for Fortran, where a failure is told by an argument.
unsafe fn call_fortran(name: &CStr, error: *mut c_int, how: impl FnOnce(*mut c_void)) {
    let next = next(name);
    if next.is_null() {
        unsafe { *error = FAILED };
        return;
    }
    how(next);
    initialized();
}

/// The MPI library's function. It is behind us in the search order if the program is linked with the library; if that was loaded later (mpi4py), it
/// is among the loaded ones.
pub(super) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: looks up a name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    let mut search = Search { name, found: ptr::null_mut() };
    unsafe { libc::dl_iterate_phdr(Some(look_in), (&raw mut search).cast()) };
    search.found
}

/// Whether an MPI library is loaded, as it is from the start in a program that is linked with one.
pub fn is_linked() -> bool {
    !next(c"MPI_Init").is_null()
}

struct Search<'a> {
    name: &'a CStr,
    found: *mut c_void,
}

/// Looks in one loaded library, if it is called like an MPI library. Not 0: found.
unsafe extern "C" fn look_in(info: *mut libc::dl_phdr_info, _: libc::size_t, search: *mut c_void) -> c_int {
    let (path, search) = unsafe { ((*info).dlpi_name, &mut *search.cast::<Search<'_>>()) };
    if path.is_null() {
        return 0;
    }
    let name = unsafe { Path::new(OsStr::from_bytes(CStr::from_ptr(path).to_bytes())) }.file_name();
    if !name.is_some_and(|name| name.as_bytes().starts_with(b"libmpi")) {
        return 0;
    }
    // It is loaded, and stays: the handle is one more reference to it.
    let library = unsafe { libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if !library.is_null() {
        search.found = unsafe { libc::dlsym(library, search.name.as_ptr()) };
    }
    c_int::from(!search.found.is_null())
}

/// MPI is initialized; told once, for one initialization may come by several of these names.
fn initialized() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let Some(mut layer) = layer::enter()
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        layer.pmi.handle_initialized();
        layer.drive_images(|images, _| images.handle_initialized());
        // If the node is gone, whatever needs it next finds out.
        _ = layer.node.send(&ToNode::Initialized);
    }
}
