use radic_wire::determinant::ConnectionId;
use radic_wire::ids::JobId;
use radic_wire::job::OutputStream;
use radic_wire::mac::MAC;
use radic_wire::suspension::SavedFile;
use serde_bytes::ByteBuf;

use super::*;
use crate::commands::tests::suspension;

const JOB: JobId = JobId::from_bits(7);

fn stream(number: u32, (start, end): (u64, u64), closed: bool) -> HeldStream {
    let connection = ConnectionId { opener: ProcessId { job: JOB, rank: Rank(0) }, number: number.into() };
    HeldStream {
        stream: StreamId { connection, from_opener: true },
        bytes: Span { start, end },
        ended: closed.then_some(end),
        closed,
    }
}

/// Two ranks: one with two images, of which one stream is open, and one that has received nothing since its image.
fn manifest() -> Manifest {
    let file = |bytes| SavedFile { name: "f".to_owned(), bytes, code: [0; MAC] };
    let image = |image, parent, cut| SavedImage { image, parent, cut, file: file(9) };
    let saved = |images: Vec<SavedImage>, end, streams| SavedRank {
        incarnation: Incarnation::restarted(3),
        journal: Span { start: images.last().unwrap().cut, end },
        images,
        journal_file: file(0),
        streams,
        streams_file: file(0),
    };
    let streams = vec![stream(1, (100, 130), false), stream(2, (10, 500), true), stream(3, (7, 9), false)];
    let ranks =
        vec![saved(vec![image(4, None, 50), image(5, Some(4), 60)], 80, streams), saved(vec![image(1, None, 20)], 20, vec![])];
    let unprinted = vec![Unprinted { rank: Rank(1), stream: OutputStream::Stdout, offset: 3, data: ByteBuf::from("x") }];
    Manifest { suspension: suspension(JOB, 2), unprinted, ranks }
}

fn log(rank: u32) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 4_000 + rank as u16))
}

fn next(resume: &mut Resume<&'static str>) -> Action<&'static str> {
    resume.poll_action().expect("there is something to do")
}

fn hear(resume: &mut Resume<&'static str>, message: FromProtector<'static>) {
    resume.handle_heard(&message);
}

/// The files are what was written, and the node has been asked.
fn asked() -> Resume<&'static str> {
    let mut resume = Resume::new(manifest(), vec!["n2".parse().unwrap()]);
    assert!(matches!(next(&mut resume), Action::Verify));
    assert!(resume.poll_action().is_none(), "no node is asked before the files are verified");
    resume.handle_done();
    let Action::Ask(Request::Resume(suspension, resumption)) = next(&mut resume) else { panic!("no node is asked") };
    assert_eq!(suspension.ward.spec.nodes.len(), 1);
    assert_eq!(resumption.incarnations, [Incarnation::restarted(4); 2]);
    resume
}

/// The first rank is greeted.
fn opened() -> Resume<&'static str> {
    let mut resume = asked();
    resume.handle_reply(Reply::Resuming(vec![log(0), log(1)]));
    let Action::Open(speaker, address, ToProtector::Hello { journal, payload, .. }) = next(&mut resume) else { panic!("no log") };
    assert_eq!((speaker.process.rank, speaker.incarnation, address), (Rank(0), Incarnation::restarted(4), log(0)));
    assert_eq!((journal, payload), (Span { start: 50, end: 80 }, Span { start: 0, end: 32 }));
    assert!(resume.poll_action().is_none() && resume.waits_until().unwrap().contains("begun"));
    resume
}

const WELCOME: FromProtector<'static> = FromProtector::Welcome { journal: 0, payload: 0, image: None };

fn committed(image: u64) -> FromProtector<'static> {
    FromProtector::Committed { image, oldest: 4 }
}

/// The first rank has all its images.
fn with_images() -> Resume<&'static str> {
    let mut resume = opened();
    hear(&mut resume, WELCOME);
    let Action::GiveImage(first) = next(&mut resume) else { panic!("no image is given") };
    assert_eq!((first.file(), first.begins.len(), first.line), (File::Image(4), 0, 3));
    assert!(resume.poll_action().is_none() && resume.waits_until().unwrap().contains("image 4"));
    hear(&mut resume, committed(3));
    hear(&mut resume, FromProtector::JournalStable { position: 90 });
    assert!(resume.poll_action().is_none(), "the image itself is waited for");
    hear(&mut resume, committed(4));
    let Action::GiveImage(last) = next(&mut resume) else { panic!("no image is given") };
    let ToProtector::ImageBegin { parent, cut, streams, ended, .. } = last.message() else { panic!("no image begins") };
    assert_eq!((parent, cut), (Some(4), 60));
    assert_eq!(streams.iter().map(|(_, start)| start).collect::<Vec<_>>(), [100, u64::MAX, 7], "where each stream stands");
    assert_eq!(ended.iter().map(|(_, end)| end).collect::<Vec<_>>(), [500]);
    hear(&mut resume, committed(5));
    resume
}

/// All ranks are given.
fn given() -> Resume<&'static str> {
    let mut resume = with_images();
    assert!(matches!(next(&mut resume), Action::GiveJournal(Span { start: 60, end: 80 })));
    assert!(resume.poll_action().is_none());
    resume.handle_done();
    let Action::GiveReceived(pieces) = next(&mut resume) else { panic!("no payload is given") };
    let places: Vec<_> = pieces.iter().map(|piece| (piece.position, piece.bytes)).collect();
    assert_eq!(places, [(0, Span { start: 100, end: 130 }), (30, Span { start: 7, end: 9 })]);
    hear(&mut resume, FromProtector::JournalStable { position: 80 });
    assert!(resume.poll_action().is_none() && resume.waits_until().is_none(), "the payload is being sent");
    resume.handle_done();
    hear(&mut resume, FromProtector::PayloadStable { position: 31 });
    assert!(resume.poll_action().is_none() && resume.waits_until().unwrap().contains("held"));
    assert_eq!(resume.giving(), Some((Rank(0), log(0))));
    hear(&mut resume, FromProtector::PayloadStable { position: 32 });
    assert!(matches!(next(&mut resume), Action::Close));
    assert!(matches!(next(&mut resume), Action::Open(_, address, _) if address == log(1)));
    hear(&mut resume, WELCOME);
    assert!(matches!(next(&mut resume), Action::GiveImage(_)));
    hear(&mut resume, committed(1));
    next(&mut resume);
    resume.handle_done();
    assert!(matches!(next(&mut resume), Action::GiveReceived(pieces) if pieces.is_empty()));
    resume.handle_done();
    assert!(matches!(next(&mut resume), Action::Close), "nothing of it is to be held");
    resume
}

/// The ranks are to begin.
fn beginning() -> Resume<&'static str> {
    let mut resume = given();
    assert!(matches!(next(&mut resume), Action::Mark));
    assert!(resume.poll_action().is_none(), "the ranks do not begin before the folder says so");
    resume.handle_done();
    assert!(matches!(next(&mut resume), Action::Ask(Request::BeginResumed)));
    resume
}

fn not_begun(mut resume: Resume<&'static str>, why: &str) {
    let Action::Over(Over::NotBegun(failure)) = next(&mut resume) else { panic!("it has begun") };
    assert!(failure.to_string().contains(why), "{failure}");
    assert!(resume.poll_action().is_none());
}

#[test]
fn each_rank_is_given_and_the_job_goes_on() {
    let mut resume = beginning();
    let placement = suspension(JOB, 2).ward.placement;
    resume.handle_reply(Reply::Attached { job: JOB, placement, consumed: 0, dropped: 0 });
    assert!(matches!(next(&mut resume), Action::Print(unprinted) if unprinted.len() == 1));
    assert!(matches!(next(&mut resume), Action::Over(Over::GoesOn(_))));
}

#[test]
fn what_fails_before_the_folder_says_that_the_job_goes_on_begins_nothing() {
    let mut resume = Resume::new(manifest(), Vec::new());
    next(&mut resume);
    resume.handle_failed("damaged");
    not_begun(resume, "damaged");
    for begin in [asked, opened, with_images, given] {
        let mut resume = begin();
        resume.handle_failed("gone");
        not_begun(resume, "gone");
        let mut resume = begin();
        resume.handle_reply(Reply::Error("no majority".to_owned()));
        not_begun(resume, "no majority");
    }
    let mut resume = asked();
    resume.handle_reply(Reply::Resuming(vec![log(0)]));
    not_begun(resume, "unexpected");
    let mut resume = given();
    next(&mut resume);
    resume.handle_failed("another command has marked it");
    not_begun(resume, "another command");
}

#[test]
fn a_log_service_that_refuses_ends_the_command() {
    let mut resume = opened();
    hear(&mut resume, FromProtector::Fenced { newest: Incarnation::restarted(9) });
    not_begun(resume, "later incarnation");
    let mut resume = opened();
    hear(&mut resume, WELCOME);
    next(&mut resume);
    hear(&mut resume, FromProtector::ImageRefused { image: 4 });
    not_begun(resume, "image 4 was refused");
}

#[test]
fn a_job_that_may_have_begun_stays_marked_and_one_that_was_refused_does_not() {
    let mut resume = beginning();
    resume.handle_failed("the node went away");
    assert!(matches!(next(&mut resume), Action::Over(Over::Unsure(Failure::Undone("the node went away")))));
    let mut resume = beginning();
    resume.handle_reply(Reply::Done);
    assert!(matches!(next(&mut resume), Action::Over(Over::Unsure(Failure::Unexpected(_)))));
    let mut resume = beginning();
    resume.handle_reply(Reply::Error("a node was lost".to_owned()));
    assert!(matches!(next(&mut resume), Action::Unmark));
    not_begun(resume, "a node was lost");
}
