//! The daemon's end of one rank's PMI-1 conversation, as a state machine over bytes.

use radic_wire::ids::Rank;
use radic_wire::limits;

use super::line::{self, Command};

/// The version that `init` agrees on. 1.1 has no barriers over groups, and MPICH does without them when it hears 1.1.
const VERSION: (u32, u32) = (1, 1);
/// Bytes of answers that a rank may leave unread. A library reads each answer before it asks again, so one answer is the rule.
const UNREAD: usize = 4 * limits::PMI_LINE;
/// Longest `mcmd` (the request to spawn) in bytes, all its lines together.
const MULTILINE: usize = 256 << 10;
/// Bytes of an offending line that an error shows.
const EXCERPT: usize = 80;

/// Why a conversation cannot go on. The session is dead after it: the rank's program or library is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PmiError {
    /// A line over [`limits::PMI_LINE`], or a multi-line command over its own bound.
    #[error("a PMI request over the limit of {limit} bytes")]
    TooLong {
        /// The bound, in bytes.
        limit: usize,
    },
    /// Bytes that are not PMI-1.
    #[error("not a PMI-1 request: {0:?}")]
    Garbage(String),
    /// A known command without a field that it must have.
    #[error("the PMI request {command} lacks the field {field}, or it is not what it should be")]
    Field {
        /// The command.
        command: String,
        /// The field.
        field: &'static str,
    },
    /// A request in a state that does not allow it, for example a barrier after finalize.
    #[error("the PMI request {request} is not allowed {when}")]
    OutOfPlace {
        /// The command.
        request: String,
        /// The state.
        when: &'static str,
    },
    /// A request while another one is unanswered.
    #[error("the PMI request {request} came before the answer to {outstanding}")]
    Overlap {
        /// The command.
        request: String,
        /// The command that has no answer yet.
        outstanding: &'static str,
    },
    /// The rank asks and asks and does not read the answers.
    #[error("the rank leaves more than {UNREAD} bytes of PMI answers unread")]
    Unread,
}

/// What only the node can answer. `reply` answers all but `Abort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Put a key into the job's key space. Answer: `Done` or `Failed`.
    Put {
        /// At most [`limits::PMI_KEY`] bytes.
        key: String,
        /// At most [`limits::PMI_VALUE`] bytes.
        value: String,
    },
    /// Look a key up. Answer: `Value` or `Failed`.
    Get {
        /// The key.
        key: String,
    },
    /// Look up key number `index`, from 0. Answer: `Entry`, or `Failed` after the last.
    GetByIdx {
        /// The number.
        index: u32,
    },
    /// The rank waits for all ranks of its job, and for their puts. Answer: `Done`.
    BarrierIn,
    /// Publish a name for MPI_Lookup_name. Answer: `Done` or `Failed`.
    PublishName {
        /// The name.
        service: String,
        /// What it stands for.
        port: String,
    },
    /// Look a published name up. Answer: `Value` or `Failed`.
    LookupName {
        /// The name.
        service: String,
    },
    /// Forget a published name. Answer: `Done` or `Failed`.
    UnpublishName {
        /// The name.
        service: String,
    },
    /// The rank is through with MPI. Answer: `Done`.
    Finalize,
    /// MPI_Abort: the job ends with `code`. No answer; the rank says nothing more and exits by itself.
    Abort {
        /// The exit code.
        code: i32,
        /// What the library says about it, in its own words.
        message: Option<String>,
    },
}

impl Request {
    /// The command's name on the wire.
    fn name(&self) -> &'static str {
        match self {
            Request::Put { .. } => "put",
            Request::Get { .. } => "get",
            Request::GetByIdx { .. } => "getbyidx",
            Request::BarrierIn => "barrier_in",
            Request::PublishName { .. } => "publish_name",
            Request::LookupName { .. } => "lookup_name",
            Request::UnpublishName { .. } => "unpublish_name",
            Request::Finalize => "finalize",
            Request::Abort { .. } => "abort",
        }
    }
}

/// The node's answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It was done.
    Done,
    /// The value of a key or a published name.
    Value(String),
    /// A key and its value, for `GetByIdx`.
    Entry {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// It could not be done; the library reports the text.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Fresh,
    Initialized,
    Finalized,
    Aborted,
}

/// A multi-line command (spawn) of which `endcmd` has not come yet.
#[derive(Debug)]
struct Multiline {
    name: String,
    bytes: usize,
    /// `totspawns` and `spawnssofar`: a call is made of several commands and gets one answer, to the last.
    total: Option<u32>,
    so_far: Option<u32>,
}

/// The request that has no answer yet.
#[derive(Debug, Default)]
enum Asked {
    #[default]
    Nothing,
    /// The node does not have it yet.
    Fresh(Request),
    /// The node has it.
    Polled(Request),
}

impl Asked {
    fn request(&self) -> Option<&Request> {
        match self {
            Asked::Nothing => None,
            Asked::Fresh(request) | Asked::Polled(request) => Some(request),
        }
    }
}

/// One rank's connection. Bytes go in by [`handle_input`](Session::handle_input) and come out by
/// [`poll_output`](Session::poll_output); what the node must answer comes out by [`poll_request`](Session::poll_request).
#[derive(Debug)]
pub struct Session {
    rank: Rank,
    size: u32,
    kvsname: String,
    state: State,
    /// The line that is not complete yet.
    partial: Vec<u8>,
    multiline: Option<Multiline>,
    asked: Asked,
    output: Vec<u8>,
    broken: Option<PmiError>,
}

impl Session {
    /// The session of `rank` in a job of `size` ranks whose key space is called `kvsname`.
    ///
    /// # Panics
    /// If `rank` is not below `size`, or `kvsname` is longer than [`limits::PMI_KVSNAME`] or not one word.
    pub fn new(rank: Rank, size: u32, kvsname: String) -> Self {
        assert!(rank.0 < size, "rank {rank} in a job of {size}");
        assert!(
            (1..limits::PMI_KVSNAME).contains(&kvsname.len()) && line::one_word(&kvsname) == kvsname,
            "key space {kvsname:?}"
        );
        Session {
            rank,
            size,
            kvsname,
            state: State::Fresh,
            partial: Vec::new(),
            multiline: None,
            asked: Asked::Nothing,
            output: Vec::new(),
            broken: None,
        }
    }

    /// The conversation of a process that was brought back goes on where it stood.
    pub fn resume(&mut self, initialized: bool, finalized: bool) {
        self.state = match (initialized, finalized) {
            (_, true) => State::Finalized,
            (true, false) => State::Initialized,
            (false, false) => State::Fresh,
        };
    }

    /// Whether the library has said `init`. It stays so after finalize.
    pub fn is_initialized(&self) -> bool {
        self.state != State::Fresh
    }

    /// Whether the library has said `finalize`: the process may exit whenever it likes.
    pub fn is_finalized(&self) -> bool {
        self.state == State::Finalized
    }

    /// Takes bytes as they came from the rank. After an error, every later call returns the same one.
    pub fn handle_input(&mut self, mut bytes: &[u8]) -> Result<(), PmiError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        while let Some(end) = bytes.iter().position(|&c| c == b'\n') {
            let (head, tail) = (&bytes[..end], &bytes[end + 1..]);
            self.extend_line(head)?;
            let whole = std::mem::take(&mut self.partial);
            let handled = self.handle_line(&whole);
            handled.map_err(|e| self.fail(e))?;
            bytes = tail;
        }
        self.extend_line(bytes)
    }

    /// What the node must answer next, if anything. Each request comes once.
    pub fn poll_request(&mut self) -> Option<Request> {
        let request = if let Asked::Fresh(request) = &self.asked { request.clone() } else { return None };
        // Nobody waits for the answer to an abort.
        self.asked = if self.state == State::Aborted { Asked::Nothing } else { Asked::Polled(request.clone()) };
        Some(request)
    }

    /// Bytes for the rank, all there are.
    pub fn poll_output(&mut self) -> Option<Vec<u8>> {
        if self.output.is_empty() { None } else { Some(std::mem::take(&mut self.output)) }
    }

    /// Answers the request that was polled last. After an abort or an error the rank does not listen, and nothing happens.
    ///
    /// # Panics
    /// If there is no request, it was answered, or the answer is not of a kind that the request can have.
    pub fn reply(&mut self, reply: Reply) {
        if self.state == State::Aborted || self.broken.is_some() {
            return;
        }
        let asked = std::mem::take(&mut self.asked);
        let Asked::Polled(request) = asked else {
            panic!("a reply answers a request that was polled and has no answer yet: {asked:?}")
        };
        self.say(&answer(&request, &reply));
    }

    fn fail(&mut self, error: PmiError) -> PmiError {
        self.partial = Vec::new();
        self.broken.insert(error).clone()
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), PmiError> {
        if self.state == State::Aborted {
            return Ok(());
        }
        if self.partial.len() + bytes.len() > limits::PMI_LINE {
            return Err(self.fail(PmiError::TooLong { limit: limits::PMI_LINE }));
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn handle_line(&mut self, bytes: &[u8]) -> Result<(), PmiError> {
        if self.state == State::Aborted {
            return Ok(()); // More lines of its message, perhaps.
        }
        if self.multiline.is_some() {
            return self.handle_further_line(bytes);
        }
        let excerpt = || String::from_utf8_lossy(&bytes[..bytes.len().min(EXCERPT)]).into_owned();
        let command = Command::parse(bytes).ok_or_else(|| PmiError::Garbage(excerpt()))?;
        // An abort may come from another thread than the one that waits.
        if let Some(outstanding) = self.asked.request().filter(|_| command.name != "abort") {
            return Err(PmiError::Overlap { request: command.name.to_owned(), outstanding: outstanding.name() });
        }
        if self.output.len() > UNREAD {
            return Err(PmiError::Unread);
        }
        if command.continues {
            self.in_place(&command)?;
            let name = command.name.to_owned();
            self.multiline = Some(Multiline { name, bytes: bytes.len(), total: None, so_far: None });
            return Ok(());
        }
        self.handle_command(&command)
    }

    /// A line of a multi-line command. Nothing in it matters: whatever it asks for, the answer is no.
    fn handle_further_line(&mut self, bytes: &[u8]) -> Result<(), PmiError> {
        let command = self.multiline.as_mut().expect("the caller looked");
        command.bytes += bytes.len();
        if command.bytes > MULTILINE {
            return Err(PmiError::TooLong { limit: MULTILINE });
        }
        let text = line::printable(bytes).unwrap_or("");
        let number = |key: &str| text.strip_prefix(key)?.strip_prefix('=')?.trim().parse().ok();
        command.total = command.total.or_else(|| number("totspawns"));
        command.so_far = command.so_far.or_else(|| number("spawnssofar"));
        if text == "endcmd" {
            let (name, is_last) = (command.name.clone(), command.total <= command.so_far);
            self.multiline = None;
            if is_last {
                self.refuse(&name);
            }
        }
        Ok(())
    }

    /// Checks that the state allows `command`.
    fn in_place(&self, command: &Command<'_>) -> Result<(), PmiError> {
        let when = match (self.state, command.name) {
            (_, "abort") | (State::Initialized, _) => return Ok(()),
            // A library may start anew on the same connection, as MPI sessions do.
            (State::Fresh | State::Finalized, "init" | "initack") => return Ok(()),
            (State::Fresh, _) => "before init",
            (State::Finalized, _) => "after finalize",
            (State::Aborted, _) => "after abort",
        };
        Err(PmiError::OutOfPlace { request: command.name.to_owned(), when })
    }

    fn handle_command(&mut self, command: &Command<'_>) -> Result<(), PmiError> {
        self.in_place(command)?;
        match command.name {
            "init" => self.init(command),
            "initack" => self.init_ack(command)?,
            "get_maxes" => {
                let (kvsname, key, value) = (limits::PMI_KVSNAME, limits::PMI_KEY, limits::PMI_VALUE);
                self.say(&format!("cmd=maxes rc=0 kvsname_max={kvsname} keylen_max={key} vallen_max={value}"));
            }
            "get_appnum" => self.say("cmd=appnum rc=0 appnum=0"),
            "get_my_kvsname" => self.say(&format!("cmd=my_kvsname rc=0 kvsname={}", self.kvsname)),
            "get_universe_size" => self.say(&format!("cmd=universe_size rc=0 size={}", self.size)),
            "put" | "get" | "getbyidx" => self.key_space(command)?,
            "publish_name" | "lookup_name" | "unpublish_name" => self.names(command)?,
            "barrier_in" => self.ask(Request::BarrierIn),
            "finalize" => {
                self.state = State::Finalized;
                self.ask(Request::Finalize);
            }
            "abort" => {
                self.state = State::Aborted;
                let message = ["error_msg", "errmsg", "msg"].iter().find_map(|key| command.text(key)).map(str::to_owned);
                self.asked = Asked::Nothing;
                self.ask(Request::Abort { code: command.number("exitcode").unwrap_or(1), message });
            }
            other => self.refuse(other),
        }
        Ok(())
    }

    fn init(&mut self, command: &Command<'_>) {
        let (version, subversion) = VERSION;
        // A client that knows more than 1.1 can speak 1.1 as well.
        let understood = command.number("pmi_version") == Some(version);
        if understood {
            self.state = State::Initialized;
        }
        let rc = if understood { 0 } else { -1 };
        self.say(&format!("cmd=response_to_init pmi_version={version} pmi_subversion={subversion} rc={rc}"));
    }

    /// The greeting of a client that came by PMI_PORT: it is told its rank.
    fn init_ack(&mut self, command: &Command<'_>) -> Result<(), PmiError> {
        if command.number("pmiid") != Some(self.rank.0) {
            return Err(PmiError::Field { command: "initack".to_owned(), field: "pmiid" });
        }
        self.say("cmd=initack rc=0");
        self.say(&format!("cmd=set size={}", self.size));
        self.say(&format!("cmd=set rank={}", self.rank));
        self.say("cmd=set debug=0");
        Ok(())
    }

    fn key_space(&mut self, command: &Command<'_>) -> Result<(), PmiError> {
        let (result, fields): (_, &[&str]) = match command.name {
            "put" => ("put_result", &["kvsname", "key", "value"]),
            "get" => ("get_result", &["kvsname", "key"]),
            _ => ("getbyidx_results", &["kvsname", "idx"]),
        };
        let refusal = match required(command, "kvsname")? {
            name if name != self.kvsname => Some("no_such_key_space"),
            _ if !command.has_only(fields) => Some("a_space_or_an_unknown_field"),
            _ => None,
        };
        if let Some(why) = refusal {
            self.say(&format!("cmd={result} rc=-1 msg={why} value=unknown"));
            return Ok(());
        }
        if command.name == "getbyidx" {
            let index = command.number("idx").ok_or_else(|| missing(command, "idx"))?;
            self.ask(Request::GetByIdx { index });
            return Ok(());
        }
        let key = required(command, "key")?.to_owned();
        if command.name == "get" {
            self.ask(Request::Get { key });
            return Ok(());
        }
        let value = required(command, "value")?.to_owned();
        if key.len() > limits::PMI_KEY {
            self.say("cmd=put_result rc=-1 msg=key_too_long");
        } else if value.len() > limits::PMI_VALUE {
            self.say("cmd=put_result rc=-1 msg=value_too_long");
        } else {
            self.ask(Request::Put { key, value });
        }
        Ok(())
    }

    /// Names of services may contain spaces, ports do not.
    fn names(&mut self, command: &Command<'_>) -> Result<(), PmiError> {
        let service = command.text("service").ok_or_else(|| missing(command, "service"))?;
        let request = match command.name {
            "publish_name" => {
                let (service, port) = service.rsplit_once(" port=").ok_or_else(|| missing(command, "port"))?;
                Request::PublishName { service: service.to_owned(), port: port.to_owned() }
            }
            "lookup_name" => Request::LookupName { service: service.to_owned() },
            _ => Request::UnpublishName { service: service.to_owned() },
        };
        self.ask(request);
        Ok(())
    }

    fn ask(&mut self, request: Request) {
        assert!(self.asked.request().is_none(), "one request at a time");
        self.asked = Asked::Fresh(request);
    }

    /// Says no in a way that the library takes for the answer it waits for, or at least for an answer.
    fn refuse(&mut self, command: &str) {
        let why = if command == "spawn" { "RADIC_starts_no_further_processes" } else { "RADIC_does_not_know_this_PMI_command" };
        self.say(&format!("cmd={command}_result rc=-1 errmsg={why} msg={why}"));
    }

    fn say(&mut self, line: &str) {
        assert!(!line.contains('\n'), "an answer is one line");
        self.output.extend_from_slice(line.as_bytes());
        self.output.push(b'\n');
    }
}

/// The line that answers `request`. A failed `get` and a wrong key space carry a value too: clients of the old kind want one.
fn answer(request: &Request, reply: &Reply) -> String {
    match (request, reply) {
        (Request::Put { .. }, Reply::Done) => "cmd=put_result rc=0".to_owned(),
        (Request::Put { .. }, Reply::Failed(why)) => format!("cmd=put_result rc=-1 msg={}", line::one_word(why)),
        (Request::Get { .. }, Reply::Value(value)) => format!("cmd=get_result rc=0 value={value}"),
        (Request::Get { .. }, Reply::Failed(why)) => format!("cmd=get_result rc=-1 msg={} value=unknown", line::one_word(why)),
        (Request::GetByIdx { index }, Reply::Entry { key, value }) => {
            format!("cmd=getbyidx_results rc=0 nextidx={} key={key} val={value}", u64::from(*index) + 1)
        }
        (Request::GetByIdx { .. }, Reply::Failed(_)) => "cmd=getbyidx_results rc=-2 reason=no_more_keyvals".to_owned(),
        (Request::BarrierIn, Reply::Done) => "cmd=barrier_out rc=0".to_owned(),
        (Request::BarrierIn, Reply::Failed(why)) => format!("cmd=barrier_out rc=-1 msg={}", line::one_word(why)),
        (Request::PublishName { .. }, reply) => name_answer("publish", reply),
        (Request::LookupName { .. }, Reply::Value(port)) => format!("cmd=lookup_result rc=0 info=ok port={port}"),
        (Request::LookupName { .. }, reply @ Reply::Failed(_)) => name_answer("lookup", reply),
        (Request::UnpublishName { .. }, reply) => name_answer("unpublish", reply),
        (Request::Finalize, Reply::Done) => "cmd=finalize_ack rc=0".to_owned(),
        _ => panic!("{reply:?} is no answer to {request:?}"),
    }
}

/// Clients of the old kind look at `info`, the others at `rc`.
fn name_answer(request: &str, reply: &Reply) -> String {
    match reply {
        Reply::Done => format!("cmd={request}_result rc=0 info=ok"),
        Reply::Failed(why) => format!("cmd={request}_result rc=-1 info={0} msg={0}", line::one_word(why)),
        _ => panic!("{reply:?} is no answer to {request}_name"),
    }
}

fn missing(command: &Command<'_>, field: &'static str) -> PmiError {
    PmiError::Field { command: command.name.to_owned(), field }
}

fn required<'a>(command: &Command<'a>, field: &'static str) -> Result<&'a str, PmiError> {
    command.field(field).ok_or_else(|| missing(command, field))
}

#[cfg(test)]
mod tests;
