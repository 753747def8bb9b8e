//! PMIx's structures, as its headers of versions 4.2 to 6.1 lay them out.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use crate::status::Status;

/// Bytes of a namespace, with its zero.
pub(super) const NAMESPACE: usize = 256;
/// Bytes of a key, with its zero.
pub(super) const KEY: usize = 512;

/// The rank that stands for all of a namespace.
pub(super) const WILDCARD: u32 = u32::MAX - 1;
/// Ranks from here on stand for something else than a process.
pub(super) const RANKS: u32 = u32::MAX - 50;

/// `pmix_proc_t`.
#[repr(C)]
pub struct Proc {
    pub(super) namespace: [c_char; NAMESPACE],
    pub(super) rank: u32,
}

/// `pmix_value_t`: a union of numbers and pointers behind the type.
#[repr(C)]
pub struct Value {
    pub(super) kind: u16,
    pub(super) data: [u64; 3],
}

/// `pmix_info_t`.
#[repr(C)]
pub struct Info {
    pub(super) key: [c_char; KEY],
    pub(super) flags: u32,
    pub(super) value: Value,
}

/// `pmix_pdata_t`.
#[repr(C)]
pub struct Pdata {
    pub(super) proc: Proc,
    pub(super) key: [c_char; KEY],
    pub(super) value: Value,
}

/// `pmix_app_t`.
#[repr(C)]
pub struct App {
    command: *mut c_char,
    arguments: *mut *mut c_char,
    environment: *mut *mut c_char,
    folder: *mut c_char,
    processes: c_int,
    info: *mut Info,
    infos: usize,
}

/// `pmix_query_t`.
#[repr(C)]
pub struct Query {
    keys: *mut *mut c_char,
    qualifiers: *mut Info,
    count: usize,
}

/// `pmix_data_buffer_t`.
#[repr(C)]
pub struct Buffer {
    pub(super) base: *mut u8,
    /// Behind what is packed.
    pub(super) pack: *mut u8,
    /// What is to be unpacked next.
    pub(super) unpack: *mut u8,
    pub(super) allocated: usize,
    pub(super) used: usize,
}

/// `pmix_data_array_t`.
#[repr(C)]
pub(super) struct Array {
    pub(super) kind: u16,
    pub(super) size: usize,
    pub(super) array: *mut c_void,
}

/// `pmix_byte_object_t`.
#[repr(C)]
pub(super) struct Bytes {
    pub(super) bytes: *mut c_char,
    pub(super) size: usize,
}

const _: () = {
    assert!(size_of::<Value>() == 32 && offset_of!(Value, data) == 8);
    assert!(size_of::<Proc>() == 260 && offset_of!(Proc, rank) == 256);
    assert!(size_of::<Info>() == 552 && offset_of!(Info, flags) == 512 && offset_of!(Info, value) == 520);
    assert!(size_of::<Pdata>() == 808 && offset_of!(Pdata, key) == 260 && offset_of!(Pdata, value) == 776);
    assert!(size_of::<App>() == 56 && size_of::<Query>() == 24);
    assert!(size_of::<Buffer>() == 40 && offset_of!(Buffer, used) == 32);
    assert!(size_of::<Array>() == 24 && offset_of!(Array, array) == 16);
    assert!(size_of::<Bytes>() == 16 && size_of::<Status>() == 4);
};

/// `pmix_op_cbfunc_t`.
pub(super) type OnDone = unsafe extern "C" fn(Status, *mut c_void);
/// `pmix_hdlr_reg_cbfunc_t`.
pub(super) type OnRegistered = unsafe extern "C" fn(Status, usize, *mut c_void);
