//! Sockets: those that the library makes itself, and what is asked of those of the program.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use radic_wire::determinant::StreamId;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, sockopt};

use crate::sys;

/// The socket that a connection's descriptor had before its link broke or came into question. The descriptor has a placeholder
/// now.
#[derive(Debug)]
pub(crate) struct Aside {
    /// The connection, by the stream that goes out.
    pub end: StreamId,
    /// The socket; its options are those of the next one. None: the descriptor had none.
    pub socket: Option<OwnedFd>,
}

/// Throws away a socket on which nothing may be sent any more: what its kernel still has is in the outbox.
pub(crate) fn discard(socket: OwnedFd) {
    _ = rustix::net::shutdown(&socket, Shutdown::Both);
    sys::close_own(socket);
}

/// Whether the other side of a new socket has given it up already.
pub(crate) fn is_given_up(fd: impl AsFd) -> bool {
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
pub(crate) fn dial(door: &SocketAddr) -> Result<OwnedFd, Errno> {
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
pub(crate) fn ask_when_silent(socket: BorrowedFd<'_>) {
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
pub(crate) fn placeholder() -> Result<OwnedFd, Errno> {
    sys::high(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// A listening socket at a port that the kernel chooses.
pub(crate) fn listen(ip: IpAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let fd = socket_for(&SocketAddr::new(ip, 0))?;
    rustix::net::bind(&fd, &SocketAddr::new(ip, 0))?;
    rustix::net::listen(&fd, 1024)?;
    let at = SocketAddr::try_from(rustix::net::getsockname(&fd)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((fd, at))
}

/// The address that a socket is bound to, as the kernel knows it.
pub(crate) fn local(fd: i32) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(sys::borrow(fd)).ok()?).ok()
}

/// What the kernel says of a connection that is under way no more.
pub(crate) fn settled(fd: i32) -> Result<(), Errno> {
    sockopt::socket_error(sys::borrow(fd)).and_then(|error| error)
}

/// In replay: a call that does not wait was refused. It is refused again, though a process may listen there by now: by a socket
/// that does not listen. What the program is told of the call; the rest is in its socket.
pub(crate) fn refuse_again(fd: i32, to: &SocketAddr) -> Errno {
    let loopback: IpAddr = if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let nobody = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let nobody = nobody.and_then(|socket| rustix::net::bind(&socket, &SocketAddr::new(loopback, 0)).map(|()| socket));
    let at = nobody.as_ref().ok().and_then(|socket| local(socket.as_raw_fd()));
    match at.map(|at| rustix::net::connect(sys::borrow(fd), &at)) {
        Some(Err(error)) => error,
        _ => Errno::CONNREFUSED,
    }
}

#[cfg(test)]
mod tests;
