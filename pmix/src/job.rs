//! What a rank knows of its job and asks of it, in the terms of PMIx. The conversation with the protector is PMI-1.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use radic_pmi_client::{Client, Failure, Stream};

use crate::info::Facts;
use crate::meeting::{Meeting, Meetings, Naps};
use crate::names::{self, Published};
use crate::record;
use crate::status::Status;
use crate::value::Value;

/// Fences that may be under way at once.
const FENCES: usize = 64;
/// Values that a process may have, its own and others' together.
const VALUES: usize = 1 << 20;
/// Longest wait for a name that is not published yet, unless the caller says another one.
const LOOK_UP: Duration = Duration::from_secs(600);
/// The number that a rank gives the group in which it brings it along.
const CONTEXT: &str = "context";

/// Which process a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The job as a whole.
    Job,
    Rank(u32),
    /// It does not say.
    Any,
}

/// Which processes may see a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Processes on the same node: of which there are none, as each rank is told.
    Local,
    /// Processes on other nodes.
    Remote,
    /// All.
    Global,
    /// The process alone.
    Internal,
}

/// Which ranks take part in something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Members {
    All,
    /// In order, each once.
    Some(Vec<u32>),
}

/// How a look-up waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    /// At most so many seconds; 0: as long as any.
    Seconds(u64),
}

/// A fence that was entered without waiting.
#[derive(Debug)]
struct Fence {
    ticket: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Those before it come first.
    Waits(Members),
    Barrier,
    Meets(Meeting),
}

/// What a peer has put, as far as it was asked for.
#[derive(Debug, Default)]
struct Peer {
    values: HashMap<String, Value>,
    /// Commits that were fetched.
    commits: u32,
    /// Fences that this process had passed when there was no further commit.
    asked_after: Option<u64>,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Job<S> {
    client: Client<S>,
    facts: Facts,
    /// How often it was initialized and not finalized.
    uses: u32,
    own: HashMap<String, Value>,
    /// What was put since the last commit, for others.
    fresh: Vec<(String, Value)>,
    commits: u32,
    /// What this process has stored about others, for itself.
    stored: HashMap<(Option<u32>, String), Value>,
    peers: HashMap<u32, Peer>,
    fences: VecDeque<Fence>,
    /// Fences that ended while another call waited.
    over: VecDeque<(u64, Status)>,
    tickets: u64,
    passed: u64,
    meetings: Meetings,
    /// Groups of all ranks, and groups to which this rank gave the number.
    groups: (u64, u64),
    nap: fn(Duration),
}

impl<S: Stream> Job<S> {
    /// A rank that has just greeted the protector. It is not initialized yet.
    pub(crate) fn new(client: Client<S>, hostname: String, folder: String, nap: fn(Duration)) -> Self {
        let facts = Facts { rank: client.rank as u32, size: client.size as u32, hostname, folder };
        Job {
            client,
            facts,
            uses: 0,
            own: HashMap::new(),
            fresh: Vec::new(),
            commits: 0,
            stored: HashMap::new(),
            peers: HashMap::new(),
            fences: VecDeque::new(),
            over: VecDeque::new(),
            tickets: 0,
            passed: 0,
            meetings: Meetings::default(),
            groups: (0, 0),
            nap,
        }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.facts.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.facts.size
    }

    /// The name of the job, by which PMIx calls it.
    pub(crate) fn namespace(&self) -> &str {
        &self.client.kvsname
    }

    pub(crate) fn is_initialized(&self) -> bool {
        self.uses > 0
    }

    /// Each call of it wants one of [`Job::finalize`].
    pub(crate) fn initialize(&mut self) {
        self.uses += 1;
    }

    /// The protector is told only of the last end. None of the job is left behind it: a process may begin anew.
    pub(crate) fn finalize(&mut self) -> Result<(), Status> {
        self.uses = self.uses.checked_sub(1).ok_or(Status::INIT)?;
        if self.uses > 0 {
            return Ok(());
        }
        self.finish_fences();
        Ok(self.client.finalize()?)
    }

    /// After the last end: greets the protector anew. Peers begin anew, too, and put other values under the same keys.
    pub(crate) fn greet_again(&mut self) -> Result<(), Status> {
        for peer in self.peers.values_mut() {
            (peer.values, peer.asked_after) = (HashMap::new(), None);
        }
        Ok(self.client.greet()?)
    }

    pub(crate) fn abort(&mut self, code: i32, message: &[u8]) -> Result<(), Status> {
        Ok(self.client.abort(code, message)?)
    }

    /// The ranks that are meant by a list of processes; an empty one means all. This process is to be among them.
    pub(crate) fn members<'a>(&self, processes: impl IntoIterator<Item = (&'a [u8], Subject)>) -> Result<Members, Status> {
        let mut ranks = Vec::new();
        let mut all = true;
        for (namespace, subject) in processes {
            if namespace != self.namespace().as_bytes() {
                return Err(Status::NOT_SUPPORTED);
            }
            match subject {
                Subject::Job => return Ok(Members::All),
                Subject::Rank(rank) if rank < self.facts.size => ranks.push(rank),
                Subject::Rank(_) | Subject::Any => return Err(Status::BAD_PARAM),
            }
            all = false;
        }
        ranks.sort_unstable();
        ranks.dedup();
        match ranks.len() {
            _ if all => Ok(Members::All),
            some if some == self.facts.size as usize => Ok(Members::All),
            _ if !ranks.contains(&self.facts.rank) => Err(Status::BAD_PARAM),
            _ => Ok(Members::Some(ranks)),
        }
    }

    /// Puts a value, which others see after the next commit and fence.
    pub(crate) fn put(&mut self, scope: Scope, key: &str, value: Value) -> Result<(), Status> {
        if scope != Scope::Remote || !self.own.contains_key(key) {
            self.keep(key.to_owned(), value.clone())?;
        }
        if matches!(scope, Scope::Remote | Scope::Global) {
            let size: usize = self.fresh.iter().map(|(key, value)| key.len() + value.bytes.len() + 16).sum();
            if size + key.len() + value.bytes.len() + 16 > record::RECORD {
                return Err(Status::OUT_OF_RESOURCE);
            }
            self.fresh.push((key.to_owned(), value));
        }
        Ok(())
    }

    fn keep(&mut self, key: String, value: Value) -> Result<(), Status> {
        if self.own.len() >= VALUES {
            return Err(Status::OUT_OF_RESOURCE);
        }
        self.own.insert(key, value);
        Ok(())
    }

    /// Hands over what was put.
    pub(crate) fn commit(&mut self) -> Result<(), Status> {
        if self.fresh.is_empty() {
            return Ok(());
        }
        let record = record::encode(self.fresh.iter().map(|(key, value)| (key.as_bytes(), value)));
        for (number, piece) in record::split(&record).iter().enumerate() {
            let key = key_of_piece(self.facts.rank, self.commits, number);
            self.client.put(key.as_bytes(), piece)?;
        }
        self.commits += 1;
        self.fresh.clear();
        Ok(())
    }

    /// Remembers a value for this process alone.
    pub(crate) fn store(&mut self, subject: Subject, key: &str, value: Value) -> Result<(), Status> {
        if self.stored.len() >= VALUES {
            return Err(Status::OUT_OF_RESOURCE);
        }
        self.stored.insert((rank_of(subject), key.to_owned()), value);
        Ok(())
    }

    /// A value, in the context of a group if it is of that. Only what is not `optional` is worth a question that was asked in vain before.
    pub(crate) fn get(&mut self, subject: Subject, key: &str, context: Option<u64>, optional: bool) -> Result<Value, Status> {
        if let Some(value) = self.stored.get(&(rank_of(subject), key.to_owned())) {
            return Ok(value.clone());
        }
        let key = &context.map_or(key.to_owned(), |context| in_context(key, context));
        match subject {
            Subject::Job => self.facts.of_job(key).ok_or(Status::NOT_FOUND),
            Subject::Rank(rank) if rank != self.facts.rank => self.get_of_peer(rank, key, context.is_some(), optional),
            Subject::Rank(_) | Subject::Any => {
                let own = self.own.get(key).cloned();
                own.or_else(|| self.facts.of_self(key)).or_else(|| self.facts.of_job(key)).ok_or(Status::NOT_FOUND)
            }
        }
    }

    fn get_of_peer(&mut self, rank: u32, key: &str, in_group: bool, optional: bool) -> Result<Value, Status> {
        if rank >= self.facts.size {
            return Err(Status::NOT_FOUND);
        }
        let known = |peers: &HashMap<u32, Peer>| peers.get(&rank).and_then(|peer| peer.values.get(key)).cloned();
        if let Some(value) = known(&self.peers) {
            return Ok(value);
        }
        // What PMIx itself would know of a peer, nobody has put.
        let asked = self.passed == 0 || self.peers.get(&rank).is_some_and(|peer| peer.asked_after == Some(self.passed));
        if !in_group && key.starts_with("pmix.") || optional && asked {
            return Err(Status::NOT_FOUND);
        }
        self.fetch(rank)?;
        known(&self.peers).ok_or(Status::NOT_FOUND)
    }

    /// Fetches the commits of a peer that were not fetched yet.
    fn fetch(&mut self, rank: u32) -> Result<(), Status> {
        loop {
            let peer = self.peers.entry(rank).or_default();
            let commit = peer.commits;
            let record = record::join(|number| match self.client.get(key_of_piece(rank, commit, number).as_bytes()) {
                Ok(piece) => Ok(Some(piece)),
                Err(Failure::Refused(_)) => Ok(None),
                Err(failure) => Err(Status::from(failure)),
            })?;
            let Some(record) = record else {
                peer.asked_after = Some(self.passed);
                return Ok(());
            };
            let entries = record::decode(&record).ok_or(Status::COMM_FAILURE)?;
            if peer.values.len() + entries.len() > VALUES {
                return Err(Status::OUT_OF_RESOURCE);
            }
            peer.values.extend(entries.into_iter().map(|(key, value)| (String::from_utf8_lossy(&key).into_owned(), value)));
            peer.commits += 1;
        }
    }

    /// Enters a fence without waiting for its end, which [`Job::poll`] tells under the number that is returned.
    pub(crate) fn begin_fence(&mut self, members: Members) -> Result<u64, Status> {
        if self.fences.len() >= FENCES {
            return Err(Status::OUT_OF_RESOURCE);
        }
        self.tickets += 1;
        self.fences.push_back(Fence { ticket: self.tickets, stage: Stage::Waits(members) });
        if self.fences.len() == 1
            && let Err(status) = self.start_fence()
        {
            self.fences.clear();
            return Err(status);
        }
        Ok(self.tickets)
    }

    fn start_fence(&mut self) -> Result<(), Status> {
        let Some(Fence { stage, .. }) = self.fences.front_mut() else { return Ok(()) };
        *stage = match stage {
            Stage::Waits(Members::All) => {
                self.client.enter_barrier()?;
                Stage::Barrier
            }
            Stage::Waits(Members::Some(ranks)) => Stage::Meets(self.meetings.begin(&mut self.client, "fence", ranks, &[])?),
            Stage::Barrier | Stage::Meets(_) => return Ok(()),
        };
        Ok(())
    }

    /// A fence that is over, and what became of it, if there is one. A fence whose connection has ended is not: it says so once, and nothing of it goes on.
    pub(crate) fn poll(&mut self) -> Option<(u64, Status)> {
        if let Some(over) = self.over.pop_front() {
            return Some(over);
        }
        let fence = self.fences.front_mut()?;
        let result = match &mut fence.stage {
            Stage::Waits(_) => self.start_fence().map(|()| false),
            Stage::Barrier => self.client.poll_barrier().map_err(Status::from),
            Stage::Meets(meeting) => meeting.poll(&mut self.client),
        };
        match result {
            Ok(false) => None,
            Ok(true) => self.end_fence(Status::SUCCESS),
            Err(status) => self.end_fence(status),
        }
    }

    fn end_fence(&mut self, status: Status) -> Option<(u64, Status)> {
        self.passed += u64::from(status == Status::SUCCESS);
        self.fences.pop_front().map(|fence| (fence.ticket, status))
    }

    /// Whether [`Job::poll`] has something to look for.
    pub(crate) fn has_fences(&self) -> bool {
        !self.fences.is_empty() || !self.over.is_empty()
    }

    /// Waits for the fences that are under way: the protector takes one barrier at a time.
    fn finish_fences(&mut self) {
        while !self.fences.is_empty() {
            let result = self.start_fence().and_then(|()| match self.fences.front_mut().map(|fence| &mut fence.stage) {
                Some(Stage::Meets(meeting)) => meeting.wait(&mut self.client, self.nap),
                _ => self.client.finish_barrier().map_err(Status::from),
            });
            let over = self.end_fence(result.err().unwrap_or(Status::SUCCESS));
            self.over.extend(over);
        }
    }

    /// Enters a fence and waits for its end.
    pub(crate) fn fence(&mut self, members: &Members) -> Result<(), Status> {
        self.finish_fences();
        match members {
            Members::All => self.client.barrier()?,
            Members::Some(ranks) => {
                let mut meeting = self.meetings.begin(&mut self.client, "fence", ranks, &[])?;
                meeting.wait(&mut self.client, self.nap)?;
            }
        }
        self.passed += 1;
        Ok(())
    }

    /// Constructs a group: all members wait for each other, agree on its number, which is returned, and see what each has brought along.
    pub(crate) fn group(&mut self, name: &str, members: &Members, brought: Vec<(String, Value)>) -> Result<u64, Status> {
        match members {
            Members::All => self.group_of_all(brought),
            Members::Some(ranks) => self.group_of_some(name, ranks, brought),
        }
    }

    fn group_of_all(&mut self, brought: Vec<(String, Value)>) -> Result<u64, Status> {
        // All ranks construct it, in the same place among such groups: so they count alike.
        self.groups.0 += 1;
        let context = self.groups.0 << 1;
        for (key, value) in brought {
            self.put(Scope::Global, &in_context(&key, context), value)?;
        }
        self.commit()?;
        self.fence(&Members::All)?;
        Ok(context)
    }

    fn group_of_some(&mut self, name: &str, ranks: &[u32], brought: Vec<(String, Value)>) -> Result<u64, Status> {
        self.finish_fences();
        let (leader, mut entries) = (ranks.first().copied(), brought);
        if leader == Some(self.facts.rank) {
            self.groups.1 += 1;
            // Odd, and with the rank: no other group has it.
            let context = (u64::from(self.facts.rank) + 1) << 32 | self.groups.1 << 1 | 1;
            entries.push((CONTEXT.to_owned(), Value::size(context)));
        }
        let record = record::encode(entries.iter().map(|(key, value)| (key.as_bytes(), value)));
        let mut meeting = self.meetings.begin(&mut self.client, name, ranks, &record)?;
        meeting.wait(&mut self.client, self.nap)?;
        let mut found: HashMap<u32, Vec<(Vec<u8>, Value)>> = HashMap::new();
        for (rank, record) in &meeting.found {
            found.insert(*rank, record::decode(record).ok_or(Status::COMM_FAILURE)?);
        }
        let of_leader = leader.and_then(|leader| found.get(&leader));
        let context = of_leader.and_then(|entries| entries.iter().find(|(key, _)| key == CONTEXT.as_bytes()));
        let context = context.and_then(|(_, value)| value.number()).ok_or(Status::COMM_FAILURE)?;
        for (rank, entries) in found {
            for (key, value) in entries {
                let key = in_context(&String::from_utf8_lossy(&key), context);
                if rank == self.facts.rank {
                    self.keep(key, value)?;
                } else {
                    self.peers.entry(rank).or_default().values.insert(key, value);
                }
            }
        }
        Ok(context)
    }

    /// Publishes a value, which others look up.
    pub(crate) fn publish(&mut self, name: &str, value: Value) -> Result<(), Status> {
        let published = Published { namespace: self.namespace().as_bytes().to_vec(), rank: self.facts.rank, value };
        names::publish(&mut self.client, name, &published)
    }

    pub(crate) fn unpublish(&mut self, name: &str) -> Result<(), Status> {
        names::unpublish(&mut self.client, name)
    }

    /// What is published under each of these names. Without `wait` some may be missing; with it all are there, or the time is over.
    pub(crate) fn look_up(&mut self, names: &[String], wait: Wait) -> Result<Vec<Option<Published>>, Status> {
        let limit = match wait {
            Wait::No => Duration::ZERO,
            Wait::Seconds(0) => LOOK_UP,
            Wait::Seconds(limit) => Duration::from_secs(limit),
        };
        let mut naps = Naps::default();
        let mut found: Vec<Option<Published>> = names.iter().map(|_| None).collect();
        loop {
            for (name, place) in names.iter().zip(&mut found).filter(|(_, place)| place.is_none()) {
                *place = names::look_up(&mut self.client, name)?;
            }
            if wait == Wait::No || found.iter().all(Option::is_some) {
                return Ok(found);
            }
            if naps.total >= limit {
                return Err(Status::TIMEOUT);
            }
            (self.nap)(naps.next());
        }
    }
}

fn rank_of(subject: Subject) -> Option<u32> {
    match subject {
        Subject::Rank(rank) => Some(rank),
        Subject::Job | Subject::Any => None,
    }
}

fn key_of_piece(rank: u32, commit: u32, number: usize) -> String {
    format!("x{rank}.{commit}.{number}")
}

/// The key of what belongs to a group.
fn in_context(key: &str, context: u64) -> String {
    format!("{key}@{context}")
}
