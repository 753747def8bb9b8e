//! Checkpoints of this process: when one is wanted it is made by the engine, in the handler of its signal, while the layer is locked; the image goes
//! to the protector on a connection of its own, written by a forked child.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use radic_ckpt::{Hooks, Mode, Refusal, Request, Tracking, Wanted};
use radic_observer::Context;
use radic_observer::session::images::{self, Action, NotBegun};
use radic_wire::limits;
use radic_wire::log::ToProtector;
use radic_wire::login;
use rustix::net::sockopt;

use super::{Held, Layer, context};
use crate::counters::{self, Counter};
use crate::{channel, image, layer, memory, nudge, phase, starved, sys, watches};

/// How long the protector may take nothing of an image: then the child that writes it gives up, and the next image can be made.
const TAKING: Duration = Duration::from_secs(20);

impl Layer {
    /// Something happens to the images; what they want then is done.
    pub(crate) fn drive_images<T>(&mut self, input: impl FnOnce(&mut images::Images, &mut Context<'_>) -> T) -> T {
        let mut cx = context(&mut self.observer);
        let result = input(&mut self.images.machine, &mut cx);
        while let Some(action) = self.images.machine.poll_action() {
            match action {
                Action::Want => layer::want_checkpoint(),
                // A node that is gone ends this process elsewhere.
                Action::Tell(answer) => _ = self.node.send(&answer),
                Action::Abandon(image) => self.tell_protector(&ToProtector::ImageAbandoned { image }),
                Action::Remind(image) => self.tell_protector(&ToProtector::ImageUnderWay { image }),
                Action::Announce(image) => _ = self.journal.send(&ToProtector::ImageUnderWay { image }),
            }
        }
        result
    }
}

/// Registers with the engine. Once, at the start.
///
/// An image that is asked for from outside is made while the layer is locked, too: a thread in the middle of it may have a key on its stack and in its
/// registers (`memory::discreetly`). If some thread is, the request waits until that one lets go (`make_up`).
pub(crate) fn register() {
    /// The process that is protected: a child of it has no keys.
    static PROTECTED: AtomicU32 = AtomicU32::new(0);
    /// The layer is kept locked for a request.
    static KEPT: AtomicBool = AtomicBool::new(false);
    fn may_be_saved() -> bool {
        // A restored process may have another id, but it is active.
        let is_child = !phase::is_active() && PROTECTED.load(Ordering::Relaxed) != std::process::id();
        let layer = if is_child { None } else { enter() };
        let is_kept = layer.map(Held::keep_locked).is_some();
        KEPT.store(is_kept, Ordering::Relaxed);
        is_child || is_kept
    }
    fn is_saved() {
        if KEPT.swap(false, Ordering::Relaxed) {
            drop(layer::adopt());
        }
    }
    PROTECTED.store(std::process::id(), Ordering::Relaxed);
    let (asked, answered) = (Some(may_be_saved as fn() -> bool), Some(is_saved as fn()));
    _ = radic_ckpt::set_hooks(Hooks {
        nudged: Some(begin),
        saved: Some(end),
        after_restore: Some(restored),
        asked,
        answered,
        ..Hooks::default()
    });
}

/// Enters the layer in the signal's handler, if no thread holds anything that is needed with it. The thread below the handler may
/// be the one that holds it; then the handler would wait for itself, with every signal blocked, without end.
fn enter() -> Option<Held> {
    nudge::begin_to_look();
    if is_anything_held() {
        return None;
    }
    let layer = if image::is_restored() { layer::enter_if_free() } else { layer::try_enter() }?;
    nudge::has_found_all_free();
    Some(layer)
}

/// Whether some thread is in the middle of something, other than the layer, that the layer may need.
fn is_anything_held() -> bool {
    memory::is_held() || !watches::is_free() || !starved::is_free()
}

/// In the signal's handler: begins an image if one is wanted and the layer is free. If it is not, the thread that holds it comes by here again.
fn begin() -> Option<Wanted> {
    if !phase::is_active() {
        return None;
    }
    let comes_back = image::is_restored();
    let mut layer = enter()?;
    if comes_back {
        return None;
    }
    layer.hear_node();
    layer.look_at_log();
    layer.settle_down();
    // A program without traffic hears only here that its last image is committed.
    layer.hear_protector(false);
    if !layer::take_wish() {
        return None;
    }
    let is_initializing = layer.pmi.is_starting();
    if !layer.drive_images(|images, cx| images.begin(cx, is_initializing)) {
        return None;
    }
    match prepare(&mut layer) {
        Ok(begun) => {
            layer.drive_images(images::Images::handle_begun);
            layer.keep_locked();
            Some(begun)
        }
        Err(why) => {
            layer.drive_images(|images, cx| images.handle_not_begun(cx, &why));
            None
        }
    }
}

/// The connection to write to, with the beginning of the image on it.
fn prepare(layer: &mut Layer) -> Result<Wanted, NotBegun> {
    layer.ship();
    let (address, identity) = layer.login();
    let (connection, mut sealer, _) =
        channel::login(address, &identity, login::Channel::Image).map_err(|error| NotBegun::NotLetIn(error.to_string()))?;
    layer.outputs.handle_image();
    layer.input.handle_image();
    layer.calls.handle_image();
    let Layer { observer, images, .. } = layer;
    let (message, parent) = images.machine.cut(observer, &mut images.streams, &mut images.ended)?;
    channel::write(connection.as_fd(), &mut sealer, &message)
        // The child that writes it has the time that the protector needs, as long as that takes some.
        .and_then(|()| sockopt::set_socket_timeout(&connection, sockopt::Timeout::Send, Some(TAKING)))
        .and_then(|()| rustix::io::ioctl_fionbio(&connection, false))
        .map_err(|error| NotBegun::NotWritten(error.to_string()))?;
    let fd = connection.as_raw_fd();
    images.connection = Some(connection);
    let parent = parent.map_or(0, |parent| parent.engine);
    let sealing = &mut images.sealings[0];
    sealing.begin(sealer);
    let request = Request { mode: Mode::Fork, tracking: Tracking::Best, compress: false, parent };
    Ok(Wanted { fd, request, through: Some(sealing.through()) })
}

/// In the process that goes on.
fn end(result: Result<(u64, u64), Refusal>) {
    let mut layer: Held = layer::adopt();
    if let Some(connection) = layer.images.connection.take() {
        sys::close_own(connection);
    }
    match result {
        Ok((pause, engine)) => {
            // The engine makes no image while a child writes the one before: that one's is free.
            layer.images.sealings.swap(0, 1);
            layer.drive_images(|images, cx| images.handle_saved(cx, engine));
            counters::add(Counter::Checkpoints, 1);
            counters::add(Counter::PauseNs, pause);
            counters::set(Counter::LongestPauseNs, counters::get(Counter::LongestPauseNs).max(pause));
        }
        Err(refusal) => {
            let why = refusal.to_string();
            layer.note(&format!("no checkpoint: {why}"));
            layer.drive_images(|images, cx| images.handle_unsaved(cx, why));
        }
    }
}

/// In a restored process, while all other threads are still stopped.
fn restored() {
    image::note_restored();
    drop(layer::adopt());
    // A program that computes for an hour comes back all the same. Where the signal cannot be queued, its next call does it.
    _ = radic_ckpt::nudge_self();
}

const _: () = assert!(limits::LAYERS <= radic_ckpt::image::chain::MAX_LAYERS);

#[cfg(test)]
mod tests {
    use super::*;

    /// No handler is installed here, where the signal would end the tests: it is ignored.
    #[allow(unsafe_code)]
    fn ignore_nudges() {
        /// The engine's.
        const SIGNAL: i32 = 33;
        let ignored = [libc::SIG_IGN as u64, 0, 0, 0];
        let none = std::ptr::null::<u64>();
        // SAFETY: the kernel reads one action of its own kind, with a mask of eight bytes.
        let done = unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGNAL, ignored.as_ptr(), none, 8) };
        assert_eq!(done, 0);
    }

    /// As in a handler that has interrupted its own thread in the middle of an allocation: waiting would have no end.
    #[test]
    fn a_nudge_does_not_wait_for_the_heap_and_is_made_up_for() {
        ignore_nudges();
        memory::enter();
        let (held, layer) = (is_anything_held(), enter());
        memory::leave();
        assert!(held && layer.is_none());
        assert!(!nudge::is_missed(), "the thread that lets go of the heap nudges again");
    }
}
