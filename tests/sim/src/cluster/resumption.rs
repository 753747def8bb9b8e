//! `radic resume`: its connections to a node and to log services, over their own protocol. What it does next says [`Resume`].

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use radic_protector::commands::file::File;
use radic_protector::commands::resume::{Action, ImageHead, Over, Piece, Resume};
use radic_protector::store::Speaker;
use radic_wire::ids::Rank;
use radic_wire::job::OutputStream;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::login::Channel;
use radic_wire::span::Span;
use radic_wire::suspension::Unprinted;

use super::net::{ConnId, Owner, Packet, Word, code};
use super::suspension::{Folder, Stage, Unsure};
use super::world::World;

/// Bytes that are sent at once.
const PIECE: usize = 16;

/// A job that is to go on.
#[derive(Debug)]
pub struct Resuming {
    decides: Resume<String>,
    /// As which rank the command speaks, and to which log service.
    speaker: Option<(Speaker, SocketAddr)>,
    voice: Option<ConnId>,
    /// Connections that are not admitted, by what they are for, with what is said there then.
    opening: BTreeMap<ConnId, (Channel, VecDeque<Vec<u8>>)>,
    /// All to the log service.
    conns: Vec<ConnId>,
    /// The folder says that the job has gone on.
    is_marked: bool,
    /// What is printed before all else.
    unprinted: Vec<Unprinted>,
}

impl World {
    /// The job is to go on, wherever there is room.
    pub(super) fn resume(&mut self) {
        if self.command.is_tried_enough() {
            // Without a majority nothing begins.
            assert!(!self.plan.is_gentle(), "end: a suspended job does not go on\n{}", self.standing());
            return self.give_up_terminal();
        }
        if !self.place_command() {
            return self.command_later(500);
        }
        let Stage::Away(folder) = std::mem::take(&mut self.command.stage) else { return };
        let at = self.command.at;
        self.trace(|| format!("a command on n{} resumes the job", at + 1));
        let resuming = Resuming {
            decides: Resume::new(folder.manifest.clone(), Vec::new()),
            speaker: None,
            voice: None,
            opening: BTreeMap::new(),
            conns: Vec::new(),
            is_marked: false,
            unprinted: Vec::new(),
        };
        self.command.stage = Stage::Resuming(folder, Box::new(resuming));
        self.drive_resume(|_| ());
    }

    /// The command ends before the job goes on, as far as it knows.
    pub(super) fn give_up_resuming(&mut self, folder: Folder, resuming: &Resuming) {
        let number = self.command.number;
        self.abort_all(Owner::Command(number));
        if resuming.is_marked {
            // The terminal looks for it.
            self.command.unsure = Some(Unsure::GoneOn);
            return self.terminal_looks();
        }
        self.command.stage = Stage::Away(folder);
        self.command_later(500);
    }

    fn resuming(&mut self) -> Option<(&Folder, &mut Resuming)> {
        if let Stage::Resuming(folder, resuming) = &mut self.command.stage { Some((folder, resuming)) } else { None }
    }

    /// Something happens to a job that is to go on; what is to be done then is done.
    pub(super) fn drive_resume(&mut self, input: impl FnOnce(&mut Resume<String>)) {
        if let Some((_, resuming)) = self.resuming() {
            input(&mut resuming.decides);
        }
        while let Some(action) = self.resuming().and_then(|(_, resuming)| resuming.decides.poll_action()) {
            self.carry_out_resume(action);
        }
    }

    fn carry_out_resume(&mut self, action: Action<String>) {
        let client = self.command.client();
        let Some((_, resuming)) = self.resuming() else { return };
        match action {
            Action::Verify => resuming.decides.handle_done(),
            Action::Ask(request @ Request::BeginResumed) => self.command_says(client, request),
            Action::Ask(request) => self.command_asks(client, request),
            Action::Open(speaker, log, hello) => {
                resuming.speaker = Some((speaker, log));
                let conn = self.open_upload(Channel::Journal, VecDeque::from([code(|out| hello.write(out))]));
                self.resuming().into_iter().for_each(|(_, resuming)| resuming.voice = conn);
            }
            Action::GiveImage(head) => self.give_image(&head),
            Action::GiveJournal(span) => self.give_journal(span),
            Action::GiveReceived(pieces) => self.give_received(&pieces),
            Action::Close => {
                (resuming.speaker, resuming.voice) = (None, None);
                resuming.opening.clear();
                std::mem::take(&mut resuming.conns).into_iter().for_each(|conn| self.close(conn, 0));
            }
            Action::Mark => {
                resuming.is_marked = true;
                resuming.decides.handle_done();
                self.trace(|| "all of the job is where it belongs".to_owned());
            }
            Action::Unmark => resuming.is_marked = false,
            Action::Print(unprinted) => resuming.unprinted = unprinted,
            Action::Over(Over::GoesOn(attached)) => self.handle_resumed(*attached),
            Action::Over(Over::NotBegun(failure) | Over::Unsure(failure)) => self.give_up_command(&failure.to_string()),
        }
    }

    fn handle_resumed(&mut self, attached: Reply) {
        let Stage::Resuming(_, resuming) = std::mem::take(&mut self.command.stage) else { return };
        let (at, client) = (self.command.at, self.command.client());
        self.abort_all(Owner::Command(self.command.number));
        self.command.resumed();
        self.terminal_goes_on(at, client);
        let shown = resuming.unprinted.into_iter().filter(|of| of.stream == OutputStream::Stdout);
        shown.for_each(|Unprinted { rank, offset, data, .. }| self.show(rank, offset, &data));
        self.hear_reply(attached);
        self.plan_suspension();
    }

    fn open_upload(&mut self, channel: Channel, say: VecDeque<Vec<u8>>) -> Option<ConnId> {
        let (_, log) = self.resuming()?.1.speaker?;
        let conn = self.connect(Owner::Command(self.command.number), self.command.at, log);
        let (_, resuming) = self.resuming()?;
        resuming.opening.insert(conn, (channel, say));
        resuming.conns.push(conn);
        Some(conn)
    }

    /// A file of the rank that is given.
    fn file(&mut self, file: File) -> Vec<u8> {
        let of = |(folder, resuming): (&Folder, &mut Resuming)| {
            let rank: Rank = resuming.speaker?.0.process.rank;
            folder.files.get(&(rank, file)).cloned()
        };
        self.resuming().and_then(of).expect("the folder has it")
    }

    fn give_image(&mut self, head: &ImageHead) {
        let (image, content) = (head.image, self.file(head.file()));
        let chunk = |(index, bytes): (usize, &[u8])| {
            let offset = (index * PIECE) as u64;
            code(|out| ToProtector::ImageChunk { image, offset, bytes }.write(out))
        };
        let begin = code(|out| head.message().write(out));
        self.open_upload(Channel::Image, std::iter::once(begin).chain(content.chunks(PIECE).enumerate().map(chunk)).collect());
    }

    fn give_journal(&mut self, Span { start, .. }: Span) {
        let content = self.file(File::Journal);
        let Some(voice) = self.resuming().and_then(|(_, resuming)| resuming.voice) else { return };
        for (index, bytes) in content.chunks(PIECE).enumerate() {
            let position = start + (index * PIECE) as u64;
            let piece = code(|out| ToProtector::Journal { position, bytes }.write(out));
            self.send(voice, 0, Packet::Word(Word::Log(piece)));
        }
        self.resuming().into_iter().for_each(|(_, resuming)| resuming.decides.handle_done());
    }

    fn give_received(&mut self, received: &[Piece]) {
        let (content, mut messages) = (self.file(File::Received), VecDeque::new());
        for Piece { position, stream, bytes: Span { start, end } } in received.iter().copied() {
            let bytes = &content[position as usize..][..(end - start) as usize];
            for (index, bytes) in bytes.chunks(PIECE).enumerate() {
                let at = (index * PIECE) as u64;
                let payload = ToProtector::Payload { position: position + at, stream, offset: start + at, bytes };
                messages.push_back(code(|out| payload.write(out)));
            }
        }
        self.open_upload(Channel::Bulk, messages);
    }

    /// Something came on a connection of the command.
    pub fn command_arrive(&mut self, conn: ConnId, packet: Packet) {
        let Some((_, resuming)) = self.resuming() else { return };
        let is_heard = resuming.voice == Some(conn) || resuming.opening.contains_key(&conn);
        let Some((speaker, _)) = resuming.speaker.filter(|_| is_heard) else { return };
        match packet {
            Packet::Ack => {
                let channel = resuming.opening[&conn].0;
                self.send(conn, 0, Packet::Word(Word::Login(speaker, channel)));
            }
            Packet::Word(Word::Admitted) => {
                let (channel, say) = resuming.opening.remove(&conn).expect("it was opened");
                say.into_iter().for_each(|bytes| self.send(conn, 0, Packet::Word(Word::Log(bytes))));
                match channel {
                    Channel::Image => self.send(conn, 0, Packet::Word(Word::ContentEnd)),
                    Channel::Bulk => self.drive_resume(Resume::handle_done),
                    _ => {}
                }
            }
            Packet::Word(Word::Log(bytes)) => {
                let message = FromProtector::read(&bytes).expect("a protector's message");
                self.drive_resume(|decides| decides.handle_heard(&message));
            }
            packet => {
                self.drive_resume(|decides| decides.handle_failed(format!("a protector has closed a connection: {packet:?}")))
            }
        }
    }
}
