//! `radic bench`: what RADIC costs.

use anyhow::Result;
use clap::Subcommand;

use crate::client::Cluster;

mod ckpt;
mod figures;
mod launch;
mod net;
mod plot;
mod recover;
mod rival;
mod runs;
mod shaped;
mod subject;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare message times and launching with the library's own mpiexec
    #[command(after_help = "Example:\n  radic bench launch --mpi mpich\n\n\
        Messages of 8 B and 4 MiB between two ranks, under mpiexec and under `radic run` in turn, with the same settings of the \
        library; then the time to launch many ranks, up to their end. Times are half round trips; a ratio is RADIC's median \
        divided by the native one; beside it stands the median of the ratios of the pairs. It runs on the chosen cluster if that is alive, else on one of 2 nodes that it starts and \
        stops itself; the comparison is fair for nodes on this machine's loopback network.")]
    Launch(launch::LaunchArgs),
    /// Compare messages, collective operations and applications under protection with the library's own mpiexec
    #[command(
        after_help = "Examples:\n  radic bench net --rounds 5\n  radic bench net --only messages,applications --mpi openmpi --json\n\n\
        Each under mpiexec, with the library loaded but off, protected, and under mpiexec again, in turn: messages of 8 B to 4 MiB and windows of \
        them between two ranks on two nodes; all-reduce and all-to-all of four ranks on four nodes; Jacobi's iteration with 512 x 512 cells for each \
        rank, a stencil on a cube, and a sort, with checkpoints. It starts and stops nodes of its own on this machine's loopback network. Targets \
        stand beside the figures where native runs differ from native runs by at most 10 %, and decide nothing."
    )]
    Net(net::NetArgs),
    /// Measure checkpoints of one program: pauses, bytes, restart, overhead
    #[command(after_help = "Example:\n  radic bench ckpt --rounds 5\n\n\
        One program, which dirties pages all the time and notes the gaps in its own clock: saved in fork mode (4 KiB pages, huge pages) \
        and incrementally, restarted, and saved by CRIU if a working one is in PATH, else by gcore. Then a loop that reads all of its memory \
        and writes some: native, under the library, and with a checkpoint a second. All in turn, round after round; medians count. Targets \
        stand beside the figures and decide nothing. Needs twice the memory of the program, and room for an image in --dir.")]
    Ckpt(ckpt::CkptArgs),
    /// Measure how long it takes from the death of a node until its rank lives again
    #[command(after_help = "Example:\n  radic bench recover --mib 10,100 --rounds 5\n\n\
        Four ranks with so much memory each, on four nodes; one of them is killed, and its rank goes on at a spare. Each step has its column; \
        the job goes on to its end, where each rank checks its memory. Then one job with a death every --every seconds, against the same one \
        undisturbed, restarted as a whole from its last `radic suspend`, and restarted from the beginning. It starts and stops nodes of its own on this machine's loopback \
        network. Targets stand beside the figures and decide nothing. Needs four times the memory of a rank, and room for about six times as much \
        in TMPDIR, or /tmp, for images.")]
    Recover(recover::RecoverArgs),
    /// The program that `radic bench ckpt` measures
    #[command(hide = true, after_help = "Example:\n  radic bench subject --mib 64 --report gaps")]
    Subject(subject::SubjectArgs),
}

/// Measures what was asked for.
pub(crate) fn dispatch(cluster: &Cluster, command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Launch(args) => launch::launch(cluster, args),
        BenchCommand::Net(args) => net::measure(args),
        BenchCommand::Ckpt(args) => ckpt::measure(args),
        BenchCommand::Recover(args) => recover::measure(args),
        BenchCommand::Subject(args) => subject::run(args),
    }
}
