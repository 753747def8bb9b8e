//! The PMI-1 client of libradic_pmi.so ([`radic_pmi_client`]). A byte says which:
//!
//! - 0: a byte of what is called, then what comes as answers.
//! - else: a key of so many bytes, then a value: put and got again, over a real session.

use std::io::{self, Read, Write};

use radic_wire::ids::Rank;

use crate::Inputs;
use crate::input::Input;
use crate::pmi::{KeySpace, Reply, Request, Session};
use radic_pmi_client::{Client, Failure, KEY, VALUE};

/// No answer does any harm, and what is put is got again or was refused.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    match input.u8() {
        0 => answered(input),
        length => kept(input.take(usize::from(length)), input.0),
    }
}

/// Answers that are there already; what is said is not listened to.
#[derive(Debug)]
struct Canned<'a>(&'a [u8]);

impl Read for Canned<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Write for Canned<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(bytes.len() <= 4096, "a line that no protector takes");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn answered(mut input: Input<'_>) -> bool {
    let mut calls = input.u8();
    let Ok(mut client) = Client::init(Canned(input.0), 0, 2) else { return false };
    // Until the answers end.
    loop {
        calls = calls.wrapping_add(1);
        let result = match calls % 8 {
            0 => client.universe_size().map(drop),
            1 => client.appnum().map(drop),
            2 => client.barrier(),
            3 => client.put(b"key", &[0; VALUE - 1]),
            4 => client.get(b"key").map(drop),
            5 => client.publish(b"a name", b"port"),
            6 => client.lookup(b"a name").map(drop),
            _ => client.unpublish(b"a name"),
        };
        if let Err(Failure::Lost(_)) = result {
            return true;
        }
    }
}

/// A protector with one rank: it answers when it is read.
struct Protector {
    session: Session,
    keys: KeySpace,
    names: Vec<(String, String)>,
    said: Vec<u8>,
}

impl Write for Protector {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session.handle_input(bytes).expect("a client says what a session takes");
        let no = || Reply::Failed("it is not so".to_owned());
        if let Some(request) = self.session.poll_request() {
            self.session.reply(match request {
                Request::Put { key, value } => self.keys.put(key, value).map_or_else(|_| no(), |()| Reply::Done),
                Request::Get { key } => self.keys.get(&key).map_or_else(no, |value| Reply::Value(value.to_owned())),
                Request::PublishName { service, port } => {
                    self.names.push((service, port));
                    Reply::Done
                }
                Request::LookupName { service } => {
                    let name = self.names.iter().find(|(name, _)| *name == service);
                    name.map_or_else(no, |(_, port)| Reply::Value(port.clone()))
                }
                _ => Reply::Done,
            });
        }
        self.said.extend(self.session.poll_output().unwrap_or_default());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Protector {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.said.len().min(out.len()).min(7);
        out[..length].copy_from_slice(&self.said[..length]);
        self.said.drain(..length);
        Ok(length)
    }
}

fn kept(key: &[u8], value: &[u8]) -> bool {
    let session = Session::new(Rank(0), 2, "space".to_owned());
    let protector = Protector { session, keys: KeySpace::new(2), names: vec![], said: vec![] };
    let mut client = Client::init(protector, 0, 2).expect("a protector that answers");
    let is_key = (1..KEY).contains(&key.len()) && key.iter().all(|c| c.is_ascii_graphic() && *c != b'=');
    let is_new = client.get(key).is_err();
    let put = client.put(key, value);
    assert_eq!(put.is_ok(), is_key && is_new && value.len() < VALUE, "{put:?}");
    if put.is_ok() {
        assert_eq!(client.get(key).expect("what was put"), value);
    }
    if let Ok(()) = client.publish(key, value) {
        assert_eq!(client.lookup(key).expect("what was published"), value);
    }
    client.abort(7, value).expect("there is no answer");
    put.is_ok()
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let answers = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=my_kvsname rc=0 kvsname=space\n\
        cmd=appnum rc=0 appnum=0\ncmd=barrier_out rc=0\ncmd=put_result rc=0\ncmd=get_result rc=0 value=a%20b%\n\
        cmd=publish_result rc=-1 info=no msg=no\ncmd=lookup_result rc=0 info=ok port=x\n";
    vec![
        ("answers", [b"\0\0", answers.as_bytes()].concat()),
        ("text", b"\x01ka value of words".to_vec()),
        ("bytes", b"\x03key\xff\x00\n=%25%".to_vec()),
        ("nothing", b"\x03key".to_vec()),
    ]
}
