//! Journals ([`radic_wire::determinant`]), and their replay ([`radic_observer::replay`]): a byte of how the journal comes in pieces, then a journal.

use radic_observer::Error;
use radic_observer::journal::{Journal, RESERVE};
use radic_observer::replay::{Ask, Replay, Served};
use radic_wire::bytes::Reader;
use radic_wire::determinant::{Call, Determinant, KernelCall, ReadyFd, ReadySet};
use radic_wire::limits;

use crate::Inputs;
use crate::input::{Input, pieces};
use crate::values::{address, connection, process, written};

/// Threads of the process that is replayed; a journal of more is not.
const THREADS: u32 = 8;
/// Where the journal begins.
const CUT: u64 = 1_000;

/// Determinants are written back to the same bytes, a journal without its end gives the same ones, and replay serves exactly its outcomes, however the
/// journal comes.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let (seed, bytes) = (input.u8(), input.0);
    let (all, used) = read(bytes);
    let again: Vec<u8> = all.iter().flat_map(|determinant| written(|out| determinant.write(out))).collect();
    assert!(again == bytes[..used], "a second code of a journal");
    let (some, _) = read(&bytes[..used / 2]);
    assert!(all.starts_with(&some), "a journal that ends early is another one");
    if used == bytes.len() && all.last().is_some_and(|last| !last.is_position()) {
        replay(&all, bytes, seed);
    }
    used == bytes.len() && used > 0
}

fn read(bytes: &[u8]) -> (Vec<Determinant<'_>>, usize) {
    let (mut from, mut all, mut used) = (Reader::new(bytes), Vec::new(), 0);
    while let Ok(determinant) = Determinant::read(&mut from) {
        if let Determinant::Ready { set, .. } = &determinant {
            assert!(set.iter().count() <= limits::READY_FDS);
        }
        used = from.at();
        all.push(determinant);
    }
    (all, used)
}

/// Serves all outcomes of the journal to a program that asks for them in their order.
fn replay(all: &[Determinant<'_>], bytes: &[u8], seed: u8) {
    let outcomes = all.iter().filter(|determinant| !determinant.is_position());
    let threads = all.iter().filter_map(|one| match one {
        Determinant::Thread { index } | Determinant::Begins { index, .. } => Some(*index),
        _ => None,
    });
    if threads.max().is_some_and(|most| most >= THREADS) {
        return;
    }
    let mut journal = Journal::new(limits::LOG_CHUNK - RESERVE, THREADS as usize, limits::DETERMINANT);
    for one in all {
        if let Determinant::Begins { name, .. } = one
            && journal.begin_thread(*name).is_err()
        {
            return;
        }
    }
    let mut replay = Replay::new(CUT, CUT + bytes.len() as u64, 0, 2 * limits::DETERMINANT);
    let (mut pieces, mut fed) = (pieces(bytes, seed), CUT);
    for outcome in outcomes {
        let thread = loop {
            // Whichever thread the next outcome belongs to: it is found by asking for all.
            let asked = (0..THREADS)
                .find(|thread| offer(&mut replay, &journal, *thread, outcome).is_ok_and(|served| served == Served::Outcome));
            if let Some(thread) = asked {
                break thread;
            }
            match replay.overdue(&journal, 0) {
                _ if replay.outcome().is_none() => {
                    let Some(piece) = pieces.next() else { return };
                    replay.handle_log(fed, piece).expect("journal that was asked for");
                    fed += piece.len() as u64;
                }
                // Gate A: what was sent before it then must be sent again.
                _ => journal.handle_sent(0, 1),
            }
            if journal.sent() > 64 {
                return;
            }
        };
        assert_eq!(replay.outcome().as_ref(), Some(outcome), "another outcome was served, to thread {thread}");
        replay.handle_served(&mut journal);
    }
    assert_eq!(replay.position(), replay.end());
}

/// What a thread is told that asks the question which is answered by this.
fn offer(replay: &mut Replay, journal: &Journal, thread: u32, outcome: &Determinant<'_>) -> Result<Served, Error> {
    match *outcome {
        // By the rule it would be another time.
        Determinant::Time { clock, skipped, difference } => {
            replay.offer_time(journal, thread, (clock, skipped, difference.wrapping_add(1)))
        }
        _ => replay.offer(journal, thread, ask(outcome), true),
    }
}

/// The question that is answered by this.
fn ask(outcome: &Determinant<'_>) -> Ask {
    match *outcome {
        Determinant::Recv { fd, .. } | Determinant::Eof { fd } => Ask::Recv { fd },
        Determinant::Peek { fd, .. } => Ask::Peek { fd },
        Determinant::Unread { fd, .. } => Ask::Unread { fd },
        Determinant::Accept { listener, .. } => Ask::Accept { fd: listener },
        Determinant::Connected { fd } => Ask::Connect { fd },
        Determinant::Bound { fd, .. } => Ask::Bind { fd },
        Determinant::Target { fd, .. } => Ask::Target { fd },
        Determinant::SoError { fd, .. } => Ask::SoError { fd },
        Determinant::Ready { epoll, .. } => Ask::Ready { epoll },
        Determinant::SendPart { fd, .. } => Ask::Send { fd },
        Determinant::Errno { fd, call, .. } => match call {
            Call::Recv => Ask::Recv { fd },
            Call::Accept => Ask::Accept { fd },
            Call::Connect => Ask::Connect { fd },
            Call::Bind => Ask::Bind { fd },
            Call::Send => Ask::Send { fd },
            _ => Ask::Ready { epoll: (fd > 0).then_some(fd) },
        },
        Determinant::Kernel { call, .. } => Ask::Kernel { call },
        _ => Ask::Input,
    }
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let fds = [ReadyFd { fd: 3, events: 1 }, ReadyFd { fd: 4, events: 1 }, ReadyFd { fd: 9, events: 5 }];
    let set = ReadySet::new(&fds).expect("three");
    let (listener, fd, local, peer) = (5, 6, address(80), Some(process(1)));
    let traffic = [
        Determinant::Bound { fd, address: local },
        Determinant::Target { fd, local, peer },
        Determinant::Connected { fd },
        Determinant::Accept { listener, fd: 70_000, connection: connection(4), peer: "[::1]:5".parse().expect("an address") },
        Determinant::Empty { count: 900 },
        Determinant::Ready { epoll: Some(4), set },
        Determinant::Recv { fd, len: 9_000 },
        Determinant::Peek { fd, len: 1 },
        Determinant::Unread { fd, len: 80 },
        Determinant::SendPart { fd, len: 3 },
        Determinant::SoError { fd, errno: 111 },
        Determinant::Eof { fd },
    ];
    let threads = [
        Determinant::Begins { index: 2, name: 77 },
        Determinant::Thread { index: 2 },
        Determinant::Sent { bytes: 5 },
        Determinant::Errno { fd, call: Call::Recv, errno: 104 },
        Determinant::Thread { index: 0 },
        Determinant::Ready { epoll: None, set },
        Determinant::Input { bytes: b"a line\n" },
        Determinant::Nothing,
        Determinant::Taken,
        Determinant::Refused { connection: connection(5), opened_here: false },
        Determinant::Refused { connection: connection(6), opened_here: true },
        Determinant::Time { clock: 1, skipped: 3, difference: -70_000 },
        Determinant::Kernel { call: KernelCall::Random, bytes: &[5; 32] },
    ];
    let journal = |all: &[Determinant<'_>]| {
        let codes = all.iter().flat_map(|determinant| written(|out| determinant.write(out)));
        [3].into_iter().chain(codes).collect::<Vec<u8>>()
    };
    vec![("traffic", journal(&traffic)), ("threads", journal(&threads))]
}
