//! The orders of a node to bring processes back: which are carried out, which wait, and which results count.

use std::collections::{BTreeMap, VecDeque};

use radic_wire::ids::ProcessId;
use radic_wire::limits;

use super::error::FetchError;
use super::order::RestoreOrder;

/// Orders that may wait for others: one for each rank of the largest job.
const WAITING: usize = limits::RANKS as usize;

/// The number of an order. None has it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderNumber(u64);

/// Something for the driver to do.
#[derive(Debug, PartialEq, Eq)]
pub enum OrdersAction {
    /// Carry this order out; then [`Orders::handle_ready`].
    Begin(OrderNumber, RestoreOrder),
    /// Stop carrying this order out; then [`Orders::handle_ready`] all the same.
    Stop(OrderNumber),
    /// Answer an order that was never begun by this error; then [`Orders::handle_ready`].
    Refuse(OrderNumber, RestoreOrder, FetchError),
}

/// What is done with the result of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It is the answer to the order.
    Answer,
    /// The order was given up: the answer is [`FetchError::GivenUp`], whatever came of it.
    GivenUp,
    /// It is dropped: another order has replaced this one, or the job is over.
    Nothing,
}

/// See the module's text.
#[derive(Debug)]
pub struct Orders {
    /// How many are carried out at once.
    at_once: usize,
    /// How many may wait for that.
    bound: usize,
    next: u64,
    waiting: VecDeque<(OrderNumber, RestoreOrder)>,
    /// What is carried out, of which process, and what is done with the result.
    running: BTreeMap<OrderNumber, (ProcessId, Use)>,
    /// The same of orders that were never begun and whose answers are on their way.
    refused: BTreeMap<OrderNumber, (ProcessId, Use)>,
    actions: VecDeque<OrdersAction>,
}

impl Orders {
    /// None yet. So many are carried out at once.
    pub fn new(at_once: usize) -> Orders {
        Orders::bounded(at_once, WAITING)
    }

    /// The same. So many may wait.
    pub(super) fn bounded(at_once: usize, bound: usize) -> Orders {
        let (waiting, running, refused, actions) = Default::default();
        Orders { at_once: at_once.max(1), bound, next: 0, waiting, running, refused, actions }
    }

    /// What the driver is to do next.
    pub fn poll_action(&mut self) -> Option<OrdersAction> {
        self.actions.pop_front()
    }

    /// A process is to be brought back. An order for the same one that is under way is replaced.
    pub fn handle_order(&mut self, order: RestoreOrder) {
        self.drop_all(|process| process == order.process);
        self.next += 1;
        let number = OrderNumber(self.next);
        if self.waiting.len() < self.bound {
            self.waiting.push_back((number, order));
            self.begin();
        } else {
            self.refuse(number, order, FetchError::Crowd);
        }
        self.check_invariants();
    }

    /// The process is not wanted any more: its order is answered by an error. Returns false if none is under way.
    pub fn give_up(&mut self, process: ProcessId) -> bool {
        let waiting = self.waiting.iter().position(|(_, order)| order.process == process);
        let known = if let Some((number, order)) = waiting.and_then(|at| self.waiting.remove(at)) {
            self.refuse(number, order, FetchError::GivenUp);
            true
        } else {
            self.stop(Use::GivenUp, |of| of == process)
        };
        self.check_invariants();
        known
    }

    /// The results of the orders for these processes are not wanted any more.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.drop_all(is_gone);
        self.check_invariants();
    }

    /// An order was carried out, or could not be. Says what is done with the result.
    pub fn handle_ready(&mut self, number: OrderNumber) -> Use {
        let known = self.running.remove(&number).or_else(|| self.refused.remove(&number));
        let of = known.map_or(Use::Nothing, |(_, of)| of);
        self.begin();
        self.check_invariants();
        of
    }

    fn begin(&mut self) {
        while self.running.len() < self.at_once
            && let Some((number, order)) = self.waiting.pop_front()
        {
            self.running.insert(number, (order.process, Use::Answer));
            self.actions.push_back(OrdersAction::Begin(number, order));
        }
    }

    fn refuse(&mut self, number: OrderNumber, order: RestoreOrder, error: FetchError) {
        self.refused.insert(number, (order.process, Use::Answer));
        self.actions.push_back(OrdersAction::Refuse(number, order, error));
    }

    fn drop_all(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.waiting.retain(|(_, order)| !is_gone(order.process));
        self.stop(Use::Nothing, is_gone);
    }

    /// Stops what is carried out for these processes and still has an answer to give. Returns whether there was any.
    fn stop(&mut self, of: Use, is_this: impl Fn(ProcessId) -> bool) -> bool {
        let mut any = false;
        for (_, known) in self.refused.values_mut().filter(|(process, known)| *known != Use::Nothing && is_this(*process)) {
            // An order that is given up twice is answered once.
            (*known, any) = (if of == Use::Nothing { of } else { *known }, true);
        }
        for (number, (process, known)) in &mut self.running {
            if *known != Use::Nothing && is_this(*process) {
                if *known == Use::Answer {
                    self.actions.push_back(OrdersAction::Stop(*number));
                }
                (*known, any) = (of, true);
            }
        }
        any
    }

    /// Panics if the parts contradict each other.
    pub fn check_invariants(&self) {
        assert!(self.running.len() <= self.at_once, "no more is carried out at once than may be");
        assert!(self.waiting.is_empty() || self.running.len() == self.at_once, "nothing waits without a reason");
        assert!(self.waiting.len() <= self.bound, "the queue is bounded");
        if cfg!(debug_assertions) {
            self.check_processes();
        }
    }

    fn check_processes(&self) {
        let answered =
            self.running.values().chain(self.refused.values()).filter(|(_, of)| *of != Use::Nothing).map(|(process, _)| *process);
        let mut processes: Vec<ProcessId> = answered.chain(self.waiting.iter().map(|(_, order)| order.process)).collect();
        let count = processes.len();
        processes.sort_unstable();
        processes.dedup();
        assert_eq!(processes.len(), count, "each process has one order that is answered");
    }
}
