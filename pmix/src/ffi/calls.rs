//! The calls themselves. Each that a rank's MPI library makes is here; of what no MPI library was seen to need, that it is not supported.

use std::ffi::{c_char, c_int, c_void};
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::convert::{self, allocate, elements, fix, fixed, infos, key, nested, text, write, write_proc, write_processes};
use super::forward::{become_ours, behind, calls, is_ours};
use super::types::{App, Info, OnDone, OnRegistered, Pdata, Proc, Query, Value};
use super::{complain, fences, from_environment, is_rank, lock, with_job};
use crate::job::{Members, Scope, Subject, Wait};
use crate::status::{self, Status};
use crate::value;

/// Keys by which a caller says how it wants something, not what.
const DIRECTIVES: &str = "pmix.";
/// Some of the names that were looked up are there.
const PARTIAL_SUCCESS: Status = Status(-52);

/// Begins: greets the protector, and says which process this is.
///
/// # Safety
/// As pmix.h says. Pointers may also be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Init(proc: *mut Proc, info: *mut Info, count: usize) -> Status {
    if !is_ours() && !is_rank() {
        // SAFETY: the arguments are the caller's, and the function behind is the same.
        return unsafe { behind!(PMIx_Init(proc: *mut Proc, info: *mut Info, count: usize)) };
    }
    let mut guard = lock();
    let job = match &mut *guard {
        Some(job) => {
            if !job.is_initialized()
                && let Err(status) = job.greet_again()
            {
                return status;
            }
            job
        }
        None => match from_environment() {
            Ok(job) => guard.insert(job),
            Err(why) => {
                complain(&why);
                return Status::LOST_CONNECTION;
            }
        },
    };
    job.initialize();
    become_ours();
    // SAFETY: the caller's promise.
    unsafe { write_proc(proc, job.namespace().as_bytes(), job.rank()) };
    Status::SUCCESS
}

/// Whether `PMIx_Init` has succeeded, and `PMIx_Finalize` has not undone it.
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Initialized() -> c_int {
    if is_ours() {
        return c_int::from(lock().as_ref().is_some_and(|job| job.is_initialized()));
    }
    // SAFETY: the function behind is the same, and has no arguments.
    let behind = unsafe { behind!(PMIx_Initialized()) };
    c_int::from(behind.0 > 0)
}

calls! {
    /// Ends, if it is called as often as `PMIx_Init` was.
    fn PMIx_Finalize(_info: *const Info, _count: usize) {
        let result = with_job(|job| job.finalize());
        fences::look_again();
        status::of(result)
    }

    /// Ends the whole job with `code`. Returns, so that the library can say its last words and exit by itself.
    fn PMIx_Abort(code: c_int, message: *const c_char, _procs: *mut Proc, _count: usize) {
        // SAFETY: the caller's promise.
        let message = unsafe { text(message) };
        status::of(with_job(|job| job.abort(code, message)))
    }

    /// Puts a value for other ranks.
    fn PMIx_Put(scope: u8, name: *const c_char, value: *mut Value) {
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (key(name), value.as_ref().ok_or(Status::BAD_PARAM).and_then(|value| convert::read(value))) };
        let scope = match scope {
            1 => Scope::Local,
            2 => Scope::Remote,
            3 => Scope::Global,
            4 => Scope::Internal,
            _ => return Status::BAD_PARAM,
        };
        status::of(name.and_then(|name| with_job(|job| job.put(scope, &name, value?))))
    }

    /// Hands over what was put.
    fn PMIx_Commit() {
        status::of(with_job(|job| job.commit()))
    }

    /// Remembers a value for this process alone.
    fn PMIx_Store_internal(proc: *const Proc, name: *const c_char, value: *mut Value) {
        // SAFETY: the caller's promise.
        let (proc, name, value) = unsafe { (proc.as_ref(), key(name), value.as_ref()) };
        let (Some(proc), Ok(name), Some(value)) = (proc, name, value) else { return Status::BAD_PARAM };
        // SAFETY: the caller's promise.
        let value = unsafe { convert::read(value) };
        status::of(value.and_then(|value| with_job(|job| job.store(convert::subject(proc), &name, value))))
    }

    /// Waits for other ranks.
    fn PMIx_Fence(procs: *const Proc, count: usize, _info: *const Info, _infos: usize) {
        let result = with_job(|job| {
            // SAFETY: the caller's promise.
            let members = unsafe { convert::members(job, procs, count)? };
            job.fence(&members)
        });
        fences::look_again();
        status::of(result)
    }

    /// Enters a fence, and has `tell` be called at its end.
    fn PMIx_Fence_nb(
        procs: *const Proc, count: usize, info: *const Info, infos: usize, tell: Option<OnDone>, argument: *mut c_void,
    ) {
        let Some(tell) = tell else {
            // SAFETY: the caller's promise.
            return unsafe { PMIx_Fence(procs, count, info, infos) };
        };
        let begun = with_job(|job| {
            // SAFETY: the caller's promise.
            let members = unsafe { convert::members(job, procs, count)? };
            fences::expect(job.begin_fence(members)?, tell, argument);
            Ok(())
        });
        status::of(begun.map(|()| fences::watch(tell)))
    }

    /// A value of a process, or of the job. The caller frees it.
    fn PMIx_Get(proc: *const Proc, name: *const c_char, info: *const Info, count: usize, out: *mut *mut Value) {
        // SAFETY: the caller's promise.
        status::of(unsafe { get(proc, name, (info, count), out) })
    }

    /// Publishes each value that is not a directive.
    fn PMIx_Publish(info: *const Info, count: usize) {
        // SAFETY: the caller's promise.
        status::of(unsafe { publish(info, count) })
    }

    /// Looks up what is published under the keys of `data`.
    fn PMIx_Lookup(data: *mut Pdata, count: usize, info: *const Info, infos: usize) {
        // SAFETY: the caller's promise.
        unsafe { look_up(data, count, (info, infos)) }.unwrap_or_else(|status| status)
    }

    /// Takes names back. `keys` ends with null.
    fn PMIx_Unpublish(keys: *mut *mut c_char, _info: *const Info, _count: usize) {
        // SAFETY: the caller's promise.
        status::of(unsafe { unpublish(keys) })
    }

    /// Refuses: RADIC starts no further processes for a running job.
    fn PMIx_Spawn(_info: *const Info, _count: usize, _apps: *const App, _number: usize, _namespace: *mut c_char) {
        complain("RADIC starts no further processes for a running job (MPI_Comm_spawn)");
        Status::NOT_SUPPORTED
    }

    /// Ranks of one job need no connecting; with those of another one RADIC connects nothing.
    fn PMIx_Connect(procs: *const Proc, count: usize, _info: *const Info, _infos: usize) {
        let result = with_job(|job| {
            // SAFETY: the caller's promise.
            unsafe { convert::members(job, procs, count) }.map(drop)
        });
        if result == Err(Status::NOT_SUPPORTED) {
            complain("ranks of different jobs cannot connect (MPI_Comm_connect, MPI_Comm_accept)");
        }
        status::of(result)
    }

    /// Constructs a group: the number that its members share, and what each has brought along.
    fn PMIx_Group_construct(
        name: *const c_char, procs: *const Proc, count: usize, info: *const Info, infos: usize,
        results: *mut *mut Info, number: *mut usize,
    ) {
        // SAFETY: the caller's promise.
        status::of(unsafe { group(name, (procs, count), (info, infos), results, number) })
    }

    /// Nothing is kept of a group but its members' values, for which later questions may come.
    fn PMIx_Group_destruct(_name: *const c_char, _info: *const Info, _count: usize) {
        Status::SUCCESS
    }

    /// Prints what is for the standard error.
    fn PMIx_Log_nb(
        data: *const Info, count: usize, _info: *const Info, _infos: usize, tell: Option<OnDone>, argument: *mut c_void,
    ) {
        // SAFETY: the caller's promise.
        let Ok(entries) = (unsafe { infos(data, count) }) else { return Status::BAD_PARAM };
        for (_, value) in entries.iter().filter(|(key, _)| key == "pmix.log.stderr") {
            // Without a stderr nothing can be told.
            let _ = io::stderr().write_all(&value.bytes);
        }
        if let Some(tell) = tell {
            // SAFETY: the function and its argument are the caller's, for this.
            unsafe { tell(Status::SUCCESS, argument) };
        }
        Status::SUCCESS
    }

    /// No event comes to a rank: peers that die come back, and nobody else sends any. Without `tell` the handler's number is returned.
    fn PMIx_Register_event_handler(
        _codes: *mut Status, _count: usize, _info: *mut Info, _infos: usize, _handler: *mut c_void, tell: Option<OnRegistered>,
        argument: *mut c_void,
    ) {
        static HANDLERS: AtomicUsize = AtomicUsize::new(0);
        let number = HANDLERS.fetch_add(1, Ordering::Relaxed);
        match tell {
            // SAFETY: the function and its argument are the caller's, for this.
            Some(tell) => unsafe { tell(Status::SUCCESS, number, argument) },
            None => return Status(i32::try_from(number).unwrap_or(i32::MAX)),
        }
        Status::SUCCESS
    }

    /// See `PMIx_Register_event_handler`.
    fn PMIx_Deregister_event_handler(_number: usize, tell: Option<OnDone>, argument: *mut c_void) {
        if let Some(tell) = tell {
            // SAFETY: the function and its argument are the caller's, for this.
            unsafe { tell(Status::SUCCESS, argument) };
        }
        Status::SUCCESS
    }

    /// Not supported.
    fn PMIx_Notify_event(
        _status: Status, _source: *const Proc, _range: u8, _info: *const Info, _count: usize, _tell: Option<OnDone>, _argument: *mut c_void,
    ) {
        Status::NOT_SUPPORTED
    }

    /// Not supported: the launcher knows no sets of processes.
    fn PMIx_Query_info(_queries: *mut Query, _count: usize, _results: *mut *mut Info, _number: *mut usize) {
        Status::NOT_SUPPORTED
    }

    /// Not supported: the launcher knows no sets of processes.
    fn PMIx_Query_info_nb(_queries: *mut Query, _count: usize, _tell: *mut c_void, _argument: *mut c_void) {
        Status::NOT_SUPPORTED
    }

    /// Not supported.
    fn PMIx_Job_control_nb(
        _procs: *const Proc, _count: usize, _info: *const Info, _infos: usize, _tell: *mut c_void, _argument: *mut c_void,
    ) {
        Status::NOT_SUPPORTED
    }

    /// Not supported: libraries look at the machine by themselves.
    fn PMIx_Load_topology(_topology: *mut c_void) {
        Status::NOT_SUPPORTED
    }

    /// Not supported: ranks are bound to no processors.
    fn PMIx_Get_cpuset(_cpuset: *mut c_void, _whose: u8) {
        Status::NOT_SUPPORTED
    }

    /// Not supported.
    fn PMIx_Compute_distances(
        _topology: *mut c_void, _cpuset: *mut c_void, _info: *mut Info, _count: usize, _distances: *mut *mut c_void, _number: *mut usize,
    ) {
        Status::NOT_SUPPORTED
    }
}

/// # Safety
/// `proc` and `name` are null or what they seem; the directives are as many as is said; `out` is null or valid for a write.
unsafe fn get(
    proc: *const Proc,
    name: *const c_char,
    directives: (*const Info, usize),
    out: *mut *mut Value,
) -> Result<(), Status> {
    // SAFETY: the caller's promise.
    let (proc, name, directives) = unsafe { (proc.as_ref(), key(name)?, infos(directives.0, directives.1)?) };
    // SAFETY: the caller's promise.
    let out = unsafe { out.as_mut() }.ok_or(Status::BAD_PARAM)?;
    let directive = |name: &str| directives.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let is_set = |name: &str| directive(name).is_some_and(|value| value.number() != Some(0));
    let context = directive("pmix.grp.ctxid").and_then(value::Value::number);
    let value = with_job(|job| {
        if proc.is_some_and(|proc| !is_of(proc, job.namespace())) {
            return Err(Status::NOT_FOUND);
        }
        job.get(proc.map_or(Subject::Any, convert::subject), &name, context, is_set("pmix.optional"))
    })?;
    if is_set("pmix.get.static") {
        // SAFETY: with this directive there is a value of the caller's where `out` points to.
        return write(unsafe { out.as_mut() }.ok_or(Status::BAD_PARAM)?, &value);
    }
    let memory = allocate::<Value>(1)?;
    // SAFETY: there is room for one, and nothing else knows of it; zeroes are a value.
    write(unsafe { &mut *memory }, &value)?;
    *out = memory;
    Ok(())
}

/// Whether the process is of this namespace; one without a namespace is.
fn is_of(proc: &Proc, namespace: &str) -> bool {
    let its = fixed(&proc.namespace);
    its.is_empty() || its == namespace.as_bytes()
}

/// # Safety
/// `info` is null or has `count` elements.
unsafe fn publish(info: *const Info, count: usize) -> Result<(), Status> {
    // SAFETY: the caller's promise.
    let infos = unsafe { elements(info, count)? };
    let mut some = false;
    for info in infos {
        let key = String::from_utf8_lossy(&fixed(&info.key)).into_owned();
        if key.starts_with(DIRECTIVES) {
            continue;
        }
        // SAFETY: the caller's promise.
        let value = unsafe { convert::read(&info.value)? };
        with_job(|job| job.publish(&key, value))?;
        some = true;
    }
    if some { Ok(()) } else { Err(Status::BAD_PARAM) }
}

/// # Safety
/// `data` is null or has `count` elements; the directives are as many as is said.
unsafe fn look_up(data: *mut Pdata, count: usize, directives: (*const Info, usize)) -> Result<Status, Status> {
    // SAFETY: the caller's promise.
    let directives = unsafe { infos(directives.0, directives.1)? };
    // SAFETY: the caller's promise.
    let names: Vec<String> = unsafe { elements(data.cast_const(), count)? }
        .iter()
        .map(|entry| String::from_utf8_lossy(&fixed(&entry.key)).into_owned())
        .collect();
    if names.is_empty() {
        return Err(Status::BAD_PARAM);
    }
    let number = |name: &str| directives.iter().find(|(key, _)| key == name).map(|(_, value)| value.number());
    let wait = match number("pmix.wait") {
        None => Wait::No,
        Some(_) => Wait::Seconds(number("pmix.timeout").flatten().unwrap_or(0)),
    };
    let found = with_job(|job| job.look_up(&names, wait))?;
    for (at, published) in found.iter().enumerate().filter_map(|(at, published)| published.as_ref().map(|it| (at, it))) {
        // SAFETY: one of the `count` elements, which the caller lends for this.
        let entry = unsafe { &mut *data.add(at) };
        fix(&mut entry.proc.namespace, &published.namespace);
        entry.proc.rank = published.rank;
        write(&mut entry.value, &published.value)?;
    }
    match found.iter().flatten().count() {
        0 => Err(Status::NOT_FOUND),
        some if some < found.len() => Ok(PARTIAL_SUCCESS),
        _ => Ok(Status::SUCCESS),
    }
}

/// # Safety
/// `keys` is null or an array of strings that ends with null.
unsafe fn unpublish(keys: *mut *mut c_char) -> Result<(), Status> {
    if keys.is_null() {
        return Err(Status::NOT_SUPPORTED);
    }
    let mut result = Ok(());
    for at in 0.. {
        // SAFETY: none of those before was null, so there is another one (the caller's promise).
        let name = unsafe { *keys.add(at) };
        if name.is_null() {
            break;
        }
        // SAFETY: the caller's promise.
        let name = unsafe { key(name) };
        result = name.and_then(|name| with_job(|job| job.unpublish(&name))).and(result);
    }
    result
}

/// # Safety
/// `name` is null or a string; processes and directives are as many as is said; `results` and `number` are null or valid for writes.
unsafe fn group(
    name: *const c_char,
    procs: (*const Proc, usize),
    directives: (*const Info, usize),
    results: *mut *mut Info,
    number: *mut usize,
) -> Result<(), Status> {
    // SAFETY: the caller's promise.
    let (name, mut brought) = unsafe { (key(name)?, nested(directives.0, directives.1, "pmix.grp.info")?) };
    // SAFETY: the caller's promise.
    let others = unsafe { infos(directives.0, directives.1)? };
    brought.extend(others.into_iter().filter(|(key, _)| key == "pmix.grp.lclid"));
    let (context, members, namespace, size) = with_job(|job| {
        // SAFETY: the caller's promise.
        let members = unsafe { convert::members(job, procs.0, procs.1)? };
        let context = job.group(&name, &members, brought)?;
        Ok((context, members, job.namespace().to_owned(), job.size()))
    })?;
    // SAFETY: the caller's promise.
    let (Some(results), Some(number)) = (unsafe { results.as_mut() }, unsafe { number.as_mut() }) else { return Ok(()) };
    let memory = allocate::<Info>(3)?;
    // SAFETY: there is room for three, and nothing else knows of it; zeroes are an info.
    let told = unsafe { std::slice::from_raw_parts_mut(memory, 3) };
    for (info, key) in told.iter_mut().zip(["pmix.grp.ctxid", "pmix.grp.id", "pmix.grp.mbrs"]) {
        fix(&mut info.key, key.as_bytes());
    }
    write(&mut told[0].value, &value::Value::size(context))?;
    write(&mut told[1].value, &value::Value::text(name))?;
    match members {
        Members::All => write_processes(&mut told[2].value, namespace.as_bytes(), 0..size)?,
        Members::Some(ranks) => write_processes(&mut told[2].value, namespace.as_bytes(), ranks.into_iter())?,
    }
    (*results, *number) = (memory, told.len());
    Ok(())
}
