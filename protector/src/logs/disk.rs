//! The thread that writes and reads the files: what a disk takes its time for must not delay a gate.
//!
//! Orders are carried out one after the other. A log that cannot be written (the disk is full, say) is tried again until it can,
//! with all later writes of its process behind it, so that what is reported as written has no gap; other processes go on. An
//! image that cannot be written is given up, which makes room. With `durable` everything of a batch is on the disk before any of
//! it is reported.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use radic_wire::ids::{JobId, ProcessId};

use super::files::Files;
use super::types::Answer;
use super::waker::Waker;
use crate::memory;
use crate::store::{File, Write};
use crate::watched::Watched;

/// Time until a write that failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// Orders of one batch.
const BATCH: usize = 64;

/// Something to do with files.
#[derive(Debug)]
pub enum Order {
    /// Write; the ticket is for [`Done`].
    Write(u64, Write),
    Truncate(File, u64),
    Delete(File),
    RemoveProcess(ProcessId),
    RemoveJob(JobId),
    /// Read for the observer on this connection.
    Fetch(u64, File, u64, usize),
    /// Read for the protector.
    Read(File, u64, usize, Answer<Result<Vec<u8>, String>>),
    /// As a disk that does not answer until the other end is dropped.
    #[cfg(test)]
    Hang(mpsc::Receiver<()>),
}

/// What was done.
#[derive(Debug)]
pub enum Done {
    /// The write with this ticket, and those of its file before it.
    Written(u64),
    /// The write with this ticket could not be done. An image is given up, anything else is tried until it can be.
    Failed(u64, ProcessId, io::Error),
    /// What could not be written of this process is.
    Well(ProcessId),
    /// Bytes for the observer on this connection.
    Fetched(u64, File, u64, io::Result<Vec<u8>>),
    /// An image was sent on the connection with this number, or not.
    Sent(u64),
}

/// Works until `orders` ends.
pub fn run(files: Files, orders: mpsc::Receiver<Order>, done: mpsc::Sender<Done>, waker: Waker, watched: &Watched) {
    let mut disk = Disk { files, written: Vec::new(), stuck: HashMap::new(), again: None, done, watched };
    loop {
        let wait = disk.again.map(|at| at.saturating_duration_since(Instant::now()));
        let first = match wait {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => orders.recv_timeout(wait),
        };
        match first {
            Ok(first) => disk.batch(first, &orders),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if disk.again.is_some_and(|at| at <= Instant::now()) {
            disk.try_again();
        }
        disk.again = if disk.stuck.is_empty() { None } else { disk.again.or_else(|| Some(Instant::now() + AGAIN)) };
        waker.wake();
    }
}

struct Disk<'a> {
    files: Files,
    /// Done, and not on the disk yet.
    written: Vec<(u64, Write)>,
    /// By process, what cannot be written, in order.
    stuck: HashMap<ProcessId, VecDeque<(u64, Write)>>,
    /// When that is tried again.
    again: Option<Instant>,
    done: mpsc::Sender<Done>,
    watched: &'a Watched,
}

impl Disk<'_> {
    fn report(&self, done: Done) {
        // The receiver is gone only while the service ends.
        _ = self.done.send(done);
    }

    fn batch(&mut self, first: Order, orders: &mpsc::Receiver<Order>) {
        self.work(first);
        for _ in 1..BATCH {
            match orders.try_recv() {
                Ok(order) => self.work(order),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        self.sync();
    }

    fn work(&mut self, order: Order) {
        match order {
            Order::Write(ticket, write) => self.write(ticket, write),
            // What frees room goes before what waits for room.
            Order::Truncate(file, position) => self.remove(|files| files.truncate(file, position)),
            Order::Delete(file) => {
                self.drop_writes(|of| of == file);
                self.remove(|files| files.delete(file));
            }
            Order::RemoveProcess(process) => {
                self.drop_writes(|of| of.process() == process);
                self.remove(|files| files.remove_process(process));
            }
            Order::RemoveJob(job) => {
                self.drop_writes(|of| of.process().job == job);
                self.remove(|files| files.remove_job(job));
                memory::give_back();
            }
            Order::Fetch(to, file, position, length) => {
                let bytes = self.read(file, position, length);
                self.report(Done::Fetched(to, file, position, bytes));
            }
            Order::Read(file, position, length, answer) => {
                let text = |error| format!("cannot read {file:?} from {position}: {error}");
                _ = answer.send(self.read(file, position, length).map_err(text));
            }
            #[cfg(test)]
            Order::Hang(until) => self.watched.during("write of", self.files.path(), || _ = until.recv()),
        }
    }

    fn read(&mut self, file: File, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let path = self.files.path_of(file, position);
        self.watched.during("read of", &path, || self.files.read(file, position, length))
    }

    /// Removes files.
    fn remove(&mut self, remove: impl FnOnce(&mut Files)) {
        let path = self.files.path().to_owned();
        self.watched.during("removal of files in", &path, || remove(&mut self.files));
    }

    /// Writes, for [`Disk::sync`] to report.
    fn write_now(&mut self, write: &Write) -> io::Result<()> {
        let path = self.files.path_of(write.file, write.position);
        self.watched.during("write of", &path, || self.files.write(write))
    }

    /// These files will not be asked for any more. A process of which nothing else was stuck is well.
    fn drop_writes(&mut self, is_gone: impl Fn(File) -> bool) {
        self.written.retain(|(_, write)| !is_gone(write.file));
        self.stuck.values_mut().for_each(|writes| writes.retain(|(_, write)| !is_gone(write.file)));
        let freed: Vec<ProcessId> = self.stuck.extract_if(|_, writes| writes.is_empty()).map(|(process, _)| process).collect();
        freed.into_iter().for_each(|process| self.report(Done::Well(process)));
    }

    fn write(&mut self, ticket: u64, write: Write) {
        let process = write.file.process();
        if !matches!(write.file, File::Image(..))
            && let Some(stuck) = self.stuck.get_mut(&process)
        {
            stuck.push_back((ticket, write));
            return;
        }
        match self.write_now(&write) {
            Ok(()) => self.written.push((ticket, write)),
            Err(error) => self.fail(ticket, write, error),
        }
    }

    fn fail(&mut self, ticket: u64, write: Write, error: io::Error) {
        let process = write.file.process();
        self.report(Done::Failed(ticket, process, error));
        if !matches!(write.file, File::Image(..)) {
            // It was tried before those that wait.
            self.stuck.entry(process).or_default().push_front((ticket, write));
        }
    }

    /// Reports what was written. If the disk refuses, what was written may be lost: it is written again.
    fn sync(&mut self) {
        let written = std::mem::take(&mut self.written);
        let path = self.files.path().to_owned();
        match self.watched.during("sync of files in", &path, || self.files.sync()) {
            Ok(()) => written.into_iter().for_each(|(ticket, _)| self.report(Done::Written(ticket))),
            Err(error) => {
                let again = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
                written.into_iter().rev().for_each(|(ticket, write)| self.fail(ticket, write, again(&error)));
            }
        }
    }

    fn try_again(&mut self) {
        self.again = None;
        let processes: Vec<ProcessId> = self.stuck.keys().copied().collect();
        for process in processes {
            while let Some((ticket, write)) = self.stuck.get_mut(&process).and_then(VecDeque::pop_front) {
                if self.write_now(&write).is_err() {
                    self.stuck.entry(process).or_default().push_front((ticket, write));
                    break;
                }
                self.written.push((ticket, write));
            }
            if self.stuck.get(&process).is_some_and(VecDeque::is_empty) {
                self.stuck.remove(&process);
                self.report(Done::Well(process));
            }
        }
        self.sync();
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::determinant::{ConnectionId, StreamId};
    use radic_wire::ids::Rank;

    use super::*;
    use crate::logs::files::process_dir;

    /// With the bytes of a removed process, what `radic status` says of its disk goes as well.
    #[test]
    fn a_process_whose_stuck_writes_are_dropped_is_well() {
        let dir = tempfile::tempdir().unwrap();
        let process = ProcessId { job: JobId::from_bits(0xab), rank: Rank(7) };
        let place = process_dir(dir.path(), process);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, "no directory").unwrap();
        let (orders, receiver) = mpsc::channel();
        let (sender, done) = mpsc::channel();
        let connection = ConnectionId { opener: process, number: 3 };
        let file = File::Stream(process, StreamId { connection, from_opener: true });
        orders.send(Order::Write(5, Write { file, position: 0, bytes: vec![1; 10].into() })).unwrap();
        orders.send(Order::Delete(file)).unwrap();
        drop(orders);
        let store = std::sync::Arc::new(crate::folder::Folder::open(dir.path()).unwrap());
        run(Files::new(store, false), receiver, sender, Waker::new().unwrap(), &Watched::default());
        let done: Vec<Done> = done.iter().collect();
        assert!(matches!(done[..], [Done::Failed(5, of, _), Done::Well(well)] if of == process && well == process), "{done:?}");
    }
}
