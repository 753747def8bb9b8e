use std::fs::{self, File};
use std::os::fd::AsRawFd;

use proptest::prelude::*;

use super::*;

/// What is written through a buffer of so many bytes.
fn written(room: usize, write: impl FnOnce(&mut Text<'_>)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report");
    let file = File::create(&path).unwrap();
    let mut room = vec![0; room];
    let mut text = Text::new(&mut room, file.as_raw_fd());
    write(&mut text);
    text.flush();
    fs::read_to_string(path).unwrap()
}

#[test]
fn lines_are_the_same_however_small_the_buffer_is() {
    let all = |text: &mut Text<'_>| {
        text.reason(&["it cannot go on: ", "two\nlines"]);
        text.number("zero", 0);
        text.number("most", u64::MAX);
        text.signed("sent", -6);
        text.signed("least", i32::MIN);
        text.hex("rip", 0x7f00_dead_beef);
        text.bytes("code", &[]);
        text.bytes("stack", &(0..40).collect::<Vec<u8>>());
        text.word("phase", "restoring");
    };
    let expected = "reason: it cannot go on: two lines\nzero: 0\nmost: 18446744073709551615\nsent: -6\nleast: -2147483648\n\
        rip: 0x00007f00deadbeef\ncode: \n\
        stack: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\nstack: 2021222324252627\nphase: restoring\n";
    for room in [1, 7, 64, BUFFER] {
        assert_eq!(written(room, all), expected, "{room}");
    }
}

#[test]
fn a_report_is_told_in_one_line() {
    let of = |signal: i32, code: i32, mapping: Option<&str>, handler: u64| {
        let text = written(64, |text| {
            text.number("signal", signal as u64);
            text.signed("code", code);
            text.hex("address", 0x10);
            text.hex("program-handler", handler);
            text.number("ns-since-restore", 1_500_000_000);
            text.hex("rip", 0x7f00_dead_0123);
            mapping.into_iter().for_each(|line| text.line("mapping-of-rip", line.as_bytes()));
        });
        Report::parse(text.as_bytes()).unwrap()
    };
    let mapping = Some("7f00dead0000-7f00dead2000 r-xp 00001000 fe:01 1234   /lib/a b.so");
    let fault = of(libc::SIGSEGV, 1, mapping, 0);
    assert_eq!(fault.to_string(), "SIGSEGV at address 0x10, in /lib/a b.so+0x1123");
    assert_eq!((fault.signal, fault.address, fault.after), (Some((11, 1)), Some(0x10), Some(1_500_000_000)));
    assert_eq!(of(libc::SIGBUS, 2, None, 0).to_string(), "SIGBUS at address 0x10, in no file, at 0x7f00dead0123");
    let sent = of(libc::SIGABRT, libc::SI_TKILL, mapping, 0x5000);
    assert_eq!(sent.to_string(), "SIGABRT that was sent, in /lib/a b.so+0x1123, which its own handler was given");
    let both = Report::parse(b"signal: 11\ncode: 1\naddress: 0x0\nphase: restoring\nmaps:\nreason: no way\n").unwrap();
    assert_eq!(both.to_string(), "no way; before that, SIGSEGV at address 0x0, while it was put together");
    assert_eq!(Report::parse(b"reason: it diverged\npid: 7\n").unwrap().to_string(), "it diverged");
}

#[test]
fn what_a_process_may_have_written_instead_is_text_at_most() {
    for nothing in [&b""[..], b"\0\0", b"signal: 0\n", b"signal: 65\n", b"signal: x\n", b"maps:\n00-10 r-xp\n"] {
        assert_eq!(Report::parse(nothing), None, "{nothing:?}");
    }
    let escape = Report::parse(b"reason: \x1b[2J\xff\tx\n").unwrap().to_string();
    assert_eq!(escape, "\u{fffd}[2J\u{fffd}\u{fffd}x");
    let long = [&b"reason: "[..], &vec![b'x'; MOST_READ]].concat();
    assert_eq!(Report::parse(&long).unwrap().to_string().len(), 300);
    let late = [&vec![b'\n'; MOST_READ][..], b"reason: x\n"].concat();
    assert_eq!(Report::parse(&late), None);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_not(
        lines in proptest::collection::vec(
            (
                prop_oneof![
                    Just("reason"), Just("signal"), Just("code"), Just("rip"), Just("mapping-of-rip"), Just("address"), Just("phase"),
                ],
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..400),
                    "(0x)?[0-9a-f]{1,18}(-[0-9a-f]{1,18} r-xp [0-9a-f]{1,17} 0:0 0 /x)?".prop_map(String::into_bytes),
                ],
            ),
            0..8,
        ),
    ) {
        let bytes: Vec<u8> = lines.iter().flat_map(|(name, value)| [name.as_bytes(), b": ", value, b"\n"].concat()).collect();
        if let Some(report) = Report::parse(&bytes) {
            let line = report.to_string();
            prop_assert!(line.chars().count() < 1000 && !line.contains(char::is_control), "{line:?}");
        }
    }
}

/// The disposition of a signal that is the tests' process's own.
fn action(signal: i32) -> KernelAction {
    // SAFETY: only reads.
    unsafe { set_action(signal, None) }.unwrap()
}

/// One test, because dispositions are the whole process's.
#[test]
fn what_is_asked_for_the_program_s_disposition_never_names_ours() {
    extern "C" fn own(_: i32) {}
    let signal = libc::SIGTRAP;
    let programs = KernelAction {
        handler: own as *const () as u64,
        flags: SA_RESTORER,
        restorer: return_from_signal as *const () as u64,
        mask: 5,
    };
    let same = |a: KernelAction, b: KernelAction| (a.handler, a.flags, a.mask) == (b.handler, b.flags, b.mask);
    kept(signal).unwrap().set(&programs);
    // SAFETY: the signal is not sent; our handler is prepared for it.
    unsafe { set_action(signal, Some(&before(&programs))) }.unwrap();
    assert!(is_ours(&action(signal)));
    assert_eq!(action(signal).flags & libc::SA_RESTART as u64, 0, "a call that the program's handler ends, ends");
    assert!(same(sigaction::program_action(signal).unwrap(), programs));
    put_back(signal);
    assert!(same(action(signal), programs));
    // The program's own, set meanwhile, stays.
    // SAFETY: ignoring needs no handler.
    unsafe { set_action(signal, Some(&KernelAction { handler: libc::SIG_IGN as u64, ..KernelAction::default() })) }.unwrap();
    put_back(signal);
    assert_eq!(action(signal).handler, libc::SIG_IGN as u64);
    assert!(!stands_before(&action(signal)) && stands_before(&KernelAction::default()));
    // SAFETY: nor does the default.
    unsafe { set_action(signal, Some(&KernelAction::default())) }.unwrap();
}

#[test]
fn faults_come_again_and_the_rest_is_sent_again() {
    for (signal, code, again) in [
        (libc::SIGSEGV, 1, true),
        (libc::SIGSEGV, libc::SI_USER, false),
        (libc::SIGSEGV, 0x80, true),
        (libc::SIGBUS, 2, true),
        (libc::SIGBUS, ADVICE_ON_MEMORY, false),
        (libc::SIGTRAP, 0x80, false),
        (libc::SIGABRT, libc::SI_TKILL, false),
        (libc::SIGSYS, 1, false),
    ] {
        assert_eq!(comes_again(signal, code), again, "signal {signal}, code {code}");
    }
}
