//! Increments and their ancestors against a naive model: a map from page to content.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use radic_ckpt::image::chain::{AncestorError, Candidates, MAX_LAYERS, merge};
use radic_ckpt::image::format::HEADER_BYTES;
use radic_ckpt::image::meta::RegionRef;
use radic_ckpt::image::{Header, ImageWriter, MetaWriter, Reader, WriteSink, inspect};
use radic_ckpt::trusted::Owners;

const PAGE: u64 = 4096;
const BASE: u64 = 0x5555_0000_0000;
/// Pages of the model's address space.
const PAGES: u64 = 48;
const BUILD: u64 = 5;

/// Content by page number; 0 is the zero page.
type Memory = BTreeMap<u64, u8>;

/// What a program does between two checkpoints.
#[derive(Clone, Debug)]
enum Act {
    /// Maps pages; what was mapped there is gone.
    Map(u64, u64),
    /// Unmaps pages.
    Unmap(u64, u64),
    /// Writes pages, as far as they are mapped.
    Write(u64, u64, u8),
    /// Gives pages back (MADV_DONTNEED): mapped, without content.
    Discard(u64, u64),
}

fn act() -> impl Strategy<Value = Act> {
    let range = (0..PAGES, 1..12u64).prop_map(|(from, len)| (from, (from + len).min(PAGES)));
    prop_oneof![
        1 => range.clone().prop_map(|(a, b)| Act::Map(a, b)),
        1 => range.clone().prop_map(|(a, b)| Act::Unmap(a, b)),
        4 => (range.clone(), 0..4u8).prop_map(|((a, b), what)| Act::Write(a, b, what)),
        1 => range.prop_map(|(a, b)| Act::Discard(a, b)),
    ]
}

/// A program's memory, and which of it has changed since the last checkpoint.
#[derive(Clone, Default)]
struct Program {
    /// Region of each mapped page: regions that touch stay apart.
    mapped: BTreeMap<u64, u32>,
    memory: Memory,
    changed: BTreeMap<u64, ()>,
    regions: u32,
}

impl Program {
    fn act(&mut self, act: &Act) {
        let (Act::Map(from, to) | Act::Unmap(from, to) | Act::Write(from, to, _) | Act::Discard(from, to)) = *act;
        self.regions += 1;
        for page in from..to {
            match act {
                Act::Map(..) => drop((self.mapped.insert(page, self.regions), self.memory.remove(&page))),
                Act::Unmap(..) => drop((self.mapped.remove(&page), self.memory.remove(&page))),
                Act::Discard(..) => drop(self.memory.remove(&page)),
                Act::Write(_, _, what) if self.mapped.contains_key(&page) => {
                    self.memory.insert(page, *what);
                    self.changed.insert(page, ());
                }
                Act::Write(..) => {}
            }
        }
    }

    /// Runs of the same region as (first page, page after them, number).
    fn regions(&self) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64, u32)> = Vec::new();
        for (&page, &region) in &self.mapped {
            match out.last_mut() {
                Some(last) if last.1 == page && last.2 == region => last.1 += 1,
                _ => out.push((page, page + 1, region)),
            }
        }
        out.into_iter().map(|(from, to, _)| (from, to)).collect()
    }

    fn metadata(&self) -> Vec<u8> {
        let mut buffer = vec![0; 64 << 10];
        let mut meta = MetaWriter::new(&mut buffer);
        meta.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/tmp");
        // Never without a region.
        for (from, to) in self.regions().into_iter().chain([(PAGES + 1, PAGES + 2)]) {
            let (start, end) = (BASE + from * PAGE, BASE + to * PAGE);
            meta.region(&RegionRef { start, end, prot: 3, has_runs: true, ..RegionRef::default() });
        }
        meta.thread(77, 0x40_1000, 0x7ffe_0000, b"true");
        let len = meta.finish().unwrap();
        buffer.truncate(len);
        buffer
    }

    /// A checkpoint. Kept pages are joined to long runs as far as a region goes; others are stored one by one, in every way.
    fn save(&mut self, id: u64, parent: u64) -> Vec<u8> {
        let header = Header { build: BUILD, id, parent, generation: id as u32, ..Header::default() };
        let mut writer = ImageWriter::begin(Vec::new(), header, &self.metadata()).unwrap();
        for (from, to) in self.regions() {
            let kept = |page: &u64| parent != 0 && self.memory.contains_key(page) && !self.changed.contains_key(page);
            let mut page = from;
            while page < to {
                let addr = BASE + page * PAGE;
                let run = (page..to).take_while(kept).count() as u64;
                match self.memory.get(&page) {
                    _ if run > 0 => writer.kept(addr, (run * PAGE) as usize).unwrap(),
                    None => {}
                    Some(0) => writer.zero(addr, PAGE as usize).unwrap(),
                    Some(1) => writer.lz4(addr, &content(1, page), &lz4_flex::block::compress(&content(1, page))).unwrap(),
                    Some(&what) => writer.raw(addr, &content(what, page)).unwrap(),
                }
                page += run.max(1);
            }
        }
        self.changed.clear();
        writer.finish().unwrap().0
    }
}

fn content(what: u8, page: u64) -> Vec<u8> {
    if what == 0 { vec![0; PAGE as usize] } else { [what, page as u8, 1].iter().copied().cycle().take(PAGE as usize).collect() }
}

/// The memory in a whole image.
fn memory_of(image: &[u8]) -> Memory {
    let (mut reader, mut run, mut memory) = (Reader::begin(image).unwrap(), Vec::new(), Memory::new());
    assert_eq!(reader.header.parent, 0);
    while let Some(record) = reader.next_run(&mut run).unwrap() {
        for (i, bytes) in run.chunks(PAGE as usize).enumerate() {
            let page = (record.addr - BASE) / PAGE + i as u64;
            let what = if bytes.iter().all(|b| *b == 0) { 0 } else { bytes[0] };
            assert_eq!(bytes, content(what, page), "page {page}");
            assert_eq!(memory.insert(page, what), None);
        }
    }
    memory
}

/// Merges images given oldest first.
fn merged(images: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let merged = merge(images.iter().rev().map(Vec::as_slice), WriteSink(&mut out)).map_err(|e| e.to_string())?;
    assert_eq!(merged.bytes, out.len() as u64);
    Ok(out)
}

/// A small chain: three pages; the second changes, then the third.
fn small_chain() -> Vec<Vec<u8>> {
    let mut program = Program::default();
    program.act(&Act::Map(0, 3));
    program.act(&Act::Write(0, 3, 2));
    let mut images = vec![program.save(1, 0)];
    for id in 2..=3 {
        program.act(&Act::Write(id - 1, id, 3));
        images.push(program.save(id, id - 1));
    }
    images
}

proptest! {
    /// Regions come, go and come back elsewhere; every image of a history, merged with its ancestors, is the memory at its time.
    #[test]
    fn a_merged_image_is_the_memory_at_its_time(
        history in prop::collection::vec(prop::collection::vec(act(), 0..10), 1..8),
        early in any::<prop::sample::Index>(),
    ) {
        let (mut program, mut images) = (Program::default(), Vec::new());
        program.act(&Act::Map(0, PAGES / 2));
        for acts in &history {
            acts.iter().for_each(|act| program.act(act));
            let (meta, id) = (program.metadata(), images.len() as u64 + 1);
            images.push(program.save(id, id - 1));
            let whole = merged(&images).unwrap();
            prop_assert_eq!(&memory_of(&whole), &program.memory);
            let header = Header::decode(whole.first_chunk().unwrap()).unwrap();
            prop_assert_eq!((header.id, header.parent, header.generation), (id, 0, id as u32));
            prop_assert_eq!(&whole[HEADER_BYTES..HEADER_BYTES + header.meta_len as usize], &meta[..]);
        }
        // A merged image is a parent as good as those it came from.
        let early = early.index(images.len());
        let mut shorter = vec![merged(&images[..=early]).unwrap()];
        shorter.extend_from_slice(&images[early + 1..]);
        prop_assert_eq!(merged(&shorter).unwrap(), merged(&images).unwrap());
    }

    /// Whatever happens to one byte of one layer: an error, or no difference (there is none).
    #[test]
    fn a_changed_byte_in_any_layer_is_noticed(layer in 0..3usize, at in any::<prop::sample::Index>(), by in 1u8..) {
        let mut images = small_chain();
        let at = at.index(images[layer].len());
        images[layer][at] ^= by;
        prop_assert!(merged(&images).is_err());
    }

    #[test]
    fn a_truncated_layer_is_noticed(layer in 0..3usize, part in 0.0..1.0f64) {
        let mut images = small_chain();
        let len = (images[layer].len() as f64 * part) as usize;
        images[layer].truncate(len);
        prop_assert!(merged(&images).is_err());
    }
}

#[test]
fn the_newest_content_counts() {
    let images = small_chain();
    assert_eq!(memory_of(&merged(&images).unwrap()), Memory::from([(0, 2), (1, 3), (2, 3)]));
    let early = merged(&images[..2]).unwrap();
    assert_eq!(memory_of(&early), Memory::from([(0, 2), (1, 3), (2, 2)]));
}

#[test]
fn runs_are_joined_and_split_at_regions() {
    let mut program = Program::default();
    program.act(&Act::Map(0, 10));
    program.act(&Act::Map(10, 20));
    program.act(&Act::Write(0, 20, 2));
    program.act(&Act::Write(12, 14, 0));
    let report = inspect(&merged(&[program.save(1, 0)]).unwrap()[..]).unwrap();
    // 0..10, 10..12, zero 12..14, 14..20.
    assert_eq!((report.runs, report.raw_bytes, report.zero_bytes), (4, 18 * PAGE, 2 * PAGE));
}

#[test]
fn a_page_that_the_parent_lacks_is_refused() {
    let mut program = Program::default();
    program.act(&Act::Map(0, 4));
    program.act(&Act::Write(0, 2, 2));
    let parent = program.save(1, 0);
    program.act(&Act::Write(0, 4, 2));
    program.changed.clear();
    let mut images = vec![parent, program.save(2, 1)];
    let error = merged(&images).unwrap_err();
    assert!(error.contains("its parent does not have"), "{error}");
    // The missing pages, 2 and 3, come from the next image: its parent's are not needed.
    program.act(&Act::Write(2, 4, 3));
    images.push(program.save(3, 2));
    assert_eq!(memory_of(&merged(&images).unwrap()), program.memory);
}

#[test]
fn images_that_do_not_belong_together_are_refused() {
    let images = small_chain();
    let refused = |images: &[Vec<u8>], text: &str| {
        let error = merged(images).unwrap_err();
        assert!(error.contains(text), "{error}");
    };
    refused(&images[1..], "its parent is missing");
    refused(&[], "its parent is missing");
    refused(&[images[0].clone(), images[2].clone()], "another image than the one before it");
    refused(&[images[0].clone(), images[0].clone()], "another image than the one before it");
    let mut header = Header::decode(images[1].first_chunk().unwrap()).unwrap();
    header.build += 1;
    let mut foreign = images.clone();
    foreign[1][..HEADER_BYTES].copy_from_slice(&header.encode());
    refused(&foreign, "different builds");
}

#[test]
fn a_chain_is_bounded() {
    let mut program = Program::default();
    program.act(&Act::Map(0, 2));
    let mut images = Vec::new();
    for id in 1..=MAX_LAYERS as u64 + 1 {
        program.act(&Act::Write(1, 2, 2 + (id & 1) as u8));
        images.push(program.save(id, id - 1));
    }
    let last = images.pop().unwrap();
    assert_eq!(memory_of(&merged(&images).unwrap()), Memory::from([(1, 2)]));
    images.push(last);
    let error = merged(&images).unwrap_err();
    assert!(error.contains("longer than its bound"), "{error}");
}

#[test]
fn ancestors_are_found_by_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let images = small_chain();
    let headers: Vec<_> = images.iter().map(|image| Header::decode(image.first_chunk().unwrap()).unwrap()).collect();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("z"), &images[0]).unwrap();
    fs::write(path("a"), &images[1]).unwrap();
    fs::write(path("second copy"), &images[1]).unwrap();
    fs::write(path("short"), &images[0][..100]).unwrap();
    fs::write(path("text"), "no image").unwrap();
    fs::create_dir(path("folder")).unwrap();
    make_pipe(&path("pipe"));
    let candidates = Candidates::in_folder(folder.path(), Owners::Trusted).unwrap();
    assert_eq!(candidates.ancestors(&headers[2]).unwrap(), [path("a"), path("z")]);
    assert!(candidates.ancestors(&headers[0]).unwrap().is_empty());
    let named = Candidates::files(&[path("a")], Owners::Trusted).unwrap().ancestors(&headers[2]).unwrap_err();
    assert!(matches!(named, AncestorError::Missing { id: 1, child: 2, looked_at: 1, .. }), "{named}");
    let error = Candidates::files(&[path("text")], Owners::Trusted).unwrap_err().to_string();
    assert!(error.contains("text: this is not a checkpoint image"), "{error}");
    // In circles.
    let circle = Header { id: 1, parent: 2, ..headers[0] };
    fs::write(path("z"), circle.encode()).unwrap();
    let error = Candidates::in_folder(folder.path(), Owners::Trusted).unwrap().ancestors(&headers[2]).unwrap_err();
    assert!(matches!(error, AncestorError::TooMany(3)), "{error}");
}

fn make_pipe(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}
