//! The environment that suits each library, and the variables that must not reach it.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::Serialize;

use radic_wire::job::placeholder;

use super::environment::Environment;
use super::flavour::Flavour;
use Flavour::{Intel, Mpich, OpenMpi, OpenMpi5, Unknown};

/// A variable for the ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its value, with placeholders for the node to replace.
    pub(crate) value: Cow<'static, str>,
    /// What for.
    pub(crate) why: &'static str,
    /// The user's own variable that takes its place.
    pub(crate) overridden: Option<Overridden>,
}

/// The user has decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Overridden {
    /// The variable that he set: the same, or one that means the same to the library.
    pub(crate) name: String,
    /// What he set it to.
    pub(crate) value: String,
    /// Whether by `--env`, not in the shell.
    pub(crate) by_flag: bool,
}

/// An inherited variable that the ranks do not get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Removed {
    /// Its name.
    pub(crate) name: String,
    /// What would happen otherwise.
    pub(crate) why: &'static str,
}

/// The loader's list of libraries: ours come before the user's own, so it is no variable that one sets in the place of the other.
const PRELOAD: &str = "LD_PRELOAD";

/// A setting, and when it applies.
struct Rule {
    /// Which libraries get it. Where the library is not known, it is what any of them gets.
    libraries: &'static [Flavour],
    name: &'static str,
    value: &'static str,
    why: &'static str,
    /// Other variables by which a user decides the same.
    or: &'static [&'static str],
}

const FI_TCP: &[Flavour] = &[Mpich, Intel];
const OPEN: &[Flavour] = &[OpenMpi, OpenMpi5];
const ALL: &[Flavour] = &[Mpich, Intel, OpenMpi, OpenMpi5];

/// Measured; facts about the libraries and their versions are in docs/mpi-libraries.md.
#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule { libraries: &[Mpich], name: "MPIR_CVAR_CH4_NETMOD", value: "ofi", or: &["MPICH_CH4_NETMOD", "MPIR_PARAM_CH4_NETMOD"],
        why: "libfabric instead of UCX, whose own thread accepts connections and whose messages hold pointers" },
    Rule { libraries: &[Intel], name: "I_MPI_FABRICS", value: "ofi", or: &[],
        why: "no shared memory between ranks (Intel MPI maps 1 GB of it otherwise)" },
    Rule { libraries: &[Intel], name: "I_MPI_WAIT_MODE", value: "1", or: &["I_MPI_THREAD_YIELD"],
        why: "a waiting rank sleeps: with more ranks than cores a job is 10 times faster, and with one rank a core it is not slower" },
    Rule { libraries: FI_TCP, name: "FI_PROVIDER", value: "tcp", or: &["I_MPI_OFI_PROVIDER"],
        why: "plain TCP, and one thread instead of three" },
    Rule { libraries: FI_TCP, name: "FI_TCP_IFACE", value: placeholder::IFACE, or: &[],
        why: "the network of the node's address" },
    Rule { libraries: FI_TCP, name: "FI_TCP_IO_URING", value: "0", or: &[],
        why: "sockets are used by system calls that RADIC sees" },
    Rule { libraries: &[Mpich], name: "UCX_TLS", value: "tcp", or: &[],
        why: "for an MPICH that has only UCX: no shared memory between ranks" },
    Rule { libraries: &[Mpich], name: "UCX_NET_DEVICES", value: placeholder::IFACE, or: &[],
        why: "the network of the node's address, for UCX" },
    Rule { libraries: ALL, name: "UCX_MEM_MMAP_HOOK_MODE", value: "none", or: &[],
        why: "UCX, loaded but not used, leaves mmap alone" },
    Rule { libraries: ALL, name: "HWLOC_COMPONENTS", value: "-gl,-linux:io", or: &[],
        why: "hwloc does not look for X servers at 127.0.0.1:6000 and up, nor opens block devices" },
    Rule { libraries: &[OpenMpi], name: "FLUX_JOB_ID", value: placeholder::JOBNUM, or: &[],
        why: "Open MPI 4 loads the PMI library of the next line" },
    Rule { libraries: &[OpenMpi], name: "FLUX_PMI_LIBRARY_PATH", value: placeholder::RADIC_PMI, or: &[],
        why: "PMI-1 to the daemon" },
    Rule { libraries: OPEN, name: "OMPI_MCA_pml", value: "ob1", or: &[],
        why: "messages over the TCP transport below, not over UCX or libfabric" },
    Rule { libraries: OPEN, name: "OMPI_MCA_btl", value: "tcp,self", or: &[],
        why: "TCP only: no shared memory between ranks" },
    Rule { libraries: &[OpenMpi], name: "OMPI_MCA_osc", value: "pt2pt,sm", or: &[],
        why: "one-sided calls over messages; sm serves windows of a rank alone on its node" },
    Rule { libraries: &[OpenMpi5, Unknown], name: "OMPI_MCA_osc", value: "^ucx", or: &[],
        why: "one-sided calls over the TCP transport; UCX would start a thread of its own" },
    Rule { libraries: OPEN, name: "OMPI_MCA_btl_tcp_if_include", value: placeholder::PREFIX, or: &["OMPI_MCA_btl_tcp_if_exclude"],
        why: "the network of the node's address (Open MPI leaves out the loopback network otherwise)" },
    Rule { libraries: OPEN, name: "OMPI_MCA_btl_tcp_disable_family", value: "6", or: &[],
        why: "IPv4 only: one listener, one connection a pair" },
    Rule { libraries: OPEN, name: "OMPI_MCA_mpi_yield_when_idle", value: "1", or: &[],
        why: "a waiting rank gives its core to others: needed with more ranks than cores (with fewer, 0 saves 1.5 us a message)" },
    Rule { libraries: OPEN, name: "OMPI_MCA_mpi_add_procs_cutoff", value: "1024", or: &[],
        why: "addresses are looked up in MPI_Init, not at the first message" },
    Rule { libraries: &[OpenMpi], name: "OMPI_MCA_orte_create_session_dirs", value: "0", or: &["OMPI_MCA_orte_tmpdir_base"],
        why: "no files in /tmp, which a killed rank would leave there" },
    Rule { libraries: &[OpenMpi], name: "OMPI_MCA_rtc", value: "^hwloc", or: &[],
        why: "no file with the machine's topology by process number" },
    Rule { libraries: &[OpenMpi5], name: PRELOAD, value: placeholder::RADIC_PMIX, or: &[],
        why: "PMIx is answered by PMI-1 to the daemon (your own libraries come after it)" },
    Rule { libraries: &[OpenMpi5], name: "OMPI_MCA_shmem", value: "mmap", or: &[],
        why: "no descriptor of a deleted file in /dev/shm, which the posix component leaves open" },
];

/// Names that start so are a launcher's, with what would happen if the ranks got them.
#[rustfmt::skip]
const LAUNCHERS: &[(&str, &str)] = &[
    ("PMI_", "another launcher's PMI: the library would talk to it instead of the daemon"),
    ("PMI2_", "another launcher's PMI-2: the library would talk to it instead of the daemon"),
    ("PMIX_", "another launcher's PMIX: the library would talk to it, or refuse to choose"),
    ("HYDI_", "from inside a job of MPICH's mpiexec"),
    ("HYDRA_", "from inside a job of MPICH's mpiexec"),
    ("MPIEXEC_", "from inside a job of another mpiexec"),
    ("MPI_LOCAL", "from inside a job of another mpiexec: it counts that job's ranks on the node"),
    ("I_MPI_PMI", "makes Intel MPI load another launcher's PMI library"),
    ("I_MPI_HYDRA_", "from inside a job of Intel MPI's mpiexec"),
    ("I_MPI_INFO_", "from inside a job of Intel MPI's mpiexec"),
    ("MV2_COMM_WORLD_", "from inside a job of MVAPICH's mpiexec"),
    ("OMPI_COMM_WORLD_", "from inside a job of Open MPI's mpirun: it numbers that job's ranks"),
    ("OMPI_UNIVERSE_SIZE", "from inside a job of Open MPI's mpirun"),
    ("OMPI_APP_CTX_", "from inside a job of Open MPI's mpirun"),
    ("OMPI_NUM_APP_CTX", "from inside a job of Open MPI's mpirun"),
    ("OMPI_FIRST_RANKS", "from inside a job of Open MPI's mpirun"),
    ("OMPI_FILE_LOCATION", "from inside a job of Open MPI's mpirun"),
    ("OMPI_MCA_ess", "makes Open MPI look for mpirun's daemon"),
    ("OMPI_MCA_pmix", "makes Open MPI choose another launcher"),
    ("OMPI_MCA_orte_ess_", "makes Open MPI look for mpirun's daemon"),
    ("OMPI_MCA_orte_hnp_", "makes Open MPI look for mpirun's daemon"),
    ("OMPI_MCA_orte_local_daemon", "makes Open MPI look for mpirun's daemon"),
    ("OMPI_MCA_orte_app_num", "from inside a job of Open MPI's mpirun"),
    ("OMPI_MCA_orte_launch", "from inside a job of Open MPI's mpirun"),
    ("OMPI_MCA_orte_top_session_dir", "from inside a job of Open MPI's mpirun"),
    ("OMPI_MCA_orte_jobfam_session_dir", "from inside a job of Open MPI's mpirun"),
    ("PRTE_", "from inside a job of PRRTE's prterun"),
    ("FLUX_", "makes Open MPI take Flux for its launcher"),
    ("ALPS_APP_PE", "makes Open MPI take ALPS for its launcher"),
    ("SLURM_STEP", "from inside a job step: makes libraries take srun for their launcher"),
    ("SLURM_PMI", "makes libraries take srun for their launcher"),
    ("SLURM_PROCID", "from inside a job step: it is the rank that srun gave"),
    ("SLURM_LOCALID", "from inside a job step: it is the local rank that srun gave"),
    ("SLURM_NODEID", "from inside a job step: it is the node number that srun gave"),
    ("SLURM_GTIDS", "from inside a job step"),
    ("SLURM_SRUN_", "from inside a job step: makes libraries take srun for their launcher"),
    ("SLURM_MPI_TYPE", "makes libraries take srun for their launcher"),
    ("SLURM_TASK_PID", "it is a process of the batch script's node"),
    ("SLURM_TOPOLOGY_ADDR", "it names the batch script's node"),
    ("SLURM_LAUNCH_NODE_IPADDR", "from inside a job step: it is the address of srun's node"),
    ("SLURM_CPU_BIND", "from inside a job step: it names processors of one node"),
    ("SLURM_CPUS_ON_NODE", "it counts the processors of the batch script's node"),
    ("SLURMD_NODENAME", "it names the batch script's node"),
    ("PBS_NODEFILE", "it names a file of the batch script's node"),
    ("PBS_NODENUM", "from PBS: it is the number of the batch script's node"),
    ("PBS_TASKNUM", "from PBS: it is a task of the batch script's node"),
    ("PBS_VNODENUM", "from PBS: it is the number of the batch script's node"),
    ("PBS_MOMPORT", "from PBS: it is a port of the batch script's node"),
    ("PE_HOSTFILE", "from Grid Engine: it names a file of the batch script's node"),
    ("SGE_JOB_SPOOL_DIR", "from Grid Engine: it names a folder of the batch script's node"),
    ("JOB_SCRIPT", "from Grid Engine: it names a file of the batch script's node"),
    ("LSB_DJOB_HOSTFILE", "from LSF: it names a file of the batch script's node"),
    ("LSB_DJOB_RANKFILE", "from LSF: it names a file of the batch script's node"),
    ("LSB_AFFINITY_HOSTFILE", "from LSF: it names a file of the batch script's node"),
    ("LSB_BIND_", "from LSF: it names processors of one node"),
    ("LS_JOBPID", "from LSF: it is a process of the batch script's node"),
    ("LSF_PM_", "makes libraries take blaunch for their launcher"),
];

/// The settings for a library, in the order in which they are explained. `library`: its file, if it was found.
pub(super) fn settings(flavour: Flavour, library: Option<&Path>, environment: &Environment<'_>) -> Vec<Setting> {
    let is_of_unknown = |name| RULES.iter().any(|rule| rule.name == name && rule.libraries.contains(&Unknown));
    let applies = |rule: &&Rule| match flavour {
        Flavour::None => false,
        // Two libraries may want different values of one variable: then a rule says which does for both.
        Flavour::Unknown => rule.libraries.contains(&Unknown) || !is_of_unknown(rule.name),
        known => rule.libraries.contains(&known),
    };
    let setting = |rule: &Rule| {
        let overridden = overridden(rule, environment);
        Setting { name: rule.name, value: Cow::Borrowed(rule.value), why: rule.why, overridden }
    };
    let moved = library.filter(|_| flavour == OpenMpi5).and_then(prefix_of).map(|prefix| {
        let value = prefix.to_string_lossy().into_owned().into();
        Setting { value, ..setting(&PREFIX) }
    });
    RULES.iter().filter(applies).map(setting).chain(moved).collect()
}

/// A setting of an Open MPI that is not where it was built for, as that of PyPI.
const PREFIX: Rule = Rule {
    libraries: &[OpenMpi5],
    name: "OPAL_PREFIX",
    value: "",
    why: "where this Open MPI is: it looks for its texts of errors there",
    or: &[],
};

/// Where an Open MPI is, by its library: beside that are its other files.
fn prefix_of(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?;
    let prefix = folder.parent().filter(|_| folder.ends_with("lib") || folder.ends_with("lib64"))?;
    prefix.join("share/openmpi").is_dir().then(|| prefix.to_owned())
}

fn overridden(rule: &Rule, environment: &Environment<'_>) -> Option<Overridden> {
    if rule.name == PRELOAD {
        return None;
    }
    // A variable that is removed does not count, unless the user means it.
    let counts = |name: &&str| environment.is_explicit(name) || launcher(name).is_none();
    let mut names = std::iter::once(rule.name).chain(rule.or.iter().copied()).filter(counts);
    names.find_map(|name| {
        let value = environment.get(name)?.to_string_lossy().into_owned();
        Some(Overridden { name: name.to_owned(), value, by_flag: environment.is_explicit(name) })
    })
}

/// The inherited variables that the ranks must not get. What the user gives by `--env` stays; with `--mpi none` everything does.
pub(super) fn removed(flavour: Flavour, environment: &Environment<'_>) -> Vec<Removed> {
    let mut removed: Vec<_> = environment
        .inherited
        .iter()
        .filter_map(|(name, _)| name.to_str())
        .filter(|name| flavour != Flavour::None && !environment.is_explicit(name))
        .filter_map(|name| launcher(name).map(|why| Removed { name: name.to_owned(), why }))
        .collect();
    removed.sort_by(|a, b| a.name.cmp(&b.name));
    removed
}

/// Why `name` is a launcher's variable, if it is one.
fn launcher(name: &str) -> Option<&'static str> {
    LAUNCHERS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, why)| *why)
}
