use std::time::Duration;

use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, Rank};
use radic_wire::job::{EndReason, JobInfo, Outcome};
use radic_wire::process::{Counters, PayloadMode, Protect};
use radic_wire::report::{LogSizes, ProcessInfo};

use super::model::Facts;
use super::recoveries::{Cause, End, KnownBy, Step, history};
use super::{assemble, choose, html, picture, text};

/// When the job began, in milliseconds since 1970.
const BEGAN: u64 = 1_800_000_000_000;

fn the_job() -> JobId {
    JobId::from_bits(0x4f3c)
}

/// An event of the job, so many milliseconds after it began.
fn event(at: u64, node: &str, event: EventName, rank: Option<u32>, text: &str) -> Event {
    let text = text.to_owned();
    Event {
        at_ms: BEGAN + at,
        node: node.parse().unwrap(),
        seq: at,
        event,
        subject: None,
        job: Some(the_job()),
        rank: rank.map(Rank),
        text,
    }
}

/// An event about a node.
fn about(at: u64, node: &str, name: EventName, subject: &str, text: &str) -> Event {
    Event { subject: Some(subject.parse().unwrap()), job: None, ..event(at, node, name, None, text) }
}

/// Rank 2 goes on at s1 after the death of n3, which was certain at this time.
fn comes_back(certain: u64) -> Vec<Event> {
    vec![
        event(certain + 5, "n4", EventName::Fence, Some(2), "rank 2: incarnations before 0.2 are refused from now on"),
        event(certain + 15, "n4", EventName::Place, Some(2), "rank 2 goes on at s1, from images of 103.5 MiB"),
        event(certain + 115, "s1", EventName::Image, Some(2), "rank 2: its images are here"),
        event(certain + 165, "s1", EventName::Replay, Some(2), "rank 2: catches up from 10 to 20 of its journal"),
        event(certain + 665, "s1", EventName::Live, Some(2), "rank 2: lives again, after 500 outcomes"),
        event(certain + 1665, "s1", EventName::Reprotected, Some(2), "rank 2: a checkpoint is committed at n1"),
    ]
}

fn one_death() -> Vec<Event> {
    let mut events = vec![
        event(0, "n1", EventName::JobStart, None, "4 ranks of ./ring on n1, n2, n3, n4"),
        event(
            2_000,
            "n4",
            EventName::Checkpoint,
            Some(2),
            "image 1 of 000000004f3c.2 is committed: 4096 bytes, full, journal cut at 7",
        ),
        event(
            4_000,
            "n4",
            EventName::Checkpoint,
            Some(2),
            "image 2 of 000000004f3c.2 is committed: 512 bytes, on image 1, journal cut at 9 (3 more since the last one that is shown)",
        ),
        about(10_000, "n1", EventName::Inject, "n3", "n3 is killed"),
        about(10_040, "n4", EventName::Suspect, "n3", "a connection to it broke; last heard 70 ms ago"),
        about(10_050, "n4", EventName::Confirm, "n3", "no node that was asked got an answer: n1"),
        Event { job: None, ..event(10_051, "n1", EventName::View, None, "view 7 has 4 members; gone: n3") },
        event(11_000, "n2", EventName::Reprotected, Some(1), "rank 1: a checkpoint is committed at n4"),
    ];
    events.extend(comes_back(10_050));
    events.push(event(30_000, "n1", EventName::JobEnd, None, "code 0: finished"));
    events.sort_by_key(|event| event.at_ms);
    events
}

fn process(rank: u32, gate_ns: u64) -> ProcessInfo {
    let counters = Counters {
        events: 1_000,
        empty: 50,
        gate_waits: 10,
        gate_ns,
        journal: 1 << 20,
        payload: 2 << 20,
        checkpoints: 4,
        committed: 4,
        pause_ns: 40_000_000,
        longest_pause_ns: 20_000_000,
        ..Counters::default()
    };
    let log = LogSizes {
        node: "n2".parse().unwrap(),
        journal: 10,
        payload: 20,
        images: 4_096,
        committed: Some(4),
        committed_ms: Some(1),
        waits: None,
    };
    ProcessInfo {
        job: the_job(),
        rank: Rank(rank),
        node: "n1".parse().unwrap(),
        pid: 7,
        running: false,
        protect: Protect::On,
        joined: true,
        degraded: false,
        counters: Some(counters),
        cpu_ms: None,
        stopped: false,
        logs: vec![log],
    }
}

fn facts(events: Vec<Event>) -> Facts {
    let job = JobInfo {
        job: the_job(),
        command: "./ring <b> \u{1b}[31m".into(),
        ranks: 4,
        running: 0,
        degraded: vec![],
        nodes: ["n1", "n2", "n3", "n4"].map(|name| name.parse().unwrap()).to_vec(),
        home: "n1".parse().unwrap(),
        started_ms: BEGAN,
        elapsed_ms: 30_000,
        payload: PayloadMode::Log,
        outcome: Some(Outcome { code: 0, reason: EndReason::Finished }),
    };
    let processes = (0..4).map(|rank| process(rank, u64::from(rank) * 300_000_000)).collect();
    Facts { job, events, processes, mtbf: Duration::from_secs(24 * 3600) }
}

#[test]
fn each_step_of_a_death_has_its_time() {
    let history = history(the_job(), BEGAN, &one_death());
    let [death] = &history.deaths[..] else { panic!("{history:?}") };
    assert_eq!((death.node.as_str(), death.known_by, &death.ranks[..]), ("n3", KnownBy::Injected, &[Rank(2)][..]));
    let [recovery] = &history.recoveries[..] else { panic!("{history:?}") };
    assert_eq!(recovery.cause, Cause::Node { node: "n3".parse().unwrap() });
    assert_eq!(Step::ALL.map(|step| recovery.took(step)), [50, 5, 10, 100, 50, 500, 1000].map(Some));
    assert_eq!((recovery.to_life(), recovery.exposed(), recovery.end), (Some(715), Some(1715), End::Protected));
    assert_eq!((recovery.image_mib, recovery.outcomes), (Some(103.5), Some(500)));
    assert_eq!(recovery.to.as_ref().unwrap().as_str(), "s1");
    assert_eq!(history.moved, [(Rank(1), BEGAN + 11_000)], "a rank that only lost its protector is not lost");
}

/// Events of two nodes in one millisecond come in the order of the nodes' names, and their clocks differ.
#[test]
fn the_order_of_telling_does_not_matter() {
    let due = history(the_job(), BEGAN, &one_death());
    let mut events = one_death();
    events.reverse();
    assert_eq!(history(the_job(), BEGAN, &events), due);
    // The protector of the rank is a second ahead of the others: certain after it was fenced.
    for event in events.iter_mut().filter(|event| event.event == EventName::Fence) {
        event.at_ms -= 1_000;
    }
    let skewed = history(the_job(), BEGAN, &events);
    assert_eq!(skewed.recoveries[0].cause, due.recoveries[0].cause);
    assert_eq!(skewed.recoveries[0].took(Step::Fence), Some(0), "nothing takes less than no time");
    assert_eq!(skewed.recoveries[0].took(Step::Place), Some(15));
}

#[test]
fn a_death_without_an_order_begins_with_the_last_sign_of_life() {
    let mut events = one_death();
    events.retain(|event| event.event != EventName::Inject);
    let known = history(the_job(), BEGAN, &events);
    assert_eq!((known.deaths[0].at_ms, known.deaths[0].known_by), (BEGAN + 9_970, KnownBy::LastHeard));
    events.retain(|event| !matches!(event.event, EventName::Suspect | EventName::Confirm));
    let known = history(the_job(), BEGAN, &events);
    assert_eq!((known.deaths[0].at_ms, known.deaths[0].known_by), (BEGAN + 10_051, KnownBy::Consequence), "the view tells");
    events.retain(|event| event.event != EventName::View);
    let known = history(the_job(), BEGAN, &events);
    assert!(known.deaths.is_empty() && known.recoveries[0].cause == Cause::Unknown, "{known:?}");
    assert_eq!(known.recoveries[0].took(Step::CatchUp), Some(500), "what is told is known");
}

#[test]
fn a_crash_and_what_dies_on_its_way_back_are_attempts_of_their_own() {
    let mut events = vec![
        event(1_000, "n3", EventName::Inject, Some(2), "rank 2 is killed, as asked"),
        event(1_004, "n3", EventName::RankExit, Some(2), "rank 2 was ended by signal 9"),
        event(1_005, "n3", EventName::Suspect, Some(2), "rank 2 was ended by signal 9: it is brought back here"),
        event(1_010, "n4", EventName::Fence, Some(2), ""),
        event(1_020, "n4", EventName::Place, Some(2), "rank 2 goes on at n3, from images of 1.0 MiB"),
        event(1_100, "n3", EventName::Death, Some(2), "it died of signal 11"),
    ];
    events.extend(comes_back(1_200));
    let history = history(the_job(), BEGAN, &events);
    let [first, second] = &history.recoveries[..] else { panic!("{history:?}") };
    assert_eq!((&first.cause, first.end, first.known_by), (&Cause::Crash, End::DiedAgain, KnownBy::Injected));
    assert_eq!((first.took(Step::Detect), first.took(Step::Fetch)), (Some(5), None), "it never had its images");
    assert_eq!((&second.cause, second.end, second.lost_ms), (&Cause::Again, End::Protected, BEGAN + 1_100));
    assert_eq!(second.took(Step::CatchUp), Some(500));
    assert!(history.deaths.is_empty(), "no node died");
}

#[test]
fn what_is_under_way_or_given_up_is_said_to_be() {
    let until = |name: EventName| {
        let mut events = one_death();
        let at = events.iter().position(|event| event.event == name).unwrap();
        events.truncate(at + 1);
        events
    };
    let open = history(the_job(), BEGAN, &until(EventName::Image));
    assert_eq!(open.recoveries[0].end, End::UnderWay);
    let last = open.recoveries[0].steps.last().unwrap();
    assert_eq!((last.step, last.to_ms), (Step::Restore, None));
    let mut events = until(EventName::Image);
    events.push(event(12_000, "n1", EventName::Restart, None, "it begins anew: rank 2 is lost"));
    let anew = history(the_job(), BEGAN, &events);
    assert_eq!((anew.recoveries[0].end, &anew.restarts[..]), (End::Restarted, &[BEGAN + 12_000][..]));
    assert!(anew.recoveries[0].steps.iter().all(|taken| taken.to_ms.is_some()));
    let live = history(the_job(), BEGAN, &until(EventName::Live));
    assert_eq!((live.recoveries[0].end, live.recoveries[0].exposed()), (End::Live, None));
}

#[test]
fn a_job_that_was_resumed_has_lost_nothing_by_that() {
    let mut events = one_death();
    events.push(event(90_000, "n1", EventName::JobStart, None, "resumed"));
    let steps = Step::ALL.into_iter().skip(1).map(Step::end);
    for (at, name) in (90_050..).step_by(50).zip(steps) {
        events.push(event(at, "n2", name, Some(3), "rank 3: lives again, after 0 outcomes; 0 bytes differ"));
    }
    let mut facts = facts(events);
    facts.job.elapsed_ms = 5_000;
    let report = assemble(&facts);
    assert_eq!((report.recoveries.len(), report.seconds), (1, 95.0), "since it was resumed it has run for 5 s");
    assert_eq!(report.deaths[0].moved, [Rank(1)], "its first checkpoint is none because of a death");
    // What is lost afterwards is lost, also if the events by which it lived are gone.
    let mut gone = facts.clone();
    gone.events.retain(|event| event.at_ms < BEGAN + 90_200);
    gone.events.push(event(92_000, "n4", EventName::Fence, Some(3), ""));
    assert_eq!(assemble(&gone).recoveries.len(), 2);
    facts.events.push(event(92_000, "n4", EventName::Fence, Some(3), ""));
    assert_eq!(assemble(&facts).recoveries.len(), 2);
    assert_eq!(report.overhead.as_ref().unwrap().of_ranks[3].seconds, 5.0);
}

#[test]
fn of_two_nodes_that_die_at_once_each_has_its_own_ranks() {
    let mut events = vec![
        about(10_050, "n4", EventName::Confirm, "n3", "no node that was asked got an answer"),
        about(10_050, "n6", EventName::Confirm, "n5", "no node that was asked got an answer"),
        event(10_060, "n6", EventName::Fence, Some(4), ""),
    ];
    events.extend(comes_back(10_050));
    let history = history(the_job(), BEGAN, &events);
    let causes: Vec<_> = history.recoveries.iter().map(|back| (back.rank.0, back.cause.clone())).collect();
    let of = |node: &str| Cause::Node { node: node.parse().unwrap() };
    assert_eq!(causes, [(2, of("n3")), (4, of("n5"))]);
}

#[test]
fn two_nodes_at_once_and_one_that_dies_twice_are_told_apart() {
    let mut events = one_death();
    events.push(about(10_049, "n4", EventName::Confirm, "n2", "no node that was asked got an answer"));
    events.push(about(20_000, "n4", EventName::Confirm, "s1", "no node that was asked got an answer"));
    events.extend(comes_back(20_000));
    let history = history(the_job(), BEGAN, &events);
    let nodes: Vec<&str> = history.deaths.iter().map(|death| death.node.as_str()).collect();
    assert_eq!(nodes, ["n2", "n3", "s1"]);
    assert_eq!(history.recoveries.len(), 2);
    assert_eq!(history.recoveries[1].cause, Cause::Node { node: "s1".parse().unwrap() });
    assert_eq!(history.recoveries[0].end, End::Protected);
}

#[test]
fn a_report_has_figures_reasons_and_what_is_not_known() {
    let report = assemble(&facts(one_death()));
    assert_eq!((report.deaths.len(), report.recoveries.len(), report.code), (1, 1, Some(0)));
    assert_eq!((report.deaths[0].at_s, &report.deaths[0].moved[..]), (10.0, &[Rank(1)][..]));
    let checkpoints = &report.checkpoints;
    assert_eq!((checkpoints.committed, checkpoints.told.len(), checkpoints.only_counted), (Some(16), 2, 3));
    assert_eq!((checkpoints.sizes(true), checkpoints.sizes(false)), (Some([4096; 3]), Some([512; 3])));
    assert_eq!((checkpoints.mean_pause_ms, checkpoints.longest_pause_ms), (Some(10.0), Some(20.0)));
    assert_eq!(checkpoints.interval_s, Some(7.5));
    let overhead = report.overhead.as_ref().unwrap();
    // Rank 2 has counted since it was back: 10.215 s after the beginning.
    assert_eq!(overhead.of_ranks[2].seconds, 19.785);
    assert!((overhead.gate_s - 1.8).abs() < 1e-9 && (overhead.pause_s - 0.16).abs() < 1e-9, "{overhead:?}");
    assert_eq!((overhead.outcomes, overhead.log_bytes), (4_000, 12 << 20));
    let advice: Vec<&str> = report.advice.iter().map(|advice| advice.about).collect();
    assert_eq!(advice, ["checkpoint interval", "memory for logs", "replicas"]);
    let interval = &report.advice[0];
    // The root of 2 * 10 ms * 6 h.
    assert!(interval.why.contains("the best interval is 21 s"), "{}", interval.why);
    assert!(interval.say.contains("less often") && interval.why.contains("every 30 s; if that is usual"), "{interval:?}");
    assert!(report.advice[2].say.contains("One copy"), "{:?}", report.advice[2]);
    let unknown = report.unknown.join("\n");
    for part in ["What n3 had on record", "counts from 0", "not timed"] {
        assert!(unknown.contains(part), "{part:?} is missing in {unknown}");
    }
    assert!(report.events.iter().all(|moment| moment.event != EventName::Checkpoint));
}

#[test]
fn a_job_that_restarted_is_told_to_take_two_replicas() {
    let mut events = one_death();
    events.push(event(12_000, "n1", EventName::Restart, None, "it begins anew"));
    let report = assemble(&facts(events));
    assert_eq!(report.restarts, [12.0]);
    let advice = report.advice.iter().find(|advice| advice.about == "replicas").unwrap();
    assert!(advice.say.contains("--replicas 2") && advice.why.contains("restarted from the beginning 1 times"), "{advice:?}");
}

#[test]
fn logs_that_reached_their_limit_are_told_to_be_larger() {
    let mut events = one_death();
    events.push(event(
        5_000,
        "n2",
        EventName::Limit,
        Some(1),
        "the log of 000000004f3c.1 nears its bound: an image was asked for",
    ));
    let report = assemble(&facts(events));
    let advice = report.advice.iter().find(|advice| advice.about == "memory for logs").unwrap();
    assert!(advice.say.contains("--log-limit") && advice.say.contains("1 times"), "{advice:?}");
}

#[test]
fn a_job_of_which_little_is_known_is_reported_all_the_same() {
    let mut facts = facts(vec![event(29_000, "n1", EventName::Note, Some(0), "something")]);
    facts.processes.clear();
    let report = assemble(&facts);
    assert!(report.overhead.is_none() && report.advice.is_empty(), "{report:?}");
    assert!(report.unknown.iter().any(|line| line.starts_with("How it began")), "{:?}", report.unknown);
    let shown = text::text(&report);
    assert!(shown.contains("nothing died") && shown.contains("none: too little is known"), "{shown}");
    html::page(&report).unwrap();
    assert!(picture::deaths(&report).unwrap().is_none());
    // Nothing at all.
    (facts.job.ranks, facts.job.elapsed_ms) = (1, 0);
    facts.events.clear();
    picture::whole(&assemble(&facts)).unwrap();
}

#[test]
fn text_has_all_parts_and_plays_no_tricks() {
    let shown = text::text(&assemble(&facts(one_death())));
    for part in [
        "job 000000004f3c  ./ring <b> ?[31m",
        "WHAT HAPPENED",
        "n3 died at 10.000 s (injected), certain after 0.050 s; lost: ranks 2; ranks 1 had",
        "rank 2, n3",
        "0.715",
        "1.715",
        "safe again",
        "whole images: 4.0 KiB",
        "at the gate",
        "checkpoint interval: ",
        "NOT KNOWN",
    ] {
        assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
    }
    assert!(!shown.contains('\u{1b}'));
}

#[test]
fn a_page_needs_nothing_else_and_executes_nothing() {
    let page = html::page(&assemble(&facts(one_death()))).unwrap();
    assert!(page.contains("./ring &lt;b&gt; ?[31m") && !page.contains("<b>"), "{page}");
    assert_eq!(page.matches("<svg ").count(), 2, "the time line, and what the death cost");
    for foreign in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(foreign), "{foreign} in {page}");
    }
    assert!(page.contains("default-src 'none'") && page.contains("prefers-color-scheme: dark"));
    for tag in ["table", "tr", "td", "th", "div", "ul", "li", "dl", "p", "h2", "pre"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn the_picture_shows_each_step_where_it_was() {
    let svg = picture::whole(&assemble(&facts(one_death()))).unwrap();
    for step in Step::ALL {
        let color = format!("fill=\"{}\"", hex(step));
        // In the key of both charts, in the time line, and in the row of the death.
        assert_eq!(svg.matches(&color).count(), 4 + 1, "{step:?}: two keys, two bars, and the style");
    }
    assert!(svg.contains("rank 3") && svg.contains("rank 2, n3"), "{svg}");
    assert!(svg.len() < 100 << 10, "{} bytes", svg.len());
}

fn hex(step: Step) -> String {
    let plotters::style::RGBColor(r, g, b) = picture::paint(step).color();
    format!("#{r:02X}{g:02X}{b:02X}")
}

#[test]
fn many_ranks_deaths_and_events_stay_on_the_page() {
    let mut facts = facts(Vec::new());
    facts.job.ranks = 5_000;
    for at in 0..3_000 {
        facts.events.push(event(at * 10, "n1", EventName::Note, Some(at as u32), &format!("note {at}")));
    }
    for rank in 0..100 {
        facts.events.push(event(20_000, "n4", EventName::Fence, Some(rank), ""));
        facts.events.push(event(21_000, "n4", EventName::Live, Some(rank), "lives again, after 5 outcomes; 0 bytes differ"));
    }
    let report = assemble(&facts);
    assert_eq!((report.events.len(), report.events_left_out), (1_000, 2_200));
    assert!(text::text(&report).lines().count() < 300);
    let svg = picture::whole(&report).unwrap();
    assert!(svg.contains("4960 more ranks") && svg.contains("and 60 more"), "{svg}");
}

#[test]
fn a_job_is_found_by_its_first_digits() {
    let job = |bits| JobInfo { job: JobId::from_bits(bits), ..facts(Vec::new()).job };
    let jobs = || vec![job(0xab00_0000_0000), job(0xac00_0000_0000)];
    assert_eq!(choose(jobs(), "AB").unwrap().job, JobId::from_bits(0xab00_0000_0000));
    assert!(choose(jobs(), "a").unwrap_err().to_string().contains("more digits"));
    assert!(choose(jobs(), "f").unwrap_err().to_string().contains("radic jobs --all"));
}

#[test]
fn json_is_what_it_says() {
    let value = serde_json::to_value(assemble(&facts(one_death()))).unwrap();
    assert_eq!(value["recoveries"][0]["steps"][5]["step"], "catch-up");
    assert_eq!(value["recoveries"][0]["cause"]["node"], "n3");
    assert_eq!(value["deaths"][0]["known_by"], "injected");
    assert_eq!(value["advice"][0]["figures"][0]["name"], "pause_s");
    assert_eq!(value["events"][0]["event"], "job-start");
}
