//! What a library that embeds the engine is asked and told.

use crate::refusal::Refusal;
use crate::request::Request;
use crate::sink::Through;

/// Functions of the library that embeds the engine, called at certain moments. They run in a signal handler, and the first three while all threads
/// are stopped: no allocation, no lock, no libc.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hooks {
    /// All threads are stopped, nothing is read yet.
    pub before_save: Option<fn()>,
    /// In the child that writes the image, first thing. It owns copies of all descriptors, but may share the program's memory, which the
    /// program uses meanwhile.
    pub in_child: Option<fn()>,
    /// In a restored process, before any thread goes on.
    pub after_restore: Option<fn()>,
    /// The process was nudged ([`nudge_self`](crate::nudge_self), `control::nudge`), and no thread is stopped yet: which checkpoint is wanted? `None`:
    /// not now; then nothing happens. The thread may be anywhere in the program, in the C library or in its allocator, and others run: what such a thread
    /// may hold must not be waited for.
    pub nudged: Option<Nudged>,
    /// A request has come from outside (`control::request`), and no thread is stopped yet: may the process be saved now? What the library takes so that no
    /// thread is in the middle of something that no image may have, it keeps. False: the request waits; the library nudges a thread of its own
    /// ([`nudge_self`](crate::nudge_self)) when that is over. As for `nudged`, nothing must be waited for.
    pub asked: Option<fn() -> bool>,
    /// The request that `asked` has allowed is over, in the process that goes on, when all threads run again. In the restored process only `after_restore` is
    /// called.
    pub answered: Option<fn()>,
    /// What became of the checkpoint that `nudged` wanted, in the process that goes on, when all threads run again: how long they were stopped, in
    /// nanoseconds, and what names the image (as in `Outcome::Saved`), or why there is none. In the restored process only `after_restore` is called.
    pub saved: Option<Told>,
}

/// See `Hooks::nudged`.
pub type Nudged = fn() -> Option<Wanted>;

/// A checkpoint that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The descriptor that the image goes to.
    pub fd: i32,
    /// What kind it is to be.
    pub request: Request,
    /// What writes it there; none: it is written as it is.
    pub through: Option<Through>,
}

/// See `Hooks::saved`.
pub type Told = fn(Result<(u64, u64), Refusal>);

static HOOKS: std::sync::OnceLock<Hooks> = std::sync::OnceLock::new();

/// Registers hooks; once, before the first checkpoint. False: there are some already.
pub fn set_hooks(hooks: Hooks) -> bool {
    HOOKS.set(hooks).is_ok()
}

/// Calls a hook, if there is one.
pub fn hook(which: fn(&Hooks) -> Option<fn()>) {
    if let Some(function) = HOOKS.get().and_then(which) {
        function();
    }
}

/// Whether a request may be served now; if so, [`served`] follows.
pub fn may_serve() -> bool {
    HOOKS.get().and_then(|hooks| hooks.asked).is_none_or(|ask| ask())
}

/// A request that [`may_serve`] has allowed is over.
pub fn served() {
    hook(|hooks| hooks.answered);
}

/// The hooks, if there are any.
pub fn hooks() -> Option<&'static Hooks> {
    HOOKS.get()
}
