//! The checkpoint engine as a library to preload: nothing but its constructor.

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
