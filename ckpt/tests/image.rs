//! The image format: what is written is read back; what is damaged is refused, whatever the damage.

use proptest::prelude::*;
use radic_ckpt::image::format::HEADER_BYTES;
use radic_ckpt::image::meta::RegionRef;
use radic_ckpt::image::{Header, ImageError, ImageWriter, Meta, MetaWriter, Reader, inspect, verify};

const BASE: u64 = 0x5555_0000_0000;

fn metadata(pages: u64) -> Vec<u8> {
    let mut buffer = vec![0; 64 << 10];
    let mut meta = MetaWriter::new(&mut buffer);
    meta.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/tmp");
    meta.region(&RegionRef {
        start: BASE,
        end: BASE + pages * 4096,
        prot: 3,
        has_runs: true,
        path: b"[heap]",
        ..RegionRef::default()
    });
    meta.thread(77, 0x40_1000, 0x7ffe_0000, b"true");
    meta.descriptor(1, b"file", b"/tmp/out", 12);
    meta.note(b"nothing of note");
    let len = meta.finish().unwrap();
    buffer.truncate(len);
    buffer
}

/// Kind of each page: zero, compressible, random.
fn page(kind: u8, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..4096u32)
        .map(|i| match kind {
            0 => 0,
            1 => (i / 64) as u8 | 1,
            _ => {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            }
        })
        .collect()
}

fn image(kinds: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let header = Header { build: 5, entry: 1, stack: 2, id: 9, ..Header::default() };
    let mut writer = ImageWriter::begin(Vec::new(), header, &metadata(kinds.len() as u64)).unwrap();
    let mut memory = Vec::new();
    for (i, &kind) in kinds.iter().enumerate() {
        let addr = BASE + 4096 * i as u64;
        let bytes = page(kind, i as u64 * 77);
        match kind {
            0 => writer.zero(addr, 4096).unwrap(),
            1 => writer.lz4(addr, &bytes, &lz4_flex::block::compress(&bytes)).unwrap(),
            _ => writer.raw(addr, &bytes).unwrap(),
        }
        memory.extend_from_slice(&bytes);
    }
    let (stream, len) = writer.finish().unwrap();
    assert_eq!(stream.len() as u64, len);
    (stream, memory)
}

/// The metadata and the memory of an image, all of it checked.
fn read_back(stream: &[u8]) -> Result<(Meta, Vec<u8>), ImageError> {
    let mut reader = Reader::begin(stream)?;
    let (mut run, mut memory) = (Vec::new(), Vec::new());
    while let Some(record) = reader.next_run(&mut run)? {
        assert_eq!(record.addr, BASE + memory.len() as u64, "runs follow each other");
        memory.extend_from_slice(&run);
    }
    Ok((reader.meta, memory))
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(kinds in prop::collection::vec(0u8..3, 1..20)) {
        let (stream, memory) = image(&kinds);
        let (meta, read) = read_back(&stream).unwrap();
        prop_assert_eq!(meta.process.pid, 77);
        prop_assert_eq!(meta.notes.len(), 1);
        prop_assert_eq!(read, memory);
        prop_assert_eq!(inspect(&stream[..]).unwrap().bytes, stream.len() as u64);
    }

    #[test]
    fn a_truncated_image_is_refused(kinds in prop::collection::vec(0u8..3, 1..6), part in 0.0..1.0f64) {
        let (stream, _) = image(&kinds);
        let len = (stream.len() as f64 * part) as usize;
        prop_assert!(verify(&stream[..len]).is_err());
    }

    /// LZ4 can say the same memory in several ways, and checksums are over memory: a byte of a packed run may change without a
    /// difference to what is restored.
    #[test]
    fn one_changed_byte_is_refused_or_changes_nothing(
        kinds in prop::collection::vec(0u8..3, 1..6), at in any::<prop::sample::Index>(), by in 1u8..
    ) {
        let (mut stream, memory) = image(&kinds);
        let at = at.index(stream.len());
        stream[at] ^= by;
        if let Ok((meta, read)) = read_back(&stream) {
            prop_assert_eq!((meta, read), (Meta::decode(&metadata(kinds.len() as u64)).unwrap(), memory), "byte {}", at);
            prop_assert!(kinds.contains(&1), "byte {}: nothing here is packed", at);
        }
    }

    /// An attacker that damages an image repairs the checksum of the header and of the metadata.
    #[test]
    fn metadata_with_a_right_checksum_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut meta = metadata(3);
        for (at, value) in changes {
            let at = at.index(meta.len());
            meta[at] = value;
        }
        let writer = ImageWriter::begin(Vec::new(), Header::default(), &meta).unwrap();
        let (stream, _) = writer.finish().unwrap();
        let _ = inspect(&stream[..]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(verify(&bytes[..]).is_err());
        let _ = Meta::decode(&bytes);
    }
}

#[test]
fn an_image_that_promises_much_costs_nothing() {
    // A header that announces more metadata than the bound allows is refused before anything is read.
    let header = Header { meta_len: u32::MAX, ..Header::default() };
    let error = verify(&header.encode()[..]).unwrap_err();
    assert!(error.to_string().contains("longer than its bound"), "{error}");
}

#[test]
fn a_run_outside_its_region_is_refused() {
    let mut writer = ImageWriter::begin(Vec::new(), Header::default(), &metadata(1)).unwrap();
    writer.raw(BASE + 4096, &[1; 4096]).unwrap();
    let (stream, _) = writer.finish().unwrap();
    let error = verify(&stream[..]).unwrap_err();
    assert!(error.to_string().contains("no region"), "{error}");
}

#[test]
fn only_an_increment_keeps_pages() {
    let increment = Header { id: 2, parent: 1, ..Header::default() };
    let mut writer = ImageWriter::begin(Vec::new(), increment, &metadata(1 << 20)).unwrap();
    writer.kept(BASE, 1 << 30).unwrap();
    writer.raw(BASE + (1 << 30), &[1; 4096]).unwrap();
    let (stream, _) = writer.finish().unwrap();
    let report = inspect(&stream[..]).unwrap();
    assert_eq!((report.kept_bytes, report.raw_bytes), (1 << 30, 4096));
    // The same with a header that names no parent.
    let header = Header { parent: 0, ..Header::decode(stream.first_chunk().unwrap()).unwrap() };
    let mut whole = stream;
    whole[..HEADER_BYTES].copy_from_slice(&header.encode());
    let error = inspect(&whole[..]).unwrap_err();
    assert!(error.to_string().contains("keeps pages of a parent"), "{error}");
}

#[test]
fn an_image_is_not_its_own_parent() {
    let header = Header { id: 7, parent: 7, ..Header::default() };
    let error = verify(&header.encode()[..]).unwrap_err();
    assert!(error.to_string().contains("increment to itself"), "{error}");
}
