//! How a process joins its node, and how its layer is made.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use radic_observer::causes::Bounds;
use radic_observer::haste::Haste;
use radic_observer::links::Links;
use radic_observer::listener::Listeners;
use radic_observer::outbox::PARTS;
use radic_observer::pressure::Pressure;
use radic_observer::session::{REPLACED, Session};
use radic_observer::standstill::Standstill;
use radic_observer::{Config, Observer};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::mac::JobKey;
use radic_wire::process::{FromNode, LogMode, PayloadMode, Protection, ToNode};
use radic_wire::{PROTOCOL_VERSION, limits, login};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::giving_way::Vain;
use super::seldom::Seldom;
use super::{Layer, held};
use crate::calls::Calls;
use crate::channel::{Channel, Channels, Identity};
use crate::image::Images;
use crate::input::InputPipe;
use crate::links::Sockets;
use crate::node::Node;
use crate::output::Outputs;
use crate::pmi::Pmi;
use crate::used::Used;
use crate::{counters, memory, sys};

/// Bytes of the payload log in the process.
const PAYLOAD: usize = 4 << 20;
/// Bytes of an outbox block.
const BLOCK: usize = 4 << 10;

/// Time for the node to let a process in, in milliseconds: it may have to wait as long for a protector.
const JOIN_MS: u64 = REPLACED.as_millis() as u64 + 10_000;

/// Why this process is not protected.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The node says no.
    #[error("{0}")]
    Refused(String),
    /// The node or the protector cannot be reached.
    #[error("{what}: {error}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        error: Errno,
    },
}

fn failed(what: &'static str) -> impl Fn(Errno) -> JoinError {
    move |error| JoinError::System { what, error }
}

/// What the node says to a process that joins.
pub struct Joined {
    pub(super) node: Node,
    pub(super) process: ProcessId,
    pub(super) incarnation: Incarnation,
    pub(super) key: JobKey,
    pub(super) protector: SocketAddr,
    /// How it is protected.
    pub protection: Protection,
    /// Where its journal begins.
    journal: u64,
    /// Another program ran in this process before.
    inherited: bool,
}

/// Joins the node at this socket.
pub fn join(socket: &[u8], process: ProcessId) -> Result<Joined, JoinError> {
    let mut node = Node::connect(socket).map_err(failed("the node's socket"))?;
    let join = ToNode::Join { version: PROTOCOL_VERSION, process };
    // A program that is executed in the place of another one may be told something first that was meant for that one.
    let is_answer = |message: &FromNode| matches!(message, FromNode::Joined { .. } | FromNode::Refused(_));
    let answer = node.ask_within(JOIN_MS, &join, is_answer).map_err(failed("joining the node"));
    match answer? {
        FromNode::Joined { incarnation, key, protector, protection, journal, inherited } => {
            Ok(Joined { node, process, incarnation, key, protector, protection, journal, inherited })
        }
        FromNode::Refused(why) => {
            node.close();
            Err(JoinError::Refused(why))
        }
        _ => Err(failed("joining the node")(Errno::PROTO)),
    }
}

/// The connections to the protector. It may die just now: the node tells where the next one is. Bounded, as [`Layer::await_session`] is.
fn first_channels(node: &mut Node, protector: &mut SocketAddr, identity: &Identity<'_>) -> Result<Channels, Errno> {
    let deadline = sys::now() + REPLACED.as_nanos() as u64;
    loop {
        let journal = Channel::connect(*protector, identity, login::Channel::Journal);
        match journal.and_then(|journal| Ok((journal, Channel::connect(*protector, identity, login::Channel::Bulk)?))) {
            Ok(channels) => return Ok(channels),
            Err(error) if sys::now() >= deadline => return Err(error),
            Err(_) => _ = sys::wait_for(node.fd(), PollFlags::IN, 100),
        }
        if let Some(next) = node.next_protector()? {
            *protector = next;
        }
    }
}

/// Starts the layer: from now on every call is watched. Whether the program is linked with an MPI library is asked for by the hooks.
pub fn start(joined: Joined, is_linked: bool) -> Result<(), JoinError> {
    let Joined { mut node, process, incarnation, key, mut protector, protection, journal, inherited } = joined;
    let outbox = protection.outbox.unwrap_or(limits::OUTBOX).min(limits::MOST_OUTBOX) as usize;
    let blocks = outbox.div_ceil(BLOCK).max(64);
    // Said here: later an allocation that fails ends the process.
    Vec::<u8>::new()
        .try_reserve_exact(blocks * BLOCK * PARTS)
        .map_err(|_| failed("memory for the outbox (--outbox)")(Errno::NOMEM))?;
    let causes = (protection.log_mode == LogMode::Causal).then(Bounds::default);
    let payload_stays = protection.payload == PayloadMode::Sender;
    let config =
        Config { outbox_blocks: blocks, outbox_block: BLOCK, payload: PAYLOAD, causes, payload_stays, ..Config::default() };
    let observer = Observer::begins_at(process, incarnation, journal, &config);
    if payload_stays {
        memory::keep_to_itself(observer.outbox().memory()).map_err(failed("memory for the outbox"))?;
    }
    counters::map().map_err(failed("memory for the counters"))?;
    let identity = Identity { process, incarnation: observer.incarnation(), key: &key };
    let (journal, bulk) = first_channels(&mut node, &mut protector, &identity).map_err(failed("the protector's log"))?;
    let mut layer = Layer {
        replayer: None,
        links: Links::default(),
        sockets: Sockets::default(),
        outputs: Outputs::new(),
        input: InputPipe::new(inherited),
        used: Used::default(),
        pmi: Pmi::find(is_linked),
        images: Images::new(config.connections),
        observer,
        node,
        arrived: Vec::with_capacity(64),
        names: BTreeMap::new(),
        bound: BTreeMap::new(),
        calls: Calls::default(),
        listeners: Listeners::new(),
        aliases: Vec::with_capacity(16),
        key,
        foreign: Vec::new(),
        found: Vec::new(),
        packed: Vec::with_capacity(super::framing::SMALL),
        short: vec![0; super::framing::SHORT].into(),
        haste: if causes.is_some() { Haste::lazy() } else { Haste::default() },
        session: Session::logged_in(protector, Duration::from_nanos(sys::now())),
        journal,
        bulk,
        fresh: None,
        session_error: Errno::TIMEDOUT,
        lingering: Vec::with_capacity(64),
        unsent: Vec::with_capacity(64),
        ahead: Vec::with_capacity(64),
        pressure: Pressure::default(),
        ask_at: 0,
        full: None,
        sleepers: 0,
        standstill: Standstill::default(),
        idle: 0,
        seldom: Seldom::default(),
        vain: Vain::default(),
    };
    layer.say_hello();
    layer.await_session();
    layer.open_door().map_err(failed("a door for its peers"))?;
    held::begin(layer);
    Ok(())
}
