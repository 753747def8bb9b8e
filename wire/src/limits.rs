//! Every bound of the wire, in one place: a length that is not checked against one of these is a bug.

/// Longest node name, in bytes.
pub const NODE_NAME: usize = 64;
/// Longest frame that an authenticated peer may send, in bytes. A view of [`MEMBERS`] members fits.
pub const PEER_FRAME: usize = 16 << 20;
/// Longest frame on the unix socket between `radic` and its protector, in bytes.
pub const LOCAL_FRAME: usize = 4 << 20;
/// Bytes of the largest outbox: as many as its blocks have numbers.
pub const MOST_OUTBOX: u64 = 16 << 30;
/// Bytes of the outbox of a process, unless the user or its node says how many.
pub const OUTBOX: u64 = 64 << 20;
/// Most members that a view may have.
pub const MEMBERS: usize = 16_384;
/// Changes of views that a member remembers, for members that have fallen behind: they fit in a [`PEER_FRAME`].
pub const REMEMBERED_CHANGES: usize = 2 * MEMBERS;
/// Former members that a view remembers.
pub const DEPARTED: usize = 1_024;
/// Most ranks that one job may have.
pub const RANKS: u32 = 65_536;
/// Largest argument list plus environment of a job, in bytes (the kernel's own bound is near 2 MiB).
pub const EXEC_BYTES: usize = 1 << 20;
/// Longest piece of a rank's stdout, stderr or stdin that travels in one message, in bytes.
pub const CHUNK: usize = 64 << 10;
/// Output of one stream of a rank that is with its host and was not printed, in bytes. With what its pipe holds (64 KiB) it bounds what a restored process
/// has to write once more.
pub const OUTPUT_UNPRINTED: usize = 2 * CHUNK;
/// Output of one job that may be under way to one terminal before the ranks' pipes are left unread, in bytes.
pub const OUTPUT_WINDOW: usize = 1 << 20;
/// Output of one job that is kept for a later `radic attach` while no terminal is attached, in bytes; the oldest goes first.
pub const OUTPUT_BACKLOG: usize = 8 << 20;
/// Longest list of the files of a suspended job, including its output that no terminal has printed, in bytes.
pub const SUSPENSION: usize = 256 << 20;
/// Messages that may wait for one peer before the link to it is given up.
pub const LINK_MESSAGES: usize = 65_536;
/// Bytes that may wait for one peer before the link to it is given up.
pub const LINK_BYTES: usize = 128 << 20;
/// Connections of any kind that a protector serves at once; one more is closed at once.
pub const CONNECTIONS: usize = 8_192;
/// Connections that may be between accept and the end of the handshake at once; the oldest is closed for a new one. Between daemons there may
/// be one more for each member of the view.
pub const HANDSHAKES: usize = 256;
/// Time that a peer has for the whole handshake, in milliseconds.
pub const HANDSHAKE_MS: u64 = 3_000;
/// Events that a protector remembers.
pub const EVENTS: usize = 4_096;
/// Finished jobs that a protector remembers, for `radic attach` and `radic jobs`.
pub const FINISHED_JOBS: usize = 64;
/// Jobs that may run at once on one cluster.
pub const JOBS: usize = 1_024;
/// Longest PMI-1 line, in bytes (`value` is at most [`PMI_VALUE`]).
pub const PMI_LINE: usize = 4_096;
/// Longest PMI key, in bytes, as announced by `get_maxes`.
pub const PMI_KEY: usize = 64;
/// Longest PMI value, in bytes, as announced by `get_maxes`.
pub const PMI_VALUE: usize = 1_024;
/// Longest key space name, in bytes, as announced by `get_maxes`.
pub const PMI_KVSNAME: usize = 256;
/// Most keys in the key space of one job: 16 for each of [`RANKS`].
pub const PMI_KEYS: usize = 1 << 20;
/// Names that one job may publish.
pub const PMI_NAMES: usize = 1_024;
/// Descriptors in one readiness set. The observer reports at most this many at once; the rest is reported by the next call.
pub const READY_FDS: usize = 1_024;
/// Most images of a chain: a whole one, and increments each on the one before. A restart reads them all, and the engine reads no more than 64.
pub const LAYERS: usize = 16;
/// Bytes that a chain of images may always have. Over it a whole image is wanted as soon as the chain is longer than two times
/// its longest image: so neither what a protector holds of a process, nor what a restart reads, is ever more than a few times its
/// memory.
pub const CHAIN: u64 = 64 << 20;
/// Bytes of standard input that one outcome holds.
pub const INPUT: usize = 4 << 10;
/// Bytes of the kernel's answer to one call that one outcome holds: random bytes are asked for in pieces of this length.
pub const ANSWER: usize = 4 << 10;
/// Longest code of one determinant, in bytes: a readiness set of [`READY_FDS`] that make no runs.
pub const DETERMINANT: usize = 10 * READY_FDS + 64;
/// Most bytes of journal, payload or image in one message between an observer and its protector.
pub const LOG_CHUNK: usize = 256 << 10;
/// Most bytes of causes before the bytes of one frame on a link.
pub const CAUSES: usize = 64 << 10;
/// Streams that a cut may name.
pub const CUT_STREAMS: usize = 65_536;
/// Streams that one process has ended and of which its node knows where: all of them fit into one message to its protector.
pub const ENDED_STREAMS: usize = 1 << 18;
/// Streams of ranks that have ended, by themselves, of which a job's home keeps the ends: 64 of each of 16,384 ranks.
pub const FINALS: usize = 1 << 20;
/// Longest frame between an observer and its protector, in bytes: a cut of [`CUT_STREAMS`] fits.
pub const LOG_FRAME: usize = 4 << 20;
/// Addresses that one process may listen on.
pub const LISTENERS: usize = 1_024;
/// Callers that a process has not accepted yet: connections in its backlogs, and some that never came about.
pub const CALLERS: usize = 65_536;
/// Questions of one observer that may wait for their answer.
pub const ASKS: usize = 4_096;
/// Lines that one process may add to the event log.
pub const NOTES: u32 = 64;
/// Processes in one answer to `radic status`: they fit in a [`LOCAL_FRAME`].
pub const PROCESSES_SHOWN: usize = 8_192;
/// Pairs of ranks in one answer that tells how much each rank has sent to each: they fit in a [`LOCAL_FRAME`].
pub const PAIRS_SHOWN: usize = 131_072;
/// Streams in one node's part of that answer: they fit in a [`PEER_FRAME`].
pub const FLOWS_SHOWN: usize = 131_072;
/// Most ended processes of which a protector remembers the last counters.
pub const PROCESSES_ENDED: usize = 1_024;
