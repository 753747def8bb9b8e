//! Accepting, logging in, and frames from sockets into the log server. What is decided about all that is decided there.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use radic_wire::limits;
use radic_wire::login::{LOGIN, Login, NONCE, WISH};
use radic_wire::record::Cover;

use super::connection::{Came, Connection, Interest, Partial, Stage};
use super::service::Service;
use crate::logserver::{ConnectionNumber, Gone, Next, Reading};
use crate::store::Speaker;

/// Time until accepting is tried again when the system has no room for one more.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Connections that are accepted in one round.
const ACCEPTS: usize = 64;

impl Service {
    /// Accepts the callers that have come.
    pub fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let (now, number) = (self.now(), self.number());
                    if !self.server.handle_accepted(now, number) {
                        continue;
                    }
                    let ready = socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true));
                    let interest = Interest { read: true, write: false };
                    let connection = Connection::new(socket, Stage::Unproven(Partial::new()), interest, self.server.outgoing());
                    if let Err(error) = ready.and_then(|()| self.add(number, connection)) {
                        self.lose(number, Gone::Broke(&error.to_string()));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The caller has gone already.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.server.handle_crowded(self.now(), &error.to_string());
                    self.accept_again = Some(Instant::now() + ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }

    /// Something happened on a connection.
    pub fn serve(&mut self, number: ConnectionNumber, events: EpollFlags) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if let Stage::Dialed(..) = connection.stage {
            self.handle_connected(number);
            return self.carry_out();
        }
        let gone = events.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        if gone && self.server.reading(number) != Some(Reading::Open) {
            self.lose(number, Gone::Ended);
            return self.carry_out();
        }
        if events.contains(EpollFlags::EPOLLOUT) {
            self.flush(number);
        }
        if events.contains(EpollFlags::EPOLLIN) || gone {
            self.read(number);
        }
        self.carry_out();
    }

    /// Reads once and handles what came.
    fn read(&mut self, number: ConnectionNumber) {
        if !self.server.may_read(number) {
            return self.watch(number);
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let has_more = connection.has_more();
        match connection.read() {
            Ok(Came::Nothing) if has_more => self.take_records(number),
            Ok(Came::Nothing) => {}
            Ok(Came::Records) => self.take_records(number),
            // An image whose last record has not come is none: closing its connection refuses it.
            Ok(Came::End) => self.lose(number, Gone::Ended),
            Ok(Came::Login(login, bytes)) => self.challenge(number, login, &bytes),
            Ok(Came::Proof(true)) => self.admit(number),
            Ok(Came::Proof(false)) => {
                self.lose(number, Gone::Fault("its proof is wrong: it has another key, or repeats what it overheard"));
            }
            Ok(Came::Nonce(nonce)) => self.handle_nonce(number, nonce),
            Ok(Came::Welcome(Some(cover))) => self.handle_welcome(number, cover),
            Ok(Came::Welcome(None)) => self.lose(number, Gone::Fault("the replica's proof is wrong: it has another key")),
            Err(error) => self.lose(number, Gone::Broke(&error.to_string())),
        }
        self.watch(number);
    }

    // ---- the login of a caller

    /// A caller that has the job's key, or has overheard a login, gets an answer in which there is nothing but chance.
    fn challenge(&mut self, number: ConnectionNumber, login: Login, bytes: &[u8; LOGIN]) {
        let key = login.channel.key(&self.config.key, login.process.job);
        if !login.is_coded(&key, bytes) {
            return self.lose(number, Gone::Fault("its login has no right code: it has another key"));
        }
        if self.server.handle_login(self.now(), number, login.process.job) == Next::Closed {
            return;
        }
        let nonce = match random() {
            Ok(nonce) => nonce,
            Err(error) => return self.lose(number, Gone::Broke(&error.to_string())),
        };
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.out.handle_words(&nonce);
            connection.stage = Stage::Challenged(login, key, nonce, Partial::new());
            self.touched.push(number);
        }
    }

    /// A caller that has proven that it has the channel's key gets a proof of the same, if it is let in.
    fn admit(&mut self, number: ConnectionNumber) {
        let stage = self.connections.get(&number).map(|connection| &connection.stage);
        let Some(&Stage::Challenged(ref login, ref key, nonce, _)) = stage else { return };
        let (login, key, cover) = (*login, key.clone(), self.config.cover);
        let Login { process, incarnation, channel, .. } = login;
        let speaker = Speaker { process, incarnation };
        if self.server.handle_proven(self.now(), number, speaker, channel) == Next::Closed {
            return;
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.out.handle_words(&login.welcome(&key, &nonce, cover));
        connection.begin_records(login.records_of_protector(&key, &nonce, cover));
        connection.stage = Stage::of(channel);
        let Some(role) = self.server.role(number) else { return };
        if role.takes_images() {
            connection.input.set_limit(limits::LOG_FRAME);
        }
        self.touched.push(number);
        if role.is_bulk()
            && let Err(error) = self.make_bulk(number)
        {
            self.lose(number, Gone::Broke(&error.to_string()));
        }
    }

    // ---- the login at a replica

    /// The kernel has connected, or failed to.
    fn handle_connected(&mut self, number: ConnectionNumber) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Stage::Dialed(login, ref key) = connection.stage else { return };
        let key = key.clone();
        if let Some(error) = connection.socket.take_error().unwrap_or_else(Some) {
            return self.lose(number, Gone::Broke(&error.to_string()));
        }
        connection.out.handle_words(&login.encode(&key));
        connection.stage = Stage::Asked(login, key, Partial::new());
        self.touched.push(number);
    }

    /// The replica has said its nonce: it gets the proof.
    fn handle_nonce(&mut self, number: ConnectionNumber, nonce: [u8; NONCE]) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Stage::Asked(login, ref key, _) = connection.stage else { return };
        let key = key.clone();
        connection.out.handle_words(&login.prove(&key, &nonce));
        connection.stage = Stage::Proving(login, key, nonce, Partial::new());
        self.touched.push(number);
    }

    /// The replica has proven what it is.
    fn handle_welcome(&mut self, number: ConnectionNumber, cover: Cover) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Stage::Proving(login, ref key, nonce, _) = connection.stage else { return };
        let records = login.records_of_caller(key, &nonce, cover);
        connection.begin_records(records);
        connection.stage = Stage::Frames;
        self.touched.push(number);
        self.server.handle_welcome(self.now(), number);
    }

    // ---- what is said

    /// Opens the records that have come, and does what is said in them.
    fn take_records(&mut self, number: ConnectionNumber) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        match connection.stage {
            Stage::Image => self.take_image(number),
            Stage::ImageHead => self.take_image_head(number),
            Stage::Wish => self.take_wish(number),
            _ => self.take_frames(number),
        }
    }

    /// Hands whole frames to the server, and stops where answers pile up.
    fn take_frames(&mut self, number: ConnectionNumber) {
        let now = self.now();
        loop {
            let Service { connections, server, .. } = self;
            let Some(connection) = connections.get_mut(&number) else { return };
            match connection.take_frames(|body| server.handle_frame(now, number, body)) {
                Err(error) => return self.lose(number, Gone::Fault(&error.to_string())),
                Ok(Next::Read) => break,
                Ok(Next::Answer) => {
                    self.carry_out();
                    if !self.server.may_go_on(number) {
                        return;
                    }
                }
                Ok(Next::Closed) => return,
            }
        }
        self.carry_out();
        self.server.may_go_on(number);
    }

    /// The beginning of an image: one frame, whose end is that of a record. What follows is the image.
    fn take_image_head(&mut self, number: ConnectionNumber) {
        let now = self.now();
        loop {
            let Some(connection) = self.connections.get_mut(&number) else { return };
            match connection.input.next_frame() {
                Ok(Some(body)) => {
                    if self.server.handle_frame(now, number, body) == Next::Closed {
                        return;
                    }
                    if connection.input.buffered() > 0 {
                        return self.lose(number, Gone::Fault("an image's first record holds more than its beginning"));
                    }
                    connection.stage = Stage::Image;
                    return self.take_image(number);
                }
                Ok(None) => {}
                Err(error) => return self.lose(number, Gone::Fault(&error.to_string())),
            }
            match connection.open_one() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.lose(number, Gone::Fault(&error.to_string())),
            }
        }
    }

    /// Takes what has come of an image. After its last record it is complete.
    fn take_image(&mut self, number: ConnectionNumber) {
        let now = self.now();
        let Some(opener) = self.connections.get_mut(&number).and_then(Connection::opener) else { return };
        loop {
            match opener.next_body() {
                Ok(Some(bytes)) => {
                    if self.server.handle_image_bytes(now, number, bytes) == Next::Closed {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => return self.lose(number, Gone::Fault(&error.to_string())),
            }
        }
        if opener.has_ended() {
            self.server.handle_image_end(now, number);
        }
    }

    /// An image is wanted: the connection rests until the image's turn has come.
    fn take_wish(&mut self, number: ConnectionNumber) {
        let body = self.connections.get_mut(&number).and_then(Connection::opener).map(|opener| opener.next_body()).transpose();
        let wish: &[u8; WISH] = match body.map(|body| body.flatten().map(<&[u8; WISH]>::try_from)) {
            Ok(Some(Ok(wish))) => wish,
            Ok(None) => return,
            Ok(Some(Err(_))) => return self.lose(number, Gone::Fault("what it wants is no image")),
            Err(error) => return self.lose(number, Gone::Fault(&error.to_string())),
        };
        let image = u64::from_le_bytes(*wish);
        if self.server.handle_wish(self.now(), number, image)
            && let Some(connection) = self.connections.get(&number)
        {
            self.stop_watching(connection);
        }
    }

    /// Sends what can be sent.
    pub fn flush(&mut self, number: ConnectionNumber) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if let Err(error) = connection.flush() {
            return self.lose(number, Gone::Broke(&error.to_string()));
        }
        self.server.handle_sent(number, connection.out.waiting());
        self.watch(number);
    }
}

/// A nonce.
pub fn random() -> io::Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}
