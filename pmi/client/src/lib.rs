//! The rank's end of the PMI-1 conversation: one request line out, one answer line in. A barrier alone can be waited for by looking again and again.
#![forbid(unsafe_code)]

mod socket;

use std::io::{self, Read, Write};

pub use socket::Socket;

/// A connection to the protector.
pub trait Stream: Read + Write {
    /// Reads what is there; if there is nothing, that is the error `WouldBlock`.
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
}

/// Longest line of an answer, in bytes (as the protector bounds its own).
const LINE: usize = 4096;
/// Longest value on the wire, where a byte may take three, in bytes.
const WIRE_VALUE: usize = 1024;
/// Longest value that a caller may put, in bytes with the terminating zero: it fits however it is escaped. Open MPI splits to this.
pub const VALUE: usize = WIRE_VALUE / 3;
/// Longest key in bytes, with the terminating zero.
pub const KEY: usize = 64;
/// Longest name of a key space in bytes, with the terminating zero.
pub const KVSNAME: usize = 256;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The connection broke.
    #[error("the connection to the protector is lost: {0}")]
    Lost(#[from] io::Error),
    /// The protector said something else than an answer to the request.
    #[error("the protector answered {0:?} where {1} was due")]
    Unexpected(String, &'static str),
    /// The protector said no.
    #[error("refused: {0}")]
    Refused(String),
    /// A key that cannot be sent.
    #[error("not a key: at most {} printable characters without space and '='", KEY - 1)]
    Key,
    /// A value that is too long.
    #[error("a value of {0} bytes is over the limit of {limit}", limit = VALUE - 1)]
    Value(usize),
}

/// A rank's conversation with its protector over `S`.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    /// Bytes that came after the last line.
    rest: Vec<u8>,
    barrier: Barrier,
    /// The process's rank.
    pub rank: i32,
    /// How many ranks the job has.
    pub size: i32,
    /// The name of the job's key space.
    pub kvsname: String,
}

/// A barrier that was entered without waiting for its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barrier {
    None,
    Entered,
    /// Its end came while another call waited for its own answer.
    Over,
}

impl<S: Read + Write> Client<S> {
    /// Greets the protector as `rank` of `size`.
    pub fn init(stream: S, rank: i32, size: i32) -> Result<Self, Failure> {
        let mut client = Client { stream, rest: Vec::new(), barrier: Barrier::None, rank, size, kvsname: String::new() };
        client.greet()?;
        let name = client.call("get_my_kvsname", "my_kvsname")?;
        client.kvsname = name.required("kvsname", "my_kvsname")?.to_owned();
        Ok(client)
    }

    /// Says `init`, as it does once more after `finalize` for a process that begins anew.
    pub fn greet(&mut self) -> Result<(), Failure> {
        self.call("init pmi_version=1 pmi_subversion=1", "response_to_init").map(drop)
    }

    /// How many processes there could be.
    pub fn universe_size(&mut self) -> Result<i32, Failure> {
        self.call("get_universe_size", "universe_size")?.number("size", "universe_size")
    }

    /// The number of this process's program among those of the job.
    pub fn appnum(&mut self) -> Result<i32, Failure> {
        self.call("get_appnum", "appnum")?.number("appnum", "appnum")
    }

    /// Waits for all ranks of the job; what they put before is visible afterwards.
    pub fn barrier(&mut self) -> Result<(), Failure> {
        self.call("barrier_in", "barrier_out").map(drop)
    }

    /// Enters a barrier, whose end [`Client::poll_barrier`] finds. One that the process is in ends first.
    pub fn enter_barrier(&mut self) -> Result<(), Failure> {
        self.finish_barrier()?;
        self.say("barrier_in")?;
        self.barrier = Barrier::Entered;
        Ok(())
    }

    /// Whether the process was entered into a barrier of which [`Client::poll_barrier`] has not told the end.
    pub fn is_in_barrier(&self) -> bool {
        self.barrier != Barrier::None
    }

    /// Waits for the end of the barrier that was entered, and takes it for told.
    pub fn finish_barrier(&mut self) -> Result<(), Failure> {
        self.leave_barrier()?;
        self.barrier = Barrier::None;
        Ok(())
    }

    /// Waits for the end of the barrier that was entered, if there is one.
    fn leave_barrier(&mut self) -> Result<(), Failure> {
        if self.barrier == Barrier::Entered {
            let line = self.read_line()?;
            Answer::of(&line, "barrier_out")?;
            self.barrier = Barrier::Over;
        }
        Ok(())
    }

    /// Puts a key of the job.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let request = format!("put kvsname={} key={} value={}", self.kvsname, checked_key(key)?, escaped(value)?);
        self.call(&request, "put_result").map(drop)
    }

    /// Gets what some rank put.
    pub fn get(&mut self, key: &[u8]) -> Result<Vec<u8>, Failure> {
        let request = format!("get kvsname={} key={}", self.kvsname, checked_key(key)?);
        let answer = self.call(&request, "get_result")?;
        Ok(unescaped(answer.required("value", "get_result")?))
    }

    /// Publishes a name for other jobs' look-up.
    pub fn publish(&mut self, service: &[u8], port: &[u8]) -> Result<(), Failure> {
        let request = format!("publish_name service={} port={}", escaped(service)?, escaped(port)?);
        self.call(&request, "publish_result").map(drop)
    }

    /// Takes a published name back.
    pub fn unpublish(&mut self, service: &[u8]) -> Result<(), Failure> {
        self.call(&format!("unpublish_name service={}", escaped(service)?), "unpublish_result").map(drop)
    }

    /// What a published name stands for.
    pub fn lookup(&mut self, service: &[u8]) -> Result<Vec<u8>, Failure> {
        let answer = self.call(&format!("lookup_name service={}", escaped(service)?), "lookup_result")?;
        Ok(unescaped(answer.required("port", "lookup_result")?))
    }

    /// Says that this process is through with MPI.
    pub fn finalize(&mut self) -> Result<(), Failure> {
        self.call("finalize", "finalize_ack").map(drop)
    }

    /// Ends the whole job with `code`. There is no answer.
    pub fn abort(&mut self, code: i32, message: &[u8]) -> Result<(), Failure> {
        let message: String =
            String::from_utf8_lossy(message).chars().map(|c| if c.is_control() { ' ' } else { c }).take(LINE / 8).collect();
        Ok(self.stream.write_all(format!("cmd=abort exitcode={code} error_msg={message}\n").as_bytes())?)
    }

    /// Sends `request` and reads its answer, which is to be called `expected`. The protector takes one request at a time: a barrier ends first.
    fn call(&mut self, request: &str, expected: &'static str) -> Result<Answer, Failure> {
        self.leave_barrier()?;
        self.say(request)?;
        let line = self.read_line()?;
        Answer::of(&line, expected)
    }

    fn say(&mut self, request: &str) -> Result<(), Failure> {
        Ok(self.stream.write_all(format!("cmd={request}\n").as_bytes())?)
    }

    /// A line that is here.
    fn take_line(&mut self) -> Result<Option<String>, Failure> {
        if let Some(end) = self.rest.iter().position(|&c| c == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
        }
        if self.rest.len() > LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an endless line").into());
        }
        Ok(None)
    }

    fn read_line(&mut self) -> Result<String, Failure> {
        loop {
            if let Some(line) = self.take_line()? {
                return Ok(line);
            }
            let mut chunk = [0; 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.rest.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl<S: Stream> Client<S> {
    /// Whether the barrier that was entered is over. The end of the connection is not its end, but a failure.
    pub fn poll_barrier(&mut self) -> Result<bool, Failure> {
        if self.barrier == Barrier::Entered {
            let mut chunk = [0; 1024];
            match self.stream.read_now(&mut chunk) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.rest.extend_from_slice(&chunk[..n]),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e.into()),
            }
            let Some(line) = self.take_line()? else { return Ok(false) };
            Answer::of(&line, "barrier_out")?;
        }
        self.barrier = Barrier::None;
        Ok(true)
    }
}

/// The fields of an answer that said `rc=0`.
#[derive(Debug)]
struct Answer {
    fields: String,
}

impl Answer {
    /// The answer in `line`, which is to be called `expected`.
    fn of(line: &str, expected: &'static str) -> Result<Answer, Failure> {
        let (name, fields) = line.split_once(' ').unwrap_or((line, ""));
        if name.strip_prefix("cmd=") != Some(expected) {
            return Err(Failure::Unexpected(line.to_owned(), expected));
        }
        let answer = Answer { fields: fields.to_owned() };
        match answer.field("rc") {
            None | Some("0") => Ok(answer),
            Some(_) => Err(Failure::Refused(answer.field("msg").unwrap_or("no reason given").to_owned())),
        }
    }

    fn field(&self, key: &str) -> Option<&str> {
        self.fields.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
    }

    fn required(&self, key: &str, of: &'static str) -> Result<&str, Failure> {
        self.field(key).ok_or_else(|| Failure::Unexpected(self.fields.clone(), of))
    }

    fn number(&self, key: &str, of: &'static str) -> Result<i32, Failure> {
        self.required(key, of)?.parse().map_err(|_| Failure::Unexpected(self.fields.clone(), of))
    }
}

fn checked_key(key: &[u8]) -> Result<&str, Failure> {
    let good = (1..KEY).contains(&key.len()) && key.iter().all(|c| c.is_ascii_graphic() && *c != b'=');
    if good { std::str::from_utf8(key).map_err(|_| Failure::Key) } else { Err(Failure::Key) }
}

/// The value as one word: bytes that would end it, and those that MPICH's readers treat as special, as `%` and two hexadecimal digits;
/// a lone `%` is the empty value.
fn escaped(value: &[u8]) -> Result<String, Failure> {
    if value.len() >= VALUE {
        return Err(Failure::Value(value.len()));
    }
    if value.is_empty() {
        return Ok("%".to_owned());
    }
    let mut word = String::with_capacity(value.len());
    for &byte in value {
        if byte.is_ascii_graphic() && !matches!(byte, b'%' | b'=' | b'\\') {
            word.push(char::from(byte));
        } else {
            word.push_str(&format!("%{byte:02x}"));
        }
    }
    Ok(word)
}

/// The inverse of [`escaped`]. What was not escaped by it (a key of the protector's own) stays as it is.
fn unescaped(word: &str) -> Vec<u8> {
    if word == "%" {
        return Vec::new();
    }
    let mut rest = word.as_bytes();
    let mut value = Vec::with_capacity(rest.len());
    while let [first, tail @ ..] = rest {
        let hex = |digit: u8| char::from(digit).to_digit(16).map(|d| d as u8);
        let code = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match code {
            Some((high, low)) => {
                value.push(high << 4 | low);
                rest = &tail[2..];
            }
            None => {
                value.push(*first);
                rest = tail;
            }
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use proptest::prelude::*;
    use radic_protector::pmi::{KeySpace, Reply, Request, Session};
    use radic_wire::ids::Rank;
    use radic_wire::limits;

    use super::*;

    /// A protector that serves one rank, alone in its job, until the rank closes. Returns the code of an abort.
    fn serve(mut stream: UnixStream) -> Option<(i32, Option<String>)> {
        let mut session = Session::new(Rank(0), 1, "space".to_owned());
        let mut keys = KeySpace::new(1);
        let mut published: Option<(String, String)> = None;
        let mut chunk = [0; 7];
        loop {
            let n = stream.read(&mut chunk).unwrap();
            if n == 0 {
                return None;
            }
            session.handle_input(&chunk[..n]).unwrap();
            if let Some(request) = session.poll_request() {
                let done = |ok: bool| if ok { Reply::Done } else { Reply::Failed("it is not so".to_owned()) };
                let value =
                    |value: Option<&str>| value.map_or(Reply::Failed("no such thing".to_owned()), |v| Reply::Value(v.to_owned()));
                session.reply(match request {
                    Request::Put { key, value } => done(keys.put(key, value).is_ok()),
                    Request::Get { key } => value(keys.get(&key)),
                    Request::PublishName { service, port } => done(published.replace((service, port)).is_none()),
                    Request::LookupName { service } => {
                        value(published.as_ref().filter(|(s, _)| *s == service).map(|(_, p)| p.as_str()))
                    }
                    Request::UnpublishName { service } => done(published.take_if(|(s, _)| *s == service).is_some()),
                    Request::BarrierIn | Request::Finalize => Reply::Done,
                    Request::GetByIdx { .. } => Reply::Failed("not asked for here".to_owned()),
                    Request::Abort { code, message } => return Some((code, message)),
                });
            }
            if let Some(output) = session.poll_output() {
                stream.write_all(&output).unwrap();
            }
        }
    }

    type Server = thread::JoinHandle<Option<(i32, Option<String>)>>;

    fn connected() -> (Client<UnixStream>, Server) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(theirs));
        (Client::init(ours, 0, 1).unwrap(), server)
    }

    #[test]
    fn a_life_with_pmi() {
        let (mut client, server) = connected();
        assert_eq!(client.kvsname, "space");
        assert_eq!(client.universe_size().unwrap(), 1);
        assert_eq!(client.appnum().unwrap(), 0);
        client.put(b"key", b"a = b\n100%").unwrap();
        assert!(matches!(client.put(b"key", b"again"), Err(Failure::Refused(why)) if why == "it_is_not_so"));
        client.barrier().unwrap();
        assert_eq!(client.get(b"key").unwrap(), b"a = b\n100%");
        assert!(matches!(client.get(b"other"), Err(Failure::Refused(why)) if why == "no_such_thing"));
        assert_eq!(client.get(b"PMI_process_mapping").unwrap(), b"(vector,(0,1,1))");
        client.publish(b"my service", b"a port").unwrap();
        assert_eq!(client.lookup(b"my service").unwrap(), b"a port");
        client.unpublish(b"my service").unwrap();
        assert!(client.lookup(b"my service").is_err());
        client.finalize().unwrap();
        drop(client);
        assert_eq!(server.join().unwrap(), None);
    }

    impl Stream for UnixStream {
        fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            use std::os::fd::AsRawFd;
            Socket(self.as_raw_fd()).read_now(buffer)
        }
    }

    /// What the client says is answered by hand.
    fn by_hand() -> (Client<UnixStream>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"cmd=response_to_init rc=0\ncmd=my_kvsname rc=0 kvsname=space\n").unwrap();
        let client = Client::init(ours, 0, 1).unwrap();
        let said = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_my_kvsname\n";
        theirs.read_exact(&mut vec![0; said.len()]).unwrap();
        (client, theirs)
    }

    #[test]
    fn a_barrier_is_looked_for_again_and_again() {
        let (mut client, mut server) = by_hand();
        client.enter_barrier().unwrap();
        assert!(client.is_in_barrier() && !client.poll_barrier().unwrap());
        server.write_all(b"cmd=barrier_o").unwrap();
        assert!(!client.poll_barrier().unwrap());
        server.write_all(b"ut rc=0\n").unwrap();
        assert!(client.poll_barrier().unwrap() && !client.is_in_barrier());
        // The answer to another question comes after the end of the barrier, and does not take its place.
        client.enter_barrier().unwrap();
        server.write_all(b"cmd=barrier_out rc=0\ncmd=appnum rc=0 appnum=3\n").unwrap();
        assert_eq!(client.appnum().unwrap(), 3);
        assert!(client.is_in_barrier() && client.poll_barrier().unwrap() && !client.is_in_barrier());
    }

    #[test]
    fn the_end_of_the_connection_is_not_the_end_of_a_barrier() {
        let (mut client, server) = by_hand();
        client.enter_barrier().unwrap();
        drop(server);
        assert!(matches!(client.poll_barrier(), Err(Failure::Lost(_))));
        assert!(matches!(client.poll_barrier(), Err(Failure::Lost(_))));
        for nonsense in [&b"cmd=barrier_out rc=-1\n"[..], b"cmd=get_result rc=0\n", &[b'x'; 2 * LINE]] {
            let (mut client, mut server) = by_hand();
            client.enter_barrier().unwrap();
            server.write_all(nonsense).unwrap();
            let result = std::iter::repeat_with(|| client.poll_barrier()).find(|result| !matches!(result, Ok(false)));
            assert!(result.unwrap().is_err());
        }
    }

    #[test]
    fn abort_arrives_in_one_line() {
        let (mut client, server) = connected();
        client.abort(7, b"it is\na mess").unwrap();
        assert_eq!(server.join().unwrap(), Some((7, Some("it is a mess".to_owned()))));
        assert!(matches!(client.barrier(), Err(Failure::Lost(_))));
    }

    #[test]
    fn bad_arguments_are_refused_before_they_are_sent() {
        let (mut client, _server) = connected();
        for key in [&b""[..], b"a b", b"a=b", b"a\n", &[b'k'; KEY]] {
            assert!(matches!(client.put(key, b""), Err(Failure::Key)), "{key:?}");
        }
        assert!(matches!(client.put(b"key", &[b'v'; VALUE]), Err(Failure::Value(VALUE))));
        client.put(&[b'k'; KEY - 1], &[b' '; VALUE - 1]).unwrap();
    }

    #[test]
    fn a_server_that_talks_nonsense_is_an_error() {
        for nonsense in [&b"cmd=other rc=0\n"[..], b"hello\n", &[b'x'; 2 * LINE], b"cmd=response_to_init rc=-1\n", b""] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(nonsense).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(Client::init(ours, 0, 1).is_err());
        }
    }

    #[test]
    fn the_limits_are_those_of_the_protector() {
        assert_eq!((LINE, WIRE_VALUE), (limits::PMI_LINE, limits::PMI_VALUE));
        assert_eq!((KEY, KVSNAME), (limits::PMI_KEY, limits::PMI_KVSNAME));
    }

    proptest! {
        #[test]
        fn any_value_is_one_word_and_comes_back(value in prop::collection::vec(any::<u8>(), 0..VALUE)) {
            let word = escaped(&value).unwrap();
            prop_assert!((1..=WIRE_VALUE).contains(&word.len()));
            prop_assert!(word.bytes().all(|c| c.is_ascii_graphic() && c != b'='));
            prop_assert_eq!(unescaped(&word), value);
        }

        #[test]
        fn unescaping_takes_anything(word in ".*") {
            prop_assert!(unescaped(&word).len() <= word.len());
        }
    }
}
