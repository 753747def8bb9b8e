//! The lives of a job. The first life begins at the start, each later one at a resume. Late messages of an earlier life may still
//! arrive, over a link that was broken for a while: of a rank that had ended, for example, and is back. So each message of a
//! resumed job names its life, and nodes drop older ones.
//!
//! Every member knows of a life before anything of it begins ([`Query::Revive`]). A node that joins later learns it from the first message of a node that does.
//!
//! Before a life begins, a command gives the log services what they are to have of it. When all is given, the protectors hear of
//! which ranks they have the logs ([`Query::Given`]), and after that the home hears that the job goes on. So where a home is lost
//! before it has told all protectors, the next one finds each log.
//!
//! If the command dies before that, its node tells all to discard what it gave. If that node is lost, a node that has not heard
//! of all logs given here discards what it has: no home has been told. A node that has heard of all asks the others whether the
//! job goes on, and discards them if no node knows of it.

use std::collections::VecDeque;
use std::time::Duration;

use radic_wire::codec;
use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, JobId, NodeId};
use radic_wire::limits;
use radic_wire::peer::{Gift, PeerMessage, Query, ToHome};
use serde_bytes::ByteBuf;

use super::events::About;
use super::purpose::Purpose;
use super::stores::StoreOrder;
use super::{Node, Output};

/// Jobs that were resumed of which nothing is here any more, and whose lives are remembered.
const KEPT: usize = 256;
/// Bits of a life that are drawn: two commands may resume a job at once.
const DRAWN: u32 = 32;

/// The node of the command that gives what log services are to have of a life.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Giver {
    /// No command, as far as is known here: the job has gone on, or is over, or what was given is forgotten.
    Nobody,
    /// A command of a node.
    Command {
        /// Its node.
        node: NodeId,
        /// What it has given here, once its node has said so: before the home hears that the job goes on.
        gift: Option<Box<Gift>>,
    },
}

/// The newest life of a job that was resumed.
#[derive(Debug)]
struct Life {
    job: JobId,
    number: u64,
    giver: Giver,
}

/// Jobs that were resumed, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Lives(VecDeque<Life>);

impl Lives {
    /// The newest life of the job that is known here; 0: its first.
    fn of(&self, job: JobId) -> u64 {
        self.0.iter().find(|life| life.job == job).map_or(0, |life| life.number)
    }

    fn giver(&mut self, job: JobId) -> Option<&mut Giver> {
        self.0.iter_mut().find(|life| life.job == job).map(|life| &mut life.giver)
    }
}

impl Node {
    /// A life of the job that is later than `before` and than the newest that is known here.
    pub(super) fn next_life(&mut self, job: JobId, before: u64) -> u64 {
        let drawn = self.random.next() & ((1 << DRAWN) - 1);
        ((self.lives.of(job).max(before) >> DRAWN) + 1) << DRAWN | drawn
    }

    /// What is said of this life of the job counts from now on, and nothing that is said of an earlier one. False: a later one is known.
    pub(super) fn begin_life(&mut self, job: JobId, life: u64) -> bool {
        let known = self.lives.of(job);
        if life > known {
            self.lives.0.retain(|of| of.job != job);
            self.lives.0.push_back(Life { job, number: life, giver: Giver::Nobody });
            if self.lives.0.len() > KEPT
                && let Some(oldest) = self.lives.0.iter().position(|of| !self.knows(of.job))
            {
                self.lives.0.remove(oldest);
            }
        }
        life >= known
    }

    /// Whether this is the newest life of the job that is known here.
    pub(super) fn is_newest_life(&self, job: JobId, life: u64) -> bool {
        life == self.lives.of(job)
    }

    /// A command of this node gives to log services what they are to have of the life that begins.
    pub(super) fn await_giver(&mut self, node: &NodeId, job: JobId) {
        if let Some(giver) = self.lives.giver(job) {
            *giver = Giver::Command { node: node.clone(), gift: None };
        }
    }

    /// What a command has given to protectors, as its node says. It is kept until the home says that the job goes on, or a home
    /// misses a rank of which the log is here.
    pub(super) fn handle_given(&mut self, from: &NodeId, gift: &Gift) -> Result<(), String> {
        let is_mine = gift.is_whole() && gift.protectors.contains(self.me());
        match self.lives.giver(gift.job) {
            Some(Giver::Command { node, gift: given, .. }) if node == from && is_mine => {
                *given = Some(Box::new(gift.clone()));
                Ok(())
            }
            _ => Err(format!("what was given of job {} is not kept; it can be resumed again", gift.job)),
        }
    }

    /// What was given here of a job, unless its home has said that it goes on.
    pub(super) fn gift_of(&mut self, job: JobId) -> Option<&Gift> {
        match self.lives.giver(job) {
            Some(Giver::Command { gift, .. }) => gift.as_deref(),
            _ => None,
        }
    }

    /// The job has restarted: what was given for an epoch before this one brings nothing back.
    pub(super) fn forget_gift_before(&mut self, job: JobId, epoch: Epoch) {
        if let Some(Giver::Command { gift, .. }) = self.lives.giver(job) {
            gift.take_if(|gift| gift.ward.epoch < epoch);
        }
    }

    /// The home has said that the job goes on, or that it is over: what was given is not the command's any more.
    pub(super) fn forget_giver(&mut self, job: JobId) {
        self.lives.giver(job).into_iter().for_each(|giver| *giver = Giver::Nobody);
    }

    /// Members are lost. A command whose node is one gives nothing more here. If it had not given all, no home has been told that
    /// the job goes on. If it had, a home may have been told, and may be lost, too. What was asked before the newest view is void:
    /// a node that knew nothing of the job then may have heard of it since, and the home that has told it is gone.
    pub(super) fn lose_givers(&mut self, now: Duration) {
        let given = |life: &Life| match &life.giver {
            Giver::Command { node, gift } if !self.is_member(node) => Some((life.job, gift.is_some())),
            _ => None,
        };
        let lost: Vec<(JobId, bool)> = self.lives.0.iter().filter_map(given).collect();
        for (job, has_all) in lost {
            self.gathers.retain(|_, gather| !gather.asks_whether_it_goes_on(job));
            if has_all { self.ask_whether_it_goes_on(now, job) } else { self.forget_given(job) }
        }
    }

    fn ask_whether_it_goes_on(&mut self, now: Duration, job: JobId) {
        let query = Query::Knows { job, view: self.view_number() };
        self.gather(now, Purpose::GoesOn(job), &query);
    }

    /// Whether any node knows of a job of which a command had given logs here, and the command's node is lost. If one does, the
    /// home tells this node, too, or the next home misses the ranks.
    pub(super) fn finish_goes_on(&mut self, now: Duration, job: JobId, goes_on: bool, silent: bool) {
        let lost = match self.lives.giver(job) {
            Some(Giver::Command { node, .. }) => node.clone(),
            // The home has said meanwhile that the job goes on, or that it is over.
            _ => return,
        };
        if goes_on || self.is_member(&lost) {
            return;
        }
        if silent {
            // The node will answer, or be declared dead.
            return self.ask_whether_it_goes_on(now, job);
        }
        let text = format!("it does not go on: {} was lost before its command had said so; it can be resumed again", lost.name);
        self.record(now, EventName::Note, About::job(job), text);
        self.forget_given(job);
    }

    /// The job does not go on with what a command has given here.
    fn forget_given(&mut self, job: JobId) {
        self.forget_giver(job);
        self.outputs.push_back(Output::Store(StoreOrder::ForgetGiven(job)));
    }

    /// What is sent in place of `message`: it says of which life of its job it is, if the job was resumed.
    pub(super) fn with_life(&self, message: PeerMessage) -> PeerMessage {
        match job_in(&message).map(|job| self.lives.of(job)) {
            None | Some(0) => message,
            Some(life) => match codec::encode(&message, limits::PEER_FRAME) {
                Ok(code) => PeerMessage::OfLife(life, ByteBuf::from(code)),
                // The link says what is too long.
                Err(_) => message,
            },
        }
    }

    /// A message has come from another node. It is heard unless it is of a life of its job that is over.
    pub(super) fn hear(&mut self, now: Duration, from: &NodeId, message: PeerMessage) {
        if !self.is_member(from) {
            return self.handle_message(now, from, message);
        }
        let (life, message) = match message {
            PeerMessage::OfLife(life, code) => match codec::decode(&code, limits::PEER_FRAME) {
                Ok(message) => (life, message),
                Err(_) => return, // No node of this build says that.
            },
            message => (0, message),
        };
        if job_in(&message).is_none_or(|job| self.begin_life(job, life)) {
            self.handle_message(now, from, message);
        }
    }
}

/// The job of which a message tells something, or orders something, that holds for one of its lives alone. What commands say
/// counts whenever it comes; questions that change nothing, too.
fn job_in(message: &PeerMessage) -> Option<JobId> {
    match message {
        PeerMessage::ToHome(
            job,
            ToHome::Resume { .. }
            | ToHome::Host { .. }
            | ToHome::Left { .. }
            | ToHome::Finals { .. }
            | ToHome::NoImage { .. }
            | ToHome::Lost { .. }
            | ToHome::LineReady { .. }
            | ToHome::LineFailed { .. }
            | ToHome::LineWanted(_),
        )
        | PeerMessage::ToHost(job, _)
        | PeerMessage::ToStore(job, _)
        | PeerMessage::NewHome(job)
        | PeerMessage::Query(
            _,
            Query::Stand(job, _)
            | Query::Causes { job, .. }
            | Query::Deaths(job, _)
            | Query::Line { job, .. }
            | Query::Lost { job, .. },
        ) => Some(*job),
        PeerMessage::Query(_, Query::Given(gift)) => Some(gift.job),
        PeerMessage::Forget { process, .. }
        | PeerMessage::Restarted { process, .. }
        | PeerMessage::Query(_, Query::Release(process) | Query::Hosts(process, _) | Query::ForgetProcess(process)) => {
            Some(process.job)
        }
        PeerMessage::Restart(order) => Some(order.process.job),
        PeerMessage::Adopt(adoption) => Some(adoption.job),
        _ => None,
    }
}
