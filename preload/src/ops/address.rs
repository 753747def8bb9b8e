//! Addresses of the program's TCP sockets. They belong to machines, and a process may go on at another one. A peer that listened
//! somewhere may have left when it catches up. So what `bind`, `listen` and `connect` find out is an outcome: a restarted process
//! is told what it was told, and its sockets have what this machine has to give.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use radic_observer::bind::{Bind, Step};
use radic_observer::{Context, Error};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::process::{FromNode, ToNode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::waiting::{pause, take_turns};
use crate::ending::sure;
use crate::fds::{self, Kind};
use crate::layer::{self, Held, Layer, context};
use crate::{sockets, sys};

/// Whether this is a TCP socket.
pub fn is_tcp(fd: i32) -> bool {
    let fd = sys::borrow(fd);
    let family = sockopt::socket_domain(fd);
    matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6)) && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
}

/// The address of a socket without a peer, as the program was told it. None: as the kernel says it.
pub fn told(fd: i32) -> Option<SocketAddr> {
    layer::enter()?.bound.get(&fd).copied()
}

/// `bind`. None: it passes through.
pub fn bind(fd: i32, to: Option<SocketAddr>) -> Option<Result<(), Errno>> {
    let to = to?;
    let may_be = matches!(fds::kind(fd), Kind::Other | Kind::Bound) && (0..fds::DESCRIPTORS as i32).contains(&fd);
    if !may_be || !is_tcp(fd) {
        return None;
    }
    Some(settle(layer::enter()?, fd, Some(to)).map(drop))
}

/// The address of a socket that listens, which has got one now if it had none.
pub fn of_listener(layer: Held, fd: i32) -> Result<(Held, SocketAddr), Errno> {
    match layer.bound.get(&fd).copied() {
        Some(address) => Ok((layer, address)),
        None => settle(layer, fd, None),
    }
}

/// Gives the socket its address, as [`Bind`] says: `to`, or what the kernel has chosen already.
fn settle(mut layer: Held, fd: i32, to: Option<SocketAddr>) -> Result<(Held, SocketAddr), Errno> {
    let (thread, number) = (layer.thread(), fd as u32);
    let mut bind = match to {
        Some(_) => Bind::new(thread, number),
        None => Bind::chosen(thread, number, sockets::local(fd).ok_or(Errno::INVAL)?),
    };
    let address = loop {
        match tell(&mut bind, &mut layer, Bind::next) {
            Step::Wait(what) => layer = take_turns(layer, what)?,
            Step::Pause => layer = pause(layer)?,
            Step::Again(address) => bind_again(fd, address),
            Step::Bind => {
                let bound = to.ok_or(Errno::INVAL).and_then(|to| bind_here(&layer, fd, to)).map_err(number_of);
                tell(&mut bind, &mut layer, |bind, cx| bind.handle_bound(cx, bound));
            }
            Step::Claim(address) => {
                let (holder, later) = ask_holder(&mut layer, address);
                tell(&mut bind, &mut layer, |bind, cx| bind.handle_claimed(cx, holder.is_some(), later));
            }
            Step::GiveBack => {
                let result = unbind(&mut layer, fd).map_err(number_of);
                tell(&mut bind, &mut layer, |bind, cx| bind.handle_given_back(cx, result));
            }
            Step::Over(result) => break result.map_err(|errno| Errno::from_raw_os_error(errno as i32))?,
        }
    };
    if fds::kind(fd) == Kind::Other && !fds::set(fd, Kind::Bound, true) {
        return Err(Errno::INVAL);
    }
    layer.bound.insert(fd, address);
    Ok((layer, address))
}

fn tell<T>(bind: &mut Bind, layer: &mut Layer, input: impl FnOnce(&mut Bind, &mut Context<'_>) -> Result<T, Error>) -> T {
    sure(input(bind, &mut context(&mut layer.observer)))
}

fn number_of(error: Errno) -> u32 {
    error.raw_os_error() as u32
}

fn any(family: &SocketAddr, port: u16) -> SocketAddr {
    let ip: IpAddr = if family.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, port)
}

/// Finds the other process that owns this address although the kernel gave it to us: one that has moved, or one that crashed and
/// is coming back. Also says whether to ask again.
fn ask_holder(layer: &mut Layer, address: SocketAddr) -> (Option<ProcessId>, bool) {
    layer.inquire(
        |ask| ToNode::Claim { ask, address },
        |answer| if let FromNode::Claimed { ask, holder, later } = *answer { Some((ask, (holder, later))) } else { None },
        || format!("which process has the address {address}"),
    )
}

/// Puts a fresh socket in the place of one that has got an address: there is no other way to give that back.
fn unbind(layer: &mut Layer, fd: i32) -> Result<(), Errno> {
    let socket = sys::borrow(fd);
    let fresh = rustix::net::socket_with(sockopt::socket_domain(socket)?, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let fresh = sys::high(fresh)?;
    sys::copy_options(socket, fresh.as_fd());
    sockopt::set_socket_reuseaddr(&fresh, sockopt::socket_reuseaddr(socket)?)?;
    if sockopt::socket_domain(socket)? == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&fresh, sockopt::ipv6_v6only(socket)?)?;
    }
    let old = layer.put(fd, fresh.as_fd());
    sys::close_own(fresh);
    old?.into_iter().for_each(sys::close_own);
    Ok(())
}

/// A `bind` on this machine. In a later incarnation the program still sees the address of the earlier machine. Where this machine
/// does not have it, the socket gets any of its addresses.
fn bind_here(layer: &Layer, fd: i32, to: SocketAddr) -> Result<SocketAddr, Errno> {
    let socket = sys::borrow(fd);
    let here = || sockets::local(fd).ok_or(Errno::INVAL);
    match rustix::net::bind(socket, &to) {
        Err(Errno::ADDRNOTAVAIL) if layer.observer.incarnation() > Incarnation::FIRST => {
            rustix::net::bind(socket, &any(&to, to.port()))?;
            Ok(SocketAddr::new(to.ip(), here()?.port()))
        }
        other => other.and_then(|()| here()),
    }
}

/// Replay: the socket gets what this machine has. If that is not even any port, the kernel gives one later, as it does without `bind`.
fn bind_again(fd: i32, address: SocketAddr) {
    let bind = |to| rustix::net::bind(sys::borrow(fd), &to);
    _ = bind(address).or_else(|_| bind(any(&address, address.port()))).or_else(|_| bind(any(&address, 0)));
}

/// Binds the socket as the kernel would when it connects to `to`, so that its address is known before a peer sees it. Returns what peers see.
pub fn bind_source(fd: i32, to: &SocketAddr) -> Result<SocketAddr, Errno> {
    let mut source = match sockets::local(fd).filter(|bound| !bound.ip().is_unspecified()) {
        Some(bound) => bound,
        None => route(to)?,
    };
    source.set_port(0);
    // libfabric asks the kernel to choose the port as late as in connect().
    sys::choose_port_at_bind(fd);
    // After a connect that failed the kernel still tells the port, but has given it back: only bind knows whether there is one.
    match rustix::net::bind(sys::borrow(fd), &source) {
        Ok(()) => sockets::local(fd).ok_or(Errno::INVAL),
        Err(Errno::INVAL) => {
            let bound = sockets::local(fd).filter(|bound| bound.port() != 0).ok_or(Errno::INVAL)?;
            source.set_port(bound.port());
            Ok(source)
        }
        // No port is left, as connect would say it.
        Err(Errno::ADDRINUSE) => Err(Errno::ADDRNOTAVAIL),
        Err(error) => Err(error),
    }
}

/// The address from which packets to `to` go. None leaves: this asks the kernel's routes.
fn route(to: &SocketAddr) -> Result<SocketAddr, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let probe = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&probe, to)?;
    SocketAddr::try_from(rustix::net::getsockname(&probe)?).map_err(|_| Errno::AFNOSUPPORT)
}
