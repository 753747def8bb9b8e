//! The C side: pointers become slices, failures become PMI's numbers. All unsafe code of the crate is here.
//!
//! Nothing here panics, and if it did, an `extern "C"` function ends the process rather than unwind into C. One lock serves the calls one by one,
//! as the conversation demands.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use radic_pmi_client::{Client, Failure, KEY, KVSNAME, Socket, VALUE};

const SUCCESS: c_int = 0;
const FAIL: c_int = -1;
const ERR_INIT: c_int = 1;
const ERR_INVALID_ARG: c_int = 3;
const ERR_INVALID_KEY: c_int = 4;
const ERR_INVALID_VAL_LENGTH: c_int = 7;
const ERR_INVALID_LENGTH: c_int = 8;
/// `PMI_MAX_PORT_NAME` of pmi.h: what the caller of `PMI_Lookup_name` has room for, in bytes.
const PORT: usize = 1024;

static CLIENT: Mutex<Option<Client<Socket>>> = Mutex::new(None);

fn client() -> MutexGuard<'static, Option<Client<Socket>>> {
    CLIENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `call` with the client and turns its failure into PMI's number.
fn with_client(call: impl FnOnce(&mut Client<Socket>) -> Result<c_int, Failure>) -> c_int {
    let mut guard = client();
    let Some(client) = guard.as_mut() else { return ERR_INIT };
    match call(client) {
        Ok(code) => code,
        Err(Failure::Key) => ERR_INVALID_KEY,
        Err(Failure::Value(_)) => ERR_INVALID_VAL_LENGTH,
        Err(Failure::Refused(_)) => FAIL,
        Err(failure @ (Failure::Lost(_) | Failure::Unexpected(..))) => {
            complain(&failure.to_string());
            FAIL
        }
    }
}

fn complain(what: &str) {
    // Without a stderr nothing can be told.
    let _ = writeln!(io::stderr(), "radic_pmi: {what}");
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn give(out: *mut c_int, value: c_int) -> c_int {
    if out.is_null() {
        return ERR_INVALID_ARG;
    }
    // SAFETY: not null, hence valid for a write (the caller's promise).
    unsafe { out.write(value) };
    SUCCESS
}

/// Copies `text` and a zero into `out`, which has room for `length` bytes.
///
/// # Safety
/// `out` is null or valid for writes of `length` bytes.
unsafe fn give_text(out: *mut c_char, length: usize, text: &[u8]) -> c_int {
    if out.is_null() {
        return ERR_INVALID_ARG;
    }
    if text.len() >= length {
        return ERR_INVALID_LENGTH;
    }
    // SAFETY: `text` and the zero fit into the `length` bytes at `out` (checked; the caller's promise), and do not overlap.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr().cast::<c_char>(), text.len());
        out.add(text.len()).write(0);
    }
    SUCCESS
}

/// The bytes of a C string, none for null.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero and outlives the call.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: a string with its zero (the caller's promise).
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

fn from_environment() -> Result<Client<Socket>, String> {
    let number = |name: &str| -> Result<c_int, String> {
        let text = std::env::var(name).map_err(|_| format!("{name} is not set: was this process started by radic run?"))?;
        text.parse().ok().filter(|n| *n >= 0).ok_or_else(|| format!("{name}={text:?} is not a number from 0"))
    };
    let (fd, rank, size) = (number("PMI_FD")?, number("PMI_RANK")?, number("PMI_SIZE")?);
    Client::init(Socket(fd), rank, size).map_err(|e| format!("PMI_FD={fd}: {e}"))
}

/// Greets the protector. `spawned` becomes 0: nothing is ever spawned.
///
/// # Safety
/// As pmi.h says: `spawned` is valid for a write, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Init(spawned: *mut c_int) -> c_int {
    let mut guard = client();
    if guard.is_none() {
        match from_environment() {
            Ok(client) => *guard = Some(client),
            Err(why) => {
                complain(&why);
                return FAIL;
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { give(spawned, 0) }
}

/// Whether `PMI_Init` has succeeded.
///
/// # Safety
/// As pmi.h says: `initialized` is valid for a write, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Initialized(initialized: *mut c_int) -> c_int {
    let value = c_int::from(client().is_some());
    // SAFETY: the caller's promise.
    unsafe { give(initialized, value) }
}

/// Says that the process is through with MPI.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Finalize() -> c_int {
    let code = with_client(|client| client.finalize().map(|()| SUCCESS));
    *client() = None;
    code
}

/// Declares a call that stores a number.
macro_rules! number_call {
    ($(#[$doc:meta])* $name:ident, |$client:ident| $value:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As pmi.h says: `out` is valid for a write, or null.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(out: *mut c_int) -> c_int {
            with_client(|$client| {
                let value: c_int = $value;
                // SAFETY: the caller's promise.
                Ok(unsafe { give(out, value) })
            })
        }
    };
}

number_call!(/// The number of ranks.
    PMI_Get_size, |client| client.size);
number_call!(/// The rank of the caller.
    PMI_Get_rank, |client| client.rank);
number_call!(/// How many processes there could be.
    PMI_Get_universe_size, |client| client.universe_size()?);
number_call!(/// The number of the program among those of the job.
    PMI_Get_appnum, |client| client.appnum()?);
number_call!(/// Ranks on the caller's node: each rank is announced as alone, so that no library uses shared memory.
    PMI_Get_clique_size, |_client| 1);
number_call!(/// Room that a key space name needs, in bytes.
    PMI_KVS_Get_name_length_max, |_client| KVSNAME as c_int);
number_call!(/// Room that a key needs, in bytes.
    PMI_KVS_Get_key_length_max, |_client| KEY as c_int);
number_call!(/// Room that a value needs, in bytes.
    PMI_KVS_Get_value_length_max, |_client| VALUE as c_int);
number_call!(/// Room that a job's identifier needs, in bytes.
    PMI_Get_id_length_max, |_client| KVSNAME as c_int);

/// The ranks on the caller's node: the caller.
///
/// # Safety
/// As pmi.h says: `ranks` is valid for writes of `length` numbers, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Get_clique_ranks(ranks: *mut c_int, length: c_int) -> c_int {
    if length < 1 {
        return ERR_INVALID_LENGTH;
    }
    // SAFETY: room for at least one number (checked; the caller's promise).
    with_client(|client| Ok(unsafe { give(ranks, client.rank) }))
}

/// The name of the job's key space.
///
/// # Safety
/// As pmi.h says: `name` is valid for writes of `length` bytes, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_KVS_Get_my_name(name: *mut c_char, length: c_int) -> c_int {
    let room = usize::try_from(length).unwrap_or(0);
    // SAFETY: the caller's promise.
    with_client(|client| Ok(unsafe { give_text(name, room, client.kvsname.as_bytes()) }))
}

/// The identifier of the job: the name of its key space.
///
/// # Safety
/// As pmi.h says: `id` is valid for writes of `length` bytes, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Get_id(id: *mut c_char, length: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { PMI_KVS_Get_my_name(id, length) }
}

/// The identifier of the key space's domain: the name of the key space.
///
/// # Safety
/// As pmi.h says: `id` is valid for writes of `length` bytes, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Get_kvs_domain_id(id: *mut c_char, length: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { PMI_KVS_Get_my_name(id, length) }
}

/// Puts a key. `kvsname` is the job's own: there is no other.
///
/// # Safety
/// As pmi.h says: the three are strings, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_KVS_Put(_kvsname: *const c_char, key: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (key, value) = unsafe { (bytes(key), bytes(value)) };
    with_client(|client| client.put(key, value).map(|()| SUCCESS))
}

/// Makes earlier puts visible after the next barrier. They are already on their way.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Commit(_kvsname: *const c_char) -> c_int {
    SUCCESS
}

/// Gets a key.
///
/// # Safety
/// As pmi.h says: `kvsname` and `key` are strings, or null, and `value` is valid for writes of `length` bytes, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_KVS_Get(_kvsname: *const c_char, key: *const c_char, value: *mut c_char, length: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let key = unsafe { bytes(key) };
    let room = usize::try_from(length).unwrap_or(0);
    // SAFETY: the caller's promise.
    with_client(|client| client.get(key).map(|text| unsafe { give_text(value, room, &text) }))
}

/// Waits for all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Barrier() -> c_int {
    with_client(|client| client.barrier().map(|()| SUCCESS))
}

/// Tells the protector to end the job with `code`. Returns, so that the library can say its last words and exit by itself.
///
/// # Safety
/// As pmi.h says: `message` is a string, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Abort(code: c_int, message: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let message = unsafe { bytes(message) };
    with_client(|client| client.abort(code, message).map(|()| SUCCESS))
}

/// Publishes a name.
///
/// # Safety
/// As pmi.h says: both are strings, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Publish_name(service: *const c_char, port: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (service, port) = unsafe { (bytes(service), bytes(port)) };
    with_client(|client| client.publish(service, port).map(|()| SUCCESS))
}

/// Takes a published name back.
///
/// # Safety
/// As pmi.h says: `service` is a string, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Unpublish_name(service: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let service = unsafe { bytes(service) };
    with_client(|client| client.unpublish(service).map(|()| SUCCESS))
}

/// Looks a published name up.
///
/// # Safety
/// As pmi.h says: `service` is a string, or null, and `port` has room for `PMI_MAX_PORT_NAME` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Lookup_name(service: *const c_char, port: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    let service = unsafe { bytes(service) };
    // SAFETY: the caller's promise.
    with_client(|client| client.lookup(service).map(|text| unsafe { give_text(port, PORT, &text) }))
}

/// Refuses: RADIC starts no further processes for a running job.
///
/// # Safety
/// As pmi.h says: `errors` is valid for writes of `count` numbers, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMI_Spawn_multiple(
    count: c_int,
    _commands: *const *const c_char,
    _arguments: *const *const *const c_char,
    _processes: *const c_int,
    _info_sizes: *const c_int,
    _infos: *const *const c_void,
    _preput_size: c_int,
    _preput: *const c_void,
    errors: *mut c_int,
) -> c_int {
    complain("RADIC starts no further processes for a running job (MPI_Comm_spawn)");
    for i in 0..usize::try_from(count).unwrap_or(0) {
        if !errors.is_null() {
            // SAFETY: `errors` has `count` numbers (the caller's promise).
            unsafe { errors.add(i).write(FAIL) };
        }
    }
    FAIL
}
