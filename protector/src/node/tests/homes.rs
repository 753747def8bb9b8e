//! A job's home and its hosts: output, adoption, epochs, and messages that come late.

use radic_wire::process::PayloadMode;

use super::*;

/// The node of the terminal is lost; it hosts no rank. No terminal prints any more, and no rank may wait for that: what was under
/// way to it, and what comes, is kept for the next terminal.
#[test]
fn a_protected_job_goes_on_when_the_node_of_its_terminal_is_lost() {
    let mut cluster = Cluster::new(5);
    let spec = JobSpec { protection: never(), nodes: (1..=2).map(name).collect(), ..spec(2) };
    cluster.hello(5, 1, Request::Run { spec: Box::new(spec), attach: true });
    cluster.run_until(|c| c.ranks.len() == 2);
    let job = cluster.ranks.keys().next().unwrap().job;
    cluster.kill(&name(5));
    cluster.run_for(Duration::from_secs(3));
    let pieces = 2 * limits::OUTPUT_WINDOW / limits::CHUNK;
    (0..pieces).for_each(|_| cluster.print(at(job, 1), &vec![7; limits::CHUNK]));
    cluster.run_for(Duration::from_millis(200));
    assert!(cluster.ranks[&at(job, 1)].1.output.values().all(VecDeque::is_empty), "the rank waits");
    let kept = cluster.nodes[&name(1)].kept_output(job).iter().map(|(.., range)| range.end - range.start).sum::<u64>() as usize;
    let all = pieces * limits::CHUNK;
    assert!(kept < all && kept + limits::OUTPUT_UNPRINTED > all, "{kept} of {all}: the host keeps what is newest, too");
    cluster.exit_all(job);
    cluster.run_for(Duration::from_secs(1));
    assert!(cluster.nothing_left());
    cluster.hello(1, 2, Request::Attach { job: job.to_string() });
    cluster.run_until(|c| c.printed(2).len() == limits::OUTPUT_WINDOW);
    cluster.ask(1, 2, Request::Printed(limits::OUTPUT_WINDOW as u64));
    cluster.run_until(|c| c.printed(2).len() == all);
    cluster.ask(1, 2, Request::Printed(limits::OUTPUT_WINDOW as u64));
    cluster.run_until(|c| c.outcome(2).is_some());
}

/// A home without a terminal, of two ranks that are protected: the first there, the second on this node.
fn home_of(second: usize) -> Home {
    let placement = Placement { nodes: vec![id(1), id(second)], rank_nodes: vec![0, 1] };
    let spec = JobSpec { protection: never(), ..spec(2) };
    Home::start(Duration::ZERO, 0, JobId::from_bits(1), SEAT, spec, placement, None)
}

/// What a host says of its ranks in the job's first epoch.
fn of_host(said: FromHost) -> ToHome {
    ToHome::Host { epoch: Epoch::FIRST, said }
}

fn prints(offset: u64, text: &str) -> ToHome {
    let data = ByteBuf::from(text.as_bytes());
    of_host(FromHost::Output { rank: Rank(1), stream: OutputStream::Stdout, offset, data })
}

/// What a terminal that attaches now gets of a job's output.
fn shown_by(home: &mut Home) -> Vec<u8> {
    home.handle_message(Duration::ZERO, &id(1), ToHome::Attach(SessionId { node: id(1), number: 1 }));
    let shown = std::iter::from_fn(|| home.poll_output()).filter_map(|output| match output {
        home::HomeOutput::ToSession(_, ToSession::Output { data, .. }) => Some(data.to_vec()),
        _ => None,
    });
    shown.flatten().collect()
}

/// The node where a rank goes on knows of a loss that the home hears of later. What it says meanwhile is kept: without it the
/// output would have a gap.
#[test]
fn a_home_misses_nothing_of_a_rank_that_is_back_before_it_knows_that_it_was_lost() {
    let mut home = home_of(2);
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Launched { rank: Rank(1), pid: 7 }));
    home.handle_message(Duration::ZERO, &id(3), prints(0, "early"));
    let placement = Placement { nodes: vec![id(1), id(3)], rank_nodes: vec![0, 1] };
    home.handle_moved(Duration::ZERO, &id(2), placement);
    home.handle_message(Duration::ZERO, &id(3), prints(5, " and late"));
    assert_eq!(home.outcome(), None);
    assert_eq!(shown_by(&mut home), b"early and late");
}

/// A gap in its output ends the job with an error, although its host waits until the rest is printed.
#[test]
fn a_gap_in_the_output_ends_the_job() {
    let mut home = home_of(2);
    home.handle_message(Duration::ZERO, &id(2), prints(0, "a"));
    home.handle_message(Duration::ZERO, &id(2), prints(9, "z"));
    assert!(home.outcome().is_some_and(|outcome| outcome.code == 113));
    let taken = |output: home::HomeOutput| match output {
        home::HomeOutput::ToHost(node, ToHost::OutputTaken { offset, .. }) if node == id(2) => Some(offset),
        _ => None,
    };
    assert_eq!(std::iter::from_fn(|| home.poll_output()).filter_map(taken).max(), Some(10));
}

/// What a host still says of an earlier epoch of the job is not taken for the present one's.
#[test]
fn what_is_said_of_an_incarnation_before_says_nothing_of_the_next_one() {
    let mut home = home_of(2);
    let now = Duration::ZERO;
    let lost = ToHome::NoImage { rank: Rank(1), incarnation: Incarnation::FIRST, why: "lost".to_owned(), crash: None };
    home.handle_message(now, &id(1), lost);
    home.handle_message(now, &id(1), of_host(FromHost::Gone));
    home.handle_message(now, &id(2), of_host(FromHost::Gone));
    let next = epoch(1);
    assert_eq!(home.epoch(), next);
    let status = ExitStatus::Signal(9);
    home.handle_message(now, &id(2), prints(116, "of before"));
    home.handle_message(now, &id(2), of_host(FromHost::Exited { rank: Rank(1), status, phase: MpiPhase::Before }));
    home.handle_message(now, &id(2), of_host(FromHost::Gone));
    let data = ByteBuf::from(b"of now".as_slice());
    let said = FromHost::Output { rank: Rank(1), stream: OutputStream::Stdout, offset: 0, data };
    home.handle_message(now, &id(2), ToHome::Host { epoch: next, said });
    assert_eq!(home.outcome(), None);
    assert_eq!(shown_by(&mut home), b"of now");
}

/// What is needed to adopt a job in `epoch` with a rank on each of two nodes, of which the first is the home.
fn adoption(epoch: Epoch) -> Adoption {
    let placement = Placement { nodes: vec![id(3), id(4)], rank_nodes: vec![0, 1] };
    let spec = JobSpec { protection: never(), ..spec(2) };
    Adoption {
        job: JobId::from_bits(1),
        ward: Ward { epoch, spec, placement, fence: 0, keys: Vec::new() },
        started_ms: 0,
        view: 1,
    }
}

fn adopted() -> Home {
    Home::adopt(Duration::ZERO, SEAT, adoption(Epoch::FIRST))
}

/// The home before had restarted the job, and the next one hears so from a host. It gives a greater epoch, because processes of
/// the other may run behind a cut (G4).
#[test]
fn an_epoch_that_the_home_before_has_begun_is_not_given_again() {
    let begun = epoch(1);
    let no_image = ToHome::NoImage {
        rank: Rank(0),
        incarnation: Incarnation::launched_in(begun).next(),
        why: "lost".to_owned(),
        crash: None,
    };
    for knows in [None, Some(no_image)] {
        let (now, mut home) = (Duration::ZERO, adopted());
        match knows {
            Some(message) => home.handle_message(now, &id(3), message),
            None => home.handle_adoption(&adoption(begun)),
        }
        for node in [id(3), id(4)] {
            home.handle_message(now, &node, of_host(FromHost::Gone));
        }
        assert_eq!(home.epoch(), epoch(2));
        assert_eq!(home.outcome(), None);
    }
}

/// A host that had not heard of its new home when that ended everything is told again when it reports, and says `Gone` only when
/// it is.
#[test]
fn a_host_that_comes_late_to_its_new_home_is_ended_all_the_same() {
    let mut home = adopted();
    let lost = ToHome::NoImage { rank: Rank(0), incarnation: Incarnation::restarted(1), why: "lost".to_owned(), crash: None };
    home.handle_message(Duration::ZERO, &id(3), lost);
    let ends = |home: &mut Home| {
        let outputs = std::iter::from_fn(|| home.poll_output());
        let is_end = |output: &home::HomeOutput| matches!(output, home::HomeOutput::ToHost(node, ToHost::End { restarts: true, .. }) if *node == id(4));
        outputs.filter(is_end).count()
    };
    assert_eq!(ends(&mut home), 1);
    let (ended, running, keys, waiting) = (Vec::new(), vec![Rank(1)], Vec::new(), Vec::new());
    let report = HostReport { running, ended, fence: 0, keys, waiting, stdin: StdinWanted::Nothing, restarts: false };
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Report(report)));
    assert_eq!(ends(&mut home), 1);
}

/// An order to bring a rank of three back on the second node.
fn order_of(process: ProcessId, incarnation: Incarnation) -> RestartOrder {
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1, 1] };
    let spec = JobSpec { protection: never(), ..spec(3) };
    RestartOrder {
        process,
        incarnation,
        ward: Ward { epoch: incarnation.epoch, spec, placement, fence: 0, keys: Vec::new() },
        origin: address(1).ip(),
        log: address(1),
        replica: None,
        range: ImageRange::default(),
        images: vec![(0, 10)],
        cut: 0,
        log_end: 0,
        held: Vec::new(),
        causes: (0, ByteBuf::new()),
    }
}

/// Rank 0 was brought back, and has caught up, before its node knew that it is the home now: what it said of standard input went
/// to the home before. The home hears it with the report of its host, and asks the terminal; of a second report it learns
/// nothing.
#[test]
fn a_home_that_comes_late_hears_what_rank_0_wants_of_standard_input() {
    let order = order_of(ProcessId { job: JobId::from_bits(1), rank: Rank(0) }, Incarnation::restarted(1));
    let mut host = Host::adopt(JobId::from_bits(1), &order.ward, 0);
    host.restore(&order, false, String::new());
    host.handle_input_read(Some(5));
    while host.poll_output().is_some() {}
    let mut reports = || {
        host.handle_new_home(id(3));
        let report = |output| match output {
            HostOutput::ToHome(said @ FromHost::Report(_)) => Some(said),
            _ => None,
        };
        std::iter::from_fn(|| host.poll_output()).find_map(report).expect("a report")
    };
    let mut home = adopted();
    home.handle_message(Duration::ZERO, &id(5), ToHome::Attach(SessionId { node: id(5), number: 1 }));
    let asked = |home: &mut Home| {
        let asks = |output| match output {
            home::HomeOutput::ToSession(_, ToSession::StdinFrom(from)) => Some(from),
            _ => None,
        };
        std::iter::from_fn(|| home.poll_output()).filter_map(asks).collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut home), []);
    home.handle_message(Duration::ZERO, &id(3), of_host(reports()));
    assert_eq!(asked(&mut home), [Some(5)]);
    home.handle_message(Duration::ZERO, &id(3), of_host(reports()));
    assert_eq!(asked(&mut home), []);
}

/// The job ends while the images of a rank are on their way. They are given up, and the rank counts as killed, with no word of a loss.
#[test]
fn a_job_that_ends_waits_for_no_images() {
    for restarts in [false, true] {
        let order = order_of(at(JobId::from_bits(1), 1), Incarnation::restarted(1));
        let mut host = Host::adopt(JobId::from_bits(1), &order.ward, 0);
        host.restore(&order, false, String::new());
        let now = Duration::from_secs(1);
        host.handle_message(now, ToHost::End { epoch: Epoch::FIRST, kill: restarts, restarts, written: false });
        let signals: Vec<_> = std::iter::from_fn(|| host.poll_output())
            .filter_map(|output| if let HostOutput::Signal(rank, signal) = output { Some((rank, signal)) } else { None })
            .collect();
        assert_eq!(signals, [(Rank(1), libc::SIGKILL)]);
        assert!(!host.handle_no_images(now, Rank(1)));
        let said: Vec<_> = std::iter::from_fn(|| host.poll_output()).collect();
        let is_exit = |output: &HostOutput| {
            matches!(output, HostOutput::ToHome(FromHost::Exited { status: ExitStatus::Ended(libc::SIGKILL), .. }))
        };
        assert!(said.iter().any(is_exit) && said.iter().any(|output| matches!(output, HostOutput::Over)), "{said:?}");
        assert!(!said.iter().any(|output| matches!(output, HostOutput::ToHome(FromHost::Lost { .. }))), "{said:?}");
    }
}

/// The word to launch the next epoch of a job may come after an order to bring one of its ranks back here, and both while a
/// process of the epoch before is here. That process ends first, and then every rank is here, once.
#[test]
fn an_order_that_comes_before_the_word_to_launch_takes_nothing_from_it() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, never());
    let (now, next) = (Duration::from_secs(1), epoch(1));
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1, 1] };
    let spec = JobSpec { protection: never(), ..spec(3) };
    let ward = Ward { epoch: next, spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
    let order = RestartOrder { ward, ..order_of(at(job, 2), Incarnation::launched_in(next).next()) };
    let launch = ToHost::Launch { epoch: next, spec: Box::new(spec), placement };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let mut says = |input: Input| {
        node.handle(now, input);
        let outputs = std::iter::from_fn(|| node.poll_output());
        let of_processes = outputs.filter_map(|output| match output {
            Output::Process(_, HostOutput::Spawn(rank, _)) => Some(format!("spawn {rank}")),
            Output::Process(_, HostOutput::Restore(rank, _)) => Some(format!("restore {rank}")),
            Output::Process(_, HostOutput::Signal(rank, signal)) => Some(format!("signal {rank} {signal}")),
            _ => None,
        });
        of_processes.collect::<Vec<_>>()
    };
    assert_eq!(says(Input::Message(id(1), PeerMessage::Restart(Box::new(order)))), ["signal 1 9"]);
    assert_eq!(says(Input::Exited(at(job, 1), ExitStatus::Signal(9)))[1..], ["restore 2"]);
    assert_eq!(says(Input::Message(id(1), PeerMessage::ToHost(job, launch.clone()))), ["spawn 1"]);
    assert_eq!(says(Input::Message(id(1), PeerMessage::ToHost(job, launch))), [""; 0]);
}

/// A node has nothing of a job that is ended for a restart. An order of that epoch comes after it has said so: it is refused, and
/// the next epoch may begin here.
#[test]
fn an_order_of_an_epoch_that_was_ended_is_refused() {
    let mut cluster = Cluster::new(2);
    let (job, now) = (JobId::from_bits(9), Duration::from_secs(1));
    let end = ToHost::End { epoch: Epoch::FIRST, kill: true, restarts: true, written: false };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    node.handle(now, Input::Message(id(1), PeerMessage::ToHost(job, end)));
    for (incarnation, comes) in [(Incarnation::restarted(1), false), (Incarnation::launched_in(epoch(1)).next(), true)] {
        let order = order_of(at(job, 1), incarnation);
        node.handle(now, Input::Message(id(1), PeerMessage::Restart(Box::new(order))));
        let restores = |output| matches!(output, Output::Process(_, HostOutput::Restore(Rank(1), _)));
        assert_eq!(std::iter::from_fn(|| node.poll_output()).any(restores), comes, "incarnation {incarnation}");
    }
}

/// What the home says of an epoch whose beginning waits for a process of the one before is handled after that beginning.
#[test]
fn the_end_of_an_incarnation_that_has_not_begun_here_is_heard_after_its_beginning() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, never());
    let (now, epoch) = (Duration::from_secs(1), epoch(1));
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1] };
    let launch = ToHost::Launch { epoch, spec: Box::new(JobSpec { protection: never(), ..spec(2) }), placement };
    let end = ToHost::End { epoch, kill: true, restarts: true, written: false };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let mut said = |input: Input| {
        node.handle(now, input);
        let outputs = std::iter::from_fn(|| node.poll_output());
        let of_host = outputs.filter_map(|output| match output {
            Output::Send(_, PeerMessage::ToHome(_, ToHome::Host { epoch, said: FromHost::Gone })) => {
                Some(format!("gone {epoch}"))
            }
            Output::Process(_, HostOutput::Spawn(rank, _)) => Some(format!("spawn {rank}")),
            Output::Process(_, HostOutput::Signal(rank, signal)) => Some(format!("signal {rank} {signal}")),
            _ => None,
        });
        of_host.collect::<Vec<_>>()
    };
    assert_eq!(said(Input::Message(id(1), PeerMessage::ToHost(job, launch))), ["signal 1 9"]);
    assert_eq!(said(Input::Message(id(1), PeerMessage::ToHost(job, end))), [""; 0]);
    assert_eq!(said(Input::Exited(at(job, 1), ExitStatus::Signal(9)))[1..], ["spawn 1"]);
    assert_eq!(said(Input::Spawned(at(job, 1), Ok(7))), ["signal 1 9"]);
    assert_eq!(said(Input::Exited(at(job, 1), ExitStatus::Signal(9))), ["signal 1 9"]);
    for (stream, gone) in [(OutputStream::Stdout, [].as_slice()), (OutputStream::Stderr, &["gone 1v1h01"])] {
        assert_eq!(said(Input::ProcessOutput(at(job, 1), stream, ByteBuf::new())), gone);
    }
}

/// A node with a rank of a job does not say that it has nothing, even if the home that asks is not the one that it knows.
#[test]
fn a_node_that_has_a_rank_of_a_job_does_not_say_that_nothing_is_left() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(2, never());
    let end = ToHost::End { epoch: Epoch::FIRST, kill: true, restarts: true, written: false };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let says_gone =
        |output: Output| matches!(output, Output::Send(_, PeerMessage::ToHome(_, ToHome::Host { said: FromHost::Gone, .. })));
    node.handle(Duration::from_secs(1), Input::Message(id(3), PeerMessage::ToHost(job, end.clone())));
    assert!(!std::iter::from_fn(|| node.poll_output()).any(says_gone));
    node.handle(Duration::from_secs(1), Input::Message(id(3), PeerMessage::ToHost(JobId::from_bits(77), end)));
    assert!(std::iter::from_fn(|| node.poll_output()).any(says_gone));
}

/// A home was adopted for nothing: the job had ended. Its hosts are superseded, and say nothing.
#[test]
fn a_home_of_a_job_that_had_ended_ends() {
    let mut home = adopted();
    home.handle_removed(Duration::ZERO, None);
    assert!(std::iter::from_fn(|| home.poll_output()).any(|output| matches!(output, home::HomeOutput::Ended)));
    assert_eq!(home.outcome().map(|outcome| outcome.code), Some(radic_wire::job::exit_code::NODE_LOST));
}

/// All ranks had ended and printed everything when their home was lost. The next home ends the job at once, and tells the nodes
/// how it has ended, because it may be lost before a terminal has turned to it.
#[test]
fn a_home_that_has_nothing_to_print_says_how_its_job_has_ended() {
    let (now, mut home) = (Duration::ZERO, adopted());
    for (rank, node) in [(Rank(0), id(3)), (Rank(1), id(4))] {
        let (status, phase) = (ExitStatus::Code(0), MpiPhase::After);
        home.handle_message(now, &node, ToHome::Left { rank, node: node.name.clone(), epoch: Epoch::FIRST, status, phase });
    }
    home.handle_message(now, &id(3), of_host(FromHost::Gone));
    home.handle_message(now, &id(4), of_host(FromHost::Gone));
    assert!(std::iter::from_fn(|| home.poll_output()).any(|output| matches!(output, home::HomeOutput::Ended)));
    assert_eq!(home.last_word(), Some(&Outcome { code: 0, reason: EndReason::Finished }));
}

/// Rank 1 had ended at n2, which is lost: the placement names the node where the rank would have gone on. The reason names n2,
/// whichever way the home hears of the end.
#[test]
fn the_reason_names_the_node_where_the_rank_had_ended() {
    let (now, rank, epoch, lost) = (Duration::ZERO, Rank(1), Epoch::FIRST, id(2).name);
    let left = |status, phase| ToHome::Left { rank, node: id(2).name, epoch, status, phase };
    let status = ExitStatus::Signal(libc::SIGSEGV);
    let failed = EndReason::RankFailed { rank, node: lost.clone(), status };
    let mut home = adopted();
    home.handle_message(now, &id(4), left(status, MpiPhase::Within));
    assert_eq!(home.outcome().map(|outcome| &outcome.reason), Some(&failed), "it was left alone");

    let mut home = adopted();
    home.handle_message(now, &id(4), left(ExitStatus::Code(0), MpiPhase::Before));
    home.handle_message(now, &id(3), of_host(FromHost::Fence { number: 1, ranks: vec![Rank(0)], entries: Vec::new() }));
    let missed = EndReason::FenceMissed { rank, node: lost.clone(), waiting: vec![Rank(0)] };
    assert_eq!(home.outcome().map(|outcome| &outcome.reason), Some(&missed), "it never entered a fence");

    let mut home = home_of(2);
    for restarts in 1..=2 {
        let incarnation = Incarnation::launched_in(home.epoch()).next();
        let crash = Some(Crashed { node: lost.clone(), signal: libc::SIGSEGV });
        if restarts == 2 {
            home.handle_moved(now, &id(2), Placement { nodes: vec![id(1), id(3)], rank_nodes: vec![0, 1] });
        }
        home.handle_message(now, &id(3), ToHome::NoImage { rank, incarnation, why: "no image".to_owned(), crash });
        for node in [id(1), id(2)].iter().filter(|_| restarts == 1) {
            home.handle_message(now, node, of_host(FromHost::Gone));
        }
    }
    assert_eq!(home.outcome().map(|outcome| &outcome.reason), Some(&failed), "it has crashed twice before its first checkpoint");
}

/// A node hears of a job's next home before it hears that the home before is lost, and that one says meanwhile that the job is
/// over. The next home hears so, because the node has forgotten what it would report.
#[test]
fn the_next_home_hears_of_an_end_that_was_told_by_the_one_before() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(2, never());
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let outcome = Outcome { code: 0, reason: EndReason::Finished };
    node.handle(Duration::from_secs(1), Input::Message(id(3), PeerMessage::NewHome(job)));
    let remove = ToStore::Remove(Some(outcome.clone()));
    node.handle(Duration::from_secs(1), Input::Message(id(1), PeerMessage::ToStore(job, remove)));
    let tells = |output: Output| match output {
        Output::Send(to, PeerMessage::ToStore(of, ToStore::Remove(told))) => {
            to.id == id(3) && of == job && told == Some(outcome.clone())
        }
        _ => false,
    };
    assert!(std::iter::from_fn(|| node.poll_output()).any(tells));
}

/// A home is lost just after it has ended everything for a restart: the ranks that were ended for that have not failed.
#[test]
fn a_job_that_was_about_to_restart_does_so_under_its_next_home() {
    let mut home = adopted();
    let ended = vec![(Rank(0), ExitStatus::Signal(9), MpiPhase::Before)];
    let (running, keys, waiting) = (Vec::new(), Vec::new(), Vec::new());
    let report = HostReport { running, ended, fence: 0, keys, waiting, stdin: StdinWanted::Nothing, restarts: true };
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Report(report)));
    assert_eq!(home.outcome(), None);
    assert!(std::iter::from_fn(|| home.poll_output()).any(|output| matches!(output, home::HomeOutput::Anew(_))));
}

/// A home that was adopted restarts the job, and is cut off before it can launch it. It gives the job up, and expects no report
/// of hosts that have ended what they had.
#[test]
fn a_home_that_was_adopted_is_given_up_while_its_job_restarts() {
    let mut home = adopted();
    let lost = ToHome::NoImage { rank: Rank(0), incarnation: Incarnation::restarted(1), why: "lost".to_owned(), crash: None };
    home.handle_message(Duration::ZERO, &id(3), lost);
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Gone));
    home.handle_node_lost(Duration::ZERO, &id(4), "no majority");
    home.give_up(Duration::ZERO, "no majority");
    assert!(home.is_over(), "{home:?}");
    assert_eq!(home.outcome().map(|outcome| outcome.code), Some(radic_wire::job::exit_code::NODE_LOST));
}

/// Both ranks exit with 0 on a side without a majority.
fn finished_without_majority(payload: PayloadMode) -> Home {
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1] };
    let spec = JobSpec { protection: Protection { payload, ..never() }, ..spec(2) };
    let mut home = Home::start(Duration::ZERO, 0, JobId::from_bits(1), SEAT, spec, placement, None);
    home.handle_majority_lost();
    for (node, rank) in [(id(1), Rank(0)), (id(2), Rank(1))] {
        home.handle_message(Duration::ZERO, &node, of_host(FromHost::Launched { rank, pid: 7 }));
        let exited = FromHost::Exited { rank, status: ExitStatus::Code(0), phase: MpiPhase::Before };
        home.handle_message(Duration::ZERO, &node, of_host(exited));
    }
    home
}

/// A side with a majority may have begun the job anew: that all ranks have ended here is said when there is a majority again, and
/// is an error when there is none for long.
#[test]
fn a_job_does_not_finish_on_a_side_without_a_majority() {
    let mut home = finished_without_majority(PayloadMode::Log);
    assert_eq!(home.outcome(), None);
    home.handle_majority_back(Duration::ZERO);
    assert_eq!(home.outcome().map(|outcome| outcome.code), Some(0));
    let mut home = finished_without_majority(PayloadMode::Log);
    home.give_up(Duration::ZERO, "no majority");
    let reason = home.outcome().map(|outcome| &outcome.reason);
    assert!(
        matches!(reason, Some(EndReason::NodeLost { why, .. }) if why.contains("every rank has finished here")),
        "{reason:?}"
    );
}

/// Where recovery lines are made, ranks exit only after every node has heard that the job ends: no side begins it anew.
#[test]
fn an_end_that_all_nodes_know_needs_no_majority() {
    let home = finished_without_majority(PayloadMode::Sender);
    assert_eq!(home.outcome().map(|outcome| outcome.code), Some(0));
}

/// A host that the home before has ended tells an adopted home that it has nothing. The ranks that are to come back on its node
/// still do.
#[test]
fn a_rank_that_comes_back_on_the_node_of_a_host_that_has_ended_is_waited_for() {
    let placement = Placement { nodes: vec![id(3), id(4)], rank_nodes: vec![0, 1, 1] };
    let ward =
        Ward { epoch: Epoch::FIRST, spec: JobSpec { protection: never(), ..spec(3) }, placement, fence: 0, keys: Vec::new() };
    let mut home = Home::adopt(Duration::ZERO, SEAT, Adoption { job: JobId::from_bits(1), ward, started_ms: 0, view: 1 });
    let report = |ended: &[u32], running: &[u32]| HostReport {
        running: running.iter().map(|rank| Rank(*rank)).collect(),
        ended: ended.iter().map(|rank| (Rank(*rank), ExitStatus::Code(0), MpiPhase::Before)).collect(),
        fence: 0,
        keys: Vec::new(),
        waiting: Vec::new(),
        stdin: StdinWanted::Nothing,
        restarts: false,
    };
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Report(report(&[0], &[]))));
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Report(report(&[1], &[]))));
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Gone));
    assert_eq!((home.outcome(), home.lost().collect::<Vec<_>>()), (None, vec![Rank(2)]));
    home.handle_message(
        Duration::ZERO,
        &id(4),
        of_host(FromHost::Exited { rank: Rank(2), status: ExitStatus::Code(0), phase: MpiPhase::Before }),
    );
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Gone));
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Gone));
    assert!(home.is_over());
}

/// A home that ends its job is lost before the terminal has heard why. The next home finds that a rank was ended, and does not say that it has failed.
#[test]
fn a_rank_that_was_ended_with_its_job_has_not_failed() {
    let mut home = adopted();
    let ended = vec![(Rank(1), ExitStatus::Signal(libc::SIGKILL).with_job(), MpiPhase::Within)];
    let report = HostReport {
        running: Vec::new(),
        ended,
        fence: 0,
        keys: Vec::new(),
        waiting: Vec::new(),
        stdin: StdinWanted::Nothing,
        restarts: false,
    };
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Report(report)));
    let outcome = home.outcome().expect("it ends");
    assert_eq!(outcome.code, radic_wire::job::exit_code::NODE_LOST);
    assert!(
        matches!(&outcome.reason, EndReason::RankLost { why, .. } if why.contains("lost before it had said why")),
        "{outcome:?}"
    );
}

/// A protector that does not know yet that the job ends brings a rank back on a node whose host has ended its ranks. That rank is ended, too.
#[test]
fn a_rank_that_comes_back_while_its_job_ends_is_ended() {
    let (now, mut home) = (Duration::ZERO, home_of(2));
    home.handle_message(now, &id(1), ToHome::Kill { session: None });
    home.handle_message(now, &id(2), of_host(FromHost::Gone));
    std::iter::from_fn(|| home.poll_output()).for_each(drop);
    let (ended, running, keys, waiting) = (Vec::new(), vec![Rank(1)], Vec::new(), Vec::new());
    let report = HostReport { running, ended, fence: 0, keys, waiting, stdin: StdinWanted::Nothing, restarts: false };
    home.handle_message(now, &id(2), of_host(FromHost::Report(report)));
    let is_end = |output: home::HomeOutput| matches!(output, home::HomeOutput::ToHost(node, ToHost::End { .. }) if node == id(2));
    assert!(std::iter::from_fn(|| home.poll_output()).any(is_end));
    home.handle_message(now, &id(1), of_host(FromHost::Gone));
    assert!(!home.is_over(), "there is a rank left");
    home.handle_message(now, &id(2), of_host(FromHost::Gone));
    assert!(home.is_over());
}

/// A host asks for protection, and the job is over before that is heard: nothing is kept of the job.
#[test]
fn a_job_that_is_over_is_not_protected() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(1, never());
    cluster.exit_all(job);
    cluster.run_until(|c| c.outcome(1).is_some() && !c.nodes[&name(2)].knows(job));
    let placement = Placement { nodes: vec![id(1)], rank_nodes: vec![0] };
    let spec = JobSpec { protection: never(), ..spec(1) };
    let ward = Box::new(Ward { epoch: Epoch::FIRST, spec, placement, fence: 0, keys: Vec::new() });
    let protect = ToStore::Protect { ranks: vec![(Rank(0), Incarnation::restarted(1))], origins: BTreeMap::new(), ward };
    cluster.post(&name(2), Input::Message(id(1), PeerMessage::ToStore(job, protect)));
    cluster.run_for(Duration::from_millis(10));
    assert!(!cluster.nodes[&name(2)].knows(job));
}

/// A host asks for protection, and its job restarts before that is heard: what is protected of the next epoch stays as it is.
#[test]
fn what_is_protected_in_the_next_epoch_of_a_job_stays_so() {
    let mut cluster = Cluster::new(3);
    let (job, first) = (JobId::from_bits(1), epoch(1));
    let placement = Placement { nodes: vec![id(1), id(3)], rank_nodes: vec![0, 1] };
    let ward = |epoch| {
        let spec = JobSpec { protection: never(), ..spec(2) };
        Box::new(Ward { epoch, spec, placement: placement.clone(), fence: 0, keys: Vec::new() })
    };
    let protect = |rank, epoch| {
        let ranks = vec![(Rank(rank), Incarnation::launched_in(epoch))];
        ToStore::Protect { ranks, origins: BTreeMap::new(), ward: ward(epoch) }
    };
    let said = [(1, ToStore::Anew(first)), (1, protect(0, first)), (3, protect(1, Epoch::FIRST))];
    for (from, message) in said {
        cluster.post(&name(2), Input::Message(id(from), PeerMessage::ToStore(job, message)));
    }
    cluster.run_for(Duration::from_millis(10));
    let wards = &cluster.nodes[&name(2)].recovery.wards[&job];
    assert_eq!(wards.ward.epoch, first);
    assert_eq!(
        wards.ranks.iter().map(|(rank, p)| (*rank, p.incarnation)).collect::<Vec<_>>(),
        [(Rank(0), Incarnation::launched_in(first))]
    );
}
