//! The connections of a process to its protector: [`radic_observer::session`] decides, here they are the simulated network's.

use radic_observer::session::{Action, Session};
use radic_observer::{Context, Failure};
use radic_protector::store::Speaker;
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::login::Channel;
use radic_wire::process::{FromNode, ToNode};

use super::net::{ConnId, Owner, Packet, Word, code};
use super::world::World;

/// The journal's connection, and that for what was received.
type Pair = [ConnId; 2];

/// The connections to the protector.
#[derive(Debug, Default)]
pub struct Conns {
    /// Those that are in use.
    pub used: Option<Pair>,
    /// Those of the login under way, and how many of them were admitted.
    coming: Option<(Pair, usize)>,
}

impl Conns {
    /// The connection of the journal that is in use.
    pub fn journal(&self) -> Option<ConnId> {
        self.used.map(|[journal, _]| journal)
    }
}

impl World {
    /// Tells the session something, and does what it says. None: the process cannot go on.
    pub fn drive_session<T>(
        &mut self,
        pid: u32,
        input: impl FnOnce(&mut Session, &mut Context<'_>) -> Result<T, Failure>,
    ) -> Option<T> {
        let now = self.now;
        let lib = self.lib(pid);
        let result = input(&mut lib.session, &mut Context { observer: &mut lib.observer, now });
        let value = result.map_err(|failure| self.cannot_go_on(pid, &failure)).ok();
        while self.is_running(pid)
            && let Some(action) = self.lib(pid).session.poll_action()
        {
            self.carry_out_of_session(pid, action);
        }
        value
    }

    fn carry_out_of_session(&mut self, pid: u32, action: Action) {
        match action {
            Action::Tell(message) => {
                if self.breaks.hasty && matches!(message, ToNode::AtEnd(_)) {
                    self.lib(pid).from_node.push_back(FromNode::MayEnd);
                }
                self.tell_node(pid, message);
            }
            Action::Say(message) => {
                if let Some([journal, _]) = self.lib(pid).conns.used {
                    self.say(journal, &message);
                }
            }
            Action::LogIn(address) => {
                let at = self.processes[pid as usize].machine;
                if let Some((pair, _)) = self.lib(pid).conns.coming.take() {
                    self.close_pair(pair);
                }
                let pair = [(); 2].map(|()| self.connect(Owner::Process(pid), at, address));
                self.lib(pid).conns.coming = Some((pair, 0));
            }
            Action::Use { is_another } => self.use_conns(pid, is_another),
            Action::Checkpoint => self.lib(pid).due = true,
            Action::Live { events } => {
                let input = Some(self.lib(pid).observer.input_read());
                if self.is_voice(pid) {
                    self.checks.handle_live(self.processes[pid as usize].id);
                }
                self.tell_node(pid, ToNode::Live { events, input });
                self.trace(|| format!("process {pid} lives again, after {events} outcomes"));
            }
        }
    }

    fn say(&mut self, conn: ConnId, message: &ToProtector<'_>) {
        self.send(conn, 0, Packet::Word(Word::Log(code(|out| message.write(out)))));
    }

    fn close_pair(&mut self, pair: Pair) {
        pair.into_iter().for_each(|conn| self.close(conn, 0));
    }

    fn use_conns(&mut self, pid: u32, is_another: bool) {
        let Some((pair, _)) = self.lib(pid).conns.coming.take() else { return };
        self.drop_conns(pid);
        self.lib(pid).conns.used = Some(pair);
        if is_another {
            self.drive_images(pid, |images, cx| images.handle_another_protector(cx.observer));
        }
        let hello = self.lib(pid).observer.hello();
        pair.into_iter().for_each(|conn| self.say(conn, &hello));
    }

    fn drop_conns(&mut self, pid: u32) {
        self.lib(pid).from_protector.clear();
        if let Some(pair) = self.lib(pid).conns.used.take() {
            self.close_pair(pair);
        }
    }

    /// A packet of its protector; the packet, if it is none.
    pub fn arrive_for_log(&mut self, pid: u32, conn: ConnId, packet: Packet) -> Option<Packet> {
        let id = self.processes[pid as usize].id;
        let lib = self.lib(pid);
        if lib.conns.used.is_some_and(|pair| pair.contains(&conn)) {
            if let Packet::Word(Word::Log(bytes)) = packet {
                lib.from_protector.push_back(bytes);
            } else {
                self.drop_conns(pid);
                self.drive_session(pid, |session, cx| {
                    session.handle_lost(cx);
                    Ok(())
                });
            }
            return None;
        }
        let speaker = Speaker { process: id, incarnation: lib.observer.incarnation() };
        let Some((pair, admitted)) = &mut lib.conns.coming else { return Some(packet) };
        let Some(which) = pair.iter().position(|of| *of == conn) else { return Some(packet) };
        match packet {
            Packet::Ack => self.send(conn, 0, Packet::Word(Word::Login(speaker, [Channel::Journal, Channel::Bulk][which]))),
            Packet::Word(Word::Admitted) => {
                *admitted += 1;
                if *admitted == 2 {
                    self.drive_session(pid, |session, cx| {
                        session.handle_logged_in(cx);
                        Ok(())
                    });
                }
            }
            _ => {
                let pair = *pair;
                lib.conns.coming = None;
                self.close_pair(pair);
                self.drive_session(pid, |session, cx| {
                    session.handle_login_failed(cx);
                    Ok(())
                });
            }
        }
        None
    }

    /// While the protector does not take the log nothing else is done, as in the library.
    pub fn is_session_up(&mut self, pid: u32) -> bool {
        self.drive_session(pid, Session::handle_timeout);
        self.is_running(pid) && self.lib(pid).is_log_up()
    }

    /// Reads what the protector has said.
    pub fn hear_protector(&mut self, pid: u32) {
        while self.is_running(pid)
            && let Some(bytes) = self.lib(pid).from_protector.pop_front()
        {
            let message = FromProtector::read(&bytes).expect("a protector's message");
            if self.drive_session(pid, |session, cx| session.handle_protector(cx, &message)).is_none() {
                return;
            }
            self.drive_images(pid, |images, cx| _ = images.handle_protector(cx.observer, &message));
        }
    }

    /// Asks for what it wants of its log, and looks whether it has caught up.
    pub fn look_at_log(&mut self, pid: u32) {
        self.drive_session(pid, |session, cx| {
            session.look_at_log(cx);
            Ok(())
        });
    }

    /// Asks how much of what it has sent is safe.
    pub fn ask_stable(&mut self, pid: u32) {
        self.drive_session(pid, |session, cx| {
            session.ask_stable(cx);
            Ok(())
        });
    }
}
