//! What an image must fit to: this build of the library, this processor, this kernel and its vdso.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::arena::state;
use crate::crc::crc32c;
use crate::image::{CpuFeatures, Header};
use crate::sys::{self, call};

/// Descriptors of the engine's own are this high or higher, where the limit allows.
pub const HIGH_FD: i32 = 1000;

static KERNEL: AtomicU64 = AtomicU64::new(0);
static VDSO: AtomicU64 = AtomicU64::new(0);
static CPU: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// Finds out what does not change while the process runs.
pub fn learn(build: u64, vdso: &[u8]) {
    state().build.store(build, Relaxed);
    VDSO.store(hash(vdso), Relaxed);
    let mut names = [0u8; 65 * 6];
    // SAFETY: the kernel writes one utsname.
    let _ = unsafe { call!(libc::SYS_uname, names.as_mut_ptr()) };
    // Release and version, not the host's name.
    KERNEL.store(hash(&names[130..260]), Relaxed);
    let cpu = cpu();
    for (kept, word) in CPU.iter().zip(cpu.words.into_iter().chain([cpu.xsave_bytes])) {
        kept.store(word, Relaxed);
    }
}

/// A hash: checksum and length.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    u64::from(crc32c(0, bytes)) << 32 | bytes.len() as u64
}

/// The processor's features.
#[must_use]
pub fn cpu() -> CpuFeatures {
    use core::arch::x86_64::__cpuid_count;
    let (one, seven, seven_one, thirteen) = (__cpuid_count(1, 0), __cpuid_count(7, 0), __cpuid_count(7, 1), __cpuid_count(13, 0));
    // CPUID 13.0 eax: the features XCR0 may have; ebx: bytes of those that it has.
    CpuFeatures {
        words: [one.ecx, one.edx, seven.ebx, seven.ecx, seven.edx, seven_one.eax, thirteen.eax],
        xsave_bytes: thirteen.ebx,
    }
}

/// A header with all of it.
#[must_use]
pub fn header() -> Header {
    let mut cpu = CpuFeatures { words: [0; 7], xsave_bytes: CPU[7].load(Relaxed) };
    for (word, kept) in cpu.words.iter_mut().zip(&CPU) {
        *word = kept.load(Relaxed);
    }
    Header {
        build: state().build.load(Relaxed),
        cpu,
        kernel: KERNEL.load(Relaxed),
        vdso: VDSO.load(Relaxed),
        ..Header::default()
    }
}

/// Why an image does not fit to this machine and library; nothing if it does.
#[must_use]
pub fn misfit(image: &Header, here: &Header) -> Option<&'static str> {
    let lacks = image.cpu.words.iter().zip(here.cpu.words).any(|(then, now)| then & !now != 0);
    if image.build != here.build {
        Some("it was made by another build of the library: restore it with that one")
    } else if lacks || image.cpu.xsave_bytes != here.cpu.xsave_bytes {
        Some("this processor lacks features of the one it was made on")
    } else if (image.kernel, image.vdso) != (here.kernel, here.vdso) {
        Some("it was made under another kernel, whose vdso the program keeps using")
    } else {
        None
    }
}

/// A name for a new image, never 0.
#[must_use]
pub fn new_id() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes eight bytes.
    let got = unsafe { call!(libc::SYS_getrandom, bytes.as_mut_ptr(), 8, libc::GRND_NONBLOCK) };
    let time = sys::clock(libc::CLOCK_REALTIME);
    (if got == Ok(8) { u64::from_le_bytes(bytes) } else { time }).max(1)
}
