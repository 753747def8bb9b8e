//! What ranks ask by PMI: keys, names, and the fence in which they wait for each other.

use radic_wire::ids::Rank;
use radic_wire::peer::FromHost;

use super::Host;
use super::orders::{HostOutput, NameRequest};
use super::rank::LocalRank;
use crate::pmi::{Reply, Request};

impl Host {
    /// Bytes came on a rank's PMI connection.
    pub fn handle_pmi(&mut self, rank: Rank, bytes: &[u8]) {
        let Some(state) = self.ranks.get_mut(&rank).filter(|state| !state.is_killed_for_good()) else { return };
        if let Err(error) = state.session.handle_input(bytes) {
            // The library and this node do not understand each other any more: going on could only hang.
            state.handle_broken();
            self.outputs.push_back(HostOutput::Warning(rank, format!("its PMI connection is broken ({error}): killed")));
            self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
            return;
        }
        while let Some(request) = self.ranks.get_mut(&rank).and_then(|r| r.session.poll_request()) {
            self.handle_request(rank, request);
        }
        self.flush(rank);
    }

    pub(super) fn handle_request(&mut self, rank: Rank, request: Request) {
        let reply = match request {
            Request::Put { key, value } => match self.keys.put(key, value) {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Failed(error.to_string()),
            },
            Request::Get { key } => match self.keys.get(&key) {
                Some(value) => Reply::Value(value.to_owned()),
                None => Reply::Failed(format!("no key {key:?} before this fence")),
            },
            Request::GetByIdx { index } => match self.keys.get_by_index(index) {
                Some((key, value)) => Reply::Entry { key: key.to_owned(), value: value.to_owned() },
                None => Reply::Failed("no more keys".to_owned()),
            },
            Request::BarrierIn => return self.enter_fence(rank),
            Request::Finalize => Reply::Done,
            Request::Abort { code, message } => {
                // Open MPI sends this when it has no message.
                let message = message.filter(|m| m != "N/A").unwrap_or_default();
                return self.outputs.push_back(HostOutput::ToHome(FromHost::Aborted { rank, code, message }));
            }
            Request::PublishName { service: name, port } => {
                return self.outputs.push_back(HostOutput::Name(rank, NameRequest::Publish { name, port }));
            }
            Request::LookupName { service: name } => {
                return self.outputs.push_back(HostOutput::Name(rank, NameRequest::Lookup(name)));
            }
            Request::UnpublishName { service: name } => {
                return self.outputs.push_back(HostOutput::Name(rank, NameRequest::Unpublish(name)));
            }
        };
        self.reply(rank, reply);
    }

    pub(super) fn reply(&mut self, rank: Rank, reply: Reply) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.session.reply(reply);
        }
    }

    pub(super) fn flush(&mut self, rank: Rank) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        while let Some(bytes) = state.session.poll_output() {
            self.outputs.push_back(HostOutput::Pmi(rank, bytes));
        }
    }

    /// The ranks here that are in the next fence, if none is missing. A rank that had been let out of it before it was lost does
    /// not enter it again. One that has ended enters no further one; the home knows what that means for the others.
    pub(super) fn ranks_in_fence(&self) -> Option<Vec<Rank>> {
        let is_in = |(rank, state): &(&Rank, &LocalRank)| state.fences > self.fence || self.waiting.contains(rank);
        let (inside, others): (Vec<_>, Vec<_>) = self.ranks.iter().partition(is_in);
        let all_came = !inside.is_empty() && others.iter().all(|(_, state)| state.has_ended());
        all_came.then(|| inside.into_iter().map(|(rank, _)| *rank).collect())
    }

    /// Tells the home if all ranks here are in the next fence. To say so twice changes nothing.
    pub(super) fn look_at_fence(&mut self) {
        if let Some(ranks) = self.ranks_in_fence() {
            // What only the lost home was told, the next home does not know before this host has reported.
            let entries = if self.orphaned.is_some() { self.keys.all() } else { self.keys.take_fresh() };
            let number = self.fence + 1;
            self.outputs.push_back(HostOutput::ToHome(FromHost::Fence { number, ranks, entries }));
        }
    }

    fn enter_fence(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank).filter(|state| state.fences < self.fence) {
            // The rank had been let out of this fence before it was lost.
            state.fences += 1;
            return self.reply(rank, Reply::Done);
        }
        self.waiting.insert(rank);
        self.look_at_fence();
    }

    /// A fence is over. A rank that is catching up here may not have come to it yet: it passes when it does.
    pub(super) fn handle_release(&mut self, number: u64, entries: Vec<(String, String)>) {
        if number != self.fence + 1 {
            return;
        }
        self.fence = number;
        let merged = self.keys.merge(entries);
        for rank in std::mem::take(&mut self.waiting) {
            let Some(state) = self.ranks.get_mut(&rank) else { continue };
            if state.fences >= number {
                // The rank waits in a later one.
                self.waiting.insert(rank);
                continue;
            }
            state.fences = number;
            self.reply(rank, merged.as_ref().map_or_else(|error| Reply::Failed(error.to_string()), |()| Reply::Done));
            self.flush(rank);
        }
        self.outputs.push_back(HostOutput::Fenced);
        self.look_at_fence();
    }

    /// The answer to [`HostOutput::Name`]: the port, or why not.
    pub fn handle_name(&mut self, rank: Rank, request: &NameRequest, answer: Result<String, String>) {
        let reply = match (request, answer) {
            (NameRequest::Publish { .. } | NameRequest::Unpublish(_), Ok(_)) => Reply::Done,
            (NameRequest::Lookup(_), Ok(port)) => Reply::Value(port),
            (_, Err(error)) => Reply::Failed(error),
        };
        self.reply(rank, reply);
        self.flush(rank);
    }
}
