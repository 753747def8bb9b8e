//! The images of processes: what the engine makes of a process, the connection on which an image goes to the protector, and the way back. When an image is begun,
//! and upon which other one, decides [`Images`].

use std::collections::VecDeque;
use std::time::Duration;

use radic_observer::Context;
use radic_observer::Observer;
use radic_observer::session::images::{Action, Images};
use radic_protector::node::Input;
use radic_protector::node::host::RestoreOrder;
use radic_protector::store::Speaker;
use radic_wire::ids::{JobId, ProcessId};
use radic_wire::log::ToProtector;
use radic_wire::login::Channel;

use super::daemon::Timer;
use super::net::{ConnId, Owner, Packet, Word};
use super::process::Program;
use super::world::{World, code};
use crate::app::mix;

/// Time for an image to come: `SILENCE` of `logs/fetch.rs`.
const FETCH: Duration = Duration::from_secs(30);
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

/// A process on its way back.
#[derive(Debug)]
pub struct Fetch {
    /// Its job.
    pub job: JobId,
    order: RestoreOrder,
    /// The connection on which the next image comes.
    pub conn: ConnId,
    /// The host does not want it any more.
    pub given_up: bool,
    /// The images that have come: a whole one, and increments each on the one before.
    chain: Vec<Vec<u8>>,
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
                Action::Abandon(image) => self.say_abandoned(pid, image),
            }
        }
        if self.lib(pid).images.under_way().is_none() {
            self.lib(pid).image = None;
        }
        result
    }

    fn say_abandoned(&mut self, pid: u32, image: u64) {
        if let Some([journal, _]) = self.lib(pid).conns.used {
            let message = code(|out| ToProtector::ImageAbandoned { image }.write(out));
            self.send(journal, 0, Packet::Word(Word::Log(message)));
        }
    }

    /// A checkpoint is wanted, and the process is between two calls.
    pub fn checkpoint(&mut self, pid: u32) {
        let lib = self.lib(pid);
        if lib.rest.is_some() || !lib.partial.is_empty() || !lib.is_log_up() {
            return;
        }
        lib.due = false;
        let Some(parent) = self.drive_images(pid, |images, cx| images.begin(cx, false)) else { return };
        let (mut streams, mut ended) = (Vec::new(), Vec::new());
        let (begin, image) = match self.lib(pid).observer.checkpoint(&mut streams, &mut ended) {
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
        let (id, position) = (self.processes[pid as usize].id, self.lib(pid).observer.journal().end());
        self.checks.handle_image(id, image, position);
        let lib = self.lib(pid);
        let saved = Saved { observer: lib.observer.clone(), program: lib.program.clone(), initialized: lib.initialized };
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
        self.lib(pid).image = Some((conn, left));
    }

    /// A packet on the connection of an image that is shipped; false: it is another connection's.
    pub fn arrive_for_image(&mut self, pid: u32, conn: ConnId, packet: &Packet) -> bool {
        let id = self.processes[pid as usize].id;
        let lib = self.lib(pid);
        let speaker = Speaker { process: id, incarnation: lib.observer.incarnation() };
        let Some((_, left)) = lib.image.as_mut().filter(|(of, _)| *of == conn) else { return false };
        match packet {
            Packet::Ack => self.send(conn, 0, Packet::Word(Word::Login(speaker, Channel::Image))),
            Packet::Word(Word::Admitted) => {
                let left = std::mem::take(left);
                left.into_iter().for_each(|packet| self.send(conn, 0, packet));
                // Its end says that it is whole.
                self.send(conn, 0, Packet::End);
            }
            // The protector says on the journal's connection what became of it; if it is gone, that is noticed there.
            _ => {}
        }
        true
    }
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
    fn saved_of_chain(&self, chain: &[Vec<u8>]) -> Option<usize> {
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

impl World {
    /// The images of a process are fetched, one after the other.
    pub fn begin_fetch(&mut self, at: usize, job: JobId, order: RestoreOrder) {
        let process = order.process;
        let conn = self.dial_for(at, &order);
        self.peers(at).fetches.insert(process, Fetch { job, order, conn, given_up: false, chain: Vec::new() });
        self.daemon_later(at, FETCH, Timer::Fetch(conn));
    }

    fn dial_for(&mut self, at: usize, order: &RestoreOrder) -> ConnId {
        let owner = Owner::Fetcher(at, self.machines[at].boot, order.process);
        self.connect(owner, at, order.log)
    }

    /// Something came for a process that is on its way back.
    pub fn fetch_arrive(&mut self, at: usize, conn: ConnId, process: ProcessId, packet: Packet) {
        let Some(fetch) = self.peers(at).fetches.get(&process).filter(|fetch| fetch.conn == conn) else { return };
        let speaker = Speaker { process, incarnation: fetch.order.incarnation };
        let next = fetch.order.images.get(fetch.chain.len()).map(|(image, _)| *image);
        match packet {
            Packet::Ack => self.send(conn, 0, Packet::Word(Word::Login(speaker, Channel::Fetch))),
            Packet::Word(Word::Admitted) => {
                let image = next.expect("an order names an image");
                self.send(conn, 0, Packet::Word(Word::Wish(image)));
            }
            Packet::Word(Word::Content(bytes)) => self.image_came(at, conn, process, bytes),
            Packet::End | Packet::Reset => self.fetched(at, conn, Err("its connection broke".to_owned())),
            packet => unreachable!("{packet:?} on a connection that fetches"),
        }
    }

    fn image_came(&mut self, at: usize, conn: ConnId, process: ProcessId, bytes: Vec<u8>) {
        let Some(fetch) = self.peers(at).fetches.get_mut(&process) else { return };
        fetch.chain.push(bytes);
        if fetch.chain.len() == fetch.order.images.len() {
            let chain = std::mem::take(&mut fetch.chain);
            return self.fetched(at, conn, Ok(chain));
        }
        let order = fetch.order.clone();
        self.close(conn, 0);
        let next = self.dial_for(at, &order);
        if let Some(fetch) = self.peers(at).fetches.get_mut(&process) {
            fetch.conn = next;
        }
        self.daemon_later(at, FETCH, Timer::Fetch(next));
    }

    /// All images of a process are here, or they do not come.
    pub fn fetched(&mut self, at: usize, conn: ConnId, result: Result<Vec<Vec<u8>>, String>) {
        let peers = self.peers(at);
        let Some(process) = peers.fetches.iter().find(|(_, fetch)| fetch.conn == conn).map(|(process, _)| *process) else {
            return;
        };
        let Some(Fetch { order, .. }) = peers.fetches.remove(&process) else { return };
        self.close(conn, 0);
        let Ok(chain) = &result else {
            return self.input_soon(at, Input::Fetched(process, result.map(|_| ())));
        };
        let saved = self.saved_of_chain(chain);
        let saved = saved.unwrap_or_else(|| panic!("G6: images of {process} that are committed are none: {:?}", order.images));
        self.counts.increments += chain.len() as u64 - 1;
        self.input_soon(at, Input::Fetched(process, Ok(())));
        self.restore(at, process, order.incarnation, saved);
    }
}
