//! Batch systems other than Slurm: each is a row of a table, and the launcher of [`super::ssh`] does the rest.
//!
//! What differs is where the list of nodes stands, by what command something is started on one of them, and whether that command must stay as long as
//! the node does. The host of the script needs no such command: some systems refuse it there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::local_node::quoted;

use super::hosts::{self, Host};

/// A batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheduler {
    /// `OpenPBS`, PBS Professional, Torque
    Pbs,
    /// Grid Engine: Son of, Univa, Altair
    Gridengine,
    /// IBM Spectrum LSF
    Lsf,
}

/// Where a list of nodes stands.
#[derive(Debug, Clone, Copy)]
enum List {
    /// In the file that this variable names.
    File(&'static str),
    /// In this variable: a host, its slots, the next host.
    Pairs(&'static str),
}

/// Where the number of ranks stands that the user has asked for.
#[derive(Debug, Clone, Copy)]
enum Tasks {
    /// In this variable.
    Number(&'static str),
    /// The file that this variable names has a line for each.
    Lines(&'static str),
}

/// What is known of a batch system.
struct Row {
    name: &'static str,
    /// The variable with the number of the job.
    job: &'static str,
    /// The first one that is set counts.
    lists: &'static [List],
    /// What starts a command on another node of the job, if nothing else is said.
    shell: &'static str,
    /// Whether the batch system ends what this has started when this itself ends.
    stays: bool,
    tasks: Tasks,
    /// What submits a script.
    submit: &'static str,
    /// What ends a job; its number is added.
    cancel: &'static str,
}

const PBS: Row = Row {
    name: "PBS",
    job: "PBS_JOBID",
    lists: &[List::File("PBS_NODEFILE")],
    shell: "ssh",
    stays: false,
    tasks: Tasks::Lines("PBS_NODEFILE"),
    submit: "qsub",
    cancel: "qdel",
};
const GRID_ENGINE: Row = Row {
    name: "Grid Engine",
    job: "JOB_ID",
    lists: &[List::File("PE_HOSTFILE")],
    shell: "qrsh -inherit",
    stays: true,
    tasks: Tasks::Number("NSLOTS"),
    submit: "qsub -pe ENVIRONMENT SLOTS",
    cancel: "qdel",
};
const LSF: Row = Row {
    name: "LSF",
    job: "LSB_JOBID",
    lists: &[List::File("LSB_DJOB_HOSTFILE"), List::Pairs("LSB_MCPU_HOSTS")],
    shell: "blaunch",
    stays: true,
    tasks: Tasks::Number("LSB_DJOB_NUMPROC"),
    submit: "bsub",
    cancel: "bkill",
};

/// The nodes of a job, and how to get there.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) hosts: Vec<Host>,
    pub(crate) shell: &'static str,
    pub(crate) stays: bool,
    /// The command that ends the job.
    pub(crate) cancel: String,
}

impl Scheduler {
    fn row(self) -> &'static Row {
        match self {
            Scheduler::Pbs => &PBS,
            Scheduler::Gridengine => &GRID_ENGINE,
            Scheduler::Lsf => &LSF,
        }
    }

    /// The job around this process.
    ///
    /// # Errors
    /// If there is none, or its list of nodes cannot be read.
    pub(crate) fn allocation(self, variable: impl Fn(&str) -> Option<String>) -> Result<Allocation> {
        let row = self.row();
        let outside = || {
            let variables: Vec<&str> = row.lists.iter().map(|list| list.variable()).collect();
            format!("no job of {}: {} is not set; run this in a script of `{}`", row.name, variables.join(" or "), row.submit)
        };
        let job = variable(row.job).with_context(|| {
            format!("no job of {}: {} is not set; run this in a script of `{}`", row.name, row.job, row.submit)
        })?;
        let found = row.lists.iter().find_map(|list| Some((list, variable(list.variable())?)));
        let (list, value) = found.with_context(outside)?;
        let mut hosts = list.hosts(&value)?;
        // A batch system names a host once for each of its slots.
        hosts.iter_mut().for_each(|host| host.slots = host.slots.or(Some(1)));
        Ok(Allocation { hosts, shell: row.shell, stays: row.stays, cancel: format!("{} {}", row.cancel, quoted(&job)) })
    }

    /// How many ranks the job around this process was asked to have, and what says so.
    fn tasks(self, variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, Result<String>)> {
        let row = self.row();
        // One of the two alone may be anything.
        variable(row.job)?;
        row.lists.iter().find_map(|list| variable(list.variable()))?;
        match row.tasks {
            Tasks::Number(name) => Some((name, Ok(variable(name)?))),
            Tasks::Lines(name) => Some((name, count_lines(&variable(name)?))),
        }
    }

    /// The same, whichever system the job is of.
    pub(crate) fn any_tasks() -> Option<(&'static str, Result<String>)> {
        Scheduler::value_variants().iter().find_map(|scheduler| scheduler.tasks(super::variable))
    }

    /// The folder of a cluster in the job around this process.
    pub(crate) fn default_dir(self, variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let row = self.row();
        // `JOB_ID` alone may be anything.
        row.lists.iter().find_map(|list| variable(list.variable()))?;
        let job = variable(row.job)?.replace('/', "-");
        let kind = self.to_possible_value()?.get_name().to_owned();
        Some(std::env::home_dir()?.join(".radic").join(format!("{kind}-{job}")))
    }

    /// The folder of a cluster in the job around this process, whichever system it is of.
    pub(crate) fn any_default_dir() -> Option<PathBuf> {
        Scheduler::value_variants().iter().find_map(|scheduler| scheduler.default_dir(super::variable))
    }
}

fn count_lines(path: &str) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.lines().filter(|line| !line.trim().is_empty()).count().to_string())
}

impl List {
    fn variable(self) -> &'static str {
        match self {
            List::File(variable) | List::Pairs(variable) => variable,
        }
    }

    fn hosts(self, value: &str) -> Result<Vec<Host>> {
        match self {
            List::File(variable) => hosts::read_file(Path::new(value), variable),
            List::Pairs(variable) => hosts::read_pairs(value, variable),
        }
    }
}

/// Whether `target`, of a list of nodes, is the host with this name: one of the two may lack its domain.
pub(crate) fn is_host(target: &str, host: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    target == host || ((!target.contains('.') || !host.contains('.')) && short(target) == short(host))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The hosts and slots of a job with these variables; `FILE` stands for a file with `contents`.
    fn read(scheduler: Scheduler, variables: &[(&str, &str)], contents: &str) -> Result<Vec<(String, u32)>> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(contents.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.replace("FILE", &path));
        let allocation = scheduler.allocation(value)?;
        Ok(allocation.hosts.into_iter().map(|host| (host.target, host.slots.unwrap())).collect())
    }

    fn hosts(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
        expected.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect()
    }

    #[test]
    fn the_list_of_each_batch_system_is_read() {
        let pbs = [("PBS_JOBID", "7.server"), ("PBS_NODEFILE", "FILE")];
        assert_eq!(read(Scheduler::Pbs, &pbs, "a\na\nb\n").unwrap(), hosts(&[("a", 2), ("b", 1)]));
        let grid = [("JOB_ID", "7"), ("PE_HOSTFILE", "FILE")];
        let contents = "a.x 2 all.q@a.x <NULL>\nb.x 1 all.q@b.x UNDEFINED\na.x 1 long.q@a.x 0,1\n";
        assert_eq!(read(Scheduler::Gridengine, &grid, contents).unwrap(), hosts(&[("a.x", 3), ("b.x", 1)]));
        let file = [("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", "FILE"), ("LSB_MCPU_HOSTS", "c 9")];
        assert_eq!(read(Scheduler::Lsf, &file, "a\nb\nb\n").unwrap(), hosts(&[("a", 1), ("b", 2)]));
        let pairs = [("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "a 4 b 2 ")];
        assert_eq!(read(Scheduler::Lsf, &pairs, "").unwrap(), hosts(&[("a", 4), ("b", 2)]));
    }

    #[test]
    fn what_is_missing_is_named() {
        let no_job = [("PBS_NODEFILE", "FILE")];
        let absent = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/no/such/file")];
        let odd = [("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "a 4 b")];
        for (scheduler, variables, parts) in [
            (Scheduler::Pbs, &no_job[..], ["no job of PBS", "PBS_JOBID"]),
            (Scheduler::Gridengine, &[("JOB_ID", "7")], ["PE_HOSTFILE is not set", "qsub -pe"]),
            (Scheduler::Lsf, &[("LSB_JOBID", "7")], ["LSB_DJOB_HOSTFILE or LSB_MCPU_HOSTS", "bsub"]),
            (Scheduler::Pbs, &absent, ["PBS_NODEFILE", "/no/such/file"]),
            (Scheduler::Lsf, &odd, ["LSB_MCPU_HOSTS", "\"b\""]),
            (Scheduler::Pbs, &[("PBS_JOBID", "7"), ("PBS_NODEFILE", "FILE")], ["PBS_NODEFILE", "names no host"]),
        ] {
            let error = format!("{:#}", read(scheduler, variables, "\n").unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{scheduler:?}: {error}");
        }
    }

    #[test]
    fn the_number_of_ranks_and_the_end_of_the_job_are_those_of_its_batch_system() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"a\na\nb\n\n").unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let pbs = [("PBS_JOBID", "7[3].s"), ("PBS_NODEFILE", &path)];
        let grid = [("JOB_ID", "7"), ("PE_HOSTFILE", &path), ("NSLOTS", "8")];
        let lsf = [("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", &path), ("LSB_DJOB_NUMPROC", "6")];
        let find = |variables: &[(&str, &str)], name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        for (scheduler, variables, name, tasks, cancel) in [
            (Scheduler::Pbs, &pbs[..], "PBS_NODEFILE", "3", "qdel '7[3].s'"),
            (Scheduler::Gridengine, &grid, "NSLOTS", "8", "qdel 7"),
            (Scheduler::Lsf, &lsf, "LSB_DJOB_NUMPROC", "6", "bkill 7"),
        ] {
            let (source, count) = scheduler.tasks(|name| find(variables, name)).unwrap();
            assert_eq!((source, &*count.unwrap()), (name, tasks));
            assert_eq!(scheduler.allocation(|name| find(variables, name)).unwrap().cancel, cancel);
        }
        assert!(Scheduler::Gridengine.tasks(|name| find(&[("NSLOTS", "8")], name)).is_none(), "no job");
        let lost = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/no/such/file")];
        let (_, count) = Scheduler::Pbs.tasks(|name| find(&lost, name)).unwrap();
        assert!(format!("{:#}", count.unwrap_err()).contains("/no/such/file"));
    }

    #[test]
    fn each_job_has_a_folder_of_its_own() {
        let dir = |variables: &[(&str, &str)], scheduler: Scheduler| {
            let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            scheduler.default_dir(value).map(|dir| dir.file_name().unwrap().to_str().unwrap().to_owned())
        };
        assert_eq!(dir(&[("PBS_JOBID", "7[3].s"), ("PBS_NODEFILE", "/f")], Scheduler::Pbs).as_deref(), Some("pbs-7[3].s"));
        assert_eq!(dir(&[("JOB_ID", "7"), ("PE_HOSTFILE", "/f")], Scheduler::Gridengine).as_deref(), Some("gridengine-7"));
        assert_eq!(dir(&[("JOB_ID", "7")], Scheduler::Gridengine), None);
    }

    #[test]
    fn a_host_is_known_with_and_without_its_domain() {
        assert!(is_host("a", "a") && is_host("a.x", "a") && is_host("a", "a.x") && is_host("a.x", "a.x"));
        assert!(!is_host("a.x", "a.y") && !is_host("a", "b") && !is_host("a.x", "b"));
    }
}
