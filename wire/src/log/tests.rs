//! Codes of the log's messages: each comes back as it was written, and other bytes are refused.

use std::net::{SocketAddr, SocketAddrV6};

use proptest::prelude::*;

use super::codes::CutStreams;
use super::from_protector::FromProtector;
use super::greeting::{Ends, GREETING, Greeting};
use super::to_protector::ToProtector;
use crate::bytes::Writer;
use crate::determinant::{ConnectionId, StreamId};
use crate::ids::{BootId, Epoch, Incarnation, JobId, ProcessId, Rank};
use crate::limits;
use crate::span::Span;

fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = vec![0; 4096];
    let mut writer = Writer::new(&mut out);
    write(&mut writer);
    let length = writer.finish().unwrap();
    out.truncate(length);
    out
}

/// Refused, or written back bit for bit.
fn strict(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = ToProtector::read(bytes) {
        prop_assert_eq!(written(|out| message.write(out)), bytes);
    }
    if let Ok(message) = FromProtector::read(bytes) {
        prop_assert_eq!(written(|out| message.write(out)), bytes);
    }
    if let Ok(greeting) = Greeting::read(bytes) {
        prop_assert_eq!(written(|out| greeting.write(out)), bytes);
    }
    Ok(())
}

proptest! {
    #[test]
    fn messages_come_back(a: u64, b: u64, c: u32, bytes in prop::collection::vec(any::<u8>(), 0..100), number: u64, from_opener: bool) {
        let process = ProcessId { job: JobId::from_bits(a), rank: Rank(c) };
        let stream = StreamId { connection: ConnectionId { opener: process, number }, from_opener };
        let span = Span { start: a.min(b), end: a.max(b) };
        let epoch = Epoch { view: b, count: c, home: BootId(a) };
        let (incarnation, bytes, pair) = (Incarnation { epoch, restart: c }, bytes.as_slice(), [(stream, a), (stream, b)]);
        let streams = CutStreams::new(&pair).unwrap();
        for message in [
            ToProtector::hello(process, incarnation, span, span),
            ToProtector::Hello { process, incarnation, journal: span, payload: span, image: Some(number), committed: Some(a) },
            ToProtector::ImageUnderWay { image: a },
            ToProtector::Journal { position: a, bytes },
            ToProtector::Payload { position: a, stream, offset: b, bytes },
            ToProtector::PayloadEnd { position: a, stream, offset: b },
            ToProtector::image_by_itself(a, None, (b, number), 0, streams, streams),
            ToProtector::image_by_itself(a, Some(b), (b, number), 0, streams, streams),
            ToProtector::ImageChunk { image: a, offset: b, bytes },
            ToProtector::ImageEnd { image: a, length: b },
            ToProtector::ImageAbandoned { image: a },
            ToProtector::ImageUseless { image: a },
            ToProtector::AskStable { stream },
            ToProtector::FetchJournal { position: a },
            ToProtector::FetchPayload { stream, offset: a },
            ToProtector::Live,
            ToProtector::Closing,
            ToProtector::Forget { connection: stream.connection, for_good: from_opener },
        ] {
            let code = written(|out| message.write(out));
            prop_assert_eq!(ToProtector::read(&code), Ok(message));
        }
        for message in [
            FromProtector::Welcome { journal: a, payload: b, image: None },
            FromProtector::Welcome { journal: a, payload: b, image: Some(number) },
            FromProtector::Fenced { newest: incarnation },
            FromProtector::JournalStable { position: a },
            FromProtector::PayloadStable { position: a },
            FromProtector::Committed { image: a, oldest: b },
            FromProtector::ImageRefused { image: a },
            FromProtector::ImageWanted,
            FromProtector::WholeWanted,
            FromProtector::StreamStable { stream, offset: a },
            FromProtector::Journal { position: a, bytes },
            FromProtector::Payload { stream, offset: b, bytes },
            FromProtector::Held { streams, ended: streams },
            FromProtector::Forget { connection: stream.connection, for_good: from_opener },
        ] {
            let code = written(|out| message.write(out));
            prop_assert_eq!(FromProtector::read(&code), Ok(message));
        }
        let (from, to) = (SocketAddr::from(([10, 0, 0, 1], c as u16)), SocketAddr::from((a.to_le_bytes().map(u16::from), 1)));
        let ends = (!from_opener).then_some(Ends { from, to });
        let greeting = Greeting { process, incarnation, connection: stream.connection, attempt: c, received: a, stable: b, kept: a, finish: from_opener.then_some(a), settled: from_opener, ends };
        let code = written(|out| greeting.write(out));
        prop_assert!(code.len() <= GREETING);
        prop_assert_eq!(Greeting::read(&code), Ok(greeting));
    }

    #[test]
    fn bytes_are_refused_or_written_back(
        first in 0u8..13, tail in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()], 0..40),
    ) {
        strict(&[&[first], tail.as_slice()].concat())?;
        strict(&tail)?;
    }
}

#[test]
fn a_greeting_is_never_longer_than_its_limit() {
    let process = ProcessId { job: JobId::from_bits(u64::MAX), rank: Rank(u32::MAX) };
    let connection = ConnectionId { opener: process, number: u64::MAX };
    let epoch = Epoch { view: u64::MAX, count: u32::MAX, home: BootId(u64::MAX) };
    let incarnation = Incarnation { epoch, restart: u32::MAX };
    let (attempt, received, stable, kept, finish) = (u32::MAX, u64::MAX, u64::MAX, u64::MAX, Some(u64::MAX));
    let address = SocketAddr::V6(SocketAddrV6::new([0xff; 16].into(), u16::MAX, u32::MAX, u32::MAX));
    let ends = Some(Ends { from: address, to: address });
    let greeting = Greeting { process, incarnation, connection, attempt, received, stable, kept, finish, settled: true, ends };
    assert!(written(|out| greeting.write(out)).len() <= GREETING);
}

#[test]
fn lengths_are_bounded() {
    let long = vec![0; limits::LOG_CHUNK + 1];
    let mut code = vec![1, 0];
    code.extend_from_slice(&long);
    assert!(ToProtector::read(&code).is_err());
    assert!(ToProtector::read(&code[..code.len() - 1]).is_ok());
    // A cut that claims 2^32 streams.
    assert!(ToProtector::read(&[4, 1, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10]).is_err());
}
