//! What is told of links that cannot be made.

use super::*;

/// What the node is told for people.
fn kept(actions: &[Action]) -> Vec<&str> {
    let of = |action| if let &Action::Tell(ToNode::Kept(ref text)) = action { Some(text.as_str()) } else { None };
    actions.iter().filter_map(of).collect()
}

impl Side {
    /// The door refuses so often, one after the other: what is told meanwhile, and how long that took.
    fn dials_in_vain(&mut self, most: Duration) -> (Vec<String>, Duration) {
        let begun = self.now;
        let mut told = Vec::new();
        while told.is_empty() && self.now < begun + most {
            let socket = self.dials();
            let ((), actions) = self.drive(|links, cx| links.handle_connected(cx, socket, false));
            told.extend(kept(&actions).into_iter().map(str::to_owned));
            self.now += RETRY;
        }
        (told, self.now - begun)
    }
}

const LONG: Duration = Duration::from_secs(10);

#[test]
fn a_link_that_cannot_be_made_is_told_once_and_once_more_when_it_is_made() {
    let (mut one, mut other, slot, _) = pair();
    one.breaks(slot);
    let (told, after) = one.dials_in_vain(LONG * 2);
    assert!((LONG..LONG + RETRY * 2).contains(&after), "{after:?}");
    assert!(told[0].contains("rank 1 is called at 127.0.0.1:7 in vain") && told[0].contains("10 s"), "{told:?}");
    assert_eq!(one.dials_in_vain(LONG * 3).0, [""; 0], "once is enough");
    let (socket, hello) = one.greets();
    let (_, result, actions) = other.is_visited(&hello);
    result.expect("it is welcome");
    let answer = installed(&actions).answer.expect("every greeting but the first is answered");
    let (result, actions) = one.drive(|links, cx| links.handle_answer(cx, socket, &answer));
    result.expect("it is right");
    assert!(matches!(kept(&actions)[..], [text] if text.contains("rank 1") && text.contains("has come about")), "{actions:?}");
    // The same from the beginning.
    one.breaks(slot);
    assert_eq!(one.dials_in_vain(LONG - RETRY * 2).0, [""; 0]);
    assert_eq!(one.dials_in_vain(RETRY * 4).0.len(), 1);
}

/// A door that takes connections and drops them is no better than one that takes none. A peer that keeps the connection computes, and one that is
/// away comes back.
#[test]
fn a_peer_that_computes_or_is_away_is_not_told_of() {
    let (mut one, _, slot, _) = pair();
    one.breaks(slot);
    assert_eq!(one.dials_in_vain(LONG - RETRY * 2).0, [""; 0]);
    // It takes the connection, and says nothing.
    let (socket, _) = one.greets();
    for _ in 0..4 {
        let due = one.links.poll_timeout().expect("it does not wait for ever");
        let actions = one.tick(due - one.now);
        let [Action::Tell(ToNode::Where { ask, .. })] = actions[..] else { panic!("{actions:?}") };
        assert_eq!(one.hears(here(ask), 0), (Ok(()), vec![]));
    }
    assert!(kept(&one.drive(|links, cx| links.handle_socket_gone(cx, socket)).1).is_empty());
    one.now += RETRY;
    assert_eq!(one.dials_in_vain(LONG - RETRY * 2).0, [""; 0]);
    // It is away.
    let asked = one.tick(Duration::ZERO);
    let [Action::Tell(ToNode::Where { ask, .. })] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(one.hears(FromNode::Place { ask, place: Place::Away }, 0), (Ok(()), vec![]));
    one.now += PATIENCE;
    assert_eq!(one.dials_in_vain(LONG - RETRY * 2).0, [""; 0]);
    // It has come back, at the same door.
    let (_, actions) = one.hears(returned(process(1)), 0);
    let [.., Action::Dial(socket, DOOR)] = actions[..] else { panic!("{actions:?}") };
    assert!(kept(&one.drive(|links, cx| links.handle_connected(cx, socket, false)).1).is_empty());
    one.now += RETRY;

    let (mut one, _, slot, _) = pair();
    one.breaks(slot);
    let mut told = 0;
    for _ in 0..LONG.div_duration_f64(RETRY) as usize + 2 {
        let (socket, _) = one.greets();
        told += kept(&one.drive(|links, cx| links.handle_socket_gone(cx, socket)).1).len();
        one.now += RETRY;
    }
    assert_eq!(told, 1);
}

/// What the program has closed need not be reached. A firewall says nothing at all.
#[test]
fn only_what_the_program_has_open_is_told_of() {
    let (mut one, _, slot, _) = pair();
    one.breaks(slot);
    let mut told = Vec::new();
    for _ in 0..3 {
        one.dials();
        let due = one.links.poll_timeout().expect("it does not wait for ever");
        told.push(kept(&one.tick(due - one.now)).len());
        one.now += RETRY;
    }
    assert_eq!(told, [0, 1, 0]);

    let (mut one, _, slot, _) = pair();
    one.breaks(slot);
    assert_eq!(one.observer.close(3).expect("it is open"), None);
    let mut attempts = 0;
    while one.links.is_any_down() {
        let asked = one.tick(Duration::ZERO);
        let [Action::Tell(ToNode::Where { ask, .. })] = asked[..] else { break };
        let (_, dialed) = one.hears(here(ask), 0);
        let [Action::Dial(socket, DOOR)] = dialed[..] else { panic!("{dialed:?}") };
        assert!(kept(&one.drive(|links, cx| links.handle_connected(cx, socket, false)).1).is_empty());
        (one.now, attempts) = (one.now + RETRY * 2, attempts + 1);
    }
    assert!(attempts > 50, "{attempts}");
}
