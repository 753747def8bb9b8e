//! The login at a log ([`radic_wire::login`]) and what is said with a code of a job's key: a login as it may come, a nonce, a proof as it may come, a byte of
//! what is changed, and what it becomes.

use radic_wire::bytes::Writer;
use radic_wire::determinant::ConnectionId;
use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
use radic_wire::key::ClusterKey;
use radic_wire::login::{CHALLENGE, Channel, LOGIN, Login, NONCE, PROOF};
use radic_wire::mac::{JobKey, Purpose};

use crate::Inputs;
use crate::input::Input;

/// A login is read as it was written, made-up proofs prove nothing, and a transcript of one process, life, channel or key is none of another's.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let bytes: [u8; LOGIN] = input.array();
    let (nonce, made_up): ([u8; NONCE], [u8; PROOF]) = (input.array(), input.array());
    let Ok(login) = Login::decode(&bytes) else { return false };
    assert_eq!(login.encode(), bytes, "a second code of a login");
    let cluster = ClusterKey::from_bytes([1; 32]);
    let key = JobKey::derive(&cluster, login.process.job);
    assert!(!login.is_proven(&key, &nonce, &made_up), "made-up bytes prove something");
    let challenge = login.challenge(&key, nonce);
    let proof = login.prove(&key, &challenge).expect("the challenge has the job's key");
    assert!(login.is_proven(&key, &nonce, &proof));
    assert!(!login.is_proven(&key, &nonce, &end(&challenge)), "a challenge is a proof");
    let (other, other_nonce, other_key) = changed(&mut input, login, nonce, &cluster);
    let same = (other, other_nonce) == (login, nonce) && other_key.to_bytes() == key.to_bytes();
    assert_eq!(other.is_proven(&other_key, &other_nonce, &proof), same, "a proof of {login:?} is one of {other:?}");
    let mut altered = challenge;
    altered[..NONCE].copy_from_slice(&other_nonce);
    assert_eq!(other.prove(&other_key, &altered).is_some(), same, "a challenge of {login:?} is one of {other:?}");
    greeting(&key, &other_key, login.process, other.process);
    true
}

fn end(challenge: &[u8; CHALLENGE]) -> [u8; PROOF] {
    let mut code = [0; PROOF];
    code.copy_from_slice(&challenge[NONCE..]);
    code
}

/// The login with one thing changed, and the nonce and key that go with it.
fn changed(input: &mut Input<'_>, login: Login, nonce: [u8; NONCE], cluster: &ClusterKey) -> (Login, [u8; NONCE], JobKey) {
    const CHANNELS: [Channel; 5] = [Channel::Journal, Channel::Bulk, Channel::Image, Channel::Replica, Channel::Fetch];
    let (mut other, mut other_nonce, mut cluster) = (login, nonce, cluster.clone());
    match input.u8() {
        0 => other.process.job = JobId::from_bits(input.u64()),
        1 => other.process.rank = Rank(input.u32()),
        2 => other.incarnation = Incarnation(input.u32()),
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
    let same = key.to_bytes() == other_key.to_bytes() && process == other;
    assert_eq!(verified(other_key, other, Purpose::Greeting), same, "a greeting about another connection");
    assert!(!verified(key, process, Purpose::Image) && !key.verify(Purpose::Greeting, &[b"greeting"], &code));
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let process = ProcessId { job: JobId::from_bits(5), rank: Rank(3) };
    let input = |channel, change: u8| {
        let login = Login { process, incarnation: Incarnation(1), channel, nonce: [9; NONCE] };
        let mut out = vec![0; LOGIN + NONCE + PROOF + 1];
        let mut writer = Writer::new(&mut out);
        writer.raw(&login.encode());
        writer.raw(&[4; NONCE]);
        writer.raw(&[8; PROOF]);
        writer.u8(change);
        out.extend_from_slice(&[6; NONCE]);
        out
    };
    vec![
        ("job", input(Channel::Journal, 0)),
        ("rank", input(Channel::Bulk, 1)),
        ("life", input(Channel::Image, 2)),
        ("channel", input(Channel::Replica, 3)),
        ("nonce", input(Channel::Fetch, 5)),
        ("key", input(Channel::Journal, 6)),
        ("same", input(Channel::Journal, 7)),
    ]
}
