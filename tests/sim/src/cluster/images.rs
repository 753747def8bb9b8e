//! The images of processes: what the engine makes of a process, and the connection on which an image goes to the protector. When an image is begun,
//! and upon which other one, decides [`Images`]. The way back is in [`super::restores`].

use radic_observer::Context;
use radic_observer::Observer;
use radic_observer::session::images::{Action, Images};
use radic_protector::store::Speaker;
use radic_wire::log::ToProtector;
use radic_wire::login::Channel;
use radic_wire::mac::MAC;
use std::collections::VecDeque;

use super::net::{ConnId, Owner, Packet, Word, code};
use super::program::Program;
use super::world::World;
use crate::app::mix;

/// One in so many times the engine refuses to save a process.
const REFUSED: usize = 60;
/// The beginning of an image's bytes: its place, a sum, and the place of the image that it is an increment of.
const HEAD: usize = 24;

/// What an image is: the process as it was.
#[expect(missing_docs, reason = "observer and program")]
#[derive(Debug, Clone)]
pub struct Saved {
    pub observer: Observer,
    pub program: Program,
    pub initialized: bool,
}

/// The connection on which an image goes to the protector.
#[derive(Debug)]
pub struct Shipping {
    conn: ConnId,
    image: u64,
    /// What is sent when the login is admitted.
    left: VecDeque<Packet>,
    is_admitted: bool,
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
                Action::Remind(image) => self.say_of_image(pid, &ToProtector::ImageUnderWay { image }),
            }
        }
        if self.lib(pid).images.under_way().is_none()
            && let Some(shipping) = self.lib(pid).image.take()
        {
            self.close(shipping.conn, 0);
        }
        result
    }

    fn say_of_image(&mut self, pid: u32, message: &ToProtector<'_>) {
        if let Some([journal, _]) = self.lib(pid).conns.used {
            self.send(journal, 0, Packet::Word(Word::Log(code(|out| message.write(out)))));
        }
    }

    /// A checkpoint is wanted, and the process is between two calls.
    pub fn checkpoint(&mut self, pid: u32) {
        let lib = self.lib(pid);
        if lib.program.is_in_call() || !lib.is_log_up() {
            return;
        }
        lib.due = false;
        let Some(parent) = self.drive_images(pid, |images, cx| images.begin(cx, false)) else { return };
        let (mut streams, mut ended) = (Vec::new(), Vec::new());
        let line = self.lib(pid).images.line();
        let (begin, image) = match self.lib(pid).observer.checkpoint(line, &mut streams, &mut ended) {
            Ok(Some(cut)) => (code(|out| cut.message(parent.map(|parent| parent.image)).write(out)), cut.mark.image),
            Ok(None) => unreachable!("it does not catch up"),
            Err(error) => {
                self.sure::<()>(pid, Err(error));
                return;
            }
        };
        self.drive_images(pid, |images, _| images.handle_begun(image));
        if self.dice.one_in(REFUSED) {
            return self.drive_images(pid, |images, cx| images.handle_unsaved(cx, "a socket of another kind".to_owned()));
        }
        self.counts.images += 1;
        let process = self.processes[pid as usize].id;
        let lib = self.lib(pid);
        let (of, position) = (Speaker { process, incarnation: lib.observer.incarnation() }, lib.observer.journal().end());
        self.checks.handle_image(of, image, position);
        let lib = self.lib(pid);
        lib.observer.pack_outbox(line);
        let saved = Saved { observer: lib.observer.clone(), program: lib.program.clone(), initialized: lib.initialized };
        lib.observer.handle_saved();
        let (content, engine) = self.save(saved, parent.map(|parent| parent.engine));
        self.drive_images(pid, |images, _| images.handle_saved(engine));
        self.ship_image(pid, image, begin, &content);
    }

    fn ship_image(&mut self, pid: u32, image: u64, begin: Vec<u8>, content: &[u8]) {
        let (at, protector) = (self.processes[pid as usize].machine, self.lib(pid).protector());
        let chunks = content.chunks(16).enumerate().map(|(index, bytes)| {
            let offset = index as u64 * 16;
            code(|out| ToProtector::ImageChunk { image, offset, bytes }.write(out))
        });
        let left: VecDeque<Packet> = std::iter::once(begin).chain(chunks).map(|bytes| Packet::Word(Word::Log(bytes))).collect();
        let conn = self.connect(Owner::Process(pid), at, protector);
        self.lib(pid).image = Some(Shipping { conn, image, left, is_admitted: false });
    }

    /// A packet on the connection of an image that is shipped; false: it is another connection's.
    pub fn arrive_for_image(&mut self, pid: u32, conn: ConnId, packet: &Packet) -> bool {
        let id = self.processes[pid as usize].id;
        let lib = self.lib(pid);
        let speaker = Speaker { process: id, incarnation: lib.observer.incarnation() };
        let Some(shipping) = lib.image.as_mut().filter(|shipping| shipping.conn == conn) else { return false };
        match packet {
            Packet::Ack => self.send(conn, 0, Packet::Word(Word::Login(speaker, Channel::Image))),
            Packet::Word(Word::Admitted) => {
                shipping.is_admitted = true;
                let (image, left) = (shipping.image, std::mem::take(&mut shipping.left));
                self.say_of_image(pid, &ToProtector::ImageUnderWay { image });
                left.into_iter().for_each(|packet| self.send(conn, 0, packet));
                self.send(conn, 0, Packet::Word(Word::ContentEnd));
            }
            // A process of the library logs in before it is saved.
            _ if !shipping.is_admitted => {
                self.drive_images(pid, |images, cx| images.handle_unsaved(cx, "the protector's log".to_owned()));
            }
            // The protector says on the journal's connection what became of it.
            _ => {}
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
