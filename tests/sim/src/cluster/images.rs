//! The images of processes: what the engine makes of a process, and the connection on which an image goes to the protector. When an image is begun,
//! and upon which other one, decides [`Images`]. The way back is in [`super::restores`].
//!
//! As in the library the process first logs in at the protector's log service, and does nothing else meanwhile ([`World::is_logging_in`]); then it is
//! cut and saved.

use std::time::Duration;

use radic_observer::Context;
use radic_observer::Observer;
use radic_observer::haste::Haste;
use radic_observer::links::Links;
use radic_observer::pressure::Pressure;
use radic_observer::session::images::{Action, Images, NotBegun};
use radic_protector::store::Speaker;
use radic_wire::log::ToProtector;
use radic_wire::login::Channel;
use radic_wire::mac::MAC;

use super::net::{ConnId, Owner, Packet, Word, code};
use super::program::Program;
use super::world::World;
use crate::app::mix;

/// One in so many times the engine refuses to save a process.
const REFUSED: usize = 60;
/// Bytes of an image that are sent at once.
const PIECE: usize = 16;
/// The beginning of an image's bytes: its place, a sum, and the place of the image that it is an increment of.
const HEAD: usize = 24;

/// Time for the login of an image, as in the library.
const LOGIN: Duration = Duration::from_secs(5);

/// What an image is: the process as it was, with all that the library's layer has of it in the process's memory. What becomes of each part after a
/// restore says the table in
/// `preload/src/layer/restart.rs`.
#[derive(Debug, Clone)]
pub struct Saved {
    /// The observer.
    pub observer: Observer,
    /// The program.
    pub program: Program,
    /// What is done about links that are not up: of another incarnation's sockets.
    pub links: Links,
    /// The image itself is under way.
    pub images: Images,
    /// How full the outbox was when that was told last.
    pub pressure: Pressure,
    /// How outcomes are shipped.
    pub haste: Haste,
    /// Outcomes wait for [`Haste`] to decide about them.
    pub has_received: bool,
    /// The program is through with its start.
    pub initialized: bool,
    /// A checkpoint is wanted.
    pub due: bool,
}

/// How far the connection of an image is.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The login, until then. The log is on this connection of the journal.
    LoggingIn { until: Duration, journal: Option<ConnId> },
    /// The image goes to the protector.
    Shipping,
}

/// The connection on which an image goes to the protector.
#[derive(Debug)]
pub struct Shipping {
    conn: ConnId,
    stage: Stage,
}

impl World {
    /// Something happens to the images of a process; what they want then is done.
    pub fn drive_images<T>(&mut self, pid: u32, input: impl FnOnce(&mut Images, &mut Context<'_>) -> T) -> T {
        let now = self.now;
        let lib = self.lib(pid);
        let result = input(&mut lib.images, &mut Context { observer: &mut lib.observer, now });
        while let Some(action) = self.lib(pid).images.poll_action() {
            match action {
                Action::Want => self.lib(pid).due = true,
                Action::Tell(message) => self.tell_node(pid, message),
                Action::Abandon(image) => self.say_of_image(pid, &ToProtector::ImageAbandoned { image }),
                Action::Remind(image) | Action::Announce(image) => self.say_of_image(pid, &ToProtector::ImageUnderWay { image }),
            }
        }
        let lib = self.lib(pid);
        let is_over = lib.images.under_way().is_none();
        if let Some(shipping) = lib.image.take_if(|shipping| is_over && matches!(shipping.stage, Stage::Shipping)) {
            self.close(shipping.conn, 0);
        }
        result
    }

    fn say_of_image(&mut self, pid: u32, message: &ToProtector<'_>) {
        if let Some([journal, _]) = self.lib(pid).conns.used {
            self.send(journal, 0, Packet::Word(Word::Log(code(|out| message.write(out)))));
        }
    }

    /// A checkpoint is wanted, and the process is between two calls: it logs in, if it makes an image now.
    pub fn checkpoint(&mut self, pid: u32) {
        let lib = self.lib(pid);
        if lib.program.is_in_call() || !lib.is_log_up() {
            return;
        }
        lib.due = false;
        if !self.drive_images(pid, |images, cx| images.begin(cx, false)) {
            return;
        }
        self.ship_journal(pid);
        let (at, protector) = (self.processes[pid as usize].machine, self.lib(pid).protector());
        let conn = self.connect(Owner::Process(pid), at, protector);
        let (until, journal) = (self.now + LOGIN, self.lib(pid).conns.journal());
        self.lib(pid).image = Some(Shipping { conn, stage: Stage::LoggingIn { until, journal } });
    }

    /// Whether the process waits for the login of an image, and does nothing else. One that waits too long gives the image up.
    pub fn is_logging_in(&mut self, pid: u32) -> bool {
        let now = self.now;
        match self.lib(pid).image {
            Some(Shipping { stage: Stage::LoggingIn { until, .. }, .. }) if now < until => true,
            Some(Shipping { stage: Stage::LoggingIn { .. }, .. }) => {
                self.give_up_login(pid);
                false
            }
            _ => false,
        }
    }

    /// The process was not let in: no image begins, and the attempt has held up the program.
    fn give_up_login(&mut self, pid: u32) {
        if let Some(shipping) = self.lib(pid).image.take() {
            self.close(shipping.conn, 0);
        }
        self.drive_images(pid, |images, cx| images.handle_not_begun(cx, &NotBegun::NotLetIn("no".to_owned())));
    }

    /// The login is admitted: the process is cut and saved, and its image is shipped.
    fn make_image(&mut self, pid: u32, conn: ConnId) {
        let (mut streams, mut ended) = (Vec::new(), Vec::new());
        let lib = self.lib(pid);
        let cut = lib.images.cut(&mut lib.observer, &mut streams, &mut ended);
        let (begin, parent) = match cut {
            Ok((message, parent)) => (code(|out| message.write(out)), parent),
            Err(NotBegun::NotCut(error)) => {
                self.sure::<()>(pid, Err(error));
                return;
            }
            Err(why) => unreachable!("it logs in, and does nothing else: {why}"),
        };
        self.send(conn, 0, Packet::Word(Word::Log(begin)));
        self.lib(pid).image = Some(Shipping { conn, stage: Stage::Shipping });
        self.drive_images(pid, Images::handle_begun);
        if self.goes_wrong(REFUSED) {
            return self.drive_images(pid, |images, cx| images.handle_unsaved(cx, "a socket of another kind".to_owned()));
        }
        self.counts.images += 1;
        let process = self.processes[pid as usize].id;
        let lib = self.lib(pid);
        let (of, position) = (Speaker { process, incarnation: lib.observer.incarnation() }, lib.observer.journal().end());
        let (saved, image) = (lib.saved(), lib.images.under_way().expect("it has begun"));
        self.checks.handle_image(of, image, position);
        let (content, engine) = self.save(saved, parent.map(|parent| parent.engine));
        self.drive_images(pid, |images, cx| images.handle_saved(cx, engine));
        for (index, bytes) in content.chunks(PIECE).enumerate() {
            let offset = (index * PIECE) as u64;
            let chunk = code(|out| ToProtector::ImageChunk { image, offset, bytes }.write(out));
            self.send(conn, 0, Packet::Word(Word::Log(chunk)));
        }
        self.send(conn, 0, Packet::Word(Word::ContentEnd));
    }

    /// A packet on the connection of an image; false: it is another connection's.
    pub fn arrive_for_image(&mut self, pid: u32, conn: ConnId, packet: &Packet) -> bool {
        let id = self.processes[pid as usize].id;
        let lib = self.lib(pid);
        let speaker = Speaker { process: id, incarnation: lib.observer.incarnation() };
        let Some(shipping) = lib.image.as_ref().filter(|shipping| shipping.conn == conn) else { return false };
        // What the protector says of an image that is shipped comes on the journal's connection.
        let Stage::LoggingIn { journal, .. } = shipping.stage else { return true };
        let is_same = lib.is_log_up() && lib.conns.journal() == journal;
        match packet {
            Packet::Ack => self.send(conn, 0, Packet::Word(Word::Login(speaker, Channel::Image))),
            Packet::Word(Word::Admitted) if is_same => self.make_image(pid, conn),
            // In the library nothing of the session happens meanwhile.
            _ => self.give_up_login(pid),
        }
        true
    }
}

/// A code over an image, as a log service has it.
pub fn code_of(image: &[u8]) -> [u8; MAC] {
    let sum = image.chunks(8).fold(image.len() as u64, |sum, piece| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        mix(sum, u64::from_le_bytes(word))
    });
    let mut code = [0; MAC];
    code[..8].copy_from_slice(&sum.to_le_bytes());
    code
}

/// Images by their place in [`World::saved`]; the engine's name for one is its place and one more.
impl World {
    /// Keeps a process as it is now: the bytes of its image, and the engine's name for it.
    fn save(&mut self, saved: Saved, parent: Option<u64>) -> (Vec<u8>, u64) {
        self.saved.push(saved);
        let (engine, parent) = (self.saved.len() as u64, parent.unwrap_or(0));
        let length = HEAD + 8 + self.dice.below(60);
        let mut content = (engine - 1).to_le_bytes().to_vec();
        content.extend(mix(engine - 1, mix(parent, length as u64)).to_le_bytes());
        content.extend(parent.to_le_bytes());
        content.resize(length, engine as u8);
        (content, engine)
    }

    /// The process that an image is of, if it is whole.
    pub fn saved_of(&self, bytes: &[u8]) -> Option<usize> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().expect("eight bytes")));
        let (number, sum, parent) = (word(0)?, word(8)?, word(16)?);
        let good = sum == mix(number, mix(parent, bytes.len() as u64)) && (number as usize) < self.saved.len();
        good.then_some(number as usize)
    }

    /// The process that a chain of images is of: each one is an increment of the one before, and the first of none.
    pub fn saved_of_chain<'a>(&self, chain: impl Iterator<Item = &'a Vec<u8>>) -> Option<usize> {
        let mut below = 0;
        for image in chain {
            let place = self.saved_of(image)?;
            let parent = u64::from_le_bytes(image.get(16..HEAD)?.try_into().expect("eight bytes"));
            if parent != below {
                return None;
            }
            below = place as u64 + 1;
        }
        (below > 0).then(|| below as usize - 1)
    }
}
