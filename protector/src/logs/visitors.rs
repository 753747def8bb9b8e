//! Who connects: accepting, logging in, and what they say.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use radic_wire::ids::{JobId, ProcessId};
use radic_wire::limits;
use radic_wire::log::ToProtector;
use radic_wire::login::{Channel, LOGIN, Login, NONCE, WISH};
use radic_wire::record::RecordError;

use super::connection::{Came, Connection, Partial, Role};
use super::fetch::Fetch;
use super::service::Service;
use crate::store::{Speaker, Store, StoreError};

/// Time until accepting is tried again when the system has no room for one more.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Connections that are accepted in one round.
const ACCEPTS: usize = 64;

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Frame(#[from] radic_wire::frame::FrameTooLarge),
    #[error("{0}")]
    Malformed(#[from] radic_wire::bytes::Malformed),
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("{0}")]
    Protocol(&'static str),
    #[error("it has ended")]
    Ended,
    #[error("its process speaks here itself, or this node is no member yet")]
    Early,
}

/// How far the frames of a connection were handled.
#[derive(PartialEq, Eq)]
enum Progress {
    /// As far as they came.
    All,
    /// Up to a question whose answer may be large.
    Question,
}

impl Service {
    /// Accepts who has come, within bounds: with too many unproven ones the oldest goes.
    pub fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let deadline = Instant::now() + Duration::from_millis(limits::HANDSHAKE_MS);
                    if self.unproven.len() >= limits::HANDSHAKES {
                        self.close_oldest_unproven();
                    }
                    if self.connections.len() >= self.config.connections {
                        self.intruder("a connection was closed: there are as many as there may be");
                        continue;
                    }
                    let ready = socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true));
                    let connection = Connection::new(socket, Role::Unproven(Partial::new()));
                    if let Ok(token) = ready.and_then(|()| self.add(connection, EpollFlags::EPOLLIN)) {
                        self.unproven.push_back((deadline, token));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The caller has gone already.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.intruder(&format!("cannot accept a connection: {error}"));
                    self.close_oldest_unproven();
                    self.accept_again = Some(Instant::now() + ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }

    fn close_oldest_unproven(&mut self) {
        while let Some((_, token)) = self.unproven.pop_front() {
            if self.connections.get(&token).is_some_and(|connection| connection.role.process().is_none()) {
                return self.close(token);
            }
        }
    }

    /// Something happened on a connection.
    pub fn serve(&mut self, token: u64, events: EpollFlags) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let gone = events.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        if let Role::Dialed(..) = connection.role {
            return self.handle_dialed(token);
        }
        if gone && (connection.stalled || connection.paused) {
            return self.close(token);
        }
        if events.contains(EpollFlags::EPOLLOUT) {
            self.flush(token);
        }
        if events.contains(EpollFlags::EPOLLIN) || gone {
            if let Err(refusal) = self.read(token) {
                self.refuse(token, &refusal);
            }
            self.carry_out();
        }
    }

    fn refuse(&mut self, token: u64, refusal: &Refusal) {
        let process = self.connections.get(&token).and_then(|connection| connection.role.process());
        // A fenced speaker is told so before it is closed; a broken connection is nobody's fault.
        self.carry_out();
        match (refusal, process) {
            (Refusal::Ended | Refusal::Early | Refusal::Store(StoreError::Fenced { .. }), _) => {}
            (Refusal::Io(error), Some(_)) if error.kind() != ErrorKind::InvalidData => {}
            (refusal, Some(process)) => self.intruder(&format!("a connection of {process} was closed: {refusal}")),
            (refusal, None) => self.intruder(&format!("a connection that proved nothing was closed: {refusal}")),
        }
        self.close(token);
    }

    /// Whether the store has room for what this connection brings. Its hello waits for the node to say who else is to hold what follows: a daemon that is back under its
    /// old address is found by its processes before it is a member, and a new protector before it has heard that it is one. (`make sim`, seed 29698: it
    /// acknowledged without the rest of the chain.)
    pub fn has_room(&self, process: ProcessId, role: &Role) -> bool {
        match role {
            Role::Journal(_, false) if !self.listens_to(process) => false,
            Role::Journal(..) => self.store.has_room_for_journal(process),
            Role::Bulk(_) => self.store.has_room_for_payload(process) && !self.replica_is_behind(process),
            Role::Image(..) | Role::ImageHead(..) => self.store.has_room(process) && !self.replica_is_behind(process),
            Role::Forwarder(..) => self.store.has_room(process),
            _ => true,
        }
    }

    /// Reads once and handles what came.
    fn read(&mut self, token: u64) -> Result<(), Refusal> {
        let Some(connection) = self.connections.get(&token) else { return Ok(()) };
        if let Some(process) = connection.role.process()
            && !self.has_room(process, &connection.role)
        {
            self.pause(token, process);
            return Ok(());
        }
        let Service { connections, scratch, .. } = self;
        let Some(connection) = connections.get_mut(&token) else { return Ok(()) };
        if connection.stalled {
            return Ok(());
        }
        let buffered = connection.input.buffered();
        match connection.read(scratch)? {
            Came::Nothing if buffered > 0 => self.take_frames(token),
            Came::Nothing => Ok(()),
            Came::Records => self.take_records(token),
            // An image whose last record has not come is none: closing its connection refuses it.
            Came::End => Err(Refusal::Ended),
            Came::Login(login, bytes) => self.challenge(token, login, &bytes),
            Came::Proof(true) => self.admit(token),
            Came::Proof(false) => Err(Refusal::Protocol("its proof is wrong: it has another key, or repeats what it overheard")),
            Came::Nonce(nonce) => {
                self.handle_nonce(token, nonce);
                Ok(())
            }
            Came::Welcome(cover) => {
                let cover = cover.ok_or(Refusal::Protocol("the replica's proof is wrong: it has another key"))?;
                self.handle_welcome(token, cover);
                Ok(())
            }
        }
    }

    /// Only whoever has the job's key, or has overheard a login, gets an answer, in which there is nothing but chance.
    fn challenge(&mut self, token: u64, login: Login, bytes: &[u8; LOGIN]) -> Result<(), Refusal> {
        let key = login.channel.key(&self.config.key, login.process.job);
        if !login.is_coded(&key, bytes) {
            return Err(Refusal::Protocol("its login has no right code: it has another key"));
        }
        self.check_job(login.process.job)?;
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|error| Refusal::Io(io::Error::other(error.to_string())))?;
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.queue_words(&nonce);
            connection.role = Role::Challenged(login, key, nonce, Partial::new());
            self.touched.push(token);
        }
        Ok(())
    }

    /// Opens the records that have come, and does what is said in them.
    fn take_records(&mut self, token: u64) -> Result<(), Refusal> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        match connection.role {
            Role::Image(..) => self.take_image(token),
            Role::ImageHead(_) => self.take_image_head(token),
            Role::Fetcher(_) => {
                let wish = connection.opener().map(|opener| opener.next_body()).transpose()?.flatten();
                let Some(wish) = wish else { return Ok(()) };
                let wish: &[u8; WISH] = wish.try_into().map_err(|_| Refusal::Protocol("what it wants is no image"))?;
                let image = u64::from_le_bytes(*wish);
                self.begin_fetch(token, image)
            }
            _ => {
                if connection.open_all()? {
                    self.take_frames(token)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn check_job(&self, job: JobId) -> Result<(), Refusal> {
        let ended = self.ended.iter().any(|(ended, _)| *ended == job);
        if ended { Err(Refusal::Protocol("its job has ended")) } else { Ok(()) }
    }

    /// Who has proven that it has the channel's key may speak, and is told so with a proof of the same.
    fn admit(&mut self, token: u64) -> Result<(), Refusal> {
        let role = self.connections.get(&token).map(|connection| &connection.role);
        let Some(&Role::Challenged(ref login, ref key, nonce, _)) = role else { return Ok(()) };
        let (login, key, cover) = (*login, key.clone(), self.config.cover);
        let Login { process, incarnation, channel, .. } = login;
        self.unproven.retain(|(_, unproven)| *unproven != token);
        self.check_job(process.job)?;
        let known = self.store.incarnation(process);
        if channel == Channel::Fetch && known != Some(incarnation) {
            return Err(Refusal::Protocol("it wants an image for a life that is not the process's newest"));
        }
        if known.is_none() && self.store.len() >= self.config.processes {
            return Err(Refusal::Protocol("there are as many processes here as there may be"));
        }
        if channel == Channel::Replica && !(self.is_member && self.follow(process, token)) {
            return Err(Refusal::Early);
        }
        let speaker = Speaker { process, incarnation };
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        connection.queue_words(&login.welcome(&key, &nonce, cover));
        connection.begin_records(login.records_of_protector(&key, &nonce, cover));
        connection.role = match channel {
            Channel::Journal => Role::Journal(speaker, false),
            Channel::Bulk => Role::Bulk(speaker),
            Channel::Image => Role::ImageHead(speaker),
            Channel::Replica => Role::Forwarder(process, None),
            Channel::Fetch => Role::Fetcher(process),
        };
        // The beginnings of images are longer than other frames.
        if matches!(channel, Channel::Replica | Channel::Image) {
            connection.input.set_limit(limits::LOG_FRAME);
        }
        match channel {
            Channel::Journal => self.give_voice(token, speaker),
            Channel::Bulk | Channel::Image => self.make_bulk(token)?,
            Channel::Replica | Channel::Fetch => {}
        }
        self.touched.push(token);
        Ok(())
    }

    /// Answers for this speaker go here from now on. The connection before is closed: it was lost, or it is overheard.
    fn give_voice(&mut self, token: u64, speaker: Speaker) {
        let before = self.voices.insert(speaker, token);
        before.filter(|before| *before != token).into_iter().for_each(|before| self.close(before));
    }

    /// Handles whole frames, and stops where answers pile up.
    fn take_frames(&mut self, token: u64) -> Result<(), Refusal> {
        loop {
            let progress = self.take_frames_to_question(token)?;
            self.carry_out();
            let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
            connection.stalled = connection.is_clogged();
            if connection.stalled || progress == Progress::All {
                self.watch(token);
                return Ok(());
            }
        }
    }

    fn take_frames_to_question(&mut self, token: u64) -> Result<Progress, Refusal> {
        let mut greeted = None;
        let mut progress = Progress::All;
        let Service { connections, store, freed, .. } = self;
        let Some(connection) = connections.get_mut(&token) else { return Ok(Progress::All) };
        while let Some(body) = connection.input.next_frame()? {
            if let Role::Replica(process) = connection.role {
                handle_replica(store, process, body)?;
                // What waited for its acknowledgement need not stay in memory.
                *freed = true;
                continue;
            }
            let message = ToProtector::read(body)?;
            let speaker = match (&mut connection.role, &message) {
                (Role::Journal(speaker, greeted), ToProtector::Hello { .. }) => {
                    *greeted = true;
                    *speaker
                }
                (Role::Journal(speaker, true), _) => *speaker,
                // Its journal connection said it.
                (Role::Bulk(_), ToProtector::Hello { .. }) => continue,
                (Role::Bulk(speaker), ToProtector::Payload { .. } | ToProtector::PayloadEnd { .. }) => *speaker,
                (Role::Forwarder(process, speaker), ToProtector::Hello { process: named, incarnation, .. })
                    if named == process =>
                {
                    *speaker.insert(Speaker { process: *process, incarnation: *incarnation })
                }
                (Role::Forwarder(_, Some(speaker)), _) => *speaker,
                _ => return Err(Refusal::Protocol("a message that does not belong there, or before the hello")),
            };
            let result = store.handle_message(speaker, &message);
            match message {
                ToProtector::Hello { .. } => greeted = Some(speaker),
                // Its payload may have waited for a commit.
                ToProtector::Closing => *freed = true,
                _ => {}
            }
            if let Err(error) = result {
                // The voice that is told is that of this connection.
                greeted.into_iter().for_each(|speaker| self.greet(token, speaker));
                return Err(error.into());
            }
            if matches!(message, ToProtector::FetchJournal { .. } | ToProtector::FetchPayload { .. } | ToProtector::Hello { .. })
            {
                progress = Progress::Question;
                break;
            }
        }
        greeted.into_iter().for_each(|speaker| self.greet(token, speaker));
        Ok(progress)
    }

    /// A hello was heard: the answers go to its connection, and the process gets what is configured for it.
    fn greet(&mut self, token: u64, speaker: Speaker) {
        self.give_voice(token, speaker);
        let process = speaker.process;
        let protection = self.jobs.get(&process.job).cloned().unwrap_or_default();
        let role = self.connections.get(&token).map(|connection| &connection.role);
        // The bound is the protector's before it in the chain, which asks for images: were it waited for here too, the death of the process would leave
        // the log without its last acknowledgements, and it could not be restarted.
        let is_forwarded = matches!(role, Some(Role::Forwarder(..)));
        let log = if is_forwarded { u64::MAX } else { protection.log };
        self.store.configure(process, log, protection.keep_logs);
        if is_forwarded {
            self.store.follow(process);
        } else if self.store.incarnation(process) == Some(speaker.incarnation) {
            self.store.take_up(process);
            self.lead(process);
        }
    }

    /// The beginning of an image: one frame, whose end is that of a record. What follows is the image.
    fn take_image_head(&mut self, token: u64) -> Result<(), Refusal> {
        loop {
            let Some(Connection { input, .. }) = self.connections.get_mut(&token) else { return Ok(()) };
            if let Some(body) = input.next_frame()? {
                let body = body.to_vec();
                if input.buffered() > 0 {
                    return Err(Refusal::Protocol("an image's first record holds more than its beginning"));
                }
                self.begin_image(token, &body)?;
                return self.take_image(token);
            }
            let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
            if !connection.open_one()? {
                return Ok(());
            }
        }
    }

    fn begin_image(&mut self, token: u64, body: &[u8]) -> Result<(), Refusal> {
        let speaker = self.connections.get(&token).and_then(|connection| connection.role.speaker());
        let speaker = speaker.ok_or(Refusal::Protocol("an image of nobody"))?;
        let message = ToProtector::read(body)?;
        let ToProtector::ImageBegin { image, .. } = message else {
            return Err(Refusal::Protocol("an image's connection begins with something else"));
        };
        self.store.handle_message(speaker, &message)?;
        if !self.store.takes_image(speaker.process, image) {
            return Err(Refusal::Ended);
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.role = Role::Image(speaker, image, 0);
        }
        Ok(())
    }

    /// An image is wanted: the connection goes to a thread of its own, which this one's rounds do not wait for.
    fn begin_fetch(&mut self, token: u64, image: u64) -> Result<(), Refusal> {
        let Some(connection) = self.connections.remove(&token) else { return Ok(()) };
        self.stop_watching(&connection)?;
        let Role::Fetcher(process) = connection.role else { return Ok(()) };
        let (socket, Some(sealer)) = connection.into_sender() else { return Ok(()) };
        let bytes = self.store.committed_image(process, image);
        if !self.fetches.begin(Fetch::new(socket, sealer, process, image, bytes)) {
            self.intruder("an image was not sent: too many are wanted at once");
        }
        Ok(())
    }

    /// Takes what has come of an image. After its last record it is complete: the verification will say whether it is sound.
    fn take_image(&mut self, token: u64) -> Result<(), Refusal> {
        let Service { connections, store, .. } = self;
        let Some(connection) = connections.get_mut(&token) else { return Ok(()) };
        let Role::Image(speaker, image, mut offset) = connection.role else { return Ok(()) };
        let Some(opener) = connection.opener() else { return Ok(()) };
        while let Some(bytes) = opener.next_body()? {
            if !bytes.is_empty() {
                store.handle_message(speaker, &ToProtector::ImageChunk { image, offset, bytes })?;
                offset += bytes.len() as u64;
            }
            // It was refused, or another has begun: whoever sends this need not go on.
            if !store.takes_image(speaker.process, image) {
                return Err(Refusal::Ended);
            }
        }
        if opener.has_ended() {
            store.handle_message(speaker, &ToProtector::ImageEnd { image, length: offset })?;
            return Err(Refusal::Ended);
        }
        connection.role = Role::Image(speaker, image, offset);
        Ok(())
    }

    /// Sends what can be sent, and goes on with what had to wait for that.
    pub fn flush(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.flush().is_err() {
            return self.close(token);
        }
        if connection.stalled && !connection.is_clogged() {
            connection.stalled = false;
            self.again.push(token);
        }
        if let Role::Replica(_) = connection.role {
            self.freed = true;
        }
        self.watch(token);
    }

    /// Closes a connection. An image that was under way on it will not be.
    pub fn close(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        if let Some(speaker) = connection.role.speaker()
            && self.voices.get(&speaker) == Some(&token)
        {
            self.voices.remove(&speaker);
        }
        if let Role::Forwarder(..) = connection.role {
            // It may have spoken for several lives.
            self.voices.retain(|_, of| *of != token);
        }
        match connection.role {
            Role::Image(speaker, image, _) if self.store.takes_image(speaker.process, image) => {
                self.reason = Some("its connection broke".into());
                self.store.refuse_image(speaker.process, image);
            }
            Role::Dialed(process, ..) | Role::Asked(process, ..) | Role::Proving(process, ..) | Role::Replica(process) => {
                self.handle_replica_lost(process, token);
            }
            Role::Unproven(_) | Role::Challenged(..) => self.unproven.retain(|(_, unproven)| *unproven != token),
            _ => {}
        }
    }
}

fn handle_replica(store: &mut Store, process: ProcessId, body: &[u8]) -> Result<(), Refusal> {
    let message = radic_wire::log::FromProtector::read(body)?;
    if let radic_wire::log::FromProtector::Fenced { .. } = message {
        return Err(Refusal::Protocol("the replica listens to a newer incarnation"));
    }
    store.handle_replica(process, &message);
    Ok(())
}
