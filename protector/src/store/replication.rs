//! What a replica is told, and what it answers.

use std::collections::HashMap;

use radic_wire::determinant::StreamId;
use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::{FromProtector, NewCauses, ToProtector};
use radic_wire::span::Span;

use super::payload::Unstable;
use super::role::Replica;
use super::types::{Output, Speaker};
use super::{Store, encoded};

impl Store {
    /// From now on this process is replicated by a protector that holds nothing of it yet, or is not replicated. A new replica
    /// gets what is not stable, and an image is asked for. Until that image is committed, this protector alone can restart the
    /// process.
    pub fn set_replica(&mut self, id: ProcessId, replicated: bool) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        process.role.replica = None;
        if !replicated {
            process.journal.release(u64::MAX);
            process.payload.streams.values_mut().for_each(|stream| _ = stream.release());
            process.recount();
        } else {
            let (journal, payload) = (process.journal_stable, process.payload.stable);
            process.role.replica = Some(Replica::at(journal, payload));
            process.images.wanted = true;
            if let Some(number) = process.images.incoming.as_ref().map(|image| image.number) {
                self.refuse(id, number);
            }
            self.send(to, &FromProtector::ImageWanted);
            self.bring_up(id);
        }
        self.settle(id);
    }

    /// Tells a new replica what this protector has and has not acknowledged.
    fn bring_up(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else { return };
        // The hello also covers what the process has announced to this protector. The replica may have that from the protector
        // before, and would refuse a hello that claims less. This protector might have no room for that payload before the
        // replica has acknowledged the journal. And an image comes by another connection than payload that it covers.
        let ((journal_told, payload_told), (cut, covered)) = (process.role.told, process.role.covered);
        let journal = Span { start: process.journal_stable, end: process.journal.end().max(journal_told).max(cut) };
        let payload = Span { start: process.payload.stable, end: process.payload.end.max(payload_told).max(covered) };
        let mut messages = Vec::new();
        let hello = ToProtector::hello(id, process.payload.counted, journal, payload);
        messages.push(encoded(|out| hello.write(out)));
        if let Some(image) = process.images.useless {
            messages.push(encoded(|out| ToProtector::ImageUseless { image }.write(out)));
        }
        let causes = process.causes.set();
        if process.causes.end() > 0 {
            let (position, start) = (journal.start, process.causes.start());
            let causes = NewCauses { start, position: start, bytes: &causes };
            messages.push(encoded(|out| ToProtector::JournalAfter { position, causes, bytes: &[] }.write(out)));
        }
        let mut position = journal.start;
        while let Some(bytes) = process.journal.read(position, limits::LOG_CHUNK).ok().filter(|bytes| !bytes.is_empty()) {
            messages.push(encoded(|out| ToProtector::Journal { position, bytes: &bytes }.write(out)));
            position += bytes.len() as u64;
        }
        // Where streams go on, as a process says it to a new protector. An image may cover less than was acknowledged, and itself
        // holds what is between. Without this the first piece after it would leave a gap.
        let mut firsts: HashMap<StreamId, u64> = HashMap::new();
        process.payload.unstable.iter().for_each(|unstable| _ = firsts.entry(unstable.stream).or_insert(unstable.from));
        for (stream, held) in process.payload.streams.iter().filter(|(_, held)| !held.closed) {
            let (position, offset) = (payload.start, firsts.get(stream).copied().unwrap_or(held.log.end()));
            if offset > 0 {
                messages.push(encoded(|out| ToProtector::Payload { position, stream: *stream, offset, bytes: &[] }.write(out)));
            }
        }
        for Unstable { position, stream, from, to, is_end } in process.payload.unstable.iter().copied() {
            let position = position - (to - from);
            if is_end {
                messages.push(encoded(|out| ToProtector::PayloadEnd { position, stream, offset: from }.write(out)));
            } else if let Some(Ok(bytes)) =
                process.payload.streams.get(&stream).map(|held| held.log.read(from, (to - from) as usize))
            {
                messages.push(encoded(|out| ToProtector::Payload { position, stream, offset: from, bytes: &bytes }.write(out)));
            }
        }
        self.outputs.extend(messages.into_iter().map(|message| Output::Forward(id, message)));
    }

    pub(super) fn forward(&mut self, id: ProcessId, message: &ToProtector<'_>) {
        let incoming = self.processes.get(&id).and_then(|process| process.images.incoming.as_ref()).map(|image| image.number);
        // An image is forwarded only while it is accepted here, and its end only when it is verified here: the replica must never
        // commit what this protector refuses.
        let passes = match *message {
            ToProtector::Journal { .. }
            | ToProtector::JournalAfter { .. }
            | ToProtector::Payload { .. }
            | ToProtector::PayloadEnd { .. } => true,
            ToProtector::ImageBegin { image, .. } | ToProtector::ImageChunk { image, .. } => incoming == Some(image),
            _ => false,
        };
        if passes {
            self.forward_always(id, message);
        }
    }

    pub(super) fn forward_always(&mut self, id: ProcessId, message: &ToProtector<'_>) {
        if self.processes.get(&id).is_some_and(|process| process.role.replica.is_some()) {
            self.outputs.push_back(Output::Forward(id, encoded(|out| message.write(out))));
        }
    }

    /// An answer of the replica of this process.
    pub fn handle_replica(&mut self, id: ProcessId, message: &FromProtector<'_>) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(replica) = &mut process.role.replica else { return };
        match *message {
            FromProtector::Welcome { journal, payload, .. } => replica.handle_welcome(journal, payload),
            FromProtector::JournalStable { position } => replica.handle_journal(position),
            FromProtector::CausesHeld { position } => replica.causes = replica.causes.max(position),
            FromProtector::PayloadStable { position } => replica.handle_payload(position),
            FromProtector::Committed { image, .. } => {
                let incoming = process.images.incoming.as_mut().filter(|incoming| incoming.number == image);
                incoming.into_iter().for_each(|incoming| incoming.replicated = true);
            }
            FromProtector::ImageRefused { image } => self.refuse(id, image),
            _ => {}
        }
        self.settle(id);
    }

    /// Whether the process is replicated.
    pub fn is_replicated(&self, id: ProcessId) -> bool {
        self.processes.get(&id).is_some_and(|process| process.role.replica.is_some())
    }
}
