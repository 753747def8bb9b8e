//! What the layer keeps of the calling thread, and each hook asks for: two words, each read or written by an instruction. For a `thread_local!` of a
//! library the compiler calls the linker (`__tls_get_addr`) each time, and a call about a protected descriptor would do that three times or more.
//!
//! So they are in the memory that each thread has from its beginning (the initial-exec model): the library is loaded with the program, or else the
//! linker's surplus has room for them. A signal's handler may come at any moment.
#![allow(unsafe_code)]

use std::arch::{asm, global_asm};

// Zero in each new thread.
global_asm!(
    ".pushsection .tbss.radic_here, \"awT\", @nobits",
    ".balign 4",
    ".globl radic_here_place, radic_here_inside",
    ".hidden radic_here_place, radic_here_inside",
    ".type radic_here_place, @object",
    ".size radic_here_place, 4",
    "radic_here_place:",
    ".zero 4",
    ".type radic_here_inside, @object",
    ".size radic_here_inside, 4",
    "radic_here_inside:",
    ".zero 4",
    ".popsection",
);

/// Reads a word, by its name.
macro_rules! read {
    ($name:literal) => {{
        let word: u32;
        // SAFETY: the word is the thread's own, there as long as the thread is.
        unsafe {
            asm!(
                concat!("mov {word:r}, qword ptr [rip + ", $name, "@GOTTPOFF]"),
                "mov {word:e}, dword ptr fs:[{word:r}]",
                word = out(reg) word,
                options(nostack, preserves_flags, readonly)
            );
        }
        word
    }};
}

/// Writes it.
macro_rules! write {
    ($name:literal, $value:expr) => {{
        let value: u32 = $value;
        // SAFETY: as above; nothing else is written.
        unsafe {
            asm!(
                concat!("mov {at}, qword ptr [rip + ", $name, "@GOTTPOFF]"),
                "mov dword ptr fs:[{at}], {value:e}",
                at = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags)
            );
        }
    }};
}

/// The thread's place in the observer's table, if it has one.
#[inline]
pub(crate) fn place() -> Option<u32> {
    read!("radic_here_place").checked_sub(1)
}

/// The thread has this place from now on, or none.
pub(crate) fn set_place(place: Option<u32>) {
    write!("radic_here_place", place.map_or(0, |place| place + 1));
}

/// Whether the thread is inside the layer.
#[inline]
pub(crate) fn is_inside() -> bool {
    read!("radic_here_inside") != 0
}

/// The thread is inside the layer from now on, or no more.
#[inline]
pub(crate) fn set_inside(is_inside: bool) {
    write!("radic_here_inside", u32::from(is_inside));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        let words = || (place(), is_inside());
        assert_eq!(words(), (None, false));
        set_place(Some(7));
        set_inside(true);
        let other = std::thread::spawn(move || {
            let new = words();
            set_place(Some(0));
            (new, words())
        });
        assert_eq!(other.join().unwrap(), ((None, false), (Some(0), false)));
        assert_eq!(words(), (Some(7), true));
        set_place(None);
        set_inside(false);
        assert_eq!(words(), (None, false));
    }
}
