//! Which member watches which, and how a decision spreads: pure functions of a view.

use radic_wire::ids::NodeId;
use radic_wire::membership::{Member, Role, View};

/// The watcher of `id`. For a ring member it is the next one, its protector; for spare number `k` it is ring member `k` modulo
/// the ring's length. A ring of one is watched by the first spare, and spares without any ring watch each other as a ring. A
/// witness counts as a spare here: it hosts nothing, but keeps the log of a node that is alone.
pub fn watcher_of<'a>(view: &'a View, id: &NodeId) -> Option<&'a Member> {
    let (ring, spares): (Vec<&Member>, Vec<&Member>) = view.members.iter().partition(|member| member.role == Role::Node);
    let place = |list: &[&Member]| list.iter().position(|member| member.id == *id);
    let next = |list: &[&'a Member], place: usize| list.get((place + 1) % list.len()).copied().filter(|member| member.id != *id);
    match (place(&ring), place(&spares)) {
        (Some(place), _) if ring.len() > 1 => next(&ring, place),
        (Some(_), _) => spares.first().copied(),
        (None, Some(place)) if ring.is_empty() => next(&spares, place),
        (None, Some(place)) => Some(ring[place % ring.len()]),
        (None, None) => None,
    }
}

/// The members that `id` watches: the converse of [`watcher_of`].
pub fn watched_by<'a>(view: &'a View, id: &NodeId) -> Vec<&'a Member> {
    let (ring, spares): (Vec<&Member>, Vec<&Member>) = view.members.iter().partition(|member| member.role == Role::Node);
    let place = |list: &[&Member]| list.iter().position(|member| member.id == *id);
    let before = |list: &[&'a Member], place: usize| {
        let before = list[(place + list.len() - 1) % list.len()];
        (before.id != *id).then_some(before)
    };
    match (place(&ring), place(&spares)) {
        (Some(place), _) => {
            let mine = spares.iter().skip(place).step_by(ring.len()).copied();
            before(&ring, place).into_iter().chain(mine).collect()
        }
        (None, Some(place)) if ring.is_empty() => before(&spares, place).into_iter().collect(),
        (None, Some(0)) if ring.len() == 1 => ring,
        _ => Vec::new(),
    }
}

/// The ring members before `id`, nearest first, up to `count` of them, and the spares that `id` watches.
pub fn before<'a>(view: &'a View, id: &NodeId, count: usize) -> Vec<&'a Member> {
    let mut found = watched_by(view, id);
    let ring: Vec<&Member> = view.ring().collect();
    if let Some(place) = ring.iter().position(|member| member.id == *id) {
        let earlier = (2..=count.min(ring.len() - 1)).map(|step| ring[(place + ring.len() - step) % ring.len()]);
        found.extend(earlier);
    }
    found
}

/// The members that the member at `place` tells of a decision, in a tree over members `0..count` rooted at `root`, where each
/// member tells `fan_out` others.
pub fn children(place: usize, root: usize, count: usize, fan_out: usize) -> impl Iterator<Item = usize> {
    assert!(place < count && root < count, "a place in the tree: {place}, {root}, {count}");
    let relative = (place + count - root) % count;
    let first = relative * fan_out + 1;
    (first..(first + fan_out).min(count.max(first))).map(move |child| (child + root) % count)
}

#[cfg(test)]
mod tests {
    use super::super::sim::member;
    use super::*;

    fn view(ring: usize, spares: usize) -> View {
        let members = (0..ring + spares)
            .map(|i| Member { role: if i < ring { Role::Node } else { Role::Spare }, ..member(i, 1) })
            .collect();
        View { number: 7, cluster: member(0, 1).id.boot, members, departed: Vec::new() }
    }

    #[test]
    fn everybody_is_watched_by_exactly_one_unless_alone() {
        for ring in 0..9 {
            for spares in 0..9 {
                let view = view(ring, spares);
                for watched in &view.members {
                    let watcher = watcher_of(&view, &watched.id);
                    assert_eq!(watcher.is_some(), view.members.len() > 1, "{ring}+{spares}");
                    assert!(watcher.is_none_or(|watcher| watcher.id != watched.id));
                    for other in &view.members {
                        let watches = watched_by(&view, &other.id).contains(&watched);
                        assert_eq!(watches, watcher == Some(other), "{ring}+{spares} {watched:?} {other:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_next_in_the_ring_is_the_protector() {
        let view = view(3, 4);
        let watcher = |i: usize| watcher_of(&view, &view.members[i].id).unwrap().id.name.to_string();
        let watchers: Vec<String> = (0..7).map(watcher).collect();
        assert_eq!(watchers, ["n1", "n2", "n0", "n0", "n1", "n2", "n0"]);
        assert_eq!(watcher_of(&view, &member(99, 1).id), None);
        let before: Vec<String> = before(&view, &view.members[0].id, 9).iter().map(|m| m.id.name.to_string()).collect();
        assert_eq!(before, ["n2", "n3", "n6", "n1"]);
    }

    #[test]
    fn the_tree_reaches_everybody_once() {
        for count in 1..200 {
            for (root, fan_out) in [0, count / 2, count - 1].into_iter().flat_map(|root| [1, 2, 8].map(|fan_out| (root, fan_out)))
            {
                let mut reached = vec![root];
                let mut next = 0;
                while next < reached.len() {
                    reached.extend(children(reached[next], root, count, fan_out));
                    next += 1;
                }
                reached.sort_unstable();
                assert_eq!(reached, (0..count).collect::<Vec<_>>());
            }
        }
    }
}
