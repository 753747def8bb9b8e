//! Data buffers. The real libpmix makes and frees them; what is packed into them is ours (`crate::pack`).

use std::ffi::{c_char, c_void};

use super::convert::{self, copy, elements, fix, fixed, text};
use super::forward::calls;
use super::types::{Buffer, Bytes, NAMESPACE, Proc};
use crate::pack::{Item, decode, encode};
use crate::status::{self, Status};
use crate::value::{kind, size_of_number};

/// Longest buffer, in bytes.
const LENGTH: usize = 64 << 20;

calls! {
    /// Packs `count` values of one type.
    fn PMIx_Data_pack(_target: *const Proc, buffer: *mut Buffer, source: *mut c_void, count: i32, of: u16) {
        // SAFETY: the caller's promise.
        status::of(unsafe { pack(buffer, source, count, of) })
    }

    /// Unpacks values of one type: at most as many as `count` says, which is told how many there were.
    fn PMIx_Data_unpack(_source: *const Proc, buffer: *mut Buffer, target: *mut c_void, count: *mut i32, of: u16) {
        // SAFETY: the caller's promise.
        status::of(unsafe { unpack(buffer, target, count, of) })
    }
}

/// # Safety
/// `buffer` is null or one of libpmix's; `source` is null or has `count` values of this type.
unsafe fn pack(buffer: *mut Buffer, source: *mut c_void, count: i32, of: u16) -> Result<(), Status> {
    let count = usize::try_from(count).map_err(|_| Status::BAD_PARAM)?;
    // SAFETY: the caller's promise.
    let buffer = unsafe { buffer.as_mut() }.ok_or(Status::BAD_PARAM)?;
    if source.is_null() && count > 0 {
        return Err(Status::BAD_PARAM);
    }
    // SAFETY: the caller's promise.
    let items = unsafe { read(source, count, of)? };
    append(buffer, &encode(of, &items))
}

/// # Safety
/// `source` has `count` values of this type.
unsafe fn read(source: *const c_void, count: usize, of: u16) -> Result<Vec<Item>, Status> {
    // SAFETY: in all of these an array of `count` values of the type (the caller's promise).
    unsafe {
        Ok(match of {
            kind::STRING => {
                let texts = elements(source.cast::<*const c_char>(), count)?;
                texts.iter().map(|each| Item::Text((!each.is_null()).then(|| text(*each).to_vec()))).collect()
            }
            kind::BYTE_OBJECT => {
                let objects = elements(source.cast::<Bytes>(), count)?;
                objects.iter().map(|object| convert::bytes(object).map(Item::Bytes)).collect::<Result<_, _>>()?
            }
            kind::PROC => {
                let procs = elements(source.cast::<Proc>(), count)?;
                procs.iter().map(|proc| Item::Process(fixed(&proc.namespace), proc.rank)).collect()
            }
            number => {
                let size = size_of_number(number).ok_or(Status::UNKNOWN_DATA_TYPE)?;
                let bytes = elements(source.cast::<u8>(), size.checked_mul(count).ok_or(Status::BAD_PARAM)?)?;
                bytes.chunks(size).map(|number| Item::Number(number.to_vec())).collect()
            }
        })
    }
}

/// Adds bytes behind what is packed.
fn append(buffer: &mut Buffer, bytes: &[u8]) -> Result<(), Status> {
    let needed = buffer.used.checked_add(bytes.len()).filter(|needed| *needed <= LENGTH).ok_or(Status::NO_MEMORY)?;
    if needed > buffer.allocated || buffer.base.is_null() {
        let unpacked = if buffer.base.is_null() { 0 } else { buffer.unpack.addr().wrapping_sub(buffer.base.addr()) };
        let room = needed.next_power_of_two().max(256);
        // SAFETY: the buffer's memory is null or of malloc, as the real libpmix allocates it.
        let base = unsafe { libc::realloc(buffer.base.cast(), room) }.cast::<u8>();
        if base.is_null() {
            return Err(Status::NO_MEMORY);
        }
        (buffer.base, buffer.allocated) = (base, room);
        buffer.unpack = base.wrapping_add(unpacked);
    }
    // SAFETY: there is room for so many behind the used ones, as was just made sure.
    unsafe { buffer.base.add(buffer.used).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    buffer.used = needed;
    buffer.pack = buffer.base.wrapping_add(needed);
    Ok(())
}

/// # Safety
/// `buffer` is null or one of libpmix's; `target` is null or has room for as many values of this type as `count` says, which is null or a number.
unsafe fn unpack(buffer: *mut Buffer, target: *mut c_void, count: *mut i32, of: u16) -> Result<(), Status> {
    // SAFETY: the caller's promise.
    let (buffer, count) = unsafe { (buffer.as_mut().ok_or(Status::BAD_PARAM)?, count.as_mut().ok_or(Status::BAD_PARAM)?) };
    let most = usize::try_from(*count).map_err(|_| Status::BAD_PARAM)?;
    if target.is_null() {
        return Err(Status::BAD_PARAM);
    }
    let unpacked = buffer.unpack.addr().wrapping_sub(buffer.base.addr());
    if buffer.base.is_null() || unpacked > buffer.used {
        return Err(Status::PAST_END);
    }
    // SAFETY: the buffer has so many used bytes from its base on.
    let left = unsafe { std::slice::from_raw_parts(buffer.base.add(unpacked).cast_const(), buffer.used - unpacked) };
    let (items, taken) = decode(of, left, most)?;
    // SAFETY: there is room for `most`, hence for these (the caller's promise).
    unsafe { write(target, &items)? };
    buffer.unpack = buffer.base.wrapping_add(unpacked + taken);
    *count = items.len() as i32;
    Ok(())
}

/// # Safety
/// `target` has room for these items.
unsafe fn write(target: *mut c_void, items: &[Item]) -> Result<(), Status> {
    for (at, item) in items.iter().enumerate() {
        // SAFETY: in all of these room for the item number `at` (the caller's promise).
        unsafe {
            match item {
                Item::Number(bytes) => {
                    let size = bytes.len();
                    target.cast::<u8>().add(at * size).copy_from_nonoverlapping(bytes.as_ptr(), size);
                }
                Item::Text(text) => {
                    let text = text.as_deref().map_or(Ok(std::ptr::null_mut()), copy)?;
                    target.cast::<*mut c_char>().add(at).write(text);
                }
                Item::Bytes(bytes) => {
                    let object = Bytes { bytes: copy(bytes)?, size: bytes.len() };
                    target.cast::<Bytes>().add(at).write(object);
                }
                Item::Process(namespace, rank) => {
                    let mut proc = Proc { namespace: [0; NAMESPACE], rank: *rank };
                    fix(&mut proc.namespace, namespace);
                    target.cast::<Proc>().add(at).write(proc);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::ffi::convert::allocate;

    fn empty() -> Buffer {
        Buffer { base: ptr::null_mut(), pack: ptr::null_mut(), unpack: ptr::null_mut(), allocated: 0, used: 0 }
    }

    #[test]
    fn numbers_texts_and_processes_pass_through_a_buffer() {
        let mut buffer = empty();
        let (numbers, texts) = ([1u32, 2, 3], [c"a port".as_ptr(), ptr::null()]);
        let mut proc = Proc { namespace: [0; NAMESPACE], rank: 5 };
        fix(&mut proc.namespace, b"space");
        // SAFETY: as many values of each type as is said.
        unsafe {
            pack(&mut buffer, numbers.as_ptr().cast_mut().cast(), 3, kind::UINT32).unwrap();
            pack(&mut buffer, texts.as_ptr().cast_mut().cast(), 2, kind::STRING).unwrap();
            for _ in 0..100 {
                pack(&mut buffer, (&raw mut proc).cast(), 1, kind::PROC).unwrap();
            }
        }
        assert_eq!(buffer.pack, buffer.base.wrapping_add(buffer.used));
        let (mut numbers, mut texts, mut count) = ([0u32; 4], [ptr::null_mut::<c_char>(); 2], 4);
        // SAFETY: room for as many values of each type as is said.
        unsafe {
            unpack(&mut buffer, numbers.as_mut_ptr().cast(), &mut count, kind::UINT32).unwrap();
            assert_eq!((count, numbers), (3, [1, 2, 3, 0]));
            count = 1;
            let wrong = unpack(&mut buffer, texts.as_mut_ptr().cast(), &mut count, kind::STRING);
            assert_eq!(wrong, Err(Status::INADEQUATE_SPACE));
            count = 2;
            unpack(&mut buffer, texts.as_mut_ptr().cast(), &mut count, kind::STRING).unwrap();
            assert_eq!((text(texts[0]), texts[1].is_null()), (&b"a port"[..], true));
            count = 1;
            proc.rank = 0;
            unpack(&mut buffer, (&raw mut proc).cast(), &mut count, kind::PROC).unwrap();
            assert_eq!((fixed(&proc.namespace), proc.rank), (b"space".to_vec(), 5));
            libc::free(texts[0].cast());
            libc::free(buffer.base.cast());
        }
    }

    #[test]
    fn null_pointers_and_damaged_buffers_are_errors() {
        let (mut buffer, mut number, mut count) = (empty(), 7u32, 1);
        let number: *mut c_void = (&raw mut number).cast();
        // SAFETY: null pointers, and room for one number.
        unsafe {
            assert_eq!(pack(ptr::null_mut(), number, 1, kind::UINT32), Err(Status::BAD_PARAM));
            assert_eq!(pack(&mut buffer, ptr::null_mut(), 1, kind::UINT32), Err(Status::BAD_PARAM));
            assert_eq!(pack(&mut buffer, number, -1, kind::UINT32), Err(Status::BAD_PARAM));
            assert_eq!(pack(&mut buffer, number, 1, 99), Err(Status::UNKNOWN_DATA_TYPE));
            assert_eq!(unpack(&mut buffer, number, &mut count, kind::UINT32), Err(Status::PAST_END));
            assert_eq!(unpack(&mut buffer, number, ptr::null_mut(), kind::UINT32), Err(Status::BAD_PARAM));
            pack(&mut buffer, number, 1, kind::UINT32).unwrap();
            assert_eq!(unpack(&mut buffer, ptr::null_mut(), &mut count, kind::UINT32), Err(Status::BAD_PARAM));
            buffer.unpack = buffer.base.wrapping_add(buffer.used + 1);
            assert_eq!(unpack(&mut buffer, number, &mut count, kind::UINT32), Err(Status::PAST_END));
            libc::free(buffer.base.cast());
        }
    }

    #[test]
    fn memory_for_nothing_is_memory() {
        let memory = allocate::<Proc>(0).unwrap();
        assert!(!memory.is_null());
        // SAFETY: it was just allocated by calloc.
        unsafe { libc::free(memory.cast()) };
    }
}
