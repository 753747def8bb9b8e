//! Sockets behind descriptors: the program keeps a number, and what is behind it is exchanged.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::Shutdown;

use super::Layer;
use crate::ending::fail;
use crate::sockets::{Aside, placeholder};
use crate::{fds, sys, watches};

impl Layer {
    /// Another socket for the descriptors of what is on `primary`. The one before, if it was open.
    pub(crate) fn put(&mut self, primary: i32, new: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
        let old = match rustix::io::fcntl_dupfd_cloexec(sys::borrow(primary), 3) {
            Ok(old) => Some(sys::high(old)?),
            Err(Errno::BADF) => None,
            Err(error) => return Err(error),
        };
        let flags = old.as_ref().and_then(|old| rustix::fs::fcntl_getfl(old).ok());
        let blocking = flags.map_or(fds::is_blocking(primary), |flags| !flags.contains(rustix::fs::OFlags::NONBLOCK));
        rustix::io::ioctl_fionbio(new, !blocking)?;
        if self.observer.table().slot_of(primary as u32).is_ok_and(|slot| self.is_shut(slot)) {
            // ENOTCONN: its peer is gone already, and nothing comes from there in any case.
            _ = rustix::net::shutdown(new, Shutdown::Read);
        }
        let aliases: Vec<i32> = self.aliases.iter().filter(|(_, of)| *of == primary).map(|(alias, _)| *alias).collect();
        for fd in std::iter::once(primary).chain(aliases) {
            watches::leaving(fd);
            sys::replace(new, fd)?;
            watches::replaced(fd);
        }
        Ok(old)
    }

    /// Puts a placeholder behind the descriptor of a connection. What was there.
    pub(crate) fn put_aside(&mut self, fd: i32) -> Option<OwnedFd> {
        let put = placeholder().and_then(|new| {
            // Times that the program has set for its calls are asked of the descriptor.
            sys::copy_times(sys::borrow(fd), new.as_fd());
            let old = self.put(fd, new.as_fd());
            sys::close_own(new);
            old
        });
        match put {
            Ok(old) => old,
            Err(error) => fail(&format!("there is no placeholder for descriptor {fd}, and its link is broken: {error}")),
        }
    }

    fn aside(&self, fd: i32) -> Option<&Aside> {
        if self.sockets.aside.is_empty() {
            return None;
        }
        let slot = self.observer.table().slot_of(self.primary(fd) as u32).ok()?;
        let end = self.observer.table().get(slot)?.stream_out();
        self.sockets.aside.iter().find(|aside| aside.end == end)
    }

    /// Whether a placeholder is behind `fd`.
    pub fn is_away(&self, fd: i32) -> bool {
        self.aside(fd).is_some()
    }

    /// The descriptor that has the options of the connection on `fd`.
    pub fn options_of(&self, fd: i32) -> i32 {
        self.aside(fd).and_then(|aside| aside.socket.as_ref()).map_or(fd, AsRawFd::as_raw_fd)
    }
}
