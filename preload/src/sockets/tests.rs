//! Sockets behind descriptors.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;
use rustix::net::{SendFlags, sockopt::Timeout};

use super::*;
use crate::sys;

fn pair() -> (OwnedFd, OwnedFd) {
    let (listener, at) = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
    let one = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&one, &at).unwrap();
    sys::wait_for(listener.as_fd(), PollFlags::IN, 1_000).unwrap();
    let other = rustix::net::accept(&listener).unwrap();
    (one, other)
}

fn is_ready(fd: BorrowedFd<'_>, events: PollFlags) -> bool {
    sys::wait_for(fd, events, 0).is_ok()
}

#[test]
fn a_placeholder_takes_and_gives_nothing() {
    let fd = placeholder().unwrap();
    assert!(is_ready(fd.as_fd(), PollFlags::OUT));
    assert!(!is_ready(fd.as_fd(), PollFlags::IN), "neither bytes nor an end nor an error");
    assert_eq!(rustix::io::ioctl_fionread(&fd).unwrap(), 0);
    let received = rustix::net::recv(&fd, &mut [0; 1][..], RecvFlags::DONTWAIT);
    assert_eq!(received.map(|(_, count)| count), Err(Errno::AGAIN));
}

#[test]
fn what_the_program_has_set_is_set_on_the_next_socket() {
    let ((old, _far), (new, _other_far)) = (pair(), pair());
    let automatic = sockopt::socket_recv_buffer_size(&new).unwrap();
    sockopt::set_tcp_nodelay(&old, true).unwrap();
    sockopt::set_socket_keepalive(&old, true).unwrap();
    sockopt::set_socket_send_buffer_size(&old, 70_000).unwrap();
    let limit = std::time::Duration::from_millis(1_500);
    sockopt::set_socket_timeout(&old, Timeout::Recv, Some(limit)).unwrap();
    // A socket that is dead has them still.
    _ = rustix::net::shutdown(&old, Shutdown::Both);
    sys::copy_options(old.as_fd(), new.as_fd());
    assert!(sockopt::tcp_nodelay(&new).unwrap() && sockopt::socket_keepalive(&new).unwrap());
    assert_eq!(sockopt::socket_send_buffer_size(&new), sockopt::socket_send_buffer_size(&old));
    assert_eq!(sockopt::socket_recv_buffer_size(&new).unwrap(), automatic, "one that was not set is the kernel's to size");
    assert_eq!(sockopt::socket_timeout(&new, Timeout::Recv).unwrap(), Some(limit));
    let stand_in = placeholder().unwrap();
    sys::copy_times(old.as_fd(), stand_in.as_fd());
    assert_eq!(sockopt::socket_timeout(&stand_in, Timeout::Recv).unwrap(), Some(limit));
}

/// `frames` (in tests/) shows why: resets that only one side got let the other one wait for its answer forever.
#[test]
fn the_dialing_side_asks_whether_the_other_one_is_there_and_the_program_need_not_know() {
    let (_listener, at) = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
    let ((programs, _far), dialed) = (pair(), dial(&at).unwrap());
    let every = std::time::Duration::from_secs(1);
    assert!(sockopt::socket_keepalive(&dialed).unwrap());
    assert_eq!((sockopt::tcp_keepidle(&dialed), sockopt::tcp_keepintvl(&dialed)), (Ok(every), Ok(every)));
    sys::copy_options(programs.as_fd(), dialed.as_fd());
    assert!(!sockopt::socket_keepalive(&dialed).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&dialed), sockopt::tcp_keepidle(&programs));
}

#[test]
fn the_kernel_asks_on_a_silent_link_as_the_program_has_said_or_as_we_do() {
    let ((ours, _far), (programs, _other_far)) = (pair(), pair());
    let often = std::time::Duration::from_secs(3);
    sockopt::set_tcp_keepidle(&programs, often).unwrap();
    sockopt::set_socket_keepalive(&programs, true).unwrap();
    [&ours, &programs].into_iter().for_each(|socket| ask_when_silent(socket.as_fd()));
    assert!(sockopt::socket_keepalive(&ours).unwrap());
    assert!(sockopt::tcp_keepidle(&ours).unwrap() > often);
    assert_eq!(sockopt::tcp_keepidle(&programs), Ok(often));
}

#[test]
fn a_descriptor_keeps_its_number_and_what_happens_to_it_at_an_exec() {
    let ((one, _far), (two, other)) = (pair(), pair());
    let number = one.as_raw_fd();
    let closes = || rustix::io::fcntl_getfd(sys::borrow(number)).unwrap().contains(rustix::io::FdFlags::CLOEXEC);
    for cloexec in [true, false] {
        let flags = if cloexec { rustix::io::FdFlags::CLOEXEC } else { rustix::io::FdFlags::empty() };
        rustix::io::fcntl_setfd(&one, flags).unwrap();
        sys::replace(two.as_fd(), number).unwrap();
        assert_eq!(closes(), cloexec);
    }
    rustix::net::send(&other, b"x", SendFlags::empty()).unwrap();
    sys::wait_for(one.as_fd(), PollFlags::IN, 1_000).unwrap();
    assert_eq!(rustix::io::ioctl_fionread(sys::borrow(number)).unwrap(), 1);
}

#[test]
fn a_visitor_that_has_gone_is_recognised() {
    let (one, other) = pair();
    assert!(!is_given_up(&one));
    rustix::net::send(&other, b"x", SendFlags::empty()).unwrap();
    drop(other);
    sys::wait_for(one.as_fd(), PollFlags::IN, 1_000).unwrap();
    assert!(!is_given_up(&one), "its bytes come first");
    rustix::net::recv(&one, &mut [0; 1][..], RecvFlags::empty()).unwrap();
    sys::wait_for(one.as_fd(), PollFlags::IN, 1_000).unwrap();
    assert!(is_given_up(&one));
}
