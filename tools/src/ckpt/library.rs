//! The checkpoint library.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, bail};

/// The library's file, beside this command.
const LIBRARY: &str = "libradic_ckpt_preload.so";

/// The library of the same build: beside this command.
pub(crate) fn library() -> Result<PathBuf> {
    let library = env::current_exe()?.with_file_name(LIBRARY);
    if !library.exists() {
        bail!("{} is missing: it belongs beside this command (`cargo build --release` puts it there)", library.display());
    }
    Ok(library)
}
