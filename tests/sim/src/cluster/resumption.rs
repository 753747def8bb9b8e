//! `radic resume`: gives the logs and images of a suspended job to the protectors of its ranks, over their own protocol, and has the job go on. Written after
//! `tools/src/resume.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use radic_protector::store::Speaker;
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId, Rank};
use radic_wire::local::{Reply, Request};
use radic_wire::log::{CutStreams, FromProtector, HeldImage, HeldStream, ToProtector};
use radic_wire::login::Channel;
use radic_wire::span::Span;
use radic_wire::suspension::Resumption;

use super::net::{ConnId, Owner, Packet, Word, code};
use super::suspension::{Folder, SavedRank, Stage, Unsure};
use super::world::World;

/// Bytes that are sent at once.
const PIECE: usize = 16;

/// How far what was saved of a rank is on its way.
#[derive(Debug, Default)]
struct Upload {
    /// Connections that are not admitted, by what they are for, with what is said there then.
    opening: BTreeMap<ConnId, (Channel, VecDeque<Vec<u8>>)>,
    voice: Option<ConnId>,
    /// Images that are committed.
    images: usize,
    /// The log was sent.
    is_sent: bool,
    /// Up to where journal and payload are held.
    held: (u64, u64),
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Resuming {
    logs: Vec<SocketAddr>,
    uploads: Vec<Upload>,
    /// The ranks begin.
    begins: bool,
}

impl Upload {
    fn is_done(&self, saved: &SavedRank) -> bool {
        self.is_sent && self.held.0 >= saved.journal.0.end && self.held.1 >= saved.received()
    }
}

impl SavedRank {
    /// The first incarnation of the rank in the life that begins.
    fn begins_as(&self) -> Incarnation {
        self.incarnation.next()
    }

    fn received(&self) -> u64 {
        self.streams.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    fn hello(&self, process: ProcessId) -> Vec<u8> {
        let journal = Span { start: self.images[0].0.cut, end: self.journal.0.end };
        let (payload, incarnation) = (Span { start: 0, end: self.received() }, self.begins_as());
        code(|out| ToProtector::hello(process, incarnation, journal, payload).write(out))
    }

    /// All messages of an image. The last one says where each stream stands.
    fn image(&self, at: usize, line: u64) -> VecDeque<Vec<u8>> {
        let (HeldImage { image, parent, cut, .. }, content) = &self.images[at];
        let streams = if at + 1 == self.images.len() { &self.streams[..] } else { &[] };
        let start = |of: &HeldStream| (of.stream, if of.closed { u64::MAX } else { of.bytes.start });
        let begins: Vec<(StreamId, u64)> = streams.iter().map(|(of, _)| start(of)).collect();
        let ended: Vec<(StreamId, u64)> = streams.iter().filter_map(|(of, _)| Some((of.stream, of.ended?))).collect();
        let (streams, ended) = CutStreams::new(&begins).zip(CutStreams::new(&ended)).expect("a few streams");
        let (image, parent, cut) = (*image, *parent, *cut);
        let begin = code(|out| ToProtector::image_by_itself(image, parent, (cut, 0), line, streams, ended).write(out));
        let chunk = |(index, bytes): (usize, &[u8])| {
            let offset = (index * PIECE) as u64;
            code(|out| ToProtector::ImageChunk { image, offset, bytes }.write(out))
        };
        std::iter::once(begin).chain(content.chunks(PIECE).enumerate().map(chunk)).collect()
    }

    fn journal(&self) -> Vec<Vec<u8>> {
        let (Span { start, .. }, bytes) = &self.journal;
        let piece = |(index, bytes): (usize, &[u8])| {
            let position = start + (index * PIECE) as u64;
            code(|out| ToProtector::Journal { position, bytes }.write(out))
        };
        bytes.chunks(PIECE).enumerate().map(piece).collect()
    }

    fn payload(&self) -> VecDeque<Vec<u8>> {
        let (mut messages, mut position) = (VecDeque::new(), 0);
        for (HeldStream { stream, bytes: Span { start, .. }, .. }, bytes) in &self.streams {
            for (index, bytes) in bytes.chunks(PIECE).enumerate() {
                let (stream, offset) = (*stream, start + (index * PIECE) as u64);
                messages.push_back(code(|out| ToProtector::Payload { position, stream, offset, bytes }.write(out)));
                position += bytes.len() as u64;
            }
        }
        messages
    }
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
        let mut suspension = folder.suspension.clone();
        suspension.ward.spec.nodes = Vec::new();
        let resumption = Resumption { incarnations: folder.ranks.iter().map(SavedRank::begins_as).collect() };
        self.command.stage = Stage::Resuming(folder, Resuming::default());
        self.command_asks(self.command.client(), Request::Resume(suspension, Box::new(resumption)));
    }

    /// The command ends before the job goes on, as far as it knows.
    pub(super) fn give_up_resuming(&mut self, folder: Folder, resuming: Resuming) {
        let number = self.command.number;
        self.abort_all(Owner::Command(number));
        if resuming.begins {
            // The folder says that the job has gone on. The terminal looks for it.
            self.command.unsure = Some(Unsure::GoneOn);
            return self.terminal_looks();
        }
        self.command.stage = Stage::Away(folder);
        self.command_later(500);
    }

    fn resuming(&mut self) -> Option<(&Folder, &mut Resuming)> {
        if let Stage::Resuming(folder, resuming) = &mut self.command.stage { Some((folder, resuming)) } else { None }
    }

    pub(super) fn resuming_hears(&mut self, reply: Reply) {
        match reply {
            Reply::Resuming(logs) => {
                let Some((_, resuming)) = self.resuming() else { return };
                resuming.uploads = logs.iter().map(|_| Upload::default()).collect();
                resuming.logs = logs;
                self.open_voices();
            }
            attached @ Reply::Attached { .. } => {
                let Stage::Resuming(Folder { unprinted, .. }, _) = std::mem::take(&mut self.command.stage) else { return };
                let (at, client) = (self.command.at, self.command.client());
                self.abort_all(Owner::Command(self.command.number));
                self.command.resumed();
                self.terminal_goes_on(at, client);
                unprinted.into_iter().for_each(|(rank, offset, data)| self.show(rank, offset, &data));
                self.hear_reply(attached);
                self.plan_suspension();
            }
            Reply::Error(text) => {
                // The node has refused what it was asked: nothing has begun.
                self.resuming().into_iter().for_each(|(_, resuming)| resuming.begins = false);
                self.give_up_command(&text);
            }
            // The job's home is lost before it has said anything.
            Reply::Ended(_) => self.give_up_command("the job is not heard of"),
            _ => {}
        }
    }

    fn open_voices(&mut self) {
        let Some((folder, resuming)) = self.resuming() else { return };
        let (job, logs) = (folder.suspension.job, resuming.logs.clone());
        let hellos: Vec<_> =
            (0..).map(Rank).zip(&folder.ranks).map(|(rank, saved)| saved.hello(ProcessId { job, rank })).collect();
        for (rank, (log, hello)) in logs.into_iter().zip(hellos).enumerate() {
            let conn = self.open_upload(rank, log, Channel::Journal, VecDeque::from([hello]));
            if let Some((_, resuming)) = self.resuming() {
                resuming.uploads[rank].voice = Some(conn);
            }
        }
    }

    fn open_upload(&mut self, rank: usize, log: SocketAddr, channel: Channel, say: VecDeque<Vec<u8>>) -> ConnId {
        let conn = self.connect(Owner::Command(self.command.number), self.command.at, log);
        if let Some((_, resuming)) = self.resuming() {
            resuming.uploads[rank].opening.insert(conn, (channel, say));
        }
        conn
    }

    /// Something came on a connection of the command.
    pub fn command_arrive(&mut self, conn: ConnId, packet: Packet) {
        let Some((folder, resuming)) = self.resuming().filter(|(_, resuming)| !resuming.begins) else { return };
        let is_of = |upload: &Upload| upload.voice == Some(conn) || upload.opening.contains_key(&conn);
        let Some(rank) = resuming.uploads.iter().position(is_of) else { return };
        let process = ProcessId { job: folder.suspension.job, rank: Rank(rank as u32) };
        let speaker = Speaker { process, incarnation: folder.ranks[rank].begins_as() };
        let upload = &mut resuming.uploads[rank];
        match packet {
            Packet::Ack => {
                let channel = upload.opening[&conn].0;
                self.send(conn, 0, Packet::Word(Word::Login(speaker, channel)));
            }
            Packet::Word(Word::Admitted) => {
                let (channel, say) = upload.opening.remove(&conn).expect("it was opened");
                say.into_iter().for_each(|bytes| self.send(conn, 0, Packet::Word(Word::Log(bytes))));
                if channel == Channel::Image {
                    self.send(conn, 0, Packet::Word(Word::ContentEnd));
                }
            }
            Packet::Word(Word::Log(bytes)) => self.voice_hears(rank, &bytes),
            packet => {
                let text = format!("a protector has closed a connection: {packet:?}");
                self.give_up_command(&text);
            }
        }
    }

    fn voice_hears(&mut self, rank: usize, bytes: &[u8]) {
        let Some((folder, resuming)) = self.resuming() else { return };
        let (saved, upload) = (&folder.ranks[rank], &mut resuming.uploads[rank]);
        match FromProtector::read(bytes).expect("a protector's message") {
            FromProtector::Welcome { .. } => return self.give_more(rank),
            FromProtector::JournalStable { position } => upload.held.0 = position,
            FromProtector::PayloadStable { position } => upload.held.1 = position,
            FromProtector::Committed { image, .. }
                if saved.images.get(upload.images).is_some_and(|(of, _)| of.image == image) =>
            {
                upload.images += 1;
                self.give_more(rank);
            }
            FromProtector::ImageRefused { image } => return self.give_up_command(&format!("image {image} was refused")),
            FromProtector::Fenced { newest } => return self.give_up_command(&format!("there is incarnation {newest}")),
            _ => {}
        }
        self.begin_if_all_is_there();
    }

    /// The next image, or the log.
    fn give_more(&mut self, rank: usize) {
        let Some((folder, resuming)) = self.resuming() else { return };
        let (saved, log, upload) = (&folder.ranks[rank], resuming.logs[rank], &mut resuming.uploads[rank]);
        if upload.images < saved.images.len() {
            let image = saved.image(upload.images, folder.suspension.line);
            self.open_upload(rank, log, Channel::Image, image);
            return;
        }
        upload.is_sent = true;
        upload.held.0 = saved.journal.0.start;
        let (voice, journal, payload) = (upload.voice.expect("it speaks"), saved.journal(), saved.payload());
        journal.into_iter().for_each(|bytes| self.send(voice, 0, Packet::Word(Word::Log(bytes))));
        self.open_upload(rank, log, Channel::Bulk, payload);
        self.begin_if_all_is_there();
    }

    fn begin_if_all_is_there(&mut self) {
        let Some((folder, resuming)) = self.resuming().filter(|(_, resuming)| !resuming.begins) else { return };
        if folder.ranks.iter().zip(&resuming.uploads).all(|(saved, upload)| upload.is_done(saved)) {
            resuming.begins = true;
            self.trace(|| "all of the job is where it belongs".to_owned());
            self.command_says(self.command.client(), Request::BeginResumed);
        }
    }
}
