//! Which hosts a cluster is to have: a list on the command line, or a file as `mpiexec` of MPICH and of Open MPI take it.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use radic_wire::ids::NodeName;

/// Longest file of hosts, in bytes.
const FILE_LIMIT: u64 = 4 << 20;
/// Most hosts of one cluster.
const HOSTS: usize = 4096;

/// A host of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// What the remote shell is given: `name` or `user@name`.
    pub(crate) target: String,
    /// The node's name in the cluster.
    pub(crate) name: NodeName,
    /// Its slots, if the list says so.
    pub(crate) slots: Option<u32>,
}

/// The hosts of `text`: the contents of a file of this name if there is one, else a list with commas.
///
/// # Errors
/// What cannot be read is named with its line.
pub(crate) fn read(text: &str) -> Result<Vec<Host>> {
    let path = Path::new(text);
    if !path.is_file() && !text.contains('/') {
        return parse(text.split(',').map(|entry| (None, entry)), "--hosts");
    }
    read_file(path, "--hosts")
}

/// The hosts of a file, which `source` has named.
///
/// # Errors
/// What cannot be read is named with its line.
pub(crate) fn read_file(path: &Path, source: &str) -> Result<Vec<Host>> {
    let text = path.display();
    let unread = |error| anyhow!("{source}: cannot read {text}: {error}; give names with commas, or a file with one a line");
    let mut contents = String::new();
    let file = File::open(path).map_err(unread)?;
    let length = file.take(FILE_LIMIT + 1).read_to_string(&mut contents).map_err(unread)?;
    ensure!(length as u64 <= FILE_LIMIT, "{source}: {text} is longer than {FILE_LIMIT} bytes: is it a list of hosts?");
    parse((1..).map(Some).zip(contents.lines()), &format!("{source}: {text}"))
}

/// The hosts of `text`, of the variable `source`: a host, its slots, the next host, with blanks between them.
///
/// # Errors
/// What cannot be read is named.
pub(crate) fn read_pairs(text: &str, source: &str) -> Result<Vec<Host>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs: Vec<String> = words.chunks(2).map(|pair| pair.join(" ")).collect();
    if let Some(odd) = words.chunks(2).find(|pair| pair.len() < 2) {
        bail!("{source}: {:?} has no number of slots behind it", odd[0]);
    }
    parse(pairs.iter().map(|pair| (None, pair.as_str())), source)
}

fn parse<'a>(entries: impl Iterator<Item = (Option<usize>, &'a str)>, source: &str) -> Result<Vec<Host>> {
    let mut hosts: Vec<Host> = Vec::new();
    // A host that stands there several times has a slot for each, as the files of batch systems say it.
    let mut bare: HashSet<NodeName> = HashSet::new();
    for (line, entry) in entries {
        let place = || line.map_or_else(|| source.to_owned(), |line| format!("{source}, line {line}"));
        let entry = entry.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        let host = parse_entry(entry).with_context(|| format!("{}: {entry:?}", place()))?;
        let Some(known) = hosts.iter_mut().find(|known| known.name == host.name) else {
            ensure!(hosts.len() < HOSTS, "{}: more than {HOSTS} hosts", place());
            if host.slots.is_none() {
                bare.insert(host.name.clone());
            }
            hosts.push(host);
            continue;
        };
        if known.target != host.target {
            bail!("{}: {} and {} would both be the node {}", place(), known.target, host.target, host.name);
        }
        let before = if bare.remove(&host.name) { 1 } else { known.slots.unwrap_or(1) };
        known.slots = Some(before.saturating_add(host.slots.unwrap_or(1)));
    }
    ensure!(!hosts.is_empty(), "{source} names no host: give names with commas, or a file with one a line");
    Ok(hosts)
}

/// `name`, `name:N` (MPICH), `name slots=N` (Open MPI), `name N queue processors` (Grid Engine); Open MPI's `max_slots=N` and MPICH's `binding=B` are accepted and not used.
fn parse_entry(entry: &str) -> Result<Host> {
    let mut words = entry.split_whitespace();
    let first = words.next().context("a host is missing")?;
    let (target, mut slots) = match first.rsplit_once(':') {
        // An address of IPv6 has colons of its own, and stands in brackets if slots follow.
        Some((target, number)) if !target.contains(':') || target.ends_with(']') => (target, Some(number_of_slots(number)?)),
        _ => (first, None),
    };
    for (at, word) in words.enumerate() {
        // The file of Grid Engine's PE_HOSTFILE: name, slots, queue, processors.
        if at == 0 && word.bytes().all(|c| c.is_ascii_digit()) {
            slots = Some(number_of_slots(word)?);
            break;
        }
        match word.split_once('=') {
            Some(("slots", number)) => slots = Some(number_of_slots(number)?),
            // They do not change which hosts there are.
            Some(("max_slots" | "max-slots" | "binding", _)) => {}
            _ => bail!("{word:?} is not known here: a host is written NAME, NAME:N or NAME slots=N, with `#` before a comment"),
        }
    }
    let target = target.trim_start_matches('[').trim_end_matches(']');
    ensure!(!target.starts_with('-'), "a host's name does not begin with a dash");
    let host = target.rsplit_once('@').map_or(target, |(_, host)| host);
    let name = host.replace([':', '%'], "-");
    let name = name.trim_start_matches('-').parse().map_err(|error| anyhow!("{error}"))?;
    Ok(Host { target: target.to_owned(), name, slots })
}

fn number_of_slots(text: &str) -> Result<u32> {
    let number = text.parse().ok().filter(|slots| (1..=65_536).contains(slots));
    number.with_context(|| format!("{text:?} is no number of slots: 1 to 65536"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(String, String, Option<u32>)> {
        let hosts = parse((1..).map(Some).zip(text.lines()), "file").unwrap();
        hosts.into_iter().map(|host| (host.target, host.name.to_string(), host.slots)).collect()
    }

    fn host(target: &str, name: &str, slots: Option<u32>) -> (String, String, Option<u32>) {
        (target.into(), name.into(), slots)
    }

    #[test]
    fn all_kinds_of_host_files_are_read() {
        let text = "# ours\nn1:4\n n2 slots=2 max_slots=8 # two\n\nann@n3.example.org\n10.0.0.4\nn5 4 all.q@n5 UNDEFINED\n[fe80::1%eth0]:3\nfd00::2\n";
        let expected = [
            host("n1", "n1", Some(4)),
            host("n2", "n2", Some(2)),
            host("ann@n3.example.org", "n3.example.org", None),
            host("10.0.0.4", "10.0.0.4", None),
            host("n5", "n5", Some(4)),
            host("fe80::1%eth0", "fe80--1-eth0", Some(3)),
            host("fd00::2", "fd00--2", None),
        ];
        assert_eq!(shown(text), expected);
    }

    #[test]
    fn a_host_that_is_there_several_times_has_a_slot_for_each() {
        assert_eq!(shown("a\nb\na\na"), [host("a", "a", Some(3)), host("b", "b", None)]);
        assert_eq!(shown("a:2\na slots=3\nb:2"), [host("a", "a", Some(5)), host("b", "b", Some(2))]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, part) in [
            ("n1\nn2:x", "line 2"),
            ("n1:0", "1 to 65536"),
            ("n1 cores=3", "cores=3"),
            ("-oProxyCommand=x", "dash"),
            ("a b", "\"b\""),
            ("ann@n1\nbob@n1", "both be the node n1"),
            ("#\n\n", "names no host"),
            ("n_1;x", "not a node name"),
        ] {
            let error = parse((1..).map(Some).zip(text.lines()), "file").unwrap_err();
            assert!(format!("{error:#}").contains(part), "{text:?}: {error:#}");
        }
    }

    #[test]
    fn a_list_is_no_file() {
        let names: Vec<String> = read("n1,n2:3").unwrap().into_iter().map(|host| host.name.to_string()).collect();
        assert_eq!(names, ["n1", "n2"]);
        let error = format!("{:#}", read("./no-such-file").unwrap_err());
        assert!(error.contains("./no-such-file"), "{error}");
    }
}
