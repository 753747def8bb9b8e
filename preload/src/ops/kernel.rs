//! Calls of which the kernel's answer is recorded as it is: random bytes, and what was used of the processor.

use radic_observer::Answer;
use radic_wire::determinant::KernelCall;
use radic_wire::limits;
use rustix::io::Errno;

use super::waiting::take_turns;
use crate::ending::sure;
use crate::layer;
use crate::used::{TIMES, USAGE, Used, WHOSE};

/// What the kernel answers to `call`, in `room`, which it puts there by `ask`. None: nothing of ours; the call passes through.
fn answer(
    call: KernelCall,
    room: &mut [u8],
    ask: impl FnOnce(&mut Used, &mut [u8]) -> Result<usize, Errno>,
    again: impl FnOnce(&mut Used, &[u8]),
) -> Option<Result<usize, Errno>> {
    let mut layer = layer::enter()?;
    let thread = layer.thread();
    loop {
        match sure(layer.observer.kernel(thread, call, room)) {
            Answer::Live => {
                let count = match ask(&mut layer.used, room) {
                    Ok(count) => count,
                    Err(error) => return Some(Err(error)),
                };
                sure(layer.observer.handle_kernel(thread, call, &room[..count]));
                return Some(Ok(count));
            }
            Answer::Again(count) => {
                again(&mut layer.used, &room[..count]);
                return Some(Ok(count));
            }
            Answer::Wait(other) => layer = take_turns(layer, other).ok()?,
        }
    }
}

/// Random bytes, which `read` gets from the kernel. Fewer than there is room for: it was interrupted.
pub fn random(room: &mut [u8], read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Option<Result<usize, Errno>> {
    let mut done = 0;
    for piece in room.chunks_mut(limits::ANSWER) {
        match answer(KernelCall::Random, piece, |_, piece| read(piece), |_, _| ()) {
            Some(Ok(count)) => {
                done += count;
                if count < piece.len() {
                    break;
                }
            }
            Some(Err(_)) if done > 0 => break,
            other => return other,
        }
    }
    Some(Ok(done))
}

/// `getrusage`, of which `real` gives the numbers. The first four are times, in seconds and microseconds.
pub fn usage(whose: i32, real: impl Fn() -> Result<[i64; USAGE], Errno>) -> Option<Result<[i64; USAGE], Errno>> {
    const SECOND_US: i64 = 1_000_000;
    let place = WHOSE.iter().position(|of| *of == whose)?;
    let micros =
        |numbers: &[i64; USAGE], at: usize| numbers[2 * at].saturating_mul(SECOND_US).saturating_add(numbers[2 * at + 1]);
    numbers(
        KernelCall::Usage,
        |used| {
            let mut numbers = real()?;
            for at in 0..2 {
                let told = used.usage[place][at].tell(micros(&numbers, at));
                (numbers[2 * at], numbers[2 * at + 1]) = (told.div_euclid(SECOND_US), told.rem_euclid(SECOND_US));
            }
            Ok(numbers)
        },
        |used, numbers| (0..2).for_each(|at| used.usage[place][at].handle_told(micros(numbers, at))),
    )
}

/// `times`, of which `real` gives the numbers.
pub fn times(real: impl Fn() -> Result<[i64; TIMES], Errno>) -> Option<Result<[i64; TIMES], Errno>> {
    numbers(
        KernelCall::Times,
        |used| {
            let mut numbers = real()?;
            numbers.iter_mut().zip(&mut used.times).for_each(|(number, time)| *number = time.tell(*number));
            Ok(numbers)
        },
        |used, numbers| used.times.iter_mut().zip(numbers).for_each(|(time, told)| time.handle_told(*told)),
    )
}

/// An answer that consists of numbers.
fn numbers<const N: usize>(
    call: KernelCall,
    ask: impl Fn(&mut Used) -> Result<[i64; N], Errno>,
    again: impl Fn(&mut Used, &[i64; N]),
) -> Option<Result<[i64; N], Errno>> {
    const BYTES: usize = size_of::<i64>();
    let decode = |bytes: &[u8]| {
        let mut numbers = [0; N];
        for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
            *number = i64::from_le_bytes(*bytes);
        }
        numbers
    };
    let mut room = [0; USAGE * BYTES];
    let room = &mut room[..N * BYTES];
    let asked = |used: &mut Used, room: &mut [u8]| {
        let numbers = ask(used)?;
        room.iter_mut().zip(numbers.iter().flat_map(|number| number.to_le_bytes())).for_each(|(to, from)| *to = from);
        Ok(room.len())
    };
    let result = answer(call, room, asked, |used, bytes| again(used, &decode(bytes)))?;
    Some(result.map(|_| decode(room)))
}
