//! Tells Slurm that a job has ended, by the library of the installed Slurm: none of its commands tells that.
//!
//! The functions are those of its `slurm/slurm.h`. The library reads the site's configuration and loads plug-ins, and ends the process if something
//! is wrong with either: load it in a process that has nothing else to do.
#![warn(missing_docs)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// `slurm_init`, of Slurm 20.11 and later.
type Init = unsafe extern "C" fn(*const c_char);
/// `slurm_complete_job`.
type CompleteJob = unsafe extern "C" fn(u32, u32) -> c_int;
/// `slurm_strerror`.
type Strerror = unsafe extern "C" fn(c_int) -> *const c_char;

/// Why a job was not ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library cannot be loaded: what the loader says.
    #[error("{0}")]
    Load(String),
    /// The library lacks a function.
    #[error("it has no {0}")]
    Lacks(&'static str),
    /// The controller was not reached, or did not answer: Slurm's number, and its text.
    #[error("{1} (error {0} of Slurm)")]
    Unreached(i32, String),
    /// Slurm's number, and its text.
    #[error("Slurm refuses it: {1} (error {0})")]
    Refused(i32, String),
}

/// `ESLURM_ALREADY_DONE`.
const ALREADY_DONE: i32 = 2021;
/// `SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR` and those behind it.
const UNREACHED: RangeInclusive<i32> = 1800..=1899;

/// A library of Slurm that is loaded, until the process ends.
#[derive(Debug)]
pub struct Library {
    complete_job: CompleteJob,
    strerror: Option<Strerror>,
}

impl Library {
    /// Loads the library at `path`, which is trusted as the commands of Slurm are, and has it read its configuration.
    ///
    /// # Errors
    /// If it cannot be loaded, or is none of Slurm.
    pub fn open(path: &Path) -> Result<Library, Error> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Load("a zero in its name".to_owned()))?;
        // Its plug-ins take functions from it, which they find only if it is global.
        // SAFETY: the name ends with a zero, and the caller trusts what the file runs as it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(Error::Load(loader_says()));
        }
        let complete_job = symbol(handle, c"slurm_complete_job").ok_or(Error::Lacks("slurm_complete_job"))?;
        if let Some(init) = symbol(handle, c"slurm_init") {
            // SAFETY: slurm.h declares it so, and wants it before any other function; without a name it looks for its configuration itself.
            unsafe { mem::transmute::<*mut c_void, Init>(init)(ptr::null()) };
        }
        Ok(Library {
            // SAFETY: slurm.h declares it so in all releases that have an exit code, which are those since 1.2.
            complete_job: unsafe { mem::transmute::<*mut c_void, CompleteJob>(complete_job) },
            // SAFETY: slurm_errno.h declares it so.
            strerror: symbol(handle, c"slurm_strerror").map(|found| unsafe { mem::transmute::<*mut c_void, Strerror>(found) }),
        })
    }

    /// Tells the controller that a job of this user has ended with this exit code, as the end of its script would have told. One that has ended already stays as it is.
    ///
    /// # Errors
    /// If the controller is not reached or refuses it.
    pub fn complete_job(&self, job: u32, code: u8) -> Result<(), Error> {
        // What is told is the status of wait(2), which has the exit code in its second byte.
        let status = u32::from(code) << 8;
        // SAFETY: a function of the library, which stays loaded; it takes two numbers.
        if unsafe { (self.complete_job)(job, status) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or_default() {
            ALREADY_DONE => Ok(()),
            error if UNREACHED.contains(&error) => Err(Error::Unreached(error, self.text(error))),
            error => Err(Error::Refused(error, self.text(error))),
        }
    }

    fn text(&self, error: c_int) -> String {
        let Some(strerror) = self.strerror else { return "no text".to_owned() };
        // SAFETY: a function of the library, which stays loaded; it takes a number.
        let text = unsafe { strerror(error) };
        if text.is_null() {
            return "no text".to_owned();
        }
        // SAFETY: not null, so a constant string or one of this thread, which no other call changes meanwhile.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of dlopen that is never closed, and a name that ends with a zero.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Why the last dlopen of this thread has failed.
fn loader_says() -> String {
    // SAFETY: the text is this thread's until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: not null, so a string of the loader's.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_of_slurm_is_refused() {
        let absent = Library::open(Path::new("/no/such/libslurm.so")).unwrap_err();
        assert!(matches!(&absent, Error::Load(text) if text.contains("/no/such/libslurm.so")), "{absent}");
        let other = Library::open(Path::new("libc.so.6")).unwrap_err();
        assert_eq!(other.to_string(), "it has no slurm_complete_job");
    }
}
