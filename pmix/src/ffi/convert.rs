//! C's structures to values, and back. What the caller frees is allocated as the real libpmix does it: by malloc.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::slice;

use super::types::{Array, Bytes, Info, NAMESPACE, Proc, RANKS, Value, WILDCARD};
use crate::job::{Job, Members, Subject};
use crate::status::Status;
use crate::value::{self, kind};

/// Most elements of an array that a caller may hand over: a wrong count is not followed to the end of memory.
const ELEMENTS: usize = 1 << 20;
/// Longest text or byte object, in bytes.
const LENGTH: usize = 1 << 20;

/// The elements of an array of C, none for null.
///
/// # Safety
/// `array` is null or has `count` elements, which outlive the call.
pub(super) unsafe fn elements<'a, T>(array: *const T, count: usize) -> Result<&'a [T], Status> {
    if array.is_null() || count == 0 {
        return Ok(&[]);
    }
    if count > ELEMENTS {
        return Err(Status::BAD_PARAM);
    }
    // SAFETY: not null, and so many elements (the caller's promise).
    Ok(unsafe { slice::from_raw_parts(array, count) })
}

/// The bytes of a C string, none for null.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero and outlives the call.
pub(super) unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: a string with its zero (the caller's promise).
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// A key of C, which is not to be empty.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn key(key: *const c_char) -> Result<String, Status> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { text(key) };
    if bytes.is_empty() { Err(Status::BAD_PARAM) } else { Ok(String::from_utf8_lossy(bytes).into_owned()) }
}

/// The text in an array of bytes, up to its zero, or its end.
pub(super) fn fixed(array: &[c_char]) -> Vec<u8> {
    array.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect()
}

/// Puts a text into an array of bytes, with a zero.
pub(super) fn fix(array: &mut [c_char], text: &[u8]) {
    let length = text.len().min(array.len() - 1);
    array.fill(0);
    array.iter_mut().zip(&text[..length]).for_each(|(to, from)| *to = *from as c_char);
}

/// Which process is meant.
pub(super) fn subject(proc: &Proc) -> Subject {
    match proc.rank {
        WILDCARD => Subject::Job,
        rank if rank < RANKS => Subject::Rank(rank),
        _ => Subject::Any,
    }
}

/// Which processes take part.
///
/// # Safety
/// `procs` is null or has `count` elements.
pub(super) unsafe fn members<S: radic_pmi_client::Stream>(
    job: &Job<S>,
    procs: *const Proc,
    count: usize,
) -> Result<Members, Status> {
    // SAFETY: the caller's promise.
    let procs = unsafe { elements(procs, count)? };
    let named: Vec<_> = procs.iter().map(|proc| (fixed(&proc.namespace), subject(proc))).collect();
    job.members(named.iter().map(|(namespace, subject)| (&namespace[..], *subject)))
}

impl Value {
    fn pointer<T>(&self) -> *const T {
        ptr::with_exposed_provenance(self.data[0] as usize)
    }
}

/// A value of C.
///
/// # Safety
/// `value` is as its type says.
pub(super) unsafe fn read(value: &Value) -> Result<value::Value, Status> {
    let bytes = match value.kind {
        // SAFETY: the caller's promise.
        kind::STRING => unsafe { text(value.pointer()) }.to_vec(),
        kind::BYTE_OBJECT => {
            let (bytes, size) = (value.pointer::<u8>(), value.data[1] as usize);
            if size > LENGTH {
                return Err(Status::BAD_PARAM);
            }
            // SAFETY: the caller's promise.
            unsafe { elements(bytes, size)? }.to_vec()
        }
        number => {
            let size = value::size_of_number(number).ok_or(Status::NOT_SUPPORTED)?;
            value.data[0].to_ne_bytes()[..size].to_vec()
        }
    };
    if bytes.len() > LENGTH { Err(Status::BAD_PARAM) } else { Ok(value::Value { kind: value.kind, bytes }) }
}

/// Keys and values of C. Those of types that have no meaning here are left out.
///
/// # Safety
/// `infos` is null or has `count` elements, each as its type says.
pub(super) unsafe fn infos(infos: *const Info, count: usize) -> Result<Vec<(String, value::Value)>, Status> {
    // SAFETY: the caller's promise.
    let infos = unsafe { elements(infos, count)? };
    let read = |info: &Info| {
        let key = String::from_utf8_lossy(&fixed(&info.key)).into_owned();
        // SAFETY: the caller's promise.
        unsafe { read(&info.value) }.ok().map(|value| (key, value))
    };
    Ok(infos.iter().filter_map(read).collect())
}

/// The keys and values in the array that `infos` has under `key`.
///
/// # Safety
/// As [`infos`].
pub(super) unsafe fn nested(list: *const Info, count: usize, key: &str) -> Result<Vec<(String, value::Value)>, Status> {
    // SAFETY: the caller's promise.
    let list = unsafe { elements(list, count)? };
    let Some(info) = list.iter().find(|info| info.value.kind == kind::DATA_ARRAY && fixed(&info.key) == key.as_bytes()) else {
        return Ok(Vec::new());
    };
    // SAFETY: a value of this type points to an array, or nowhere (the caller's promise).
    let Some(array) = (unsafe { info.value.pointer::<Array>().as_ref() }).filter(|array| array.kind == kind::INFO) else {
        return Ok(Vec::new());
    };
    // SAFETY: an array of this type (the caller's promise).
    unsafe { infos(array.array.cast_const().cast(), array.size) }
}

/// Memory that the caller of PMIx frees; all zero.
pub(super) fn allocate<T>(count: usize) -> Result<*mut T, Status> {
    // SAFETY: any numbers will do.
    let memory = unsafe { libc::calloc(count.max(1), size_of::<T>()) };
    if memory.is_null() { Err(Status::NO_MEMORY) } else { Ok(memory.cast()) }
}

/// A copy of bytes with a zero behind, for the caller to free.
pub(super) fn copy(bytes: &[u8]) -> Result<*mut c_char, Status> {
    let memory = allocate::<c_char>(bytes.len() + 1)?;
    // SAFETY: there is room for so many, and nothing else knows of it.
    unsafe { memory.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    Ok(memory)
}

/// Puts a value into C's form.
pub(super) fn write(out: &mut Value, value: &value::Value) -> Result<(), Status> {
    let mut data = [0; 3];
    match value.kind {
        kind::STRING => data[0] = copy(&value.bytes)?.expose_provenance() as u64,
        kind::BYTE_OBJECT => data = [copy(&value.bytes)?.expose_provenance() as u64, value.bytes.len() as u64, 0],
        _ => {
            let mut number = [0; 8];
            number.iter_mut().zip(&value.bytes).for_each(|(to, from)| *to = *from);
            data[0] = u64::from_ne_bytes(number);
        }
    }
    (out.kind, out.data) = (value.kind, data);
    Ok(())
}

/// Puts an array of processes of `namespace` into a value.
pub(super) fn write_processes(
    out: &mut Value,
    namespace: &[u8],
    ranks: impl ExactSizeIterator<Item = u32>,
) -> Result<(), Status> {
    let (array, count) = (allocate::<Array>(1)?, ranks.len());
    let procs = allocate::<Proc>(count)?;
    for (at, rank) in ranks.enumerate().take(count) {
        // SAFETY: there is room for `count`, and nothing else knows of it; zeroes are a process.
        let proc = unsafe { &mut *procs.add(at) };
        fix(&mut proc.namespace, namespace);
        proc.rank = rank;
    }
    // SAFETY: there is room for one, and nothing else knows of it.
    unsafe { array.write(Array { kind: kind::PROC, size: count, array: procs.cast::<c_void>() }) };
    (out.kind, out.data) = (kind::DATA_ARRAY, [array.expose_provenance() as u64, 0, 0]);
    Ok(())
}

/// Puts what is known of a process where the caller wants it.
///
/// # Safety
/// `out` is null or valid for a write.
pub(super) unsafe fn write_proc(out: *mut Proc, namespace: &[u8], rank: u32) {
    if !out.is_null() {
        let mut proc = Proc { namespace: [0; NAMESPACE], rank };
        fix(&mut proc.namespace, namespace);
        // SAFETY: not null, hence valid for a write (the caller's promise).
        unsafe { out.write(proc) };
    }
}

/// A byte object of C.
///
/// # Safety
/// It is as its size says.
pub(super) unsafe fn bytes(object: &Bytes) -> Result<Vec<u8>, Status> {
    // SAFETY: the caller's promise.
    Ok(unsafe { elements(object.bytes.cast_const().cast::<u8>(), object.size)? }.to_vec())
}
