//! What is decided about images that are fetched, with no network and no file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
use radic_wire::login::OFFER;
use radic_wire::mac::MAC;

use super::fetch::{AGAIN, REACHED};
use super::*;
use crate::store::Speaker;

const CODE: [u8; MAC] = [7; MAC];

fn process(rank: u32) -> ProcessId {
    ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
}

fn speaker() -> Speaker {
    Speaker { process: process(0), incarnation: Incarnation::restarted(1) }
}

fn service(port: u16) -> SocketAddr {
    ([10, 0, 0, 2], port).into()
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn offer(bytes: u64) -> [u8; OFFER] {
    Offer::encode(Some(Offer { bytes, code: CODE }))
}

fn fetch(source: Source, replica: Option<SocketAddr>, images: &[(u64, u64)]) -> Fetch {
    Fetch::new(at(0), speaker(), source, replica, images.to_vec())
}

/// Everything that is wanted.
fn actions(fetch: &mut Fetch) -> Vec<FetchAction> {
    std::iter::from_fn(|| fetch.poll_action()).collect()
}

fn over(fetch: &mut Fetch) -> FetchError {
    match actions(fetch).pop() {
        Some(FetchAction::Over(Err(error))) => error,
        other => panic!("{other:?}"),
    }
}

/// The log service that was dialed gives the next image.
fn give(fetch: &mut Fetch, now: u64, length: u64) {
    fetch.handle_admitted(at(now));
    fetch.handle_offer(at(now), &offer(length));
    fetch.handle_bytes(at(now), length);
    fetch.handle_end(at(now), &CODE);
}

#[test]
fn images_are_fetched_one_by_one_each_over_a_connection_of_its_own() {
    let mut fetch = fetch(Source::At(service(1)), None, &[(3, 20), (4, 100), (5, 30)]);
    assert_eq!(fetch.chain(), [5, 4, 3]);
    let dial = FetchAction::Dial(service(1), speaker());
    assert_eq!(actions(&mut fetch), std::slice::from_ref(&dial));
    fetch.handle_admitted(at(1));
    assert_eq!(actions(&mut fetch), [FetchAction::Ask(5)], "the newest first");
    assert!(fetch.awaits_offer());
    fetch.handle_offer(at(2), &offer(30));
    assert_eq!(actions(&mut fetch), [FetchAction::Reserve(5, 30)]);
    fetch.handle_bytes(at(3), 20);
    fetch.handle_bytes(at(4), 10);
    assert_eq!(actions(&mut fetch), []);
    fetch.handle_end(at(5), &CODE);
    assert_eq!(actions(&mut fetch), [FetchAction::Keep(5), FetchAction::Close, dial.clone()]);
    give(&mut fetch, 6, 20);
    assert_eq!(actions(&mut fetch)[1..], [FetchAction::Reserve(3, 20), FetchAction::Keep(3), FetchAction::Close, dial]);
    give(&mut fetch, 7, 100);
    // The longest one.
    let last = [FetchAction::Ask(4), FetchAction::Stream(4), FetchAction::Keep(4), FetchAction::Close, FetchAction::Assemble];
    assert_eq!(actions(&mut fetch), last);
    assert_eq!(fetch.poll_timeout(), None);
    fetch.handle_assembled(Ok(()));
    assert_eq!(actions(&mut fetch), [FetchAction::Close, FetchAction::Over(Ok(()))]);
    assert!(fetch.take_damage().is_empty());
}

#[test]
fn images_of_this_node_are_opened() {
    let mut fetch = fetch(Source::Here, None, &[(4, 100), (5, 30)]);
    assert_eq!(actions(&mut fetch), [FetchAction::Open(5)]);
    fetch.handle_opened(at(1), Ok(()));
    assert_eq!(actions(&mut fetch), [FetchAction::Keep(5), FetchAction::Close, FetchAction::Read(4)]);
    fetch.handle_opened(at(1), Ok(()));
    _ = actions(&mut fetch);
    fetch.handle_assembled(Err("they are two programs".to_owned()));
    assert_eq!(over(&mut fetch), FetchError::Apart("they are two programs".to_owned()));
}

/// All images come anew, from the replica, once.
#[test]
fn images_that_cannot_be_put_together_in_time_are_taken_from_the_replica() {
    let mut fetch = fetch(Source::Here, Some(service(2)), &[(4, 100), (5, 30)]);
    let here = |fetch: &mut Fetch| (0..2).for_each(|_| fetch.handle_opened(at(1), Ok(())));
    here(&mut fetch);
    _ = actions(&mut fetch);
    fetch.handle_stuck(at(2), "no answer");
    let dial = FetchAction::Dial(service(2), speaker());
    assert_eq!(actions(&mut fetch), [FetchAction::Close, dial]);
    assert_eq!(fetch.take_damage(), ["no answer; its replica's copies are taken"]);
    give(&mut fetch, 3, 30);
    give(&mut fetch, 4, 100);
    assert_eq!(actions(&mut fetch).pop(), Some(FetchAction::Assemble));
    fetch.handle_stuck(at(5), "no answer again");
    assert_eq!(over(&mut fetch), FetchError::Apart("no answer again".to_owned()));
    let mut alone = self::fetch(Source::Here, None, &[(4, 100), (5, 30)]);
    here(&mut alone);
    alone.handle_stuck(at(2), "no answer");
    assert_eq!(over(&mut alone), FetchError::Apart("no answer".to_owned()));
}

#[test]
fn an_order_without_an_image_fails_at_once() {
    let mut fetch = fetch(Source::Here, None, &[]);
    assert_eq!(over(&mut fetch), FetchError::NoImage);
}

#[test]
fn each_wait_has_a_limit() {
    let images = [(4, 100)];
    let ended = |fetch: &mut Fetch, due: Duration| {
        assert_eq!(fetch.poll_timeout(), Some(due));
        fetch.handle_timeout(due - at(1));
        assert_eq!(fetch.poll_timeout(), Some(due), "nothing is due yet");
        fetch.handle_timeout(due);
        assert_eq!(fetch.poll_timeout(), None);
        over(fetch).cause().clone()
    };
    let mut silent = fetch(Source::At(service(1)), None, &images);
    silent.handle_timeout(LOGIN);
    assert_eq!(silent.poll_timeout(), Some(LOGIN + AGAIN), "this node itself may not have run, so it asks again");
    silent.handle_timeout(LOGIN + AGAIN);
    assert!(matches!(ended(&mut silent, LOGIN + AGAIN + LOGIN), FetchError::Service(of, _) if of == service(1)));
    let mut copied = fetch(Source::At(service(1)), Some(service(2)), &images);
    copied.handle_timeout(LOGIN);
    assert_eq!(actions(&mut copied).last(), Some(&FetchAction::Dial(service(2), speaker())), "a replica is asked at once");
    let mut asked = fetch(Source::At(service(1)), None, &images);
    asked.handle_admitted(at(10));
    assert!(matches!(ended(&mut asked, at(10) + SILENCE), FetchError::Service(..)));
    let mut halfway = fetch(Source::At(service(1)), None, &images);
    halfway.handle_admitted(at(10));
    halfway.handle_offer(at(20), &offer(100));
    halfway.handle_bytes(at(29_000), 1);
    // Each piece begins the time anew.
    assert!(matches!(ended(&mut halfway, at(29_000) + SILENCE), FetchError::Service(..)));
}

#[test]
fn the_only_log_service_is_asked_again_for_some_time() {
    let mut fetch = fetch(Source::At(service(1)), None, &[(4, 130), (5, 100)]);
    let dial = FetchAction::Dial(service(1), speaker());
    assert_eq!(actions(&mut fetch), std::slice::from_ref(&dial));
    fetch.handle_admitted(at(1));
    fetch.handle_offer(at(1), &offer(100));
    fetch.handle_bytes(at(1), 60);
    _ = actions(&mut fetch);
    fetch.handle_gone(at(2), "reset");
    assert_eq!((actions(&mut fetch), fetch.poll_timeout()), (vec![FetchAction::Close], Some(at(2) + AGAIN)));
    fetch.handle_timeout(at(2) + AGAIN);
    assert_eq!(actions(&mut fetch), [dial]);
    // All of the image comes once more.
    give(&mut fetch, 60, 100);
    _ = actions(&mut fetch);
    let mut now = at(100);
    fetch.handle_gone(now, "no route");
    while let Some(due) = fetch.poll_timeout() {
        _ = actions(&mut fetch);
        now = due;
        fetch.handle_timeout(now);
        fetch.handle_gone(now, "no route");
    }
    assert!(now >= at(100) + REACHED && now < at(100) + REACHED + AGAIN * 2, "{now:?}");
    assert_eq!(*over(&mut fetch).cause(), FetchError::Service(service(1), "no route".to_owned()));
}

#[test]
fn what_is_not_offered_as_it_was_said_is_not_taken() {
    let held = |answer: &[u8]| {
        let mut fetch = fetch(Source::At(service(1)), None, &[(4, 100)]);
        fetch.handle_admitted(at(1));
        fetch.handle_offer(at(1), answer);
        fetch
    };
    for answer in [&offer(99)[..], &offer(101), &Offer::encode(None), &offer(100)[1..], b""] {
        assert_eq!(*over(&mut held(answer)).cause(), FetchError::NotHeld(service(1), 4), "{answer:?}");
    }
    let mut longer = held(&offer(100));
    longer.handle_bytes(at(2), 101);
    assert_eq!(*over(&mut longer).cause(), FetchError::NotHeld(service(1), 4));
    let mut shorter = held(&offer(100));
    shorter.handle_bytes(at(2), 99);
    shorter.handle_end(at(2), &CODE);
    assert_eq!(*over(&mut shorter).cause(), FetchError::NotHeld(service(1), 4));
    let mut changed = held(&offer(100));
    changed.handle_bytes(at(2), 100);
    changed.handle_end(at(2), &[8; MAC]);
    assert_eq!(*over(&mut changed).cause(), FetchError::Bad(4, WRONG_CODE.to_owned()));
    let mut full = held(&offer(100));
    full.handle_no_room(at(2), "in /full".to_owned());
    let error = over(&mut full);
    assert_eq!(error.to_string(), "there is no room for image 4 of 100 bytes in /full; there is no replica of it (--replicas 2)");
}

#[test]
fn an_offer_is_what_the_log_server_holds_and_the_file_has() {
    let found = Offer { bytes: 100, code: CODE };
    assert_eq!(Offer::of(Some(100), Some(found)), Some(found));
    assert_eq!(Offer::of(Some(99), Some(found)), None, "another image has its name by now");
    assert_eq!((Offer::of(None, Some(found)), Offer::of(Some(100), None)), (None, None));
    assert_eq!(Offer::read(&Offer::encode(Some(found))), Some(found));
    assert_eq!(Offer::read(&Offer::encode(None)), None);
}

#[test]
fn the_replica_s_copy_stands_in_for_one_image_and_that_is_told() {
    let mut fetch = fetch(Source::Here, Some(service(2)), &[(4, 130), (5, 100)]);
    _ = actions(&mut fetch);
    fetch.handle_opened(at(1), Err("it is damaged".to_owned()));
    assert_eq!(actions(&mut fetch), [FetchAction::Close, FetchAction::Dial(service(2), speaker())]);
    give(&mut fetch, 2, 100);
    let all = actions(&mut fetch);
    assert_eq!(all.last(), Some(&FetchAction::Read(4)), "the next one is looked for in its place again");
    assert_eq!(fetch.take_damage(), ["image 5: it is damaged; its replica's copy is taken"]);
}

#[test]
fn a_replica_that_has_not_heard_of_the_incarnation_is_asked_again_for_a_while() {
    let mut fetch = fetch(Source::At(service(1)), Some(service(2)), &[(4, 100)]);
    fetch.handle_gone(at(10), "no listener");
    let mut now = at(10);
    let mut asked = 0;
    let error = loop {
        match actions(&mut fetch).pop() {
            Some(FetchAction::Dial(to, _)) => {
                assert_eq!(to, service(2));
                asked += 1;
                fetch.handle_gone(now, "closed");
            }
            Some(FetchAction::Close) => {
                now = fetch.poll_timeout().expect("it pauses");
                fetch.handle_timeout(now);
            }
            Some(FetchAction::Over(Err(error))) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert!((50..80).contains(&asked) && now >= at(3_010) && now < at(3_100), "{asked} times until {now:?}");
    assert_eq!(
        error.to_string(),
        "the log service at 10.0.0.2:1: no listener; and its replica: the log service at 10.0.0.2:2: closed"
    );
}

/// The replica may have no log of the process yet. A log service whose connection broke may well be there again.
#[test]
fn what_its_replica_does_not_hold_is_asked_of_the_log_service_again_for_some_time() {
    let mut fetch = fetch(Source::At(service(1)), Some(service(2)), &[(4, 100)]);
    let asked = |fetch: &mut Fetch| match actions(fetch).pop() {
        Some(FetchAction::Dial(to, _)) => to,
        other => panic!("{other:?}"),
    };
    let unheld = |fetch: &mut Fetch, now: Duration| {
        assert_eq!(asked(fetch), service(2));
        fetch.handle_admitted(now);
        fetch.handle_offer(now, &Offer::encode(None));
    };
    let mut now = at(10);
    assert_eq!(asked(&mut fetch), service(1));
    for _ in 0..3 {
        fetch.handle_gone(now, "reset");
        unheld(&mut fetch, now);
        now = fetch.poll_timeout().expect("it pauses");
        fetch.handle_timeout(now);
        assert_eq!(asked(&mut fetch), service(1));
    }
    let mut others = fetch;
    give(&mut others, now.as_millis() as u64, 100);
    assert_eq!(actions(&mut others).last(), Some(&FetchAction::Assemble));
    // But not for ever, and not for what it says it does not hold.
    let mut fetch = self::fetch(Source::At(service(1)), Some(service(2)), &[(4, 100)]);
    let mut now = at(10);
    while asked(&mut fetch) == service(1) {
        fetch.handle_gone(now, "reset");
        unheld(&mut fetch, now);
        let Some(due) = fetch.poll_timeout() else { break };
        now = due;
        fetch.handle_timeout(now);
    }
    assert!(matches!(over(&mut fetch), FetchError::Neither(..)));
    assert!(now >= at(10) + REACHED && now <= at(10) + REACHED + AGAIN, "{now:?}");
    let mut fetch = self::fetch(Source::At(service(1)), Some(service(2)), &[(4, 100)]);
    fetch.handle_admitted(at(10));
    fetch.handle_offer(at(10), &Offer::encode(None));
    _ = actions(&mut fetch);
    fetch.handle_admitted(at(20));
    fetch.handle_offer(at(20), &Offer::encode(None));
    assert!(matches!(over(&mut fetch), FetchError::Neither(..)));
}

#[test]
fn what_is_given_up_ends_wherever_it_is() {
    for steps in 0..5 {
        let mut fetch = fetch(Source::At(service(1)), Some(service(2)), &[(4, 100)]);
        let all: [&dyn Fn(&mut Fetch); 4] = [
            &|fetch| fetch.handle_admitted(at(1)),
            &|fetch| fetch.handle_offer(at(1), &offer(100)),
            &|fetch| fetch.handle_bytes(at(1), 100),
            &|fetch| fetch.handle_end(at(1), &CODE),
        ];
        all[..steps].iter().for_each(|step| step(&mut fetch));
        _ = actions(&mut fetch);
        fetch.handle_given_up();
        assert_eq!(actions(&mut fetch), [FetchAction::Close, FetchAction::Over(Err(FetchError::GivenUp))]);
        fetch.handle_given_up();
        assert_eq!(actions(&mut fetch), [], "there is one end");
    }
}

// ---- orders

fn order(rank: u32) -> RestoreOrder {
    let (process, log, kvsname) = (process(rank), service(1), "k".to_owned());
    let (images, library) = (vec![(1, 10)], "lib".to_owned());
    let incarnation = Incarnation::restarted(1);
    RestoreOrder { process, incarnation, log, local: false, replica: None, images, kvsname, stdin: false, library }
}

fn wanted(orders: &mut Orders) -> Vec<OrdersAction> {
    std::iter::from_fn(|| orders.poll_action()).collect()
}

/// The numbers of the orders that were begun.
fn begun(orders: &mut Orders) -> Vec<(OrderNumber, u32)> {
    let begun = |action| match action {
        OrdersAction::Begin(number, order) => Some((number, order.process.rank.0)),
        _ => None,
    };
    wanted(orders).into_iter().filter_map(begun).collect()
}

#[test]
fn few_orders_are_carried_out_at_once_and_the_others_in_turn() {
    let mut orders = Orders::new(2);
    (0..4).for_each(|rank| orders.handle_order(order(rank)));
    let first = begun(&mut orders);
    assert_eq!(first.iter().map(|(_, rank)| *rank).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(orders.handle_ready(first[1].0), Use::Answer);
    let next = begun(&mut orders);
    assert_eq!(next.iter().map(|(_, rank)| *rank).collect::<Vec<_>>(), [2]);
    assert_eq!(orders.handle_ready(first[1].0), Use::Nothing, "each is answered once");
}

#[test]
fn an_order_is_replaced_by_the_next_for_its_process() {
    let mut orders = Orders::new(1);
    (0..2).for_each(|_| orders.handle_order(order(0)));
    let all = wanted(&mut orders);
    let [OrdersAction::Begin(first, _), OrdersAction::Stop(stopped)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(first, stopped);
    assert_eq!(orders.handle_ready(*first), Use::Nothing);
    let second = begun(&mut orders);
    assert_eq!(orders.handle_ready(second[0].0), Use::Answer);
}

#[test]
fn what_is_given_up_is_answered_and_what_is_forgotten_is_not() {
    let mut orders = Orders::new(1);
    (0..3).for_each(|rank| orders.handle_order(order(rank)));
    let first = begun(&mut orders)[0].0;
    assert!(orders.give_up(process(0)) && orders.give_up(process(1)) && !orders.give_up(process(9)));
    let all = wanted(&mut orders);
    let [OrdersAction::Stop(stopped), OrdersAction::Refuse(refused, of, FetchError::GivenUp)] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!((*stopped, of.process), (first, process(1)));
    assert_eq!((orders.handle_ready(first), orders.handle_ready(*refused)), (Use::GivenUp, Use::Answer));
    let third = begun(&mut orders)[0].0;
    orders.forget(|_| true);
    assert!(!orders.give_up(process(2)), "nothing is left that could be answered");
    assert_eq!(orders.handle_ready(third), Use::Nothing);
}

#[test]
fn the_queue_of_orders_is_bounded() {
    let mut orders = Orders::bounded(1, 2);
    (0..3).for_each(|rank| orders.handle_order(order(rank)));
    assert_eq!(begun(&mut orders).len(), 1);
    orders.handle_order(order(3));
    let all = wanted(&mut orders);
    let [OrdersAction::Refuse(number, _, FetchError::Crowd)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(orders.handle_ready(*number), Use::Answer);
}

// ---- whatever happens

/// What may happen to a fetch.
#[derive(Debug, Clone)]
enum Happens {
    Opened(bool),
    Admitted,
    Offer(u64),
    NotHeld,
    Bytes(u64),
    End(bool),
    NoRoom,
    Gone,
    Assembled(bool),
    GivenUp,
    Later(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => any::<bool>().prop_map(Happens::Opened),
        6 => Just(Happens::Admitted),
        6 => (9u64..12).prop_map(Happens::Offer),
        1 => Just(Happens::NotHeld),
        8 => (0u64..12).prop_map(Happens::Bytes),
        6 => any::<bool>().prop_map(Happens::End),
        1 => Just(Happens::NoRoom),
        2 => Just(Happens::Gone),
        2 => any::<bool>().prop_map(Happens::Assembled),
        1 => Just(Happens::GivenUp),
        3 => (1u64..40_000).prop_map(Happens::Later),
    ]
}

fn happen(fetch: &mut Fetch, now: &mut Duration, what: Happens) {
    let at = *now;
    match what {
        Happens::Opened(well) => fetch.handle_opened(at, if well { Ok(()) } else { Err("damaged".to_owned()) }),
        Happens::Admitted => fetch.handle_admitted(at),
        Happens::Offer(bytes) => fetch.handle_offer(at, &offer(bytes)),
        Happens::NotHeld => fetch.handle_offer(at, &Offer::encode(None)),
        Happens::Bytes(count) => fetch.handle_bytes(at, count),
        Happens::End(well) => fetch.handle_end(at, &[if well { 7 } else { 8 }; MAC]),
        Happens::NoRoom => fetch.handle_no_room(at, "in /full".to_owned()),
        Happens::Gone => fetch.handle_gone(at, "reset"),
        Happens::Assembled(well) => fetch.handle_assembled(if well { Ok(()) } else { Err("apart".to_owned()) }),
        Happens::GivenUp => fetch.handle_given_up(),
        Happens::Later(ms) => {
            *now += Duration::from_millis(ms);
            fetch.handle_timeout(*now);
        }
    }
}

/// What a driver has, and what it sees of the rules for it.
#[derive(Default)]
struct Driver {
    is_connected: bool,
    /// Whether there is a place for the image that comes.
    has_place: bool,
    kept: usize,
    ends: Vec<Result<(), FetchError>>,
}

impl Driver {
    fn carry_out(&mut self, fetch: &mut Fetch, images: usize) {
        while let Some(action) = fetch.poll_action() {
            match action {
                FetchAction::Dial(..) => {
                    assert!(!self.is_connected, "there is one connection at most");
                    self.is_connected = true;
                }
                FetchAction::Ask(_) => assert!(self.is_connected),
                FetchAction::Reserve(..) | FetchAction::Stream(_) => {
                    assert_eq!(matches!(action, FetchAction::Stream(_)), self.kept + 1 == images, "the last one is streamed");
                    self.has_place = true;
                }
                FetchAction::Keep(_) => self.kept += 1,
                FetchAction::Close => (self.is_connected, self.has_place) = (false, false),
                FetchAction::Assemble => assert_eq!(self.kept, images, "all images are here"),
                FetchAction::Over(result) => self.ends.push(result),
                FetchAction::Open(_) | FetchAction::Read(_) => assert!(!self.is_connected),
            }
        }
    }
}

/// What may happen to orders.
#[derive(Debug, Clone, Copy)]
enum Ordered {
    Order(u32),
    GiveUp(u32),
    Forget(u32),
    /// The one that was begun so many before the newest is ready.
    Ready(usize),
}

fn ordered() -> impl Strategy<Value = Ordered> {
    prop_oneof![
        4 => (0u32..5).prop_map(Ordered::Order),
        2 => (0u32..5).prop_map(Ordered::GiveUp),
        1 => (0u32..5).prop_map(Ordered::Forget),
        4 => (0usize..4).prop_map(Ordered::Ready),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Whatever happens in whatever order: there is one connection at most, one end, and it is a good one only with all images.
    #[test]
    fn a_fetch_comes_to_one_end(here in any::<bool>(), has_replica in any::<bool>(), count in 1usize..4,
                                steps in prop::collection::vec(happens(), 0..80)) {
        let source = if here { Source::Here } else { Source::At(service(1)) };
        let images: Vec<(u64, u64)> = (0..count as u64).map(|image| (image, 10)).collect();
        let mut fetch = fetch(source, has_replica.then(|| service(2)), &images);
        let (mut driver, mut now) = (Driver::default(), at(0));
        driver.carry_out(&mut fetch, count);
        for what in steps {
            happen(&mut fetch, &mut now, what);
            driver.carry_out(&mut fetch, count);
        }
        // Without a word from anywhere it ends, by its own limits or when it is given up.
        for _ in 0..200 {
            now = fetch.poll_timeout().unwrap_or(now);
            fetch.handle_timeout(now);
            driver.carry_out(&mut fetch, count);
        }
        prop_assert_eq!(fetch.poll_timeout(), None, "each wait for another node has a limit");
        fetch.handle_given_up();
        driver.carry_out(&mut fetch, count);
        prop_assert_eq!(driver.ends.len(), 1);
        prop_assert!(driver.ends[0].is_err() || driver.kept == count);
        prop_assert!(!driver.is_connected && !driver.has_place);
    }

    /// Each order is answered once, unless another has replaced it or nobody wants it any more.
    #[test]
    fn each_order_is_answered_once(at_once in 1usize..4, steps in prop::collection::vec(ordered(), 0..60)) {
        let mut orders = Orders::new(at_once);
        // Of each process, whether an answer is due; and the orders that are under way at the driver.
        let (mut due, mut running) = (BTreeMap::<ProcessId, bool>::new(), Vec::<(OrderNumber, ProcessId, bool)>::new());
        let finish = (0..60).map(|_| Ordered::Ready(0));
        for what in steps.into_iter().chain(finish) {
            match what {
                Ordered::Order(rank) => {
                    orders.handle_order(order(rank));
                    due.insert(process(rank), true);
                }
                Ordered::GiveUp(rank) => {
                    let known = due.get(&process(rank)).copied().unwrap_or_default();
                    prop_assert_eq!(orders.give_up(process(rank)), known);
                }
                Ordered::Forget(rank) => {
                    orders.forget(|of| of == process(rank));
                    due.insert(process(rank), false);
                }
                Ordered::Ready(back) if !running.is_empty() => {
                    let (number, of, _) = running.remove(back % running.len());
                    if orders.handle_ready(number) != Use::Nothing {
                        prop_assert_eq!(due.insert(of, false), Some(true), "{} is answered once", of);
                    }
                }
                Ordered::Ready(_) => {}
            }
            for action in wanted(&mut orders) {
                match action {
                    OrdersAction::Begin(number, order) => running.push((number, order.process, true)),
                    OrdersAction::Stop(number) => prop_assert!(running.iter().any(|(of, ..)| *of == number)),
                    OrdersAction::Refuse(number, order, _) => running.push((number, order.process, false)),
                }
            }
            prop_assert!(running.iter().filter(|(.., begun)| *begun).count() <= at_once);
        }
        prop_assert!(running.is_empty() && due.values().all(|due| !due), "{:?}", due);
    }
}
