//! What a measurement is told of a run, if there is one: [`Watch`] judges.

use radic_protector::node::Input;
use radic_wire::ids::ProcessId;
use radic_wire::membership::MembershipMessage;
use radic_wire::peer::PeerMessage;

use super::net::{ConnId, Owner, Packet, Word};
use super::world::World;
use crate::scale::watch::{Watch, kind, kind_of_membership};

impl World {
    fn measure(&mut self, what: impl FnOnce(&mut Watch)) {
        if let Some(watch) = &mut self.watch {
            what(watch);
        }
    }

    /// A node has a message for another one.
    pub(super) fn measure_sent(&mut self, at: usize, message: &PeerMessage) {
        let now = self.now;
        self.measure(|watch| {
            watch.handle_sent(at, kind(message));
            if let PeerMessage::Restarted { process, .. } = message {
                // A node that says so to the others knows it itself.
                watch.hears(now, at, *process);
            }
        });
    }

    /// A node that joins has a message for a member.
    pub(super) fn measure_join(&mut self, at: usize, message: &MembershipMessage) {
        self.measure(|watch| watch.handle_sent(at, kind_of_membership(message)));
    }

    /// A node wants to know whether another one answers.
    pub(super) fn measure_probe(&mut self, at: usize) {
        self.measure(|watch| watch.handle_sent(at, "probe"));
    }

    /// A node has a heartbeat for its watcher.
    pub(super) fn measure_beat(&mut self, at: usize) {
        self.measure(|watch| watch.handle_beat(at));
    }

    /// A node hears something of another one.
    pub(super) fn measure_heard(&mut self, at: usize, input: &Input) {
        let now = self.now;
        self.measure(|watch| match input {
            Input::Message(_, message) => {
                watch.handle_heard(at);
                if let PeerMessage::Restarted { process, .. } = message {
                    watch.hears(now, at, *process);
                }
            }
            Input::Heartbeat(..) => watch.handle_beat(at),
            _ => {}
        });
    }

    /// A packet leaves a machine.
    pub(super) fn measure_packet(&mut self, conn: ConnId, side: usize, packet: &Packet) {
        if let (Some(watch), Packet::Word(Word::Peer(frame))) = (&mut self.watch, packet) {
            let ends = &self.net.conns[conn].ends;
            watch.handle_bytes(ends[side].machine, ends[1 - side].machine, frame.len() as u64);
        }
    }

    /// A caller has been turned away by the daemon of a machine: too many others are there, or have not said hello.
    pub(super) fn measure_turned_away(&mut self) {
        self.measure(Watch::handle_turned_away);
    }

    /// Something happened to a node: it may have another view.
    pub(super) fn measure_view(&mut self, at: usize) {
        let now = self.now;
        let Some(watch) = &mut self.watch else { return };
        if let Some(view) = self.machines[at].node.as_ref().and_then(|node| node.view()) {
            watch.has_view(now, at, view.members.len());
        }
    }

    /// A process begins on a machine.
    pub(super) fn measure_place(&mut self, at: usize, process: ProcessId) {
        self.measure(|watch| watch.handle_place(at, process));
    }

    /// A process has joined its job.
    pub(super) fn measure_joined(&mut self) {
        self.measure(|watch| watch.joined += 1);
    }

    /// A log has a whole image of a process.
    pub(super) fn measure_image(&mut self, process: ProcessId) {
        self.measure(|watch| _ = watch.images.insert(process));
    }

    /// A node ends, because others have declared it dead.
    pub(super) fn measure_stop(&mut self, at: usize) {
        self.measure(|watch| _ = watch.excluded.insert(at));
    }

    /// The daemon of a machine logs an event.
    pub(super) fn measure_event(&mut self, at: usize, event: &radic_wire::event::Event) {
        let now = self.now;
        self.measure(|watch| watch.event(now, at, event));
    }

    /// Something has happened to the job that should not have.
    pub(super) fn measure_miss(&mut self, what: impl FnOnce() -> String) {
        self.measure(|watch| watch.misses(what()));
    }

    /// How many connections others have to the daemon of each machine.
    pub fn callers(&self) -> Vec<usize> {
        let mut callers = vec![0; self.machines.len()];
        for conn in self.net.conns.iter().filter(|conn| conn.arrived && conn.ends.iter().all(|end| !end.closed)) {
            if let Owner::Daemon(at, _) = conn.ends[1].owner {
                callers[at] += 1;
            }
        }
        callers
    }
}
