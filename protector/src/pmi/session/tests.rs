use proptest::prelude::*;

use super::*;
use crate::pmi::KeySpace;

fn fresh() -> Session {
    Session::new(Rank(1), 4, "space".to_owned())
}

/// A session that has said init.
fn initialized() -> Session {
    let mut session = fresh();
    ask(&mut session, "cmd=init pmi_version=1 pmi_subversion=1");
    session
}

/// Sends a line and returns what the session answers by itself.
fn ask(session: &mut Session, line: &str) -> String {
    session.handle_input(format!("{line}\n").as_bytes()).unwrap();
    output(session)
}

fn output(session: &mut Session) -> String {
    String::from_utf8(session.poll_output().unwrap_or_default()).unwrap()
}

/// Sends a line that the node answers: the request that comes out, and the line that goes back.
fn exchange(session: &mut Session, line: &str, reply: Reply) -> (Request, String) {
    assert_eq!(ask(session, line), "");
    let request = session.poll_request().unwrap();
    assert_eq!(session.poll_request(), None);
    session.reply(reply);
    (request, output(session))
}

#[test]
fn what_needs_no_node_is_answered_at_once() {
    let mut session = fresh();
    assert!(!session.is_initialized());
    for (line, answer) in [
        ("cmd=initack pmiid=1", "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=1\ncmd=set debug=0\n"),
        ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
        ("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n"),
        ("cmd=get_appnum", "cmd=appnum rc=0 appnum=0\n"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=space\n"),
        ("cmd=get_universe_size", "cmd=universe_size rc=0 size=4\n"),
        ("cmd=get kvsname=other key=a", "cmd=get_result rc=-1 msg=no_such_key_space value=unknown\n"),
    ] {
        assert_eq!(ask(&mut session, line), answer);
        assert_eq!(session.poll_request(), None);
    }
    assert!(session.is_initialized() && !session.is_finalized());
}

#[test]
fn what_needs_the_node_comes_out_once_and_is_answered() {
    let text = |s: &str| s.to_owned();
    let mut session = initialized();
    let cases = [
        (
            "cmd=put kvsname=space key=a value=v(0)[1]=2",
            Reply::Done,
            Request::Put { key: text("a"), value: text("v(0)[1]=2") },
            "cmd=put_result rc=0",
        ),
        (
            "cmd=put kvsname=space key=a value=v",
            Reply::Failed(text("duplicate_key a")),
            Request::Put { key: text("a"), value: text("v") },
            "cmd=put_result rc=-1 msg=duplicate_key_a",
        ),
        ("cmd=get kvsname=space key=a", Reply::Value(text("v")), Request::Get { key: text("a") }, "cmd=get_result rc=0 value=v"),
        (
            "cmd=get kvsname=space key=b",
            Reply::Failed(text("no such key")),
            Request::Get { key: text("b") },
            "cmd=get_result rc=-1 msg=no_such_key value=unknown",
        ),
        (
            "cmd=getbyidx kvsname=space idx=3",
            Reply::Entry { key: text("a"), value: text("v") },
            Request::GetByIdx { index: 3 },
            "cmd=getbyidx_results rc=0 nextidx=4 key=a val=v",
        ),
        (
            "cmd=getbyidx kvsname=space idx=4",
            Reply::Failed(text("")),
            Request::GetByIdx { index: 4 },
            "cmd=getbyidx_results rc=-2 reason=no_more_keyvals",
        ),
        ("cmd=barrier_in", Reply::Done, Request::BarrierIn, "cmd=barrier_out rc=0"),
        (
            "cmd=publish_name service=a name with spaces port=tag#0$x",
            Reply::Done,
            Request::PublishName { service: text("a name with spaces"), port: text("tag#0$x") },
            "cmd=publish_result rc=0 info=ok",
        ),
        (
            "cmd=lookup_name service=a name with spaces",
            Reply::Value(text("tag#0$x")),
            Request::LookupName { service: text("a name with spaces") },
            "cmd=lookup_result rc=0 info=ok port=tag#0$x",
        ),
        (
            "cmd=unpublish_name service=t",
            Reply::Failed(text("not published")),
            Request::UnpublishName { service: text("t") },
            "cmd=unpublish_result rc=-1 info=not_published msg=not_published",
        ),
        ("cmd=finalize", Reply::Done, Request::Finalize, "cmd=finalize_ack rc=0"),
    ];
    for (line, reply, request, answer) in cases {
        assert_eq!(exchange(&mut session, line, reply), (request, format!("{answer}\n")));
    }
    assert!(session.is_finalized());
}

#[test]
fn what_is_too_long_for_a_key_space_is_refused() {
    let mut session = initialized();
    let (key, value) = ("k".repeat(limits::PMI_KEY), "v".repeat(limits::PMI_VALUE));
    exchange(&mut session, &format!("cmd=put kvsname=space key={key} value={value}"), Reply::Done);
    assert_eq!(
        ask(&mut session, &format!("cmd=put kvsname=space key={key}k value=v")),
        "cmd=put_result rc=-1 msg=key_too_long\n"
    );
    assert_eq!(
        ask(&mut session, &format!("cmd=put kvsname=space key=k value={value}v")),
        "cmd=put_result rc=-1 msg=value_too_long\n"
    );
}

#[test]
fn what_a_space_would_cut_is_refused() {
    let mut session = initialized();
    let refused = |result| format!("cmd={result} rc=-1 msg=a_space_or_an_unknown_field value=unknown\n");
    assert_eq!(ask(&mut session, "cmd=put kvsname=space key=a value=b c"), refused("put_result"));
    assert_eq!(ask(&mut session, "cmd=put kvsname=space key=a b value=c"), refused("put_result"));
    assert_eq!(ask(&mut session, "cmd=get kvsname=space key=a b=c"), refused("get_result"));
}

#[test]
fn another_version_is_refused_and_may_try_again() {
    let mut session = fresh();
    let no = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n";
    assert_eq!(ask(&mut session, "cmd=init pmi_version=2 pmi_subversion=0"), no);
    assert!(!session.is_initialized());
    assert!(ask(&mut session, "cmd=init pmi_version=1 pmi_subversion=1").ends_with("rc=0\n"));
}

#[test]
fn spawn_and_the_unknown_get_an_error_not_silence() {
    let mut session = initialized();
    let spawn = "mcmd=spawn\nnprocs=2\nexecname=a program\ntotspawns=2\nspawnssofar=1\nendcmd";
    assert_eq!(ask(&mut session, spawn), "", "the answer follows the last part of the call");
    let answer = ask(&mut session, &spawn.replace("sofar=1", "sofar=2"));
    assert!(answer.starts_with("cmd=spawn_result rc=-1 errmsg="), "{answer}");
    assert!(ask(&mut session, "mcmd=strange\nendcmd").starts_with("cmd=strange_result rc=-1"));
    assert!(ask(&mut session, "cmd=strange a=b").starts_with("cmd=strange_result rc=-1"));
    exchange(&mut session, "cmd=barrier_in", Reply::Done);
}

#[test]
fn abort_is_heard_even_while_the_rank_waits_and_is_its_last_word() {
    let mut session = initialized();
    ask(&mut session, "cmd=barrier_in");
    assert_eq!(session.poll_request(), Some(Request::BarrierIn));
    ask(&mut session, "cmd=abort exitcode=7 error_msg=it is a mess\nof two lines");
    assert_eq!(session.poll_request(), Some(Request::Abort { code: 7, message: Some("it is a mess".to_owned()) }));
    session.reply(Reply::Done); // The release of the barrier, too late.
    assert_eq!(session.poll_output(), None);
    session.handle_input(&[b'x'; 3 * limits::PMI_LINE]).unwrap();
    assert_eq!(session.poll_request(), None);
    assert!(!session.is_finalized());
}

#[test]
fn a_library_may_start_again() {
    let mut session = initialized();
    // MPICH 5 does so between two MPI sessions, and finalizes at exit.
    assert!(ask(&mut session, "cmd=init pmi_version=1 pmi_subversion=1").ends_with("rc=0\n"));
    exchange(&mut session, "cmd=finalize", Reply::Done);
    assert!(ask(&mut session, "cmd=init pmi_version=1 pmi_subversion=1").ends_with("rc=0\n"));
    assert!(!session.is_finalized());
    exchange(&mut session, "cmd=barrier_in", Reply::Done);
}

#[test]
fn violations_are_errors_and_stay() {
    let error = |mut session: Session, bytes: &[u8]| {
        let error = session.handle_input(bytes).unwrap_err();
        assert_eq!(session.handle_input(b"cmd=get_maxes\n"), Err(error.clone()));
        assert_eq!(session.poll_output(), None);
        error
    };
    let out_of_place = |request: &str, when| PmiError::OutOfPlace { request: request.to_owned(), when };
    assert_eq!(error(fresh(), b"cmd=barrier_in\n"), out_of_place("barrier_in", "before init"));
    let mut finalized = initialized();
    exchange(&mut finalized, "cmd=finalize", Reply::Done);
    assert_eq!(error(finalized, b"cmd=barrier_in\n"), out_of_place("barrier_in", "after finalize"));
    let overlap = PmiError::Overlap { request: "get".to_owned(), outstanding: "barrier_in" };
    assert_eq!(error(initialized(), b"cmd=barrier_in\ncmd=get kvsname=space key=a\n"), overlap);
    let field = |command: &str, field| PmiError::Field { command: command.to_owned(), field };
    assert_eq!(error(initialized(), b"cmd=put kvsname=space key=a\n"), field("put", "value"));
    assert_eq!(error(fresh(), b"cmd=initack pmiid=2\n"), field("initack", "pmiid"));
    assert_eq!(error(fresh(), b"GET / HTTP/1.1\r\n\r\n"), PmiError::Garbage("GET / HTTP/1.1\r".to_owned()));
    assert_eq!(error(fresh(), &[b'x'; limits::PMI_LINE + 1]), PmiError::TooLong { limit: limits::PMI_LINE });
    let endless = format!("mcmd=spawn\n{}", "arg1=x\n".repeat(MULTILINE / 6));
    assert_eq!(error(initialized(), endless.as_bytes()), PmiError::TooLong { limit: MULTILINE });
}

#[test]
fn answers_that_are_not_read_are_bounded() {
    let mut session = initialized();
    let asked = (0..).find(|_| session.handle_input(b"cmd=get_maxes\n").is_err()).unwrap();
    assert!(asked < UNREAD);
    assert_eq!(session.handle_input(b""), Err(PmiError::Unread));
    assert!(session.poll_output().unwrap().len() < UNREAD + limits::PMI_LINE);
}

/// Plays `script` in pieces of the given sizes, with a node that answers at once. Returns the requests and all output.
fn play(script: &[u8], sizes: &[usize]) -> (Vec<Request>, Vec<u8>, Result<(), PmiError>) {
    let (mut session, mut keys) = (fresh(), KeySpace::new(4));
    let (mut requests, mut output) = (Vec::new(), Vec::new());
    let (mut rest, mut sizes) = (script, sizes.iter().cycle());
    while !rest.is_empty() {
        // One line at a time, as a library waits for the answer, in any pieces.
        let line = rest.iter().position(|&c| c == b'\n').map_or(rest.len(), |at| at + 1);
        let (piece, tail) = rest.split_at((*sizes.next().unwrap()).min(line));
        rest = tail;
        if let Err(e) = session.handle_input(piece) {
            return (requests, output, Err(e));
        }
        if let Some(request) = session.poll_request() {
            session.reply(match &request {
                Request::Put { key, value } => {
                    keys.put(key.clone(), value.clone()).map_or_else(|e| Reply::Failed(e.to_string()), |()| Reply::Done)
                }
                Request::Get { key } => keys.get(key).map_or(Reply::Failed("none".to_owned()), |v| Reply::Value(v.to_owned())),
                Request::GetByIdx { .. } | Request::LookupName { .. } => Reply::Failed("none".to_owned()),
                _ => Reply::Done,
            });
            requests.push(request);
        }
        output.extend(session.poll_output().unwrap_or_default());
    }
    (requests, output, Ok(()))
}

/// What MPICH 5.0.2 says from MPI_Init to MPI_Finalize, and a spawn.
const TRANSCRIPT: &str = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_appnum\ncmd=get_my_kvsname\n\
    cmd=get kvsname=space key=PMI_process_mapping\ncmd=get kvsname=space key=PMI_hwloc_xmlfile\n\
    cmd=put kvsname=space key=-allgather-1-0 value=020095637F[2]01[8]\ncmd=barrier_in\n\
    cmd=get kvsname=space key=-allgather-1-0\nmcmd=spawn\nnprocs=1\nexecname=x\nendcmd\ncmd=finalize\n";

#[test]
fn the_transcript_plays() {
    let (requests, output, end) = play(TRANSCRIPT.as_bytes(), &[usize::MAX]);
    assert_eq!(end, Ok(()));
    assert_eq!(requests.len(), 6);
    assert_eq!(requests.last(), Some(&Request::Finalize));
    let output = String::from_utf8(output).unwrap();
    assert!(output.contains("cmd=get_result rc=0 value=(vector,(0,4,1))\n"), "{output}");
    assert!(output.contains("cmd=get_result rc=0 value=020095637F[2]01[8]\n"), "{output}");
    assert!(output.ends_with("cmd=finalize_ack rc=0\n"), "{output}");
}

/// Lines that are nearly right, so that random input gets past the first check.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        "cmd=",
        "mcmd=",
        "init",
        "put",
        "get",
        "spawn",
        "endcmd",
        "barrier_in",
        "finalize",
        "abort",
        " ",
        "\n",
        "=",
        "kvsname=space",
        "key=a",
        "value=b",
        "pmi_version=1",
        "idx=0",
        "getbyidx",
        "service=s",
        "totspawns=9",
        "\u{7f}",
        "\0",
        "exitcode=-1",
    ]);
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat().into_bytes())
}

proptest! {
    #[test]
    fn any_split_gives_the_same(sizes in prop::collection::vec(1usize..60, 1..20)) {
        prop_assert_eq!(play(TRANSCRIPT.as_bytes(), &sizes), play(TRANSCRIPT.as_bytes(), &[usize::MAX]));
    }

    #[test]
    fn any_split_of_the_nearly_right_gives_the_same(
        tail in nearly(),
        sizes in prop::collection::vec(1usize..60, 1..20),
    ) {
        let script = [b"cmd=init pmi_version=1\n".as_slice(), &tail].concat();
        prop_assert_eq!(play(&script, &sizes), play(&script, &[usize::MAX]));
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..5000), sizes in prop::collection::vec(1usize..500, 1..9)) {
        let (_, output, _) = play(&bytes, &sizes);
        prop_assert!(output.is_empty() || bytes.starts_with(b"cmd="));
    }
}
