//! Records ([`radic_wire::record`]): a byte that says how bodies are protected, then what is said, each with a length; then what an attacker on the way does to it: a byte of
//! what, where and with what.

use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
use radic_wire::login::{Channel, Login, NONCE};
use radic_wire::mac::JobKey;
use radic_wire::record::{Cover, Opener, Sealer};

use crate::Inputs;
use crate::input::Input;

/// Most of what is said.
const SAID: usize = 8;

/// What arrives is what was said, in its order, up to the first record that was changed, left out, doubled or moved; the end only with all that precedes it.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let cover = if input.u8() & 1 == 0 { Cover::Encrypted } else { Cover::Authenticated };
    let (mut sealer, mut opener) = pair(1, cover);
    let (mut records, mut said) = (Vec::new(), Vec::new());
    for _ in 0..usize::from(input.u8()) % SAID {
        let length = usize::from(input.u16());
        let part = input.take(length);
        let mut record = Vec::new();
        sealer.seal_into(&[part], &mut record);
        said.extend_from_slice(part);
        records.push(record);
    }
    let mut end = Vec::new();
    sealer.seal_end(&mut end);
    records.push(end);
    let whole = records.concat();
    let (sent, steps) = (changed(&mut input, records), 1 + usize::from(input.u8()));
    let (came, ended, error) = heard(&mut opener, &sent, steps);
    assert!(said.starts_with(&came), "something else arrives than was said");
    assert!(!ended || came == said && sent.starts_with(&whole), "an end before the end");
    if sent == whole {
        assert!(error.is_none() && ended);
    }
    // Bytes from elsewhere are nothing. The key is another one: the fuzzer sees the records above when they are compared, and repeats them.
    let (came, ended, _) = heard(&mut pair(2, cover).1, input.0, steps);
    assert!(came.is_empty() && !ended, "made-up bytes are a record");
    sent == whole
}

fn pair(key: u8, cover: Cover) -> (Sealer, Opener) {
    let process = ProcessId { job: JobId::from_bits(5), rank: Rank(3) };
    let login = Login { process, incarnation: Incarnation::restarted(1), channel: Channel::Bulk, nonce: [9; NONCE] };
    let key = JobKey::from_bytes([key; 32]);
    (login.records_of_caller(&key, &[4; NONCE], cover).0, login.records_of_protector(&key, &[4; NONCE], cover).1)
}

fn changed(input: &mut Input<'_>, mut records: Vec<Vec<u8>>) -> Vec<u8> {
    let (what, at, to) = (input.u8(), usize::from(input.u8()) % records.len(), usize::from(input.u8()) % records.len());
    match what {
        1 => _ = records.remove(at),
        2 => records.insert(to, records[at].clone()),
        3 => records.swap(at, to),
        4 => _ = records.drain(at..),
        _ => {}
    }
    let mut bytes = records.concat();
    if what == 5 && !bytes.is_empty() {
        let at = usize::from(input.u16()) % bytes.len();
        bytes[at] ^= input.u8();
    }
    bytes
}

/// What is heard of these bytes, whether to the end, and what is wrong.
fn heard(opener: &mut Opener, bytes: &[u8], step: usize) -> (Vec<u8>, bool, Option<String>) {
    let mut came = Vec::new();
    for piece in bytes.chunks(step) {
        opener.push(piece);
        loop {
            match opener.next_body() {
                Ok(Some(body)) => came.extend_from_slice(body),
                Ok(None) => break,
                Err(error) => return (came, opener.has_ended(), Some(error.to_string())),
            }
        }
    }
    (came, opener.has_ended(), None)
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let input = |cover: u8, said: &[&[u8]]| {
        let mut out = vec![cover, said.len() as u8];
        for part in said {
            out.extend_from_slice(&(part.len() as u16).to_le_bytes());
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&[0, 0, 0, 99]);
        out
    };
    vec![
        ("encrypted", input(0, &[b"one", b"two", &[7; 300]])),
        ("authenticated", input(1, &[b"one", b"two"])),
        ("end", input(0, &[])),
    ]
}
