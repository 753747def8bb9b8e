//! The environment of a rank.

use std::net::IpAddr;

use radic_wire::ids::{JobId, Rank};
use radic_wire::job::{JobSpec, placeholder};
use radic_wire::process::{Protect, variable};
use serde_bytes::ByteBuf;

/// The loader's list of libraries that go before all others.
const PRELOAD: &str = "LD_PRELOAD";

/// What is particular to this node in the environment of a rank.
#[derive(Debug, Clone)]
pub struct HostEnvironment {
    /// The address that other nodes know.
    pub address: IpAddr,
    /// The interface that carries the address. Empty if no interface of this machine does, for example behind address
    /// translation.
    pub iface: String,
    /// The interface's network, as `a.b.c.d/len`.
    pub prefix: String,
    /// Path of `libradic_pmi.so`.
    pub radic_pmi: String,
    /// Path of `libradic_pmix.so`.
    pub radic_pmix: String,
    /// Path of `libradic.so`.
    pub library: String,
    /// Path of the socket for observers.
    pub process_socket: String,
    /// The node's name.
    pub node: String,
}

/// The number of the job for Open MPI 4, which keeps 32 bits. It clears bit 15 in some places and not in others, so ranks of a
/// job with that bit set would take each other for strangers. The number need not be unique: it only names keys in the job's own
/// key space.
fn job_number(job: JobId) -> u64 {
    job.bits() & 0x7fff_7fff
}

/// The environment of a rank: the user's, then what is particular to the node, then what RADIC tells every rank.
pub(super) fn environment_of(rank: Rank, job: JobId, spec: &JobSpec, host: &HostEnvironment) -> Vec<(ByteBuf, ByteBuf)> {
    let values = [
        (placeholder::IFACE, host.iface.clone()),
        (placeholder::ADDRESS, host.address.to_string()),
        (placeholder::PREFIX, host.prefix.clone()),
        (placeholder::RADIC_PMI, host.radic_pmi.clone()),
        (placeholder::RADIC_PMIX, host.radic_pmix.clone()),
        (placeholder::RANK, rank.to_string()),
        (placeholder::JOBNUM, job_number(job).to_string()),
    ];
    let expand = |template: &str| values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value));
    // If no interface carries the address, variables about it are left out, and the library chooses. With an empty value it would
    // find no network at all.
    let of_interface = |template: &str| [placeholder::IFACE, placeholder::PREFIX].iter().any(|name| template.contains(name));
    let has_value = |template: &str| !host.iface.is_empty() || !of_interface(template);
    let templates = spec.templates.iter().filter(|(_, template)| has_value(template));
    let templates = templates.map(|(name, template)| (name.clone(), expand(template)));
    let ours = [
        ("PMI_RANK", rank.to_string()),
        ("PMI_SIZE", spec.ranks.to_string()),
        (variable::JOB, job.to_string()),
        (variable::RANK, rank.to_string()),
        ("RADIC_SIZE", spec.ranks.to_string()),
        ("RADIC_NODE", host.node.clone()),
    ];
    let ours = ours.into_iter().map(|(name, value)| (name.to_owned(), value));
    let mut env = spec.env.clone();
    for (name, value) in templates.chain(ours) {
        if name == PRELOAD {
            preload(&mut env, &value);
        } else {
            set(&mut env, &name, value.into_bytes());
        }
    }
    // A command that is itself a rank must not pass its own socket on.
    env.retain(|(name, _)| name.as_ref() != variable::SOCKET.as_bytes());
    if spec.protection.protect != Protect::None {
        set(&mut env, variable::SOCKET, host.process_socket.clone().into_bytes());
        preload(&mut env, &host.library);
    }
    env
}

/// Has a library be loaded before those that the environment names, the user's own among them: the loader asks the first one first.
fn preload(env: &mut Vec<(ByteBuf, ByteBuf)>, library: &str) {
    let others = env.iter().find(|(name, _)| name.as_ref() == PRELOAD.as_bytes()).map(|(_, value)| value.to_vec());
    let others = others.filter(|others| !others.is_empty()).map_or(Vec::new(), |others| [b":", others.as_slice()].concat());
    set(env, PRELOAD, [library.as_bytes(), &others].concat());
}

fn set(env: &mut Vec<(ByteBuf, ByteBuf)>, name: &str, value: Vec<u8>) {
    env.retain(|(existing, _)| existing.as_ref() != name.as_bytes());
    env.push((ByteBuf::from(name), ByteBuf::from(value)));
}
