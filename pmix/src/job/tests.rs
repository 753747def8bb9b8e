//! Ranks of one job, as threads, with the protector's own end of PMI-1.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use radic_protector::pmi::{KeySpace, Reply, Request, Session};
use radic_wire::ids::Rank;

use super::*;
use crate::value::kind;

/// What the protectors of a job know.
struct World {
    keys: KeySpace,
    names: HashMap<String, String>,
    sessions: Vec<Session>,
    answers: Vec<VecDeque<u8>>,
    waiting: BTreeSet<usize>,
    aborted: Option<i32>,
    closed: bool,
}

impl World {
    fn handle(&mut self, rank: usize, bytes: &[u8]) {
        self.sessions[rank].handle_input(bytes).unwrap();
        while let Some(request) = self.sessions[rank].poll_request() {
            let done = |ok: bool| if ok { Reply::Done } else { Reply::Failed("it is published already".to_owned()) };
            let value =
                |value: Option<&str>| value.map_or(Reply::Failed("no such thing".to_owned()), |v| Reply::Value(v.to_owned()));
            let reply = match request {
                Request::Put { key, value } => done(self.keys.put(key, value).is_ok()),
                Request::Get { key } => value(self.keys.get(&key)),
                Request::PublishName { service, port } if self.names.contains_key(&service) => done(self.names[&service] == port),
                Request::PublishName { service, port } => done(self.names.insert(service, port).is_none()),
                Request::LookupName { service } => value(self.names.get(&service).map(String::as_str)),
                Request::UnpublishName { service } => done(self.names.remove(&service).is_some()),
                Request::BarrierIn => {
                    self.waiting.insert(rank);
                    if self.waiting.len() == self.sessions.len() {
                        self.waiting.clear();
                        self.sessions.iter_mut().for_each(|session| session.reply(Reply::Done));
                    }
                    continue;
                }
                Request::Finalize => Reply::Done,
                Request::GetByIdx { .. } => panic!("not asked for here"),
                Request::Abort { code, .. } => {
                    self.aborted = Some(code);
                    continue;
                }
            };
            self.sessions[rank].reply(reply);
        }
        for (session, answers) in self.sessions.iter_mut().zip(&mut self.answers) {
            answers.extend(session.poll_output().into_iter().flatten());
        }
    }
}

/// The same for all ranks, which wait for what others change in it.
type Shared = Arc<(Mutex<World>, Condvar)>;

/// One rank's connection.
struct Line {
    world: Shared,
    rank: usize,
}

impl Line {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.0.lock().unwrap()
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let is_silent = |world: &mut World| world.answers[self.rank].is_empty() && !world.closed;
        let mut world = self.world.1.wait_while(self.world(), is_silent).unwrap();
        world.answers[self.rank].read(buffer)
    }
}

impl Write for Line {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut world = self.world();
        if world.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        world.handle(self.rank, buffer);
        self.world.1.notify_all();
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Line {
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut world = self.world();
        if world.answers[self.rank].is_empty() && !world.closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        world.answers[self.rank].read(buffer)
    }
}

/// The ranks of a job, each of which has begun.
fn jobs(size: usize) -> (Vec<Job<Line>>, Shared) {
    let session = |rank| Session::new(Rank(rank as u32), size as u32, "space".to_owned());
    let world = World {
        keys: KeySpace::new(size as u32),
        names: HashMap::new(),
        sessions: (0..size).map(session).collect(),
        answers: vec![VecDeque::new(); size],
        waiting: BTreeSet::new(),
        aborted: None,
        closed: false,
    };
    let world = Arc::new((Mutex::new(world), Condvar::new()));
    let job = |rank| {
        let client = Client::init(Line { world: world.clone(), rank }, rank as i32, size as i32).unwrap();
        let mut job = Job::new(client, "host".to_owned(), "/work".to_owned(), thread::sleep);
        job.initialize();
        job
    };
    ((0..size).map(job).collect(), world)
}

/// Runs `program` on each rank at once.
fn run<T: Send>(size: usize, program: impl Fn(&mut Job<Line>) -> T + Sync) -> Vec<T> {
    let (mut jobs, _) = jobs(size);
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.iter_mut().map(|job| scope.spawn(|| program(job))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn bytes(bytes: &[u8]) -> Value {
    Value { kind: kind::BYTE_OBJECT, bytes: bytes.to_vec() }
}

/// Turns the wheel until a fence has ended.
fn poll(job: &mut Job<Line>) -> (u64, Status) {
    loop {
        if let Some(over) = job.poll() {
            return over;
        }
        thread::yield_now();
    }
}

#[test]
fn a_rank_is_alone_on_its_node() {
    let (mut jobs, _) = jobs(3);
    let job = &mut jobs[1];
    let get = |job: &mut Job<Line>, subject, key| job.get(subject, key, None, true);
    for (subject, key, value) in [
        (Subject::Rank(1), "pmix.hname", Value::text("host")),
        (Subject::Rank(1), "pmix.lrank", Value::uint16(0)),
        (Subject::Job, "pmix.job.size", Value::uint32(3)),
        (Subject::Job, "pmix.local.size", Value::uint32(1)),
        (Subject::Job, "pmix.lpeers", Value::text("1")),
        (Subject::Any, "pmix.univ.size", Value::uint32(3)),
    ] {
        assert_eq!(get(job, subject, key), Ok(value), "{key}");
    }
    for (subject, key) in
        [(Subject::Job, "pmix.reinc"), (Subject::Rank(2), "pmix.locstr"), (Subject::Rank(7), "x"), (Subject::Rank(2), "x")]
    {
        assert_eq!(get(job, subject, key), Err(Status::NOT_FOUND), "{key}");
    }
    job.store(Subject::Rank(2), "pmix.loc", Value::uint16(9)).unwrap();
    assert_eq!(get(job, Subject::Rank(2), "pmix.loc"), Ok(Value::uint16(9)));
    assert_eq!((job.rank(), job.size(), job.namespace()), (1, 3, "space"));
}

#[test]
fn what_is_put_is_seen_after_a_fence() {
    let long: Vec<u8> = (0..2_000).map(|n| n as u8).collect();
    run(3, |job| {
        let me = job.rank() as u8;
        job.put(Scope::Global, "address", bytes(&[me])).unwrap();
        job.put(Scope::Remote, "both", bytes(b"remote")).unwrap();
        job.put(Scope::Local, "both", bytes(b"local")).unwrap();
        job.put(Scope::Remote, "long", bytes(&long)).unwrap();
        job.put(Scope::Local, "here", bytes(&[])).unwrap();
        job.commit().unwrap();
        job.fence(&Members::All).unwrap();
        let peer = (job.rank() + 1) % 3;
        let get = |job: &mut Job<Line>, rank, key, optional| job.get(Subject::Rank(rank), key, None, optional);
        assert_eq!(get(job, peer, "address", true), Ok(bytes(&[peer as u8])), "a fence has brought it");
        assert_eq!(get(job, peer, "both", false), Ok(bytes(b"remote")));
        assert_eq!(get(job, peer, "long", false), Ok(bytes(&long)));
        assert_eq!(get(job, peer, "here", false), Err(Status::NOT_FOUND));
        assert_eq!(get(job, u32::from(me), "both", false), Ok(bytes(b"local")));
        // More comes with later commits.
        job.put(Scope::Global, "later", Value::uint32(7)).unwrap();
        job.commit().unwrap();
        job.fence(&Members::All).unwrap();
        assert_eq!(get(job, peer, "later", true), Ok(Value::uint32(7)));
    });
}

#[test]
fn a_job_that_begins_anew_has_new_values() {
    run(2, |job| {
        let peer = Subject::Rank(1 - job.rank());
        for turn in 0..3 {
            if turn > 0 {
                job.greet_again().unwrap();
                job.initialize();
            }
            job.put(Scope::Global, "address", Value::uint32(turn)).unwrap();
            job.commit().unwrap();
            job.fence(&Members::All).unwrap();
            assert_eq!(job.get(peer, "address", None, false), Ok(Value::uint32(turn)));
            job.fence(&Members::All).unwrap();
            job.finalize().unwrap();
        }
    });
}

#[test]
fn too_much_is_refused_before_it_is_sent() {
    let (mut jobs, _) = jobs(1);
    let half = bytes(&vec![0; record::RECORD / 2]);
    jobs[0].put(Scope::Remote, "a", half.clone()).unwrap();
    assert_eq!(jobs[0].put(Scope::Remote, "b", half), Err(Status::OUT_OF_RESOURCE));
    for number in 0..FENCES as u64 {
        assert_eq!(jobs[0].begin_fence(Members::All), Ok(number + 1));
    }
    assert_eq!(jobs[0].begin_fence(Members::All), Err(Status::OUT_OF_RESOURCE));
    let ended: Vec<_> = (0..FENCES).map(|_| poll(&mut jobs[0])).collect();
    assert!(ended.iter().zip(1..).all(|((ticket, status), number)| (*ticket, *status) == (number, Status::SUCCESS)));
    assert!(!jobs[0].has_fences());
}

#[test]
fn a_fence_that_is_not_waited_for_ends_when_all_are_in() {
    let (mut jobs, _) = jobs(2);
    let [first, second] = &mut jobs[..] else { panic!("two ranks") };
    let ticket = first.begin_fence(Members::All).unwrap();
    assert_eq!((first.poll(), first.has_fences()), (None, true));
    let other = second.begin_fence(Members::All).unwrap();
    assert_eq!(first.poll(), Some((ticket, Status::SUCCESS)));
    // Another question finds the end of the fence before its own answer.
    assert_eq!(second.get(Subject::Rank(0), "x", None, false), Err(Status::NOT_FOUND));
    assert_eq!(second.poll(), Some((other, Status::SUCCESS)));
    assert!(!second.has_fences());
}

#[test]
fn some_ranks_fence_without_the_others() {
    run(3, |job| {
        if job.rank() == 1 {
            return;
        }
        let members = job.members([(&b"space"[..], Subject::Rank(2)), (b"space", Subject::Rank(0))]).unwrap();
        assert_eq!(members, Members::Some(vec![0, 2]));
        for _ in 0..3 {
            job.fence(&members).unwrap();
            let ticket = job.begin_fence(members.clone()).unwrap();
            assert_eq!(poll(job), (ticket, Status::SUCCESS));
        }
    });
}

#[test]
fn members_are_ranks_of_this_job() {
    let (jobs, _) = jobs(2);
    let of = |list: &[(&'static str, Subject)]| jobs[0].members(list.iter().map(|(space, subject)| (space.as_bytes(), *subject)));
    assert_eq!(of(&[]), Ok(Members::All));
    assert_eq!(of(&[("space", Subject::Job)]), Ok(Members::All));
    assert_eq!(of(&[("space", Subject::Rank(1)), ("space", Subject::Rank(0)), ("space", Subject::Rank(1))]), Ok(Members::All));
    assert_eq!(of(&[("space", Subject::Rank(0))]), Ok(Members::Some(vec![0])));
    assert_eq!(of(&[("other", Subject::Rank(0))]), Err(Status::NOT_SUPPORTED));
    for wrong in [Subject::Rank(2), Subject::Rank(1), Subject::Any] {
        assert_eq!(of(&[("space", wrong)]), Err(Status::BAD_PARAM));
    }
}

#[test]
fn a_group_agrees_on_its_number() {
    let local = |job: &Job<Line>| vec![("pmix.grp.lclid".to_owned(), Value::size(u64::from(job.rank()) + 40))];
    let of_all = run(3, |job| {
        let contexts = [(); 2].map(|()| job.group("all", &Members::All, local(job)).unwrap());
        let peer = (job.rank() + 1) % 3;
        for context in contexts {
            let value = job.get(Subject::Rank(peer), "pmix.grp.lclid", Some(context), false);
            assert_eq!(value, Ok(Value::size(u64::from(peer) + 40)));
            assert_eq!(
                job.get(Subject::Rank(job.rank()), "pmix.grp.lclid", Some(context), false).unwrap().number(),
                Some(u64::from(job.rank()) + 40)
            );
        }
        assert_eq!(job.get(Subject::Rank(peer), "pmix.grp.lclid", Some(4711), false), Err(Status::NOT_FOUND));
        contexts
    });
    assert!(of_all.iter().all(|contexts| *contexts == of_all[0] && contexts[0] != contexts[1]));
    let of_some = run(3, |job| {
        let members = if job.rank() == 0 { Members::Some(vec![0]) } else { Members::Some(vec![1, 2]) };
        let contexts = [(); 2].map(|()| job.group("some", &members, local(job)).unwrap());
        if job.rank() == 1 {
            assert_eq!(job.get(Subject::Rank(2), "pmix.grp.lclid", Some(contexts[1]), false), Ok(Value::size(42)));
        }
        contexts
    });
    assert_eq!(of_some[1], of_some[2]);
    let all = [of_all[0], of_some[0], of_some[1]].concat();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 6, "{all:?}");
}

#[test]
fn names_are_looked_up_and_waited_for() {
    let (mut jobs, world) = jobs(2);
    let [first, second] = &mut jobs[..] else { panic!("two ranks") };
    let names = ["port".to_owned()];
    assert_eq!(second.look_up(&names, Wait::No), Ok(vec![None]));
    second.nap = |_| ();
    assert_eq!(second.look_up(&names, Wait::Seconds(1)), Err(Status::TIMEOUT));
    second.nap = thread::sleep;
    let long = Value::text(vec![b'x'; 3_000]);
    thread::scope(|scope| {
        let waits = scope.spawn(|| second.look_up(&names, Wait::Seconds(0)));
        first.publish("port", long.clone()).unwrap();
        let found = waits.join().unwrap().unwrap();
        let found = found[0].as_ref().unwrap();
        assert_eq!((&found.value, found.rank, &found.namespace[..]), (&long, 0, &b"space"[..]));
    });
    assert_eq!(second.publish("port", Value::text("another")), Err(Status::DUPLICATE_KEY));
    assert_eq!(second.look_up(&names, Wait::No).unwrap()[0].as_ref().unwrap().value, long);
    assert_eq!(second.publish("", long.clone()), Err(Status::BAD_PARAM));
    assert_eq!(second.publish(&"n".repeat(400), long), Err(Status::BAD_PARAM));
    assert_eq!(second.publish("big", Value::text(vec![b'x'; 1 << 20])), Err(Status::BAD_PARAM));
    first.unpublish("port").unwrap();
    assert_eq!(first.unpublish("port"), Err(Status::NOT_FOUND));
    assert!(world.0.lock().unwrap().names.is_empty(), "no piece of it is left");
    // What somebody else has published in another form is nothing.
    world.0.lock().unwrap().names.insert("port".to_owned(), "tag#0".to_owned());
    assert_eq!(second.look_up(&names, Wait::No), Ok(vec![None]));
}

#[test]
fn the_last_end_is_told_and_one_may_begin_anew() {
    let (mut jobs, world) = jobs(1);
    let job = &mut jobs[0];
    job.initialize();
    job.finalize().unwrap();
    assert!(job.is_initialized() && !world.0.lock().unwrap().sessions[0].is_finalized());
    job.put(Scope::Global, "a", Value::uint32(1)).unwrap();
    job.commit().unwrap();
    job.finalize().unwrap();
    assert!(!job.is_initialized() && world.0.lock().unwrap().sessions[0].is_finalized());
    assert_eq!(job.finalize(), Err(Status::INIT));
    job.greet_again().unwrap();
    job.initialize();
    job.put(Scope::Global, "a", Value::uint32(2)).unwrap();
    job.commit().unwrap();
    job.fence(&Members::All).unwrap();
    job.abort(7, b"why").unwrap();
    assert_eq!(world.0.lock().unwrap().aborted, Some(7));
}

#[test]
fn without_a_protector_all_calls_end() {
    let (mut jobs, world) = jobs(2);
    let job = &mut jobs[0];
    let ticket = job.begin_fence(Members::All).unwrap();
    let later = job.begin_fence(Members::Some(vec![0, 1])).unwrap();
    world.0.lock().unwrap().closed = true;
    assert_eq!(job.poll(), Some((ticket, Status::LOST_CONNECTION)));
    assert_eq!(job.poll(), Some((later, Status::LOST_CONNECTION)));
    assert_eq!(job.poll(), None);
    job.put(Scope::Global, "a", Value::uint32(1)).unwrap();
    let lost = Err(Status::LOST_CONNECTION);
    assert_eq!(job.commit(), lost);
    assert_eq!(job.fence(&Members::All), lost);
    assert_eq!(job.fence(&Members::Some(vec![0])), lost);
    assert_eq!(job.begin_fence(Members::All).map(drop), lost);
    assert_eq!(job.group("g", &Members::All, Vec::new()).map(drop), lost);
    assert_eq!(job.get(Subject::Rank(1), "a", None, false).map(drop), lost);
    assert_eq!(job.publish("a", Value::uint32(1)), lost);
    assert_eq!(job.unpublish("a"), lost);
    assert_eq!(job.look_up(&["a".to_owned()], Wait::Seconds(0)).map(drop), lost);
    assert_eq!(job.abort(1, b""), lost);
    assert_eq!(job.finalize(), lost);
    assert_eq!(job.greet_again(), lost);
}
