//! Processes on their way back: the real [`Orders`] and [`Fetch`] of each daemon, with connections of the simulated network, and the disk of the machine.

use std::collections::BTreeMap;
use std::time::Duration;

use radic_protector::fetching::{Fetch, FetchAction, FetchError, OrderNumber, Orders, OrdersAction, Use, WRONG_CODE};
use radic_protector::node::Input;
use radic_protector::node::host::RestoreOrder;
use radic_protector::store::{File, Speaker};
use radic_wire::event::EventName;
use radic_wire::ids::ProcessId;
use radic_wire::login::Channel;

use super::daemon::Timer;
use super::images::code_of;
use super::net::{ConnId, Owner, Packet, Word};
use super::world::World;

/// Orders that a daemon carries out at once: few, so that some wait.
const AT_ONCE: usize = 1;

/// One in so many images is damaged after it was verified.
const ROTTEN: usize = 60;

/// What a daemon has of them.
#[derive(Debug)]
pub struct Restores {
    orders: Orders,
    running: BTreeMap<OrderNumber, Restoring>,
}

/// An order that is carried out.
#[derive(Debug)]
struct Restoring {
    order: RestoreOrder,
    fetch: Fetch,
    conn: Option<ConnId>,
    /// What has come of the next image.
    image: Vec<u8>,
    /// The images that are here, by their numbers.
    chain: BTreeMap<u64, Vec<u8>>,
    /// Where the process is in [`World::saved`] that they are.
    saved: Option<usize>,
    /// When the machine is called, as far as that is scheduled.
    timeout: Option<Duration>,
}

impl Default for Restores {
    fn default() -> Restores {
        Restores { orders: Orders::new(AT_ONCE), running: BTreeMap::new() }
    }
}

impl World {
    fn restoring(&mut self, at: usize, number: OrderNumber) -> Option<&mut Restoring> {
        self.peers(at).restores.running.get_mut(&number)
    }

    /// Something happens to the orders of a daemon; what they want then is done.
    pub fn drive_orders<T>(&mut self, at: usize, input: impl FnOnce(&mut Orders) -> T) -> T {
        let result = input(&mut self.peers(at).restores.orders);
        while let Some(action) = self.peers(at).restores.orders.poll_action() {
            match action {
                OrdersAction::Begin(number, order) => self.begin_fetch(at, number, order),
                OrdersAction::Stop(number) => self.drive_fetch(at, number, |fetch, _| fetch.handle_given_up()),
                OrdersAction::Refuse(number, order, error) => self.fetched(at, number, &order, Err(error)),
            }
        }
        result
    }

    fn begin_fetch(&mut self, at: usize, number: OrderNumber, order: RestoreOrder) {
        let fetch = Fetch::of(self.now, &order);
        let (conn, image, chain, saved, timeout) = Default::default();
        let restoring = Restoring { order, fetch, conn, image, chain, saved, timeout };
        self.peers(at).restores.running.insert(number, restoring);
        self.drive_fetch(at, number, |_, _| ());
    }

    /// Something happens to an order that is carried out; what it wants then is done.
    fn drive_fetch(&mut self, at: usize, number: OrderNumber, input: impl FnOnce(&mut Fetch, Duration)) {
        let now = self.now;
        let Some(restoring) = self.restoring(at, number) else { return };
        input(&mut restoring.fetch, now);
        while let Some(action) = self.restoring(at, number).and_then(|restoring| restoring.fetch.poll_action()) {
            self.act_for_fetch(at, number, action);
        }
        let Some(restoring) = self.restoring(at, number) else { return };
        let is_scheduled = |due: &Duration| restoring.timeout.is_some_and(|at| at <= *due && at > now);
        if let Some(due) = restoring.fetch.poll_timeout().filter(|due| !is_scheduled(due)) {
            restoring.timeout = Some(due);
            self.daemon_later(at, due.saturating_sub(now), Timer::Fetch(number));
        }
    }

    fn act_for_fetch(&mut self, at: usize, number: OrderNumber, action: FetchAction) {
        let boot = self.machines[at].boot;
        let Some(restoring) = self.restoring(at, number) else { return };
        match action {
            FetchAction::Open(image) | FetchAction::Read(image) => {
                let after = self.disk_time(at);
                self.daemon_later(at, after, Timer::Opened(number, image));
            }
            FetchAction::Dial(service, _) => {
                let conn = self.connect(Owner::Fetcher(at, boot, number), at, service);
                self.restoring(at, number).into_iter().for_each(|restoring| restoring.conn = Some(conn));
            }
            FetchAction::Ask(image) => {
                let conn = restoring.conn;
                conn.into_iter().for_each(|conn| self.send(conn, 0, Packet::Word(Word::Wish(image))));
            }
            FetchAction::Reserve(..) | FetchAction::Stream(_) => restoring.image.clear(),
            FetchAction::Keep(image) => {
                let bytes = std::mem::take(&mut restoring.image);
                restoring.chain.insert(image, bytes);
            }
            FetchAction::Close => {
                restoring.image.clear();
                restoring.conn.take().into_iter().for_each(|conn| self.close(conn, 0));
            }
            FetchAction::Assemble => self.assemble(at, number),
            FetchAction::Over(result) => self.over(at, number, result),
        }
    }

    fn assemble(&mut self, at: usize, number: OrderNumber) {
        let Some(restoring) = self.peers(at).restores.running.get(&number) else { return };
        let (process, images) = (restoring.order.process, restoring.order.images.clone());
        let restoring = &self.machines[at].peers.restores.running[&number];
        let chain = restoring.fetch.chain().iter().rev().map(|image| &restoring.chain[image]);
        let saved = self.saved_of_chain(chain);
        assert!(saved.is_some(), "G6: images of {process} that are committed are none: {images:?}");
        let Some(restoring) = self.restoring(at, number) else { return };
        restoring.saved = saved;
        restoring.fetch.handle_assembled(Ok(()));
    }

    fn over(&mut self, at: usize, number: OrderNumber, result: Result<(), FetchError>) {
        let Some(mut restoring) = self.peers(at).restores.running.remove(&number) else { return };
        self.counts.increments += (restoring.chain.len() as u64).saturating_sub(1);
        for text in restoring.fetch.take_damage() {
            self.counts.copies += 1;
            self.input_soon(at, Input::StoreEvent(EventName::Store, Some(restoring.order.process), text));
        }
        let result = result.map(|()| restoring.saved.expect("what succeeds was put together"));
        self.fetched(at, number, &restoring.order, result);
    }

    /// All images of a process are here, or they do not come.
    fn fetched(&mut self, at: usize, number: OrderNumber, order: &RestoreOrder, result: Result<usize, FetchError>) {
        let result = match self.drive_orders(at, |orders| orders.handle_ready(number)) {
            Use::Answer => result,
            Use::GivenUp => Err(FetchError::GivenUp),
            Use::Nothing => return,
        };
        if let Err(error) = &result {
            let speaker = Speaker { process: order.process, incarnation: order.incarnation };
            self.judge_fetch(at, speaker, error);
        }
        let told = result.as_ref().map(|_| ()).map_err(ToString::to_string);
        self.input_soon(at, Input::Fetched(order.process, told));
        if let Ok(saved) = result {
            self.restore(at, order.process, order.incarnation, saved);
        }
    }

    // ---- what happens

    /// The job is over, or restarts.
    pub fn forget_orders(&mut self, at: usize, is_gone: impl Fn(ProcessId) -> bool) {
        self.drive_orders(at, |orders| orders.forget(is_gone));
    }

    /// A file of the machine's own log service was read.
    pub fn image_opened(&mut self, at: usize, number: OrderNumber, image: u64) {
        let Some(restoring) = self.restoring(at, number) else { return };
        let speaker = Speaker { process: restoring.order.process, incarnation: restoring.order.incarnation };
        let length = restoring.order.images.iter().find(|(of, _)| *of == image).map_or(0, |(_, length)| *length as usize);
        let file = File::Image(speaker.process, image);
        let found = self.machines[at].logs.files.get(&file).and_then(|bytes| bytes.get(..length)).map(<[u8]>::to_vec);
        if found.is_none() {
            self.check_not_there(at, speaker, image);
        }
        let is_damaged = self.is_damaged_since(speaker.process, image);
        let result = match &found {
            None => Err("No such file or directory (os error 2)".to_owned()),
            Some(_) if is_damaged => Err(WRONG_CODE.to_owned()),
            Some(_) => Ok(()),
        };
        let bytes = found.unwrap_or_default();
        if let Some(restoring) = self.restoring(at, number) {
            restoring.image = bytes;
        }
        self.drive_fetch(at, number, |fetch, now| fetch.handle_opened(now, result));
    }

    /// G6: an image is not in the files of a machine, or not all of it. What the log there gave for the incarnation that speaks stays until the
    /// process has come back from it.
    fn check_not_there(&self, at: usize, speaker: Speaker, image: u64) {
        let Speaker { process, incarnation } = speaker;
        let is_given = self.machines[at].logs.server.store().incarnation(process) == Some(incarnation);
        let is_missed = is_given && self.checks.is_voice(process, incarnation);
        assert!(
            !is_missed,
            "G6: image {image} of {process} is not on n{}, whose log gave it for incarnation {incarnation}",
            at + 1
        );
    }

    /// Whether a bit of an image has flipped since it was verified.
    pub fn is_damaged_since(&mut self, process: ProcessId, image: u64) -> bool {
        let is_damaged = self.goes_wrong(ROTTEN);
        if is_damaged {
            self.checks.damaged.insert((process, image));
        }
        is_damaged
    }

    /// Time has passed.
    pub fn fetch_due(&mut self, at: usize, number: OrderNumber) {
        let now = self.now;
        if let Some(restoring) = self.restoring(at, number)
            && restoring.timeout.is_some_and(|due| due <= now)
        {
            restoring.timeout = None;
        }
        self.drive_fetch(at, number, Fetch::handle_timeout);
    }

    /// Something came on a connection to a log service.
    pub fn fetch_arrive(&mut self, at: usize, conn: ConnId, number: OrderNumber, packet: Packet) {
        let Some(restoring) = self.restoring(at, number).filter(|restoring| restoring.conn == Some(conn)) else { return };
        match packet {
            Packet::Ack => {
                let speaker = restoring.fetch.speaker();
                self.send(conn, 0, Packet::Word(Word::Login(speaker, Channel::Fetch)));
            }
            Packet::Word(Word::Admitted) => self.drive_fetch(at, number, Fetch::handle_admitted),
            Packet::Word(Word::Offer(bytes)) => self.drive_fetch(at, number, |fetch, now| fetch.handle_offer(now, &bytes)),
            Packet::Word(Word::Content(bytes)) => {
                restoring.image.extend_from_slice(&bytes);
                self.drive_fetch(at, number, |fetch, now| fetch.handle_bytes(now, bytes.len() as u64));
            }
            Packet::Word(Word::ContentEnd) => {
                let code = code_of(&restoring.image);
                self.drive_fetch(at, number, |fetch, now| fetch.handle_end(now, &code));
            }
            Packet::End | Packet::Reset => {
                self.drive_fetch(at, number, |fetch, now| fetch.handle_gone(now, "it has closed the connection"))
            }
            packet => unreachable!("{packet:?} on a connection that fetches"),
        }
    }
}
