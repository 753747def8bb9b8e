//! The checkpoint engine as a library to preload: nothing but its constructor.

use radic_ckpt::{Mode, Outcome};

/// For programs that save themselves: writes an image to `fd`, in a child (`fork` 1) or at once (0). 0: saved, 1: this is the restored process,
/// -1: refused, with the reason on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn radic_ckpt_save(fd: i32, fork: i32) -> i32 {
    match radic_ckpt::checkpoint(fd, if fork == 1 { Mode::Fork } else { Mode::Stop }) {
        Ok(Outcome::Saved { .. }) => 0,
        Ok(Outcome::Restored) => 1,
        Err(refusal) => {
            eprintln!("radic: this program cannot be saved: {refusal}");
            -1
        }
    }
}

/// Runs before `main`, and after the constructors of the libraries the program needs.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    if let Err(reason) = radic_ckpt::launch::constructor() {
        let restoring = std::env::var_os(radic_ckpt::launch::RESTORE_VARIABLE).is_some();
        let what = if restoring { "the process cannot be restored" } else { "this program cannot be saved" };
        eprintln!("radic: {what}: {reason}");
        if restoring {
            std::process::exit(125);
        }
    }
}
