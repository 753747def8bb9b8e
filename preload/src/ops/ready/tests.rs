//! What needs no connection: the rest is tested by `tests/programs/net_poll.c`, under protection.

use super::*;
use crate::epolls::Operation;
use crate::watches;

fn entry(fd: i32, revents: i16) -> pollfd {
    pollfd { fd, events: libc::POLLIN, revents }
}

fn ready(fd: u32, events: u32) -> ReadyFd {
    ReadyFd { fd, events }
}

/// A descriptor may stand in the array several times; each place gets what it had then.
#[test]
fn what_was_ready_then_is_shown_in_its_places() {
    let mut fds = [entry(5, 7), entry(6, 7), entry(-1, 7), entry(5, 7), entry(6, 7)];
    let mut asked = Asked::Poll { fds: &mut fds };
    assert_eq!(asked.show(&[ready(6, 1), ready(5, 0x11)]), Some(2));
    assert_eq!(fds.map(|entry| entry.revents), [0, 1, 0, 0x11, 0]);
    let mut asked = Asked::Poll { fds: &mut fds };
    assert_eq!(asked.show(&[ready(6, 1), ready(6, 1), ready(6, 1)]), None, "more of it than there are places");
    assert_eq!(Asked::Poll { fds: &mut fds }.show(&[ready(9, 1)]), None, "not asked about");
}

#[test]
fn events_get_the_words_of_their_watches() {
    let mut table = Epoll::default();
    let add = |table: &mut Epoll, fd, events, word| {
        let mut key = 0;
        let kept = |_, given| {
            key = given;
            Ok(())
        };
        table.control(Operation::Add, fd, events, word, kept).unwrap();
        key
    };
    let (first, second) = (add(&mut table, 5, IN, 77), add(&mut table, 6, IN | libc::EPOLLONESHOT as u32, 88));
    let event = |key| epoll_event { events: IN, u64: key };
    let mut told = Vec::new();
    let mut events = [event(second), event(u64::MAX), event(first)];
    assert_eq!(translate(Some(&table), &mut events, 3, |_, _| false, |ready| told.push(ready)), 2);
    assert_eq!((told, events.map(|event| event.u64)[..2].to_vec()), (vec![ready(6, IN), ready(5, IN)], vec![88, 77]));
    // One that was reported once, without the kernel, is not reported again.
    table.disarm(6);
    let mut events = [event(second), event(first)];
    assert_eq!(translate(Some(&table), &mut events, 2, |_, _| false, |_| {}), 1);
    assert_eq!(events.map(|event| event.u64)[0], 77);
}

/// Without the layer nothing is changed but the program's words.
#[test]
fn without_the_layer_everything_passes_through() {
    let limit = Limit { time: Some(0), mask: None };
    assert!(epoll_wait(3, &mut [epoll_event { events: 0, u64: 0 }], limit).is_none());
    assert!(poll(&mut [entry(0, 0)], limit).is_none());
    assert!(watches::control(3, Operation::Add, 0, IN, 1).is_none());
}
