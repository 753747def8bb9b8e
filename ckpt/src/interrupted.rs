//! A blocking call that our signal has interrupted is made again: the program must not see an EINTR. The kernel does that by itself for
//! most calls (SA_RESTART); for the others it returns EINTR if the signal has a handler, and this module puts the registers back as
//! they were before the system call.
//!
//! Two things have to be found out. Which call it was: the kernel has overwritten the number in rax, so the instructions in front of the
//! system call are read (`call_number`). And how much of a timeout is left: the kernel does not tell, so from the first
//! interruption on a deadline is kept; a call lasts at most twice its timeout, however many checkpoints there are.

use crate::arena::state;
use crate::sys;
use crate::waits::{LEFT, WAITS, Wait};

/// Bytes in front of a system call that are looked at.
const WINDOW: usize = 24;
/// Most bytes between the instruction that sets eax and the system call.
const GAP: usize = 12;

const NANOSLEEP: i64 = libc::SYS_nanosleep;
const CLOCK_NANOSLEEP: i64 = libc::SYS_clock_nanosleep;
const POLL: i64 = libc::SYS_poll;
const PPOLL: i64 = libc::SYS_ppoll;
const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;
const EPOLL_PWAIT: i64 = libc::SYS_epoll_pwait;
const EPOLL_PWAIT2: i64 = libc::SYS_epoll_pwait2;
const SIGTIMEDWAIT: i64 = libc::SYS_rt_sigtimedwait;
const SEMTIMEDOP: i64 = libc::SYS_semtimedop;
const FUTEX: i64 = libc::SYS_futex;
/// FUTEX_WAIT without its flags: the one operation whose time is relative.
const FUTEX_WAIT: i64 = 0;
const FUTEX_COMMAND: i64 = 127;

/// A thread looks for a free place among so many.
const PROBES: usize = 16;

type Registers = [i64; 23];

/// Puts the registers back as they were before an interrupted call; false: there is none.
pub fn rewind(context: *mut libc::ucontext_t) -> bool {
    // SAFETY: the kernel gives a valid context, ours until we return.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize];
    if registers[libc::REG_RAX as usize] != -i64::from(libc::EINTR) || registers[libc::REG_RCX as usize] != at {
        return false;
    }
    let number = if at == after_indirect() { indirect_number(context) } else { number_before(at as u64, registers) };
    if let Some(number) = number {
        registers[libc::REG_RIP as usize] = at - 2;
        registers[libc::REG_RAX as usize] = shorten(number, registers);
    }
    number.is_some()
}

/// Lets a call that would be made (again) end with EINTR instead.
pub fn end(context: *mut libc::ucontext_t) {
    // SAFETY: the calling thread's own frame.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] += 2;
    registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
}

/// Is the thread about to make a call that EINTR may end, perhaps again (the kernel restarts most calls by itself)?
pub fn at_slow_call(context: *mut libc::ucontext_t) -> bool {
    // SAFETY: the calling thread's own frame.
    let registers = unsafe { &(*context).uc_mcontext.gregs };
    let (after, number) = (registers[libc::REG_RIP as usize] + 2, registers[libc::REG_RAX as usize]);
    let meant = if after == after_indirect() { indirect_number(context) } else { number_before(after as u64, registers) };
    if meant != Some(number) {
        return false;
    }
    let descriptor = registers[libc::REG_RDI as usize] as i32;
    let slow = || sys::fstat(descriptor).is_ok_and(|stat| !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR));
    match number {
        libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_futex | libc::SYS_flock => true,
        libc::SYS_fcntl => matches!(registers[libc::REG_RSI as usize] as i32, libc::F_SETLKW | libc::F_OFD_SETLKW),
        libc::SYS_read | libc::SYS_readv | libc::SYS_write | libc::SYS_writev => slow(),
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_accept | libc::SYS_accept4 => {
            true
        }
        _ => false,
    }
}

fn number_before(at: u64, registers: &Registers) -> Option<i64> {
    let mut code = [0u8; WINDOW];
    // The code may begin less than a window before: then a smaller one does.
    let have = [WINDOW, 7].into_iter().find(|len| sys::peek(at - *len as u64, &mut code[..*len]) == Ok(*len))?;
    call_number(&code[..have], registers)
}

/// The number in eax at the system call that `code` ends with: `mov eax, NUMBER` or `mov eax, REGISTER`, then perhaps a few
/// instructions that leave eax alone.
fn call_number(code: &[u8], registers: &Registers) -> Option<i64> {
    let before = code.strip_suffix(&[0x0f, 0x05])?;
    (0..=GAP.min(before.len())).find_map(|gap| {
        let (setter, gap) = before.split_at(before.len() - gap);
        if !leaves_eax(gap) {
            return None;
        }
        match setter {
            // A prefix before it may make it another register (mov r8d, 8 is common before ppoll, xor r8d, r8d before others), or be the last byte of
            // another instruction: that cannot be told, and a wrong number is worse than none.
            [.., 0x41 | 0x43..=0x45 | 0x47 | 0x49 | 0x4b..=0x4d | 0x4f, 0x31 | 0x33, 0xc0] => None,
            [.., 0x41 | 0x43 | 0x45 | 0x47 | 0x49 | 0x4b | 0x4d | 0x4f, 0xb8, _, _, 0, 0] => None,
            // xor eax, eax: read.
            [.., 0x31 | 0x33, 0xc0] => Some(0),
            [.., 0xb8, a, b, 0, 0] => Some(i64::from(u16::from_le_bytes([*a, *b]))),
            // mov eax, r32, as the compilers write it: 89 /r with rm = eax; REX.R for r8d and up.
            [.., rex, 0x89, modrm] if modrm & 0xc7 == 0xc0 => {
                let (prefixed, high) = (matches!(rex, 0x40..=0x4f), (rex & 4) << 1);
                let from = modrm >> 3 & 7 | if prefixed { high } else { 0 };
                let register = if prefixed && rex & 1 == 1 { None } else { preserved(from) };
                register.map(|register| i64::from(registers[register] as u32))
            }
            _ => None,
        }
        .filter(|number| *number < 1024)
    })
}

/// Are these whole instructions of the few kinds that compilers put there, none of which writes to eax?
fn leaves_eax(mut code: &[u8]) -> bool {
    while let Some((first, rest)) = code.split_first() {
        let (rex, op, rest) = match first {
            0x40..=0x4f => match rest.split_first() {
                Some((op, rest)) => (*first, *op, rest),
                None => return false,
            },
            _ => (0, *first, rest),
        };
        let to_eax = |register: u8, bit: u8| register == 0 && rex & bit == 0;
        let modrm = rest.first().copied().unwrap_or(0);
        let (reg, rm) = (modrm >> 3 & 7, modrm & 7);
        let len = match (op, modrm >> 6) {
            // mov or xor register, register.
            (0x89 | 0x31, 3) if !to_eax(rm, 1) => 1,
            (0x8b | 0x33, 3) if !to_eax(reg, 4) => 1,
            // mov register, [register + disp8], or [rsp + disp8] with its SIB byte.
            (0x8b, 1) if !to_eax(reg, 4) => {
                if rm == 4 {
                    3
                } else {
                    2
                }
            }
            // xor and and of a byte or a word with an immediate.
            (0x80, 3) if !to_eax(rm, 1) => 2,
            (0x81, 3) if !to_eax(rm, 1) => 5,
            // mov register, imm32.
            (0xb8..=0xbf, _) if rex & 8 == 0 && !to_eax(op - 0xb8, 1) => 4,
            _ => return false,
        };
        match rest.get(len..) {
            Some(rest) => code = rest,
            None => return false,
        }
    }
    true
}

/// Where the context keeps a register that a system call preserves, by its number in the instruction set.
fn preserved(register: u8) -> Option<usize> {
    let index = match register {
        2 => libc::REG_RDX,
        3 => libc::REG_RBX,
        5 => libc::REG_RBP,
        6 => libc::REG_RSI,
        7 => libc::REG_RDI,
        8 => libc::REG_R8,
        9 => libc::REG_R9,
        10 => libc::REG_R10,
        12 => libc::REG_R12,
        13 => libc::REG_R13,
        14 => libc::REG_R14,
        15 => libc::REG_R15,
        _ => return None,
    };
    Some(index as usize)
}

/// Lets a call that is made again wait only for the rest of its time; gives its number, which may be that of a call with a finer clock.
fn shorten(number: i64, registers: &mut Registers) -> i64 {
    let [rdi, rsi, rdx, r10, r8, r9] = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
        .map(|register| register as usize);
    match number {
        NANOSLEEP => sleep(registers, rdi, rsi),
        CLOCK_NANOSLEEP if registers[rsi] == 0 => sleep(registers, rdx, r10),
        SIGTIMEDWAIT => pointed(registers, rdx),
        SEMTIMEDOP | EPOLL_PWAIT2 => pointed(registers, r10),
        FUTEX if registers[rsi] & FUTEX_COMMAND == FUTEX_WAIT => pointed(registers, r10),
        POLL => {
            if again(registers[rdx]) {
                return PPOLL; // The kernel itself has written what is left.
            }
            if milliseconds(registers, rdx) {
                (registers[r10], registers[r8]) = (0, 8);
                return PPOLL;
            }
        }
        EPOLL_WAIT | EPOLL_PWAIT => {
            if again(registers[r10]) {
                pointed(registers, r10);
                return EPOLL_PWAIT2;
            }
            if milliseconds(registers, r10) {
                if number == EPOLL_WAIT {
                    (registers[r8], registers[r9]) = (0, 8);
                }
                return EPOLL_PWAIT2;
            }
        }
        _ => {} // No timeout, or an absolute one, or one that the kernel counts down by itself.
    }
    number
}

/// A sleep that knows what is left if the program has asked for that.
fn sleep(registers: &mut Registers, time: usize, rest: usize) {
    if !again(registers[time]) && registers[rest] != 0 {
        registers[time] = registers[rest];
    } else {
        pointed(registers, time);
    }
}

/// The time is in memory, at the address in a register; 0: there is none.
fn pointed(registers: &mut Registers, time: usize) {
    if again(registers[time]) {
        // SAFETY: one of the waits, this thread's own.
        let wait = unsafe { &*((registers[time] as u64 - LEFT) as *const Wait) };
        wait.count_down();
    } else if registers[time] != 0 {
        let mut given = [0u8; 16];
        let got = sys::peek(registers[time] as u64, &mut given);
        let (words, _) = given.as_chunks::<8>();
        let given = [i64::from_ne_bytes(words[0]), i64::from_ne_bytes(words[1])];
        if let (Ok(16), Some(nanoseconds)) = (got, nanoseconds(given)) {
            place(registers, time, nanoseconds);
        }
    }
}

/// The time is in a register, in milliseconds; negative: none. True: it is in memory now.
fn milliseconds(registers: &mut Registers, time: usize) -> bool {
    let given = registers[time] as i32;
    given > 0 && place(registers, time, given as u64 * 1_000_000)
}

fn nanoseconds([seconds, nanoseconds]: [i64; 2]) -> Option<u64> {
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::try_from(nanoseconds).ok()?)
}

/// Is this the address of a wait's time?
fn again(value: i64) -> bool {
    let waits = state().waits.as_ptr_range();
    let range = waits.start as u64..waits.end as u64;
    range.contains(&(value as u64)) && (value as u64 - LEFT - range.start).is_multiple_of(size_of::<Wait>() as u64)
}

/// Takes a wait for the calling thread and puts its address in the register. False: all are taken; then the call waits all its time again.
fn place(registers: &mut Registers, time: usize, nanoseconds: u64) -> bool {
    let (now, me) = (sys::clock(libc::CLOCK_MONOTONIC), sys::gettid());
    let free = (0..PROBES).map(|probe| &state().waits[(me as usize + probe * 61) % WAITS]).find(|wait| wait.take(me, now));
    if let Some(wait) = free {
        // SAFETY: taken: no other thread looks at it.
        unsafe { *wait.deadline.get() = now.saturating_add(nanoseconds) };
        wait.count_down();
        registers[time] = wait.left.get() as i64;
    }
    free.is_some()
}

/// `syscall` of the C library, but with the call's number where it can be found again after an interruption: in xmm15, which no
/// caller expects to be preserved. (The C library's own keeps it nowhere.) The library that is preloaded exports it as `syscall`.
///
/// # Safety
/// As for the C library's.
#[unsafe(naked)]
pub unsafe extern "C" fn indirect_syscall() {
    core::arch::naked_asm!(
        "movq xmm15, rdi",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        ".globl radic_ckpt_after_indirect",
        ".hidden radic_ckpt_after_indirect",
        "radic_ckpt_after_indirect:",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "push rax",
        "call {errno}",
        "pop rcx",
        "neg ecx",
        "mov [rax], ecx",
        "mov rax, -1",
        "ret",
        errno = sym libc::__errno_location,
    )
}

/// The address behind the system call in `indirect_syscall`.
fn after_indirect() -> i64 {
    unsafe extern "C" {
        static radic_ckpt_after_indirect: u8;
    }
    // Only the address is taken.
    &raw const radic_ckpt_after_indirect as i64
}

fn indirect_number(context: *const libc::ucontext_t) -> Option<i64> {
    // SAFETY: the kernel gives a valid context; it has a floating-point state, or says so by a null pointer.
    unsafe {
        let state = (*context).uc_mcontext.fpregs;
        let words = state.as_ref()?._xmm[15].element;
        Some(i64::from(words[0]) | i64::from(words[1]) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(code: &[u8]) -> Option<i64> {
        let mut registers = [0; 23];
        registers[libc::REG_R8 as usize] = 202;
        registers[libc::REG_RBX as usize] = 7;
        call_number(code, &registers)
    }

    /// As glibc 2.36 has them.
    #[test]
    fn shapes_of_system_calls() {
        // poll: mov eax, 7.
        assert_eq!(number(b"\x90\xb8\x07\0\0\0\x0f\x05"), Some(7));
        // pselect with cancellation: mov eax, 0x10e; mov edi, [rsp + 0x1c].
        assert_eq!(number(b"\x20\xb8\x0e\x01\0\0\x8b\x7c\x24\x1c\x0f\x05"), Some(270));
        // recvfrom: two loads between.
        assert_eq!(number(b"\x24\xb8\x2d\0\0\0\x48\x8b\x54\x24\x10\x48\x8b\x74\x24\x08\x0f\x05"), Some(45));
        // A futex: mov eax, r8d; xor sil, 0x80.
        assert_eq!(number(b"\x4c\x89\xf7\x44\x89\xc0\x40\x80\xf6\x80\x0f\x05"), Some(202));
        // read with cancellation: xor eax, eax.
        assert_eq!(number(b"\x24\x31\xc0\x8b\x7c\x24\x08\x0f\x05"), Some(0));
        // ppoll as compilers put it inline: mov eax, 0x10f; mov r8d, 8; xor r10d, r10d; and with xor r8d, r8d last.
        assert_eq!(number(b"\xb8\x0f\x01\0\0\x41\xb8\x08\0\0\0\x45\x31\xd2\x0f\x05"), Some(271));
        assert_eq!(number(b"\xb8\x0f\x01\0\0\x45\x31\xc0\x0f\x05"), Some(271));
        // mov eax, ebx without a prefix.
        assert_eq!(number(b"\x90\x90\x89\xd8\x0f\x05"), Some(7));
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        // A load into eax; a call; a number that no call has.
        for code in [
            &b"\xb8\x07\0\0\0\x8b\x44\x24\x08\x0f\x05"[..],
            b"\xb8\x07\0\0\0\xe8\x01\x02\x03\x04\x0f\x05",
            b"\xb8\x07\x10\0\0\x0f\x05",
            b"\x4c\x8b\x4c\x24\x08\x0f\x05",
            // mov r8d, 8 and xor r8d, r8d: other registers, at the end or with more behind them.
            b"\x41\xb8\x08\0\0\0\x0f\x05",
            b"\x41\xb8\x08\0\0\0\x4c\x89\xe7\x45\x31\xd2\x0f\x05",
            b"\x45\x31\xc0\x0f\x05",
            // mov r8d, ebx; mov rax, r11.
            b"\x41\x89\xd8\x0f\x05",
            b"\x4c\x89\xd8\x0f\x05",
            b"\x0f\x05",
            b"",
        ] {
            assert_eq!(number(code), None, "{code:x?}");
        }
    }
}
