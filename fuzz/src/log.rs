//! What observers and log services say ([`radic_wire::log`]), and greetings: any bytes.

use radic_wire::ids::{BootId, Epoch, Incarnation};
use radic_wire::limits;
use radic_wire::log::{CutStreams, Ends, FromProtector, GREETING, Greeting, NewCauses, ToProtector};
use radic_wire::span::Span;

use crate::Inputs;
use crate::values::{address, connection, process, stream, written};

/// What is read is written back to the same bytes; and to nothing that it is too long for.
pub fn check(data: &[u8]) -> bool {
    let (to, from, greeting) = (ToProtector::read(data), FromProtector::read(data), Greeting::read(data));
    if let Ok(message) = &to {
        assert!(written(|out| message.write(out)) == data, "a second code of {message:?}");
        if let ToProtector::ImageBegin { streams, ended, .. } = message {
            cut(streams);
            cut(ended);
        }
    }
    if let Ok(message) = &from {
        assert!(written(|out| message.write(out)) == data, "a second code of {message:?}");
    }
    if let Ok(greeting) = &greeting {
        assert!(data.len() <= GREETING, "a greeting of {} bytes", data.len());
        assert!(written(|out| greeting.write(out)) == data, "a second code of {greeting:?}");
    }
    to.is_ok() || from.is_ok() || greeting.is_ok()
}

/// The streams of a cut are the same when they are written as a list.
fn cut(streams: &CutStreams<'_>) {
    let list: Vec<_> = streams.iter().collect();
    assert!(list.len() <= limits::CUT_STREAMS);
    assert_eq!(CutStreams::new(&list).as_ref(), Some(streams));
}

/// What an observer may say.
pub fn to_protector(each: &mut dyn FnMut(&'static str, ToProtector<'_>)) {
    let (process, incarnation, stream) = (process(1), Incarnation::FIRST, stream(3));
    let pair = [(stream, 7), (crate::values::stream(4), u64::MAX)];
    let streams = CutStreams::new(&pair).expect("two streams");
    let none = CutStreams::new(&[]).expect("no stream");
    let span = Span { start: 0, end: 0 };
    each("hello", ToProtector::Hello { process, incarnation, journal: span, payload: span, image: Some(4), committed: None });
    each("image-under-way", ToProtector::ImageUnderWay { image: 1 });
    each("journal", ToProtector::Journal { position: 0, bytes: &[0x20, 8] });
    let causes = NewCauses { start: 3, position: 4, bytes: &[5, 9] };
    each("journal-after", ToProtector::JournalAfter { position: 2, causes, bytes: &[0x20, 8] });
    each("payload", ToProtector::Payload { position: 0, stream, offset: 0, bytes: b"received" });
    each("payload-end", ToProtector::PayloadEnd { position: 8, stream, offset: 8 });
    each("image-begin", ToProtector::image_by_itself(1, None, (0, 0), 0, streams, none));
    each("increment", ToProtector::image_by_itself(2, Some(1), (2, 9), 0, none, streams));
    each("image-chunk", ToProtector::ImageChunk { image: 1, offset: 0, bytes: b"piece" });
    each("image-end", ToProtector::ImageEnd { image: 1, length: 5 });
    each("image-abandoned", ToProtector::ImageAbandoned { image: 1 });
    each("image-useless", ToProtector::ImageUseless { image: 1 });
    each("ask-stable", ToProtector::AskStable { stream });
    each("fetch-journal", ToProtector::FetchJournal { position: 0 });
    each("fetch-payload", ToProtector::FetchPayload { stream, offset: 0 });
    each("live", ToProtector::Live);
    each("closing", ToProtector::Closing);
    each("forget", ToProtector::Forget { connection: connection(3), for_good: true });
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let mut inputs = Inputs::new();
    to_protector(&mut |name, message| inputs.push((name, written(|out| message.write(out)))));
    let (stream, pair) = (stream(1), [(stream(1), 70_000)]);
    let streams = CutStreams::new(&pair).expect("one stream");
    for (name, message) in [
        ("welcome", FromProtector::Welcome { journal: 5, payload: u64::MAX, image: Some(300) }),
        (
            "fenced",
            FromProtector::Fenced { newest: Incarnation::launched_in(Epoch { view: 300, count: 2, home: BootId(u64::MAX) }) },
        ),
        ("stable", FromProtector::StreamStable { stream, offset: 300 }),
        ("held", FromProtector::Held { streams, ended: streams }),
        ("some-payload", FromProtector::Payload { stream, offset: 7, bytes: b"again" }),
    ] {
        inputs.push((name, written(|out| message.write(out))));
    }
    let (process, incarnation, connection) = (process(1), Incarnation::restarted(2), connection(9));
    let ends = Some(Ends { from: address(1), to: std::net::SocketAddr::from(([7u16; 8], 80)) });
    let greeting = Greeting {
        process,
        incarnation,
        connection,
        attempt: 1,
        received: 1 << 40,
        stable: 3,
        kept: 1 << 20,
        finish: Some(77),
        settled: true,
        ends,
    };
    inputs.push(("greeting", written(|out| greeting.write(out))));
    inputs
}
