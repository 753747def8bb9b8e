//! Carrying out what the log server wants, and telling it what the node asks and what the other threads have done.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::LogPart;
use radic_wire::login::{Channel, Login};

use super::callers::random;
use super::connection::{Connection, Interest, Stage};
use super::disk::{Done, Order};
use super::send::Sender;
use super::service::{Fencing, Service};
use super::types::{Answer, Request};
use super::verify::{BadImage, Task, Verdict};
use crate::logserver::{Action, ConnectionNumber, Gone, Outgoing, Reply};
use crate::store::{Place, Speaker};

impl Service {
    /// Does what the server wants, and sends what that makes: acknowledgements leave here, in the round of their message.
    pub fn carry_out(&mut self) {
        loop {
            while let Some(action) = self.server.poll_action() {
                self.act(action);
            }
            let Some(number) = self.touched.pop() else { return };
            self.flush(number);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Answer(number, _, message) => self.queue(number, |out| out.handle_answer(&message)),
            Action::Forward(number, precedence, message) => self.queue(number, |out| out.handle_forward(precedence, &message)),
            Action::Close(number, _) => {
                // What it was told last, as that it is fenced, goes if it can at once.
                self.connections.remove(&number).into_iter().for_each(|mut connection| _ = connection.flush());
            }
            Action::Resume(number) => {
                self.again.push(number);
                self.watch(number);
            }
            Action::Dial(speaker, address) => self.dial(speaker, address),
            Action::Write(ticket, write) => self.ask_disk(Order::Write(ticket, write)),
            Action::Read(number, file, position, length) => self.ask_disk(Order::Fetch(number, file, position, length)),
            Action::Truncate(file, position) => self.ask_disk(Order::Truncate(file, position)),
            Action::Delete(file) => self.ask_disk(Order::Delete(file)),
            Action::RemoveProcess(process) => self.ask_disk(Order::RemoveProcess(process)),
            Action::RemoveJob(job) => self.ask_disk(Order::RemoveJob(job)),
            Action::Verify(verification) => self.ask_verifier(Task(verification)),
            Action::SendImage(number, process, image, bytes) => self.send_image(number, process, image, bytes),
            Action::Tell(event) => self.tell(event),
            Action::Fenced(process, incarnation, restart) => {
                let is_this = |of: &mut Fencing| (of.0, of.1) == (process, incarnation);
                self.fences.extract_if(.., is_this).for_each(|(.., answer)| _ = answer.send(restart.clone()));
            }
        }
    }

    fn queue(&mut self, number: ConnectionNumber, queue: impl FnOnce(&mut Outgoing)) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        queue(&mut connection.out);
        if self.touched.last() != Some(&number) {
            self.touched.push(number);
        }
    }

    fn dial(&mut self, speaker: Speaker, address: SocketAddr) {
        if let Err(error) = self.begin_dial(speaker, address) {
            self.server.handle_dial_failed(self.now(), speaker.process, &error.to_string());
        }
    }

    fn begin_dial(&mut self, Speaker { process, incarnation }: Speaker, address: SocketAddr) -> io::Result<()> {
        let login = Login { process, incarnation, channel: Channel::Replica, nonce: random()? };
        let key = login.channel.key(&self.config.key, process.job);
        let interest = Interest { read: true, write: true };
        let connection = Connection::new(begin_connect(address)?, Stage::Dialed(login, key), interest, self.server.outgoing());
        let (now, number) = (self.now(), self.number());
        if self.server.handle_dialing(now, process, address, number)
            && let Err(error) = self.add(number, connection)
        {
            self.lose(number, Gone::Broke(&error.to_string()));
        }
        Ok(())
    }

    /// The connection goes to a thread of its own, for which this one's rounds do not wait.
    fn send_image(&mut self, number: ConnectionNumber, process: ProcessId, image: u64, bytes: Option<u64>) {
        let sender = self.connections.remove(&number).map(Connection::into_sender);
        let sending = match sender {
            Some((socket, Some(sealer))) => self.sending.begin(number, Sender::new(socket, sealer, process, image, bytes)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        };
        if sending.is_err() {
            // Its connection is closed, which its receiver notices.
            self.server.handle_image_sent(self.now(), number);
        }
    }

    // ---- what the node asks

    /// Answers. A receiver that is gone has lost interest.
    pub fn answer(&mut self, request: Request) {
        let now = self.now();
        let server = &mut self.server;
        match request {
            Request::Join => server.handle_member(),
            Request::Order(order, answer) => {
                if let Some(mut reply) = server.handle_order(now, *order) {
                    if let Reply::Sizes(_, _, processes) = &mut reply {
                        self.with_disk(processes);
                    }
                    _ = answer.send(reply);
                }
            }
            Request::List(process, answer) => _ = answer.send(server.store().list(process)),
            Request::Read(process, part, position, most, answer) => self.read_part(process, part, position, most, answer),
            Request::Status(job, answer) => {
                let mut processes = server.status(now, job);
                self.with_disk(&mut processes);
                _ = answer.send(processes);
            }
            Request::Fence(process, incarnation, sets, line, answer) => {
                self.fences.push((process, incarnation, answer));
                server.fence(now, process, incarnation, &sets, line);
            }
            #[cfg(test)]
            Request::Hang(until) => self.ask_disk(Order::Hang(until)),
            // The round ends with it.
            Request::End => {}
        }
    }

    fn read_part(
        &mut self,
        process: ProcessId,
        part: LogPart,
        position: u64,
        most: usize,
        answer: Answer<Result<Vec<u8>, String>>,
    ) {
        match self.server.store().find(process, part, position, most.min(limits::LOG_CHUNK)) {
            Some(Place::Memory(bytes)) => _ = answer.send(Ok(bytes)),
            Some(Place::File(file, length)) => self.ask_disk(Order::Read(file, position, length, answer)),
            None => _ = answer.send(Err(format!("{part:?} of {process} is not held from {position}"))),
        }
    }

    // ---- what the other threads have done

    /// An image was verified.
    pub fn handle_verdict(&mut self, Verdict { of, result }: Verdict) {
        let result = result.map(drop).map_err(|error| match error {
            // Its code is written beside it.
            BadImage::Io(error) => {
                format!("it cannot be read back, or its code written: {}; the one before stays", self.remedy(&error))
            }
            error => error.to_string(),
        });
        self.server.handle_verdict(self.now(), of, result);
    }

    /// The disk's thread has done something.
    pub fn handle_done(&mut self, done: Done) {
        let now = self.now();
        match done {
            Done::Written(ticket) => self.server.handle_written(now, ticket),
            Done::Failed(ticket, process, error) => {
                let why = self.remedy(&error);
                self.server.handle_write_failed(now, ticket, process, &why);
            }
            Done::Well(process) => self.server.handle_well(process),
            Done::Sent(number) => {
                self.sending.handle_sent(number);
                self.server.handle_image_sent(now, number);
            }
            Done::Fetched(number, file, position, Ok(bytes)) => {
                self.server.handle_read(now, number, file, position, Ok(&bytes));
            }
            Done::Fetched(number, file, position, Err(error)) => {
                let why = format!("{} ({file:?})", self.remedy(&error));
                self.server.handle_read(now, number, file, position, Err(&why));
            }
        }
    }

    /// What is wrong with the store, and what to do.
    fn remedy(&self, error: &io::Error) -> String {
        let dir = self.config.dir.display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!("{error}: make room in {dir}"),
            _ => format!("{error}: see to {dir}"),
        }
    }
}

/// Begins to connect; the socket is writable when that has succeeded or failed.
fn begin_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    Ok(socket)
}
