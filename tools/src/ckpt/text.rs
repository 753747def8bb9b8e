//! What `radic ckpt` shows.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use radic_ckpt::image::{Report, hexadecimal};
use serde::Serialize;

/// An image that an increment needs.
#[derive(Serialize)]
pub(super) struct Ancestor {
    pub(super) id: String,
    pub(super) image: PathBuf,
}

/// An image, and what it needs.
#[derive(Serialize)]
pub(super) struct Inspected {
    #[serde(flatten)]
    pub(super) report: Report,
    /// The parent first, a whole image last; empty for a whole image.
    pub(super) ancestors: Vec<Ancestor>,
    /// Why it cannot be restored as things are.
    pub(super) missing: Option<String>,
}

pub(super) fn in_words(Inspected { report, ancestors, missing }: &Inspected) -> String {
    let process = &report.meta.process;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', " ").trim_end().to_owned();
    let mut out = format!(
        "program      {}\ncommand      {}\ndirectory    {}\npid          {}\nimage        {}, generation {}\nbytes        {}\n",
        text(&process.exe),
        text(&process.cmdline),
        text(&process.cwd),
        process.pid,
        hexadecimal(report.id),
        report.generation,
        report.bytes
    );
    for ancestor in ancestors {
        out += &format!("ancestor     {} in {}\n", ancestor.id, ancestor.image.display());
    }
    if let Some(missing) = missing {
        out += &format!("missing      {missing}\n");
    }
    out += &format!(
        "memory       {} bytes raw, {} packed to {}, {} zero, {} as in the parent, in {} runs\n",
        report.raw_bytes, report.packed_memory_bytes, report.packed_bytes, report.zero_bytes, report.kept_bytes, report.runs
    );
    out += &format!("regions      {}\n", report.meta.regions.len());
    for thread in &report.meta.threads {
        out += &format!("thread       {} {} at {:#x}\n", thread.tid, text(&thread.name), thread.instruction);
    }
    for fd in &report.meta.descriptors {
        out += &format!("descriptor   {} {} {} at {}\n", fd.fd, text(&fd.kind), text(&fd.path), fd.position);
    }
    for note in &report.meta.notes {
        out += &format!("note         {note}\n");
    }
    out
}

/// Time before the first line of a meter, and between two.
const PACE: Duration = Duration::from_millis(500);

/// How far work has come, in one line of the terminal, if there is one; gone when dropped.
pub(super) struct Meter {
    what: &'static str,
    next: Option<Instant>,
    shown: bool,
}

impl Meter {
    pub(super) fn new(what: &'static str) -> Self {
        let next = std::io::stderr().is_terminal().then(|| Instant::now() + PACE);
        Self { what, next, shown: false }
    }

    /// `done` bytes of `all`, if that is known.
    pub(super) fn show(&mut self, done: u64, all: Option<u64>) {
        if self.next.is_none_or(|next| Instant::now() < next) {
            return;
        }
        self.next = Some(Instant::now() + PACE);
        self.shown = true;
        let all = all.map_or(String::new(), |all| format!(" of {}", all >> 20));
        // Back to the line's beginning, and clears what is left of a longer one.
        let _ = write!(std::io::stderr(), "\rradic: {}{all} MiB {}\x1b[K", done >> 20, self.what);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
