//! Replicas, new protectors, and logs of which another protector has more.

use super::*;

/// A replica's answer to a hello: it has nothing yet.
const WELCOME: FromProtector<'static> = FromProtector::Welcome { journal: 0, payload: 0, image: None };

/// A piece that came later was written first, and is not stable for that: a new replica is given it all the same.
#[test]
fn a_new_replica_gets_what_was_written_before_its_turn() {
    for unreplicated in [false, true] {
        let durable = Config { durable: true, memory: 0, ..CONFIG };
        let (mut store, mut replica) = (begun(durable), Store::new(CONFIG));
        let id = speaker(0).process;
        for (position, stream, bytes) in [(0, stream(1), b"first"), (5, stream(2), b"later")] {
            store.handle_message(speaker(0), &ToProtector::Payload { position, stream, offset: 0, bytes }).unwrap();
        }
        let writes: Vec<_> = std::iter::from_fn(|| store.poll_write(100)).collect();
        let later = writes.iter().find(|write| write.file == File::Stream(id, stream(2))).unwrap();
        store.handle_written(later.file, 5);
        assert_eq!(said(&mut store), [""; 0], "the first is not written");
        if unreplicated {
            store.set_replica(id, false);
        }
        store.set_replica(id, true);
        pass_on(&mut store, &mut replica);
        let next = ToProtector::Payload { position: 10, stream: stream(2), offset: 5, bytes: b"next" };
        assert_eq!(replica.handle_message(speaker(0), &next), Ok(()));
    }
}

/// Payload over the bound is not acknowledged before a checkpoint, and may be in a file by then: a new replica is given it all
/// the same.
#[test]
fn a_new_replica_gets_what_is_over_the_bound() {
    let (mut store, mut replica) = (begun(Config { memory: 0, log: 4, ..CONFIG }), Store::new(CONFIG));
    store
        .handle_message(speaker(0), &ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"first" })
        .unwrap();
    write_all(&mut store);
    assert_eq!(store.stable_of(speaker(0).process, stream(1)), 0);
    store.set_replica(speaker(0).process, true);
    pass_on(&mut store, &mut replica);
    let next = ToProtector::Payload { position: 5, stream: stream(1), offset: 5, bytes: b"next" };
    assert_eq!(replica.handle_message(speaker(0), &next), Ok(()));
}

/// An image came before the journal that it covers. Its replica is lost before it has acknowledged any of that: the next one gets what comes after the cut.
#[test]
fn what_an_image_covers_is_not_asked_of_the_journal_for_a_new_replica() {
    let (mut store, mut replica) = (begun(CONFIG), Store::new(CONFIG));
    let id = speaker(0).process;
    store.set_replica(id, true);
    image(&mut store, 0, 4, &[]);
    store.handle_verified(id, 0, true);
    store.handle_replica(id, &FromProtector::Committed { image: 0, oldest: 0 });
    assert!(store.has_image(id));
    store.handle_message(speaker(0), &ToProtector::Journal { position: 4, bytes: b"after" }).unwrap();
    said(&mut store);
    store.set_replica(id, true);
    pass_on(&mut store, &mut replica);
    assert_eq!((replica.journal_end(id), store.journal_end(id)), (9, 9));
}

#[test]
fn the_last_replica_decides() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.set_replica(id, true);
    said(&mut store);
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abc" }).unwrap();
    assert_eq!(said(&mut store), ["forward Journal { position: 0, bytes: [97, 98, 99] }"]);
    store.handle_replica(id, &FromProtector::JournalStable { position: 2 });
    assert_eq!(said(&mut store), ["JournalStable { position: 2 }"]);
    assert_eq!(store.restart(id, Incarnation::restarted(1)), Err(NoRestart::NoImage));
    store.set_replica(id, false);
    assert_eq!(said(&mut store), ["JournalStable { position: 3 }"]);
}

/// Positions in the payload belong to an incarnation. A new replica answers the hello for the incarnation before when the next one counts from 0 already.
#[test]
fn what_a_replica_says_of_the_incarnation_before_makes_nothing_of_the_next_stable() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    let received = |position, offset| ToProtector::Payload { position, stream: stream(1), offset, bytes: b"received" };
    store.handle_message(speaker(0), &received(0, 0)).unwrap();
    store.set_replica(id, true);
    store.restart(id, Incarnation::restarted(1)).unwrap();
    store.handle_message(speaker(1), &hello(speaker(1), 0)).unwrap();
    store.handle_replica(id, &FromProtector::Welcome { journal: 0, payload: 8, image: None });
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    store.handle_message(speaker(1), &received(0, 8)).unwrap();
    assert_eq!(store.stable_of(id, stream(1)), 8, "the replica has not said that it has more");
    store.handle_replica(id, &WELCOME);
    assert_eq!(store.stable_of(id, stream(1)), 8);
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    assert_eq!(store.stable_of(id, stream(1)), 16);
}

/// An image holds what was received and not read, and says how far was read: a new replica must not take that for the end of what
/// came.
#[test]
fn an_image_that_says_less_than_was_acknowledged_leaves_no_gap_at_a_new_replica() {
    let (mut store, mut replica) = (begun(CONFIG), Store::new(CONFIG));
    let id = speaker(0).process;
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    store.handle_message(speaker(0), &payload).unwrap();
    assert!(said(&mut store).contains(&"PayloadStable { position: 8 }".to_owned()));
    store.set_replica(id, true);
    let streams = [(stream(1), 3)];
    pass_on(&mut store, &mut replica);
    image_after(&mut replica, 0, 0, 8, &streams);
    replica.handle_verified(id, 0, true);
    assert!(replica.can_restart(id));
    let more = ToProtector::Payload { position: 8, stream: stream(1), offset: 8, bytes: b"more" };
    assert_eq!(replica.handle_message(speaker(0), &more), Ok(()));
}

/// A log server that is to hold a copy may have had all of it, because it held it for another protector. Then its welcome is the
/// last that it says, and must open the gate.
#[test]
fn a_replica_that_has_all_already_opens_the_gate() {
    let (mut store, mut replica) = (begun(CONFIG), begun(CONFIG));
    let id = speaker(0).process;
    let journal = ToProtector::Journal { position: 0, bytes: b"abc" };
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    for message in [journal, payload] {
        replica.handle_message(speaker(0), &message).unwrap();
    }
    said(&mut replica);
    store.set_replica(id, true);
    said(&mut store);
    for message in [hello(speaker(0), 8), journal, payload] {
        store.handle_message(speaker(0), &message).unwrap();
    }
    assert!(!said(&mut store).iter().any(|said| said.starts_with("JournalStable")));
    store.set_replica(id, true);
    pass_on(&mut store, &mut replica);
    while let Some(output) = replica.poll_output() {
        if let Output::Send(_, message) = output {
            store.handle_replica(id, &FromProtector::read(&message).unwrap());
        }
    }
    let acknowledged = said(&mut store);
    assert_eq!(acknowledged, ["JournalStable { position: 3 }", "PayloadStable { position: 8 }"]);
}

/// The protector is new and the replica is not. The protector claims what the process has announced, also before that has come.
#[test]
fn a_replica_that_knows_more_than_a_new_protector_is_not_contradicted() {
    let (mut store, mut replica) = (Store::new(CONFIG), begun(CONFIG));
    let id = speaker(0).process;
    let journal = ToProtector::Journal { position: 0, bytes: b"abc" };
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    for message in [journal, payload] {
        replica.handle_message(speaker(0), &message).unwrap();
    }
    store.handle_message(speaker(0), &hello(speaker(0), 8)).unwrap();
    store.set_replica(id, true);
    store.handle_message(speaker(0), &journal).unwrap();
    // The connection to the replica is there now.
    said(&mut store);
    store.set_replica(id, true);
    pass_on(&mut store, &mut replica);
    while let Some(output) = replica.poll_output() {
        if let Output::Send(_, message) = output {
            store.handle_replica(id, &FromProtector::read(&message).unwrap());
        }
    }
    assert_eq!(said(&mut store)[..], ["JournalStable { position: 3 }"], "payload that is not here is not acknowledged");
}

/// A process is fenced, and its log is not settled yet. A replica that joins now gets what the incarnation before has said, in
/// its name. In the next one's name it would hold payload that that one does not know, and refuse it forever.
#[test]
fn a_replica_that_joins_after_the_fence_learns_of_one_incarnation_after_the_other() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    store.set_replica(id, true);
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"received" };
    store.handle_message(speaker(0), &payload).unwrap();
    assert_eq!(store.restart(id, Incarnation::restarted(1)), Err(NoRestart::Unstable), "the replica has said nothing");
    said(&mut store);
    store.set_replica(id, true);
    let hellos = |store: &mut Store| said(store).into_iter().filter(|said| said.starts_with("forward Hello")).collect::<Vec<_>>();
    let [of_before] = &hellos(&mut store)[..] else { panic!("one hello") };
    assert!(
        of_before.contains(&format!("incarnation: {:?}", Incarnation::FIRST))
            && of_before.ends_with("payload: Span { start: 0, end: 8 }, image: None, committed: None }"),
        "{of_before}"
    );
    store.handle_replica(id, &WELCOME);
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    store.restart(id, Incarnation::restarted(1)).unwrap();
    let [of_next] = &hellos(&mut store)[..] else { panic!("one hello") };
    assert!(
        of_next.contains(&format!("incarnation: {:?}", Incarnation::restarted(1)))
            && of_next.ends_with("payload: Span { start: 0, end: 0 }, image: None, committed: None }"),
        "{of_next}"
    );
}

/// A log takes its time to become stable, and its process is lost once more meanwhile. The wait for the earlier incarnation
/// changes nothing of the one that speaks.
#[test]
fn an_incarnation_that_was_fenced_while_its_log_was_waited_for_gets_nothing() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    store.set_replica(id, true);
    let payload = |position, offset| ToProtector::Payload { position, stream: stream(1), offset, bytes: b"received" };
    store.handle_message(speaker(0), &payload(0, 0)).unwrap();
    for restart in [1, 2] {
        assert_eq!(store.restart(id, Incarnation::restarted(restart)), Err(NoRestart::Unstable));
    }
    store.handle_replica(id, &WELCOME);
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    store.restart(id, Incarnation::restarted(2)).unwrap();
    store.handle_replica(id, &WELCOME);
    store.handle_message(speaker(2), &hello(speaker(2), 0)).unwrap();
    store.handle_message(speaker(2), &payload(0, 8)).unwrap();
    store.handle_replica(id, &FromProtector::PayloadStable { position: 8 });
    said(&mut store);
    assert_eq!(store.restart(id, Incarnation::restarted(1)), Err(NoRestart::NoImage));
    assert_eq!(said(&mut store), [""; 0]);
    store.handle_message(speaker(2), &payload(8, 16)).unwrap();
}

/// A replica commits an image before the protector that leads. If the replica answered for it and was lost with the receiver
/// then, the receiver would come back from an older image and need bytes that their sender had dropped by the replica's word.
#[test]
fn only_a_log_that_can_bring_the_receiver_back_says_what_is_stable() {
    let mut store = Store::new(CONFIG);
    let (speaker, epoch) = (speaker(0), Epoch::FIRST);
    store.handle_message(speaker, &hello(speaker, 0)).unwrap();
    let payload = ToProtector::Payload { position: 0, stream: stream(1), offset: 0, bytes: b"12345" };
    store.handle_message(speaker, &payload).unwrap();
    let says = |store: &Store| store.stable_in(speaker.process, epoch, stream(1));
    assert_eq!(says(&store), 5);
    store.follow(speaker.process);
    assert_eq!((says(&store), store.stable_of(speaker.process, stream(1))), (0, 5), "the one that leads says it");
    store.take_over(speaker.process);
    assert_eq!(says(&store), 5);
    store.let_go(speaker.process);
    assert_eq!(says(&store), 0, "the log goes on elsewhere");
}

/// The store holds nothing of what another protector held. For the sender it is enough that the receiver has it: a process that
/// is brought back from here comes back from an image that has it.
#[test]
fn a_new_protector_knows_where_streams_go_on_before_it_has_an_image() {
    let mut store = Store::new(CONFIG);
    let speaker = speaker(0);
    let span = Span { start: 7, end: 7 };
    let hello = ToProtector::hello(speaker.process, speaker.incarnation, span, span);
    store.handle_message(speaker, &hello).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 0);
    let goes_on = |stream, offset| ToProtector::Payload { position: 7, stream, offset, bytes: b"" };
    store.handle_message(speaker, &goes_on(stream(1), 5)).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 5);
    store.handle_message(speaker, &goes_on(stream(1), 9)).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 5, "it is known already");
    let more = ToProtector::Payload { position: 7, stream: stream(1), offset: 5, bytes: b"more" };
    store.handle_message(speaker, &more).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(1)), 9);
    image_after(&mut store, 0, 7, 11, &[(stream(1), 9)]);
    store.handle_verified(speaker.process, 0, true);
    store.handle_message(speaker, &goes_on(stream(2), 5)).unwrap();
    assert_eq!(store.stable_of(speaker.process, stream(2)), 0, "the process with the image knows itself");
}

/// A replica that is told to begin while an image is on its way gets the log from after that image's cut. With that image it
/// would hold a stream with a hole, and take nothing more of it.
#[test]
fn an_image_of_before_the_log_begins_is_refused() {
    let mut store = Store::new(CONFIG);
    let speaker = speaker(0);
    let (journal, payload) = (Span { start: 5, end: 5 }, Span { start: 8, end: 8 });
    let hello = ToProtector::hello(speaker.process, speaker.incarnation, journal, payload);
    store.handle_message(speaker, &hello).unwrap();
    said(&mut store);
    image_after(&mut store, 0, 5, 7, &[(stream(1), 7)]);
    assert_eq!(said(&mut store), ["ImageRefused { image: 0 }"]);
    let piece = ToProtector::Payload { position: 8, stream: stream(1), offset: 8, bytes: b"more" };
    assert_eq!(store.handle_message(speaker, &piece), Ok(()));
    image_after(&mut store, 1, 5, 8, &[(stream(1), 8)]);
    assert!(said(&mut store).iter().any(|said| said.starts_with("Verify")));
}

/// A node that is to protect a process of a job that has restarted, and has heard nothing of it since, has nothing to bring it
/// back from: what it holds is of another past.
#[test]
fn nobody_comes_back_from_a_log_of_before_the_job_restarted() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    assert!(store.clone().restart(id, Incarnation::restarted(1)).is_ok());
    said(&mut store);
    for incarnation in [launched(1).incarnation.next(), launched(1).incarnation.next().next()] {
        assert_eq!(store.restart(id, incarnation), Err(NoRestart::NoImage));
    }
    assert!(said(&mut store).iter().any(|said| said.starts_with("Delete(Image")));
    let relaunched = launched(2);
    store.handle_message(relaunched, &hello(relaunched, 0)).unwrap();
    assert!(said(&mut store).contains(&"ImageWanted".to_owned()));
}

/// A node that has not heard that a job restarts still has a log of an earlier epoch. That log is of no use, and must not be in
/// the way of the next one. A replica still holds its copy.
#[test]
fn a_job_that_restarts_has_no_log_of_before() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abcdef" }).unwrap();
    store.set_replica(id, true);
    said(&mut store);
    let relaunched = launched(1);
    assert_eq!(store.handle_message(relaunched, &hello(relaunched, 0)), Ok(()));
    assert_eq!((store.journal_end(id), store.is_replicated(id)), (0, true));
    let forwarded = said(&mut store).into_iter().find(|said| said.starts_with("forward Hello")).expect("its replica hears of it");
    assert!(forwarded.contains(&format!("{:?}, journal: Span {{ start: 0, end: 0 }}", relaunched.incarnation)), "{forwarded}");
    assert!(store.handle_message(speaker(1), &hello(speaker(1), 6)).is_err(), "an older incarnation");
}

/// The store has an image and a log, but another protector has acknowledged more since.
#[test]
fn what_another_protector_has_led_since_restarts_nothing() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    assert!(store.can_restart(id));
    store.let_go(id);
    assert!(!store.can_restart(id));
    assert_eq!(store.restart(id, Incarnation::restarted(1)), Err(NoRestart::NoImage));
    // The process comes back, and what it has kept goes on where this log ends.
    assert_eq!(store.handle_message(speaker(1), &hello(speaker(1), 0)), Ok(()));
    store.take_up(id);
    assert!(store.restart(id, Incarnation::restarted(2)).is_ok());
    // In an incarnation that began elsewhere it cannot go on: some payload of the one before may be missing.
    store.let_go(id);
    assert_eq!(store.handle_message(speaker(3), &hello(speaker(3), 0)), Ok(()));
    store.take_up(id);
    assert!(!store.has_image(id) && !store.can_restart(id));
}

/// What has been acknowledged elsewhere is still on its way here when the process says hello.
#[test]
fn a_log_that_was_let_go_restarts_nothing_before_it_has_what_was_acknowledged_elsewhere() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    store.let_go(id);
    let told = ToProtector::hello(id, Incarnation::FIRST, Span { start: 0, end: 6 }, Span::default());
    assert_eq!(store.handle_message(speaker(0), &told), Ok(()));
    store.take_up(id);
    assert!(!store.can_restart(id) && store.has_let_go(id));
    store.follow(id);
    store.take_over(id);
    assert!(!store.can_restart(id), "nor does it follow");
    store.handle_message(speaker(0), &ToProtector::Journal { position: 0, bytes: b"abc" }).unwrap();
    assert!(!store.can_restart(id));
    store.handle_message(speaker(0), &ToProtector::Journal { position: 3, bytes: b"def" }).unwrap();
    assert!(store.can_restart(id) && !store.has_let_go(id));
}

#[test]
fn a_copy_restarts_what_its_leader_was_lost_with_and_nothing_else() {
    let mut store = begun(CONFIG);
    let id = speaker(0).process;
    store.follow(id);
    image(&mut store, 0, 0, &[]);
    store.handle_verified(id, 0, true);
    assert_eq!(store.restart(id, Incarnation::restarted(1)), Err(NoRestart::NoImage), "its leader does that");
    store.take_over(id);
    assert!(store.restart(id, Incarnation::restarted(1)).is_ok());
    // What was let go stays so, whatever forwards it and whatever is lost.
    store.let_go(id);
    store.follow(id);
    store.take_over(id);
    assert_eq!(store.restart(id, Incarnation::restarted(2)), Err(NoRestart::NoImage));
    assert!(store.has_let_go(id));
}
