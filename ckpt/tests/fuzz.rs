//! The fuzzer's check without a fuzzer: it accepts its first inputs, and holds for some changes of them. With RADIC_FUZZ_CORPUS, a folder, the
//! first inputs are put there.

use proptest::prelude::*;
use radic_ckpt::image::meta::{Backing, RegionRef};
use radic_ckpt::image::{Header, ImageWriter, MetaWriter};

#[path = "../fuzz/src/check.rs"]
mod check;
#[path = "../src/crc.rs"]
mod crc;

const PAGE: u64 = 4096;
const BASE: u64 = 0x5555_0000_0000;

/// One page, as it is written.
#[derive(Clone, Copy, PartialEq)]
enum Page {
    Raw(u8),
    Packed(u8),
    Zero,
    Kept,
    Absent,
}

use Page::{Absent, Kept, Packed, Raw, Zero};

fn metadata(pages: u64) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let mut meta = MetaWriter::new(&mut buffer);
    meta.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/tmp");
    let regions = [
        (BASE, BASE + pages * PAGE, Backing::Anonymous, &b"[heap]"[..]),
        (BASE + (1 << 32), BASE + (1 << 32) + PAGE, Backing::SharedFile, b"/tmp/data"),
        (BASE + (2 << 32), BASE + (2 << 32) + (64 << 20), Backing::PrivateFile, b"/lib/libc.so.6"),
    ];
    for (start, end, backing, path) in regions {
        let has_runs = backing != Backing::SharedFile;
        let size = end - start;
        meta.region(&RegionRef { start, end, prot: 3, backing, has_runs, size, head_crc: 7, path, ..RegionRef::default() });
    }
    meta.thread(77, 0x40_1000, 0x7ffe_0000, b"true");
    meta.descriptor(1, b"file", b"/tmp/out", 12);
    meta.note(b"nothing of note");
    let len = meta.finish().unwrap();
    buffer.truncate(len);
    buffer
}

fn image(id: u64, parent: u64, pages: &[Page]) -> Vec<u8> {
    let header = Header { build: 5, entry: 1, stack: 2, id, parent, ..Header::default() };
    let mut writer = ImageWriter::begin(Vec::new(), header, &metadata(pages.len() as u64)).unwrap();
    let mut addr = BASE;
    // Equal pages in a row make a run.
    for run in pages.chunk_by(|a, b| a == b) {
        let len = run.len() * PAGE as usize;
        match run[0] {
            Raw(byte) => writer.raw(addr, &vec![byte; len]).unwrap(),
            Packed(byte) => {
                let bytes = vec![byte; len];
                writer.lz4(addr, &bytes, &lz4_flex::block::compress(&bytes)).unwrap();
            }
            Zero => writer.zero(addr, len).unwrap(),
            Kept => writer.kept(addr, len).unwrap(),
            Absent => {}
        }
        addr += len as u64;
    }
    writer.zero(BASE + (2 << 32), 1 << 20).unwrap();
    writer.finish().unwrap().0
}

/// Inputs that are accepted.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // Runs of the younger images begin and end within those of the older ones, and go over several of them.
    let oldest = image(1, 0, &[Raw(1), Packed(2), Packed(2), Packed(2), Zero, Zero, Absent, Packed(3)]);
    let middle = image(2, 1, &[Kept, Kept, Zero, Kept, Kept, Raw(4), Raw(4), Kept]);
    let newest = image(3, 2, &[Kept, Kept, Kept, Kept, Packed(5), Kept, Absent, Kept]);
    vec![
        ("whole", check::input(0, std::slice::from_ref(&oldest))),
        ("whole-checked", check::input(check::LEAVE_CHECKSUMS, std::slice::from_ref(&oldest))),
        ("packed", check::input(0, &[image(1, 0, &[Packed(1), Packed(2)])])),
        ("empty", check::input(0, &[image(1, 0, &[Absent])])),
        ("increment", check::input(0, &[middle.clone(), oldest.clone()])),
        ("chain", check::input(0, &[newest.clone(), middle.clone(), oldest.clone()])),
        ("chain-checked", check::input(check::LEAVE_CHECKSUMS | check::LEAVE_PARENTS, &[newest, middle, oldest])),
    ]
}

#[test]
fn the_first_inputs_are_accepted() {
    for (name, input) in seeds() {
        assert!(check::check(&input), "{name}");
        if let Some(folder) = std::env::var_os("RADIC_FUZZ_CORPUS").map(std::path::PathBuf::from) {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), &input).unwrap();
        }
    }
}

#[test]
fn checksums_are_made_right() {
    let (_, mut input) = seeds().swap_remove(5);
    // The newest image's id, its first run's checksum, the end record of the last image.
    let (len, end) = (input.len(), 5 + 144 + metadata(8).len());
    for at in [5 + 56, end + 24, len - 5] {
        input[at] ^= 8;
        assert!(check::check(&input), "byte {at}");
    }
    input[0] = check::LEAVE_CHECKSUMS;
    assert!(!check::check(&input));
}

proptest! {
    #[test]
    fn changed_inputs_do_no_harm(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut seeds = seeds();
        let mut input = seeds.swap_remove(which.index(seeds.len())).1;
        for (at, value) in changes {
            let at = at.index(input.len());
            input[at] = value;
        }
        input.truncate(cut.map_or(input.len(), |cut| cut.index(input.len())));
        check::check(&input);
    }
}
