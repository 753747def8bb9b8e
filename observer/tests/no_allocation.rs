//! Once constructed, the observer allocates nothing on the data path: somebody's program runs around it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use radic_observer::causes::Bounds;
use radic_observer::connection::Welcome;
use radic_observer::{Accept, Config, Observer, Ready, Receive, Send, Source, Transmit};
use radic_wire::determinant::ReadyFd;
use radic_wire::ids::{JobId, ProcessId, Rank};
use radic_wire::link_frame::LINK_FRAME;
use radic_wire::log::FromProtector;

thread_local! {
    static COUNTED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The system's allocator, which counts on threads that ask for it.
struct Counting;

// SAFETY: every call goes to `System` unchanged; counting touches a constant-initialised thread local, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNTED.with(|counted| counted.set(counted.get().map(|count| count + 1)));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `System.alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn process(rank: u32) -> ProcessId {
    ProcessId { job: JobId::from_bits(1), rank: Rank(rank) }
}

/// Ships everything and hears that it is stable.
fn settle(observer: &mut Observer) {
    observer.poll_journal();
    while observer.poll_payload(usize::MAX).is_some() {}
    let (journal, payload) = (observer.journal().end(), observer.payload().span().end);
    observer.handle_protector(&FromProtector::JournalStable { position: journal }).unwrap();
    if let Some(position) = observer.causes().map(|causes| causes.end()) {
        observer.handle_protector(&FromProtector::CausesHeld { position }).unwrap();
    }
    observer.handle_protector(&FromProtector::PayloadStable { position: payload }).unwrap();
}

/// One message from one to the other on descriptor 5, by way of `wire`.
fn pass(from: &mut Observer, to: &mut Observer, wire: &mut [u8]) {
    let ready = [ReadyFd { fd: 5, events: 1 }];
    settle(from);
    assert_eq!(from.send(0, 5, wire, 0, false), Ok(Send::Taken { len: wire.len(), whole: true }));
    let slot = from.table().slot_of(5).unwrap();
    let Some(Transmit::Bytes(offset)) = from.poll_transmit(slot) else { panic!("nothing leaves") };
    let mut at = 0;
    for piece in from.outgoing(slot, offset) {
        wire[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    let header = from.leaving(slot).unwrap().header;
    let length = header.len();
    let room = to.deframer(to.table().slot_of(5).unwrap()).unwrap();
    for part in [&header[..LINK_FRAME], &header[LINK_FRAME..]].into_iter().filter(|part| !part.is_empty()) {
        room.header_room().copy_from_slice(part);
        room.handle_header(part.len()).unwrap();
    }
    room.handle_payload(at);
    from.handle_transmitted(slot, (length + at) as u64);
    assert_eq!(to.ready(0, Some(4), false, &mut []), Ok(Ready::Live));
    to.handle_ready(0, Some(4), &[]).unwrap();
    to.handle_ready(0, Some(4), &ready).unwrap();
    assert!(matches!(to.receive(0, 5, at, false), Ok(Receive::Take { source: Source::Link, len, .. }) if len == at));
    assert_eq!(to.handle_received(0, 5, Source::Link, &wire[..at]), Ok(Some(at)));
    settle(to);
    let stream = from.table().get(slot).unwrap().stream_out();
    from.handle_protector(&FromProtector::StreamStable { stream, offset: offset + at as u64 }).unwrap();
}

#[test]
fn messages_cost_no_allocation() {
    no_allocation_with(None);
}

#[test]
fn messages_with_what_they_depend_on_cost_no_allocation() {
    no_allocation_with(Some(Bounds::default()));
}

fn no_allocation_with(causes: Option<Bounds>) {
    let config = Config { outbox_blocks: 64, payload: 1 << 20, connections: 16, descriptors: 16, causes, ..Config::default() };
    let (mut a, mut b) = (Observer::new(process(0), &config), Observer::new(process(1), &config));
    let slot = a.connect(5, process(1)).unwrap().unwrap();
    let greeting = a.dial(slot).unwrap();
    assert!(matches!(b.handle_greeting(&greeting), Ok(Welcome::Link(_, None))));
    let Ok(Accept::Offered(connection)) = b.accept(0, 3, false, |_| true) else { panic!("nothing is offered") };
    b.handle_accepted(0, 3, 5, connection, ([127, 0, 0, 1], 1).into()).unwrap();
    let mut wire = vec![7; 9_000];
    // What is kept of each other grows to what it is from then on.
    for _ in 0..20 {
        pass(&mut a, &mut b, &mut wire);
        pass(&mut b, &mut a, &mut wire);
    }
    COUNTED.set(Some(0));
    for round in 0..1_000 {
        let len = 1 + round * 9;
        pass(&mut a, &mut b, &mut wire[..len]);
        pass(&mut b, &mut a, &mut wire[..len]);
    }
    assert_eq!(COUNTED.take(), Some(0), "allocations for 2,000 messages");
    assert_eq!((a.outbox().used(), b.outbox().used()), (0, 0));
}
