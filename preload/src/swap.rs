//! Sockets behind descriptors: the program keeps a number, and what is behind it is exchanged. And the sockets that the library makes itself.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use radic_wire::determinant::StreamId;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, sockopt};

use crate::ending::fail;
use crate::layer::Layer;
use crate::ops::ready;
use crate::{fds, sys};

/// The socket that a connection's descriptor had before its link broke or came into question. The descriptor has a placeholder
/// now.
#[derive(Debug)]
pub struct Aside {
    /// The connection, by the stream that goes out.
    pub end: StreamId,
    /// The socket; its options are those of the next one. None: the descriptor had none.
    pub socket: Option<OwnedFd>,
}

/// Throws away a socket on which nothing may be sent any more: what its kernel still has is in the outbox.
pub fn discard(socket: OwnedFd) {
    _ = rustix::net::shutdown(&socket, Shutdown::Both);
    sys::close_own(socket);
}

/// Whether the other side of a new socket has given it up already.
pub fn is_given_up(fd: impl AsFd) -> bool {
    !matches!(rustix::net::recv(fd, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((_, 1..)) | Err(Errno::AGAIN))
}

fn socket_for(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    sys::high(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A socket that connects to a door. The opener of a link waits for an answer and says nothing more. If the other side has given
/// the connection up, and the reset was lost (a kernel sends it once), the opener would never learn that. So keepalive asks the
/// other side's kernel, which answers also while its program computes for an hour.
pub fn dial(door: &SocketAddr) -> Result<OwnedFd, Errno> {
    const IDLE: Duration = Duration::from_secs(1);
    const PROBES: u32 = 5;
    let socket = socket_for(door)?;
    let asks = sockopt::set_socket_keepalive(&socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(&socket, IDLE))
        .and_then(|()| sockopt::set_tcp_keepintvl(&socket, IDLE))
        .and_then(|()| sockopt::set_tcp_keepcnt(&socket, PROBES));
    match asks.and_then(|()| rustix::net::connect(&socket, door)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => {
            sys::close_own(socket);
            Err(error)
        }
    }
}

/// The kernel asks the other side's about a link that says nothing for long (keepalive): the last word of a process that has
/// ended may be lost with its machine, and no other one comes. What the program has set itself holds.
pub fn ask_when_silent(socket: BorrowedFd<'_>) {
    const IDLE: Duration = Duration::from_secs(15);
    const AGAIN: Duration = Duration::from_secs(5);
    const PROBES: u32 = 5;
    if sockopt::socket_keepalive(socket) == Ok(false) {
        // Without it the link is as good, but for that.
        _ = sockopt::set_tcp_keepidle(socket, IDLE)
            .and_then(|()| sockopt::set_tcp_keepintvl(socket, AGAIN))
            .and_then(|()| sockopt::set_tcp_keepcnt(socket, PROBES))
            .and_then(|()| sockopt::set_socket_keepalive(socket, true));
    }
}

/// A socket that is never readable and always writable, and leads nowhere.
pub fn placeholder() -> Result<OwnedFd, Errno> {
    sys::high(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// A listening socket at a port that the kernel chooses.
pub fn listen(ip: IpAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let fd = socket_for(&SocketAddr::new(ip, 0))?;
    rustix::net::bind(&fd, &SocketAddr::new(ip, 0))?;
    rustix::net::listen(&fd, 1024)?;
    let at = SocketAddr::try_from(rustix::net::getsockname(&fd)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((fd, at))
}

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
            ready::leaving(fd);
            sys::replace(new, fd)?;
            ready::replaced(fd);
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

#[cfg(test)]
mod tests;
