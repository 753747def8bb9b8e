//! One input of the fuzzer: a chain of images, and what must hold for it. The first inputs are made by an `ImageWriter`.
//!
//! An input is a byte of flags, then up to `LAYERS` images, newest first, each as its length (four bytes) and its bytes. Checksums would stop
//! a fuzzer at once; so they are made right first, unless a flag says to leave them.

use std::collections::BTreeMap;

use radic_ckpt::image::chain::{Merged, merge};
use radic_ckpt::image::format::{Codec, End, HEADER_BYTES, RECORD_BYTES, Record, Run, run_crc};
use radic_ckpt::image::meta::{Backing, RegionRef};
use radic_ckpt::image::{Header, ImageError, ImageWriter, MetaWriter, Reader, WriteSink, inspect, verify};

use crate::Inputs;
use crate::crc::crc32c;

/// Most images of one input.
const LAYERS: usize = 4;
/// Flag: checksums stay as they are.
pub const LEAVE_CHECKSUMS: u8 = 1;
/// Flag: each image's parent stays what it says, instead of being the next one.
pub const LEAVE_PARENTS: u8 = 2;
/// The naive model has no more pages than this.
const MODEL_PAGES: usize = 4096;
const PAGE: usize = 4096;

/// Makes an input of images, newest first.
pub fn input(flags: u8, images: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![flags];
    for image in images {
        out.extend_from_slice(&(image.len() as u32).to_le_bytes());
        out.extend_from_slice(image);
    }
    out
}

/// Nothing panics, and a chain that is accepted is merged to what a naive model says. Gives whether it is accepted.
pub fn check(data: &[u8]) -> bool {
    let Some((&flags, rest)) = data.split_first() else { return false };
    let mut images = split(rest);
    if flags & LEAVE_CHECKSUMS == 0 {
        repair_chain(&mut images, flags & LEAVE_PARENTS == 0);
    }
    for image in &images {
        let (report, verified) = (inspect(&image[..]), verify(&image[..]));
        assert_eq!(report.is_ok(), verified.is_ok(), "one reader, two answers");
    }
    let mut whole = Vec::new();
    let Ok(merged) = merge(images.iter().map(Vec::as_slice), WriteSink(&mut whole)) else { return false };
    check_merged(&images, &merged, &whole);
    true
}

fn split(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut images = Vec::new();
    while let Some((len, more)) = rest.split_first_chunk::<4>().filter(|_| images.len() < LAYERS) {
        let (image, more) = more.split_at((u32::from_le_bytes(*len) as usize).min(more.len()));
        images.push(image.to_vec());
        rest = more;
    }
    images
}

fn check_merged(images: &[Vec<u8>], merged: &Merged, whole: &[u8]) {
    assert_eq!(merged.bytes, whole.len() as u64);
    let report = inspect(whole).expect("a merged image is sound");
    assert_eq!((report.parent, report.kept_bytes, report.packed_bytes), (0, 0, 0), "a merged image is whole and raw");
    let mut again = Vec::new();
    merge([whole], WriteSink(&mut again)).expect("a merged image can be merged");
    assert!(again == whole, "merging a merged image changes nothing");
    if let Some(model) = model(images) {
        assert!(pages(whole).expect("a merged image is sound") == model, "the merged image holds other pages than its layers");
    }
}

type Pages = BTreeMap<u64, Option<Vec<u8>>>;

/// All pages of an image (none for those of the parent); nothing if they are too many.
fn pages(image: &[u8]) -> Option<Pages> {
    let (mut reader, mut memory, mut pages) = (Reader::begin(image).ok()?, Vec::new(), Pages::new());
    while let Some(run) = next(&mut reader, &mut memory) {
        if pages.len() + run.len as usize / PAGE > MODEL_PAGES {
            return None;
        }
        for at in (0..run.len as usize).step_by(PAGE) {
            let content = (run.codec != Codec::Kept).then(|| memory[at..at + PAGE].to_vec());
            pages.insert(run.addr + at as u64, content);
        }
    }
    Some(pages)
}

fn next(reader: &mut Reader<&[u8]>, memory: &mut Vec<u8>) -> Option<Run> {
    let run: Result<_, ImageError> = reader.next_run(memory);
    run.expect("the image was found sound before")
}

/// The naive way: the oldest image's pages, and over them each younger one's. A page that is nowhere is none in the model: that may happen
/// where no younger image keeps it, and is no page of a merged image.
fn model(images: &[Vec<u8>]) -> Option<Pages> {
    let mut known = Pages::new();
    for image in images.iter().rev() {
        let mut these = pages(image)?;
        for (addr, content) in &mut these {
            if content.is_none() {
                *content = known.get(addr).cloned().flatten();
            }
        }
        known = these;
    }
    Some(known)
}

/// Oldest first, since each needs its parent's id.
fn repair_chain(images: &mut [Vec<u8>], parents: bool) {
    let mut parent = 0;
    for image in images.iter_mut().rev() {
        let Some(id) = repair_header(image, parents.then_some(parent)) else { return };
        repair_records(image);
        parent = id;
    }
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Makes the checksums of header and metadata right, and the parent as given; the image's id.
fn repair_header(image: &mut [u8], parent: Option<u64>) -> Option<u64> {
    let meta_len = u32::from_le_bytes(image.get(104..108)?.try_into().ok()?) as usize;
    if let Some(meta) = image.get(HEADER_BYTES..HEADER_BYTES.checked_add(meta_len)?) {
        let crc = crc32c(0, meta);
        put32(image, 108, crc);
    }
    let head = image.first_chunk_mut::<HEADER_BYTES>()?;
    if let Some(parent) = parent {
        head[64..72].copy_from_slice(&parent.to_le_bytes());
    }
    let crc = crc32c(0, &head[..HEADER_BYTES - 4]);
    put32(head, HEADER_BYTES - 4, crc);
    Header::decode(head).ok().map(|header| header.id)
}

/// Makes the checksums of records and runs right, and the end record as it must be, as far as the records make sense.
fn repair_records(image: &mut [u8]) {
    let meta_len = u32::from_le_bytes([image[104], image[105], image[106], image[107]]) as usize;
    let (mut at, mut runs, mut crc) = (HEADER_BYTES + meta_len, 0, crc32c(0, &image[..HEADER_BYTES]));
    while let Some(head) = image.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<RECORD_BYTES>()) {
        let own = crc32c(0, &head[..28]);
        put32(head, 28, own);
        match Record::decode(head) {
            Ok(Record::Run(run)) => {
                let payload = image.get(at + RECORD_BYTES..).and_then(|rest| rest.get(..run.stored as usize));
                let head = Record::Run(Run { crc: content_crc(&run, payload), ..run }).encode();
                image[at..at + RECORD_BYTES].copy_from_slice(&head);
                crc = crc32c(crc, &head);
                (at, runs) = (at + RECORD_BYTES + run.stored as usize, runs + 1);
            }
            Ok(Record::End(_)) => {
                *head = Record::End(End { runs, bytes: at as u64, crc }).encode();
                return;
            }
            Err(_) => return,
        }
    }
}

fn content_crc(run: &Run, payload: Option<&[u8]>) -> u32 {
    let unpacked = match (run.codec, payload) {
        (Codec::Lz4, Some(packed)) => lz4_flex::block::decompress(packed, run.len as usize).unwrap_or_default(),
        (Codec::Raw, Some(payload)) => payload.to_vec(),
        (Codec::Zero | Codec::Kept, _) | (_, None) => Vec::new(),
    };
    run_crc(run.addr, run.len, &unpacked)
}

const SIZE: u64 = PAGE as u64;
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

/// What the metadata of an image of so many pages are.
pub fn metadata(pages: u64) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let mut meta = MetaWriter::new(&mut buffer);
    meta.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/tmp");
    let regions = [
        (BASE, BASE + pages * SIZE, Backing::Anonymous, &b"[heap]"[..]),
        (BASE + (1 << 32), BASE + (1 << 32) + SIZE, Backing::SharedFile, b"/tmp/data"),
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
    let len = meta.finish().expect("a small image");
    buffer.truncate(len);
    buffer
}

fn image(id: u64, parent: u64, pages: &[Page]) -> Vec<u8> {
    let header = Header { build: 5, entry: 1, stack: 2, id, parent, ..Header::default() };
    let mut writer = ImageWriter::begin(Vec::new(), header, &metadata(pages.len() as u64)).expect("a small image");
    let mut addr = BASE;
    // Equal pages in a row make a run.
    for run in pages.chunk_by(|a, b| a == b) {
        let len = run.len() * SIZE as usize;
        match run[0] {
            Raw(byte) => writer.raw(addr, &vec![byte; len]).expect("a small image"),
            Packed(byte) => {
                let bytes = vec![byte; len];
                writer.lz4(addr, &bytes, &lz4_flex::block::compress(&bytes)).expect("a small image");
            }
            Zero => writer.zero(addr, len).expect("a small image"),
            Kept => writer.kept(addr, len).expect("a small image"),
            Absent => {}
        }
        addr += len as u64;
    }
    writer.zero(BASE + (2 << 32), 1 << 20).expect("a small image");
    writer.finish().expect("a small image").0
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    // Runs of the younger images begin and end within those of the older ones, and go over several of them.
    let oldest = image(1, 0, &[Raw(1), Packed(2), Packed(2), Packed(2), Zero, Zero, Absent, Packed(3)]);
    let middle = image(2, 1, &[Kept, Kept, Zero, Kept, Kept, Raw(4), Raw(4), Kept]);
    let newest = image(3, 2, &[Kept, Kept, Kept, Kept, Packed(5), Kept, Absent, Kept]);
    vec![
        ("whole", input(0, std::slice::from_ref(&oldest))),
        ("whole-checked", input(LEAVE_CHECKSUMS, std::slice::from_ref(&oldest))),
        ("packed", input(0, &[image(1, 0, &[Packed(1), Packed(2)])])),
        ("empty", input(0, &[image(1, 0, &[Absent])])),
        ("increment", input(0, &[middle.clone(), oldest.clone()])),
        ("chain", input(0, &[newest.clone(), middle.clone(), oldest.clone()])),
        ("chain-checked", input(LEAVE_CHECKSUMS | LEAVE_PARENTS, &[newest, middle, oldest])),
    ]
}
