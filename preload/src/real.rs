//! The functions that this library stands in front of, as the next library in the search order has them: `real::recv` is what the program's `recv`
//! would be without us. For calls that pass through; the library's own system calls go to the kernel directly (`rustix`), past all of this.
//!
//! All are looked up by the constructor ([`resolve`]): later the linker's lock may be taken, and a child between fork and exec must not wait for
//! it. One that is called before (by another library's constructor) is looked up then. One that the C library does not have fails with ENOSYS.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd, posix_spawn_file_actions_t,
    posix_spawnattr_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

/// The C library's `errno` of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: the thread's own, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets the C library's `errno` of the calling thread.
pub fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// The value that says "failed, see errno".
trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for ssize_t {
    const FAILED: Self = -1;
}

impl<T> Failed for *mut T {
    const FAILED: Self = ptr::null_mut();
}

/// The address of `name` in the libraries behind this one; null: there is none.
fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: looks up a name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Index { $($name),* }

        const NAMES: &[&str] = &[$(concat!(stringify!($name), "\0")),*];

        $(
            #[doc = concat!("The next library's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As for the C library's.
            #[allow(non_snake_case)]
            #[inline]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                let function = address(Index::$name as usize);
                if function.is_null() {
                    set_errno(libc::ENOSYS);
                    return Failed::FAILED;
                }
                // SAFETY: the function of this name has this type; the arguments are the caller's.
                unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(function)($($argument),*)
                }
            }
        )*
    };
}

// Variadic functions with the one argument that they can have: it is passed in the same register.
functions! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;

    send(fd: c_int, bytes: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, bytes: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: c_uint) -> ssize_t;

    recv(fd: c_int, bytes: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    recvfrom(
        fd: c_int, bytes: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t
    ) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    read(fd: c_int, bytes: *mut c_void, length: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    __read_chk(fd: c_int, bytes: *mut c_void, length: size_t, room: size_t) -> ssize_t;
    __recv_chk(fd: c_int, bytes: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t;
    __recvfrom_chk(
        fd: c_int, bytes: *mut c_void, length: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t
    ) -> ssize_t;

    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(from: c_int, to: c_int) -> c_int;
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    pipe(fds: *mut c_int) -> c_int;
    pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    eventfd(value: c_uint, flags: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;

    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;

    fork() -> pid_t;
    _Fork() -> pid_t;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        words: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        words: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    system(command: *const c_char) -> c_int;

    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fileno(stream: *mut FILE) -> c_int;
    fileno_unlocked(stream: *mut FILE) -> c_int;
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;

    shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    shmget(key: c_int, size: size_t, flags: c_int) -> c_int;
    process_vm_readv(
        pid: pid_t, local: *const iovec, local_count: c_ulong, remote: *const iovec, remote_count: c_ulong, flags: c_ulong
    ) -> ssize_t;
    process_vm_writev(
        pid: pid_t, local: *const iovec, local_count: c_ulong, remote: *const iovec, remote_count: c_ulong, flags: c_ulong
    ) -> ssize_t;
    gethostname(name: *mut c_char, room: size_t) -> c_int;
    __gethostname_chk(name: *mut c_char, room: size_t, size: size_t) -> c_int;
    uname(names: *mut libc::utsname) -> c_int;
}

static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];

#[inline]
fn address(index: usize) -> *mut c_void {
    let known = ADDRESSES[index].load(Relaxed);
    if known.is_null() { find(index) } else { known }
}

#[cold]
fn find(index: usize) -> *mut c_void {
    let errno = errno();
    let name = CStr::from_bytes_with_nul(NAMES[index].as_bytes());
    let function = name.map_or(ptr::null_mut(), look_up);
    ADDRESSES[index].store(function, Relaxed);
    set_errno(errno);
    function
}

/// Looks up all of them. Called by the constructor; again is harmless.
pub fn resolve() {
    (0..NAMES.len()).for_each(|index| _ = address(index));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found_and_none_is_ours() {
        resolve();
        let libc = |name: &CStr| {
            // SAFETY: looks up a name in the C library, which is loaded already.
            unsafe { libc::dlsym(libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), name.as_ptr()) }
        };
        for (index, name) in NAMES.iter().enumerate() {
            let there = libc(CStr::from_bytes_with_nul(name.as_bytes()).unwrap());
            assert_eq!(address(index), there, "{name}");
            assert!(!there.is_null(), "{name}: this C library has no such function");
        }
    }

    #[test]
    fn they_do_what_their_names_say() {
        let (mut pair, mut got) = ([0; 2], [0u8; 4]);
        // SAFETY: the kernel writes two descriptors, reads and writes within the buffers; the descriptors are ours.
        unsafe {
            assert_eq!(socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()), 0);
            assert_eq!(send(pair[0], b"abcd".as_ptr().cast(), 4, 0), 4);
            assert_eq!(recv(pair[1], got.as_mut_ptr().cast(), 4, libc::MSG_DONTWAIT), 4);
            assert_eq!(recv(pair[1], got.as_mut_ptr().cast(), 4, libc::MSG_DONTWAIT), -1);
            assert_eq!((got, errno()), (*b"abcd", libc::EAGAIN));
            assert_eq!(fcntl(pair[0], libc::F_GETFL, 0) & libc::O_NONBLOCK, 0);
            assert_eq!((close(pair[0]), close(pair[1])), (0, 0));
        }
    }
}
