use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::event::EventName;
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::job::JobInfo;
use radic_wire::local::{NodeState, Traffic};
use radic_wire::log::HeldStream;
use radic_wire::membership::Role;
use radic_wire::process::{Counters, PayloadMode, Protect};
use radic_wire::report::{LogSizes, ProcessInfo};
use radic_wire::span::Span;

use super::model::Screen;
use super::*;
use crate::show::tests::node;

fn the_job() -> JobId {
    JobId::from_bits(0xabcdef)
}

fn process(rank: u32, counted: u64) -> ProcessInfo {
    let log = LogSizes {
        node: "n2".parse().unwrap(),
        journal: 1 << 20,
        payload: 3 << 20,
        images: u64::from(rank) << 30,
        committed: Some(4),
        committed_ms: Some(12_000),
        waits: None,
    };
    let counters = Counters {
        bytes_in: counted << 20,
        messages_in: if rank == 4 { 1 } else { counted },
        messages_out: if rank < 4 { counted } else { 0 },
        pause_ns: if rank == 3 { counted * 12_500_000 } else { 0 },
        empty: if rank == 4 { counted } else { 0 },
        outbox: 2048,
        gate_ns: if rank == 2 { counted * 900_000_000 } else { 0 },
        events: counted,
        ..Counters::default()
    };
    ProcessInfo {
        job: the_job(),
        rank: Rank(rank),
        node: "n1".parse().unwrap(),
        pid: 100 + rank,
        running: true,
        protect: Protect::On,
        joined: true,
        degraded: rank == 1,
        counters: Some(counters),
        cpu_ms: None,
        stopped: false,
        logs: vec![log],
    }
}

fn status(ranks: u32, counted: u64) -> ClusterStatus {
    let job = JobInfo {
        job: the_job(),
        command: "./ring \x1b[31m".into(),
        ranks,
        running: ranks,
        degraded: vec![Rank(1)],
        nodes: vec![],
        home: "n1".parse().unwrap(),
        started_ms: 0,
        elapsed_ms: 61_000,
        payload: PayloadMode::Log,
        outcome: None,
    };
    ClusterStatus {
        answered_by: "n1".parse().unwrap(),
        view: 5,
        frozen: false,
        nodes: vec![
            node("n1", NodeState::Alive, Role::Node),
            node("n2", NodeState::Alive, Role::Node),
            node("s1", NodeState::Alive, Role::Spare),
            node("n3", NodeState::Dead, Role::Node),
        ],
        jobs: vec![job],
        processes: (0..ranks).map(|rank| process(rank, counted)).collect(),
    }
}

fn model(ranks: u32) -> Model {
    let mut model = Model::new();
    model.handle_status(Duration::ZERO, status(ranks, 1));
    model.handle_status(Duration::from_secs(2), status(ranks, 5));
    model
}

fn screen(model: &Model) -> String {
    text(model, 80, 24).unwrap()
}

fn press(model: &mut Model, keys: &str) {
    keys.chars().for_each(|key| model.handle_key(if key == '\n' { Key::Enter } else { Key::Char(key) }));
}

fn row<'a>(screen: &'a str, begins: &str) -> Vec<&'a str> {
    let line = screen.lines().find(|line| line.trim_start().starts_with(begins));
    line.unwrap_or_else(|| panic!("no line begins with {begins:?}:\n{screen}")).split_whitespace().collect()
}

#[test]
fn nodes_are_a_ring_and_jobs_stand_below() {
    let shown = screen(&model(3));
    assert_eq!(shown.lines().count(), 24);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(shown.contains("view 5 as n1 sees it  3 of 4 nodes alive  jobs running: 1"), "{shown}");
    assert!(shown.contains("ring  n1 > n2 > (first)   spares s1\n"), "{shown}");
    // Two slots, one rank; what it holds for three ranks.
    assert_eq!(row(&shown, "n2")[..7], ["n2", "alive", "1", "2", "50%", "12M", "3.0G"]);
    assert_eq!(row(&shown, "n3")[1], "dead");
    let job = row(&shown, "000000abcdef");
    // Three ranks with 4 MiB more in two seconds each.
    assert_eq!(job[1..9], ["degraded:", "1", "3", "61s", "6.0M", "0", "6.0K", "12M"]);
    assert!(shown.contains("./ring ?[31m"), "nothing plays tricks on the terminal: {shown}");
    assert!(shown.lines().last().unwrap().starts_with("q quit  Enter ranks  n nodes"), "{shown}");
}

#[test]
fn a_job_opens_into_ranks_and_says_what_each_does() {
    let mut model = model(6);
    press(&mut model, "\n");
    let shown = screen(&model);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let line = |rank: &str| shown.lines().find(|line| line.trim_start().starts_with(&format!("{rank} n1 "))).unwrap();
    assert!(line("0").contains("communicates") && line("1").contains("unprotected"), "{shown}");
    assert!(line("2").contains("at the gate") && line("2").contains("100%"), "{shown}");
    assert!(line("3").contains("2.0M") && line("3").contains("3.0G") && line("3").contains("12s"), "{shown}");
    assert!(line("3").contains("2.5%"), "pauses for checkpoints count: {shown}");
    assert!(line("4").contains("waits ") && line("5").contains("receives "), "{shown}");
    // Back, to where it was.
    model.handle_key(Key::Back);
    assert_eq!(model.screen, Screen::Jobs);
}

#[test]
fn a_rank_names_those_that_it_waits_for_and_has_received_from() {
    let traffic = |bytes| Traffic { pairs: vec![(Rank(0), Rank(4), 7), (Rank(3), Rank(5), bytes)], others: 0, partial: false };
    let mut model = model(6);
    model.handle_traffic(the_job(), traffic(1));
    assert!(model.peers(the_job()).is_none(), "its ranks are not on the screen");
    press(&mut model, "\n");
    assert_eq!(model.wanted(), Some((the_job(), None)));
    model.handle_traffic(the_job(), traffic(1));
    model.handle_traffic(the_job(), traffic(9));
    let shown = screen(&model);
    assert!(shown.contains("waits for 0 ") && shown.contains("receives from 3 "), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    (0..4).for_each(|_| model.handle_key(Key::Down));
    press(&mut model, "\n");
    assert!(screen(&model).contains("pid 104: waits for 0"), "{}", screen(&model));
    assert!(screen(&model).contains("at the gate and in pauses: 0%"), "{}", screen(&model));
}

#[test]
fn rows_are_sorted_filtered_and_selected() {
    let mut model = model(30);
    press(&mut model, "\n");
    let first = |model: &Model| model.rows()[0].cells[0].text().into_owned();
    assert_eq!(first(&model), "0");
    press(&mut model, "s");
    assert_eq!(first(&model), "29", "the largest first");
    assert!(screen(&model).contains("RANK*"), "{}", screen(&model));
    press(&mut model, "r");
    assert_eq!(first(&model), "0");
    model.handle_key(Key::Last);
    assert_eq!(model.selected, 29);
    assert!(screen(&model).contains("\n   29 n1"), "the selected row is on the screen:\n{}", screen(&model));
    press(&mut model, "/unprot");
    assert!(screen(&model).contains("filter: unprot_"));
    press(&mut model, "\n");
    assert_eq!((model.rows().len(), model.selected), (1, 0));
    press(&mut model, "\n");
    assert_eq!(model.wanted(), Some((the_job(), Some(Rank(1)))));
    model.handle_key(Key::Back);
    assert_eq!((model.screen.clone(), model.selected), (Screen::Ranks(the_job()), 1), "the filter is gone, the row is the same");
    press(&mut model, "/nothing like it\n");
    assert!(screen(&model).contains("no row has this text"));
    let keys = screen(&model).lines().last().map(str::to_owned).unwrap();
    assert!(keys.contains("/ [nothi..]") && keys.trim_end().ends_with("? help"), "all keys are in 80 columns: {keys}");
    model.handle_key(Key::Back);
    press(&mut model, "n");
    assert!(screen(&model).contains("127.0.0.1:40001"), "{}", screen(&model));
}

#[test]
fn a_rank_shows_its_streams() {
    let mut model = model(2);
    press(&mut model, "\n\n");
    assert!(screen(&model).contains("asking its protector"), "{}", screen(&model));
    let process = ProcessId { job: the_job(), rank: Rank(0) };
    let stream = |number| HeldStream {
        stream: StreamId { connection: ConnectionId { opener: process, number }, from_opener: true },
        bytes: Span { start: 100, end: 2148 },
        ended: (number == 3).then_some(2148),
        closed: false,
    };
    let log = HeldLog {
        process,
        incarnation: Incarnation::FIRST,
        current: true,
        journal: Span { start: 0, end: 10 },
        stable: 10,
        causes: Span::default(),
        forgotten: vec![],
        streams: (0..40).map(stream).collect(),
        images: vec![],
    };
    model.handle_log(the_job(), Rank(1), Err("of another rank".into()));
    assert!(!screen(&model).contains("of another rank"));
    model.handle_log(the_job(), Rank(0), Ok(log));
    let shown = screen(&model);
    assert!(shown.contains("rank 0 of job 000000abcdef on n1, pid 100: communicates"), "{shown}");
    assert!(shown.contains("at n2: journal 1.0 MiB, payload 3.0 MiB, images 0 B; image 4 committed 12 s ago"), "{shown}");
    assert!(shown.contains("#0 from its opener") && shown.contains("2.0K") && shown.contains("at 2148"), "{shown}");
    (0..5).for_each(|_| model.handle_key(Key::Down));
    let scrolled = screen(&model);
    assert!(!scrolled.contains("#4 from") && scrolled.contains("#5 from"), "{scrolled}");
}

#[test]
fn events_trouble_and_a_held_picture_are_shown() {
    let mut model = model(2);
    let event = |seq: u64| Event {
        at_ms: 1_000 * seq,
        node: "n1".parse().unwrap(),
        seq,
        event: EventName::Confirm,
        subject: None,
        job: None,
        rank: None,
        text: format!("event number {seq}"),
    };
    model.handle_events((0..1000).map(event).collect());
    let shown = screen(&model);
    assert!(shown.contains("00:16:39 n1       confirm     event number 999") && !shown.contains("number 994"), "{shown}");
    model.handle_first_events();
    assert!(!screen(&model).contains("number 999"));
    press(&mut model, "p");
    model.handle_status(Duration::from_secs(3), ClusterStatus { view: 6, ..status(2, 9) });
    assert!(screen(&model).contains("view 5") && screen(&model).contains("HELD"));
    model.handle_trouble("no daemon answers".into());
    assert!(screen(&model).contains("no daemon answers"));
    press(&mut model, "?");
    assert!(screen(&model).contains("OUTBOX      what receivers' protectors do not have yet"), "{}", screen(&model));
    press(&mut model, "xq");
    assert!(model.over);
}

/// What is smaller than the usual screen, or without anything to show, is drawn all the same.
#[test]
fn any_size_and_any_state_is_drawn() {
    for keys in ["", "n", "\n", "\n\n", "?"] {
        for (width, height) in [(80, 24), (20, 5), (200, 60), (1, 1), (40, 10)] {
            let mut full = model(3);
            press(&mut full, keys);
            text(&full, width, height).unwrap();
            let mut empty = Model::new();
            press(&mut empty, keys);
            text(&empty, width, height).unwrap();
        }
    }
}

#[test]
fn without_colour_only_bold_and_reverse_stand_out() {
    let style = |color| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(&model(3), Theme { color }, frame)).unwrap();
        let cells = terminal.backend().buffer().content().to_vec();
        cells.iter().any(|cell| cell.fg != ratatui::style::Color::Reset)
    };
    assert!(style(true) && !style(false));
}

#[test]
fn sizes_and_ages_are_short() {
    assert_eq!([0.0, 999.0, 1000.0, 2048.0, 1e6, 5e12].map(rows::size), ["0", "999", "1.0K", "2.0K", "977K", "4.5T"]);
    assert_eq!(
        [0, 9_900, 61_000, 600_000, 7_200_000, 864_000_000].map(rows::age),
        ["0.0s", "9.9s", "61s", "10m00s", "2h00m", "10d00h"]
    );
}

#[test]
fn a_cell_is_as_wide_as_its_text() {
    use super::rows::Cell;
    let near = |value: f64| [value * 0.999, value - 0.5, value - 0.05, value, value + 0.05, value + 0.5].map(f64::abs);
    let floats: Vec<f64> = (0..40)
        .flat_map(|power| [1.4f64.powi(power), 10f64.powi(power / 3), 1024f64.powi(power / 8) * 9.95])
        .flat_map(near)
        .collect();
    let parts = (0..=1_000).map(|at| f64::from(at) / 1e3).chain((0..200).map(|at| f64::from(at) / 2e3));
    let whole = floats.iter().map(|value| *value as u64).collect::<Vec<_>>();
    let cells = floats.iter().map(|bytes| Cell::Size(*bytes)).chain(parts.map(|part| Cell::Share(Some(part))));
    let cells = cells.chain(whole.iter().flat_map(|value| [Cell::Count(*value), Cell::Age(Some(*value))]));
    for cell in cells.chain([Cell::Unknown, Cell::Text("ä".into()), Cell::Age(None), Cell::Sorted("1/2".into(), 1.0)]) {
        assert_eq!(cell.width(), cell.text().chars().count(), "{cell:?}: {}", cell.text());
    }
}
