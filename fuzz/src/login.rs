//! The login at a log ([`radic_wire::login`]) and what is said with a code of a job's key: a login as it may come, a nonce, a proof and a welcome as they may come, a
//! byte of what is changed, and what it becomes.

use radic_wire::bytes::Writer;
use radic_wire::determinant::ConnectionId;
use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
use radic_wire::key::ClusterKey;
use radic_wire::login::{Channel, LOGIN, Login, NONCE, PROOF, WELCOME};
use radic_wire::mac::{JobKey, MAC, Purpose};
use radic_wire::record::Cover;

use crate::Inputs;
use crate::input::Input;

/// A login is read as it was written, made-up proofs prove nothing, and a transcript of one process, incarnation, channel or key is none of another's.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let bytes: [u8; LOGIN] = input.array();
    let (nonce, made_up, false_welcome): ([u8; NONCE], [u8; PROOF], [u8; WELCOME]) =
        (input.array(), input.array(), input.array());
    let Ok(login) = Login::decode(&bytes) else { return false };
    let cluster = ClusterKey::from_bytes([1; 32]);
    let key = JobKey::derive(&cluster, login.process.job);
    let coded = login.encode(&key);
    assert_eq!(coded[..LOGIN - MAC], bytes[..LOGIN - MAC], "a second code of a login");
    assert_eq!(login.is_coded(&key, &bytes), coded == bytes, "a made-up code");
    assert!(!login.is_proven(&key, &nonce, &made_up), "made-up bytes prove something");
    assert_eq!(login.welcomed(&key, &nonce, &false_welcome), None, "made-up bytes are a welcome");
    let (proof, welcome) = (login.prove(&key, &nonce), login.welcome(&key, &nonce, Cover::Encrypted));
    assert!(login.is_proven(&key, &nonce, &proof));
    let end: [u8; PROOF] = std::array::from_fn(|at| welcome[1 + at]);
    assert!(!login.is_proven(&key, &nonce, &end), "a welcome is a proof");
    let (other, other_nonce, other_key) = changed(&mut input, login, nonce, &cluster);
    let same = (other, other_nonce) == (login, nonce) && other_key == key;
    assert_eq!(other.is_proven(&other_key, &other_nonce, &proof), same, "a proof of {login:?} is one of {other:?}");
    assert_eq!(other.welcomed(&other_key, &other_nonce, &welcome).is_some(), same, "a welcome of {login:?} is one of {other:?}");
    assert_eq!(other.is_coded(&other_key, &coded), other == login && other_key == key);
    greeting(&key, &other_key, login.process, other.process);
    true
}

/// The login with one thing changed, and the nonce and key that go with it.
fn changed(input: &mut Input<'_>, login: Login, nonce: [u8; NONCE], cluster: &ClusterKey) -> (Login, [u8; NONCE], JobKey) {
    const CHANNELS: [Channel; 5] = [Channel::Journal, Channel::Bulk, Channel::Image, Channel::Replica, Channel::Fetch];
    let (mut other, mut other_nonce, mut cluster) = (login, nonce, cluster.clone());
    match input.u8() {
        0 => other.process.job = JobId::from_bits(input.u64()),
        1 => other.process.rank = Rank(input.u32()),
        2 => other.incarnation = Incarnation::restarted(input.u32()),
        3 => other.channel = CHANNELS[usize::from(input.u8()) % CHANNELS.len()],
        4 => other.nonce = input.array(),
        5 => other_nonce = input.array(),
        6 => cluster = ClusterKey::from_bytes([input.u8(); 32]),
        _ => {}
    }
    (other, other_nonce, JobKey::derive(&cluster, other.process.job))
}

/// A greeting's code is good for one connection of one job, and for nothing else.
fn greeting(key: &JobKey, other_key: &JobKey, process: ProcessId, other: ProcessId) {
    let connection = |opener| ConnectionId { opener, number: 1 };
    let code = key.greeting_key(&connection(process)).mac(Purpose::Greeting, &[b"greeting"]);
    let verified = |key: &JobKey, opener, purpose| key.greeting_key(&connection(opener)).verify(purpose, &[b"greeting"], &code);
    let same = key == other_key && process == other;
    assert_eq!(verified(other_key, other, Purpose::Greeting), same, "a greeting about another connection");
    assert!(!verified(key, process, Purpose::Image) && !key.verify(Purpose::Greeting, &[b"greeting"], &code));
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let process = ProcessId { job: JobId::from_bits(5), rank: Rank(3) };
    let input = |channel, change: u8| {
        let login = Login { process, incarnation: Incarnation::restarted(1), channel, nonce: [9; NONCE] };
        let mut out = vec![0; LOGIN + NONCE + PROOF + WELCOME + 1];
        let mut writer = Writer::new(&mut out);
        writer.raw(&login.encode(&JobKey::derive(&ClusterKey::from_bytes([1; 32]), process.job)));
        writer.raw(&[4; NONCE]);
        writer.raw(&[8; PROOF]);
        writer.raw(&[0; WELCOME]);
        writer.u8(change);
        out.extend_from_slice(&[6; NONCE]);
        out
    };
    vec![
        ("job", input(Channel::Journal, 0)),
        ("rank", input(Channel::Bulk, 1)),
        ("incarnation", input(Channel::Image, 2)),
        ("channel", input(Channel::Replica, 3)),
        ("nonce", input(Channel::Fetch, 5)),
        ("key", input(Channel::Journal, 6)),
        ("same", input(Channel::Journal, 7)),
    ]
}
