//! A rank's conversation with its protector ([`crate::pmi`]): a byte of how it comes in pieces, then what the rank says.

use radic_wire::ids::Rank;
use radic_wire::limits;

use crate::Inputs;
use crate::input::{Input, pieces};
use crate::pmi::{KeySpace, PmiError, Reply, Request, Session};

/// Most that waits for a rank that reads nothing: answers up to the session's bound, and one more.
const UNREAD: usize = 5 * limits::PMI_LINE;

/// However it comes in pieces the same is asked and answered. Each answer is a line that a client takes. A client that waits for no answer is refused before it costs memory.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let seed = input.u8();
    let (mut whole, mut parts) = (Talk::new(), Talk::new());
    for line in input.0.split_inclusive(|byte| *byte == b'\n') {
        let result = whole.hear([line].into_iter());
        assert_eq!(parts.hear(pieces(line, seed)), result, "in pieces it is another thing");
        assert!(whole.said == parts.said && whole.asked == parts.asked, "in pieces it is another thing");
        if let Err(error) = result {
            assert_eq!(whole.session.handle_input(b"cmd=get_maxes\n"), Err(error), "it goes on after an error");
            break;
        }
    }
    rude(input.0);
    whole.session.is_initialized() && !whole.broken
}

/// All at once, without waiting for an answer, or reading one.
fn rude(bytes: &[u8]) {
    let mut session = talk();
    _ = session.handle_input(bytes);
    assert!(session.poll_output().is_none_or(|output| output.len() <= UNREAD), "answers that no client reads");
}

fn talk() -> Session {
    Session::new(Rank(0), 2, "space".to_owned())
}

/// A session, and the node behind it.
struct Talk {
    session: Session,
    keys: KeySpace,
    names: Vec<(String, String)>,
    said: Vec<u8>,
    asked: Vec<Request>,
    broken: bool,
}

impl Talk {
    fn new() -> Talk {
        Talk { session: talk(), keys: KeySpace::new(2), names: vec![], said: vec![], asked: vec![], broken: false }
    }

    /// Hears a line, or the beginning of one, and answers it.
    fn hear<'a>(&mut self, mut pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), PmiError> {
        let result = pieces.try_for_each(|piece| self.session.handle_input(piece));
        self.broken |= result.is_err();
        if let Some(request) = self.session.poll_request() {
            assert!(self.session.poll_request().is_none(), "a request comes once");
            self.asked.push(request.clone());
            if let Some(reply) = self.answer(request) {
                self.session.reply(reply);
            }
        }
        let said = self.session.poll_output().unwrap_or_default();
        assert!(said.is_empty() || said.ends_with(b"\n"));
        for line in said.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            assert!(line.starts_with(b"cmd=") && line.len() < limits::PMI_LINE, "{} is no answer", line.escape_ascii());
        }
        self.said = said;
        result
    }

    fn answer(&mut self, request: Request) -> Option<Reply> {
        let no = || Reply::Failed("no such\nthing".to_owned());
        Some(match request {
            Request::Put { key, value } => {
                assert!(key.len() <= limits::PMI_KEY && value.len() <= limits::PMI_VALUE);
                self.keys.put(key, value).map_or_else(|error| Reply::Failed(error.to_string()), |()| Reply::Done)
            }
            Request::Get { key } => self.keys.get(&key).map_or_else(no, |value| Reply::Value(value.to_owned())),
            Request::GetByIdx { index } => match self.keys.get_by_index(index) {
                Some((key, value)) => Reply::Entry { key: key.to_owned(), value: value.to_owned() },
                None => no(),
            },
            Request::PublishName { service, port } => {
                self.names.push((service, port));
                Reply::Done
            }
            Request::LookupName { service } => {
                self.names.iter().find(|(name, _)| *name == service).map_or_else(no, |(_, port)| Reply::Value(port.clone()))
            }
            Request::UnpublishName { .. } | Request::BarrierIn | Request::Finalize => Reply::Done,
            Request::Abort { .. } => return None,
        })
    }
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let input = |text: &str| [b"\x05cmd=init pmi_version=1 pmi_subversion=1\n", text.as_bytes()].concat();
    vec![
        ("init", input("")),
        (
            "keys",
            input(
                "cmd=get_maxes\ncmd=put kvsname=space key=a value=b\ncmd=barrier_in\ncmd=get kvsname=space key=a\ncmd=getbyidx kvsname=space idx=1\n",
            ),
        ),
        (
            "names",
            input("cmd=publish_name service=a name port=p\ncmd=lookup_name service=a name\ncmd=unpublish_name service=a name\n"),
        ),
        ("spawn", input("mcmd=spawn\nnprocs=1\nexecname=/bin/true\ntotspawns=1\nspawnssofar=1\nendcmd\ncmd=get_appnum\n")),
        ("end", input("cmd=get_my_kvsname\ncmd=get_universe_size\ncmd=finalize\n")),
        ("abort", input("cmd=abort exitcode=7 error_msg=it is a mess\n")),
        ("ack", b"\x05cmd=initack pmiid=0\ncmd=init pmi_version=1 pmi_subversion=1\n".to_vec()),
    ]
}
