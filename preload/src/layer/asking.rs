//! What the node says, and what it is asked: the keys of greetings among that.

use radic_wire::determinant::ConnectionId;
use radic_wire::ids::ProcessId;
use radic_wire::log::FromProtector;
use radic_wire::mac::JobKey;
use radic_wire::process::{FromNode, TEXT, ToNode};
use rustix::io::Errno;

use super::Layer;
use crate::ending::{fail, sure};
use crate::memory::discreetly;

impl Layer {
    /// The key for greetings about `connection`.
    pub fn greeting_key(&self, connection: &ConnectionId) -> JobKey {
        let foreign = self.foreign.iter().find(|(known, _)| known == connection);
        discreetly(|| foreign.map_or_else(|| self.key.greeting_key(connection), |(_, key)| key.clone()))
    }

    /// The key for greetings about `connection`, which leads to `peer`, a process of another job. Keys are in no log and in no image: the node knows it.
    pub fn ask_greeting_key(&mut self, connection: ConnectionId, peer: ProcessId) -> JobKey {
        self.inquire(
            |ask| ToNode::GreetingKey { ask, connection, job: peer.job },
            |answer| {
                if let FromNode::GreetingKey { ask, key } = answer { Some((*ask, discreetly(|| key.clone()))) } else { None }
            },
            || format!("the key for {peer}"),
        )
    }

    /// After a restore: keys of connections with processes of other jobs, which are in no image.
    pub(crate) fn ask_foreign_keys(&mut self) {
        for (connection, _) in std::mem::take(&mut self.foreign) {
            let table = self.observer.table();
            let peer = table.find_end(connection, true).and_then(|slot| table.get(slot)).map(|connection| connection.peer);
            if let Some(peer) = peer {
                let key = self.ask_greeting_key(connection, peer);
                self.foreign.push((connection, key));
            }
        }
    }

    /// `connection` leads to a process of another job, where this key is known.
    pub fn set_greeting_key(&mut self, connection: ConnectionId, key: JobKey) {
        self.foreign.retain(|(known, _)| *known != connection);
        self.foreign.push((connection, key));
    }

    /// Reads what the node has said.
    pub fn hear_node(&mut self) {
        if self.replayer.is_some() {
            return;
        }
        loop {
            match self.node.poll() {
                Ok(Some(message)) => self.handle_node(message),
                Ok(None) => return,
                Err(error) => fail(&format!("the protector of its own node is gone: {error}")),
            }
        }
    }

    fn handle_node(&mut self, message: FromNode) {
        match message {
            FromNode::Protector(address) => self.drive_session(|session, cx| {
                session.handle_named(cx, address);
                Ok(())
            }),
            FromNode::MayEnd => self.drive_session(|session, _| {
                session.handle_may_end();
                Ok(())
            }),
            FromNode::Stable { stream, offset } => {
                self.drive_session(|session, cx| session.handle_stable(cx, stream, offset));
                self.break_dropped();
            }
            FromNode::Forget { connection, for_good } => {
                sure(self.observer.handle_protector(&FromProtector::Forget { connection, for_good }));
                self.close_forgotten();
            }
            FromNode::Collect { ask, lost } => {
                let causes = self.collect(&lost).into();
                self.tell_node(&ToNode::Holds { ask, causes });
            }
            FromNode::Checkpoint { request, line } => self.drive_images(|images, cx| images.handle_request(cx, request, line)),
            FromNode::MakeRoom { connection, from } => {
                self.drive_images(|images, cx| images.handle_make_room(cx, connection, from));
            }
            // A thread that asks does nothing else until it is answered, with the layer locked. If the answer comes here, another
            // thread was in it at the same time.
            FromNode::Peer { .. }
            | FromNode::Announced { .. }
            | FromNode::Claimed { .. }
            | FromNode::Inherited(_)
            | FromNode::GreetingKey { .. }
            | FromNode::Caller { .. } => fail("its node answers what no call has asked"),
            FromNode::Joined { .. } | FromNode::Refused(_) | FromNode::Restart(_) => {}
            message @ (FromNode::Place { .. } | FromNode::Final { .. } | FromNode::Restarted { .. }) => {
                self.handle_link_message(&message)
            }
        }
    }

    /// Asks the node a question, which is told its number, and waits for the message in which `take` finds that number; `what` it is to say.
    pub fn inquire<T>(
        &mut self,
        question: impl FnOnce(u64) -> ToNode,
        take: impl Fn(&FromNode) -> Option<(u64, T)>,
        what: impl FnOnce() -> String,
    ) -> T {
        let number = self.node.number();
        let answer = |message: &FromNode| take(message).filter(|(of, _)| *of == number).map(|(_, answer)| answer);
        let message = self.node.ask(&question(number), |message| answer(message).is_some());
        match message.and_then(|message| answer(&message).ok_or(Errno::PROTO)) {
            Ok(answer) => {
                self.hear_earlier();
                answer
            }
            Err(error) => fail(&format!("its node does not say {}: {error}", what())),
        }
    }

    /// What the node said before an answer is heard before the answer: it may be that a process has come back, of which the answer does not know.
    fn hear_earlier(&mut self) {
        while let Some(message) = self.node.poll_earlier() {
            self.handle_node(message);
        }
    }

    /// Says something in the node's log.
    pub fn note(&mut self, text: &str) {
        if self.replayer.is_some() {
            return;
        }
        let text = text.chars().take(TEXT / 4).collect();
        _ = self.node.send(&ToNode::Note(text));
    }
}
