//! The reading of a report. The process that has written it may have written anything: every length has a bound, and nothing is taken for
//! more than text.

use crate::maps;

/// Bytes of a report that are worth reading: what comes after them is the rest of a memory map.
pub const MOST_READ: usize = 64 << 10;
/// Characters of one text that are kept.
const MOST_TEXT: usize = 300;

/// What a report says, as far as one line can tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The signal, and its code: positive for a fault.
    pub signal: Option<(i32, i32)>,
    /// The faulting address.
    pub address: Option<u64>,
    /// Where the thread was: the file, and the offset in it; for memory of no file, the address.
    pub at: Option<(String, u64)>,
    /// Nanoseconds from the beginning of the restart to the report.
    pub after: Option<u64>,
    /// Why the process has ended itself.
    pub reason: Option<String>,
    /// The process was not whole yet: the engine was at work.
    pub in_engine: bool,
    /// The program has a handler of its own, which the signal went to.
    pub handled: bool,
}

impl Report {
    /// Reads the first [`MOST_READ`] bytes of a report. None: it says nothing that is understood.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Report> {
        let bytes = &bytes[..bytes.len().min(MOST_READ)];
        let value = |name: &str| {
            let found = maps::lines(bytes).find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b": "));
            found.map(|value| value.trim_ascii())
        };
        let number =
            |name: &str| value(name).and_then(|value| str::from_utf8(value).ok()).and_then(|value| value.parse::<i64>().ok());
        let hex = |name: &str| value(name).and_then(|value| value.strip_prefix(b"0x")).map(|value| maps::hex(value).0);
        let signal = number("signal").and_then(|signal| i32::try_from(signal).ok()).filter(|signal| (1..=64).contains(signal));
        let code = number("code").and_then(|code| i32::try_from(code).ok()).unwrap_or(0);
        let mapping = value("mapping-of-rip").and_then(maps::parse);
        let at = hex("rip").map(|rip| match mapping {
            Some(line) if !line.path.is_empty() && (line.start..line.end).contains(&rip) => {
                (text(line.path), (rip - line.start).wrapping_add(line.offset))
            }
            _ => (String::new(), rip),
        });
        let report = Report {
            signal: signal.map(|signal| (signal, code)),
            address: hex("address"),
            at,
            after: number("ns-since-restore").and_then(|after| u64::try_from(after).ok()),
            reason: value("reason").map(text),
            in_engine: value("phase") == Some(b"restoring"),
            handled: hex("program-handler").is_some_and(|handler| handler > libc::SIG_IGN as u64),
        };
        (report.signal.is_some() || report.reason.is_some()).then_some(report)
    }
}

/// Text for one line of an event: nothing in it moves a terminal's cursor.
fn text(bytes: &[u8]) -> String {
    let clean = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    String::from_utf8_lossy(bytes).chars().map(clean).take(MOST_TEXT).collect()
}

/// In one line: `SIGSEGV at address 0x10, in /usr/lib/libc.so.6+0x9a3f1`.
impl core::fmt::Display for Report {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if let Some(reason) = &self.reason {
            write!(f, "{reason}")?;
        }
        let Some((signal, code)) = self.signal else { return Ok(()) };
        if self.reason.is_some() {
            f.write_str("; before that, ")?;
        }
        f.write_str(&signal_name(signal))?;
        match self.address.filter(|_| code > 0) {
            Some(address) => write!(f, " at address {address:#x}")?,
            None => f.write_str(" that was sent")?,
        }
        match &self.at {
            Some((path, offset)) if path.is_empty() => write!(f, ", in no file, at {offset:#x}")?,
            Some((path, offset)) => write!(f, ", in {path}+{offset:#x}")?,
            None => {}
        }
        if self.in_engine {
            f.write_str(", while it was put together")?;
        } else if self.handled {
            f.write_str(", which its own handler was given")?;
        }
        Ok(())
    }
}

/// A signal's name; a number for one that does not end processes by itself.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
