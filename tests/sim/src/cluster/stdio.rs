//! Pipes between a process and its host, and what the terminal has for rank 0.

use std::collections::VecDeque;

use radic_protector::node::Input;
use radic_wire::ids::{Epoch, JobId, ProcessId, Rank};
use radic_wire::job::OutputStream;
use radic_wire::local::Request;
use serde_bytes::ByteBuf;

use super::queue::Event;
use super::world::World;

/// Bytes that a pipe holds: few, so that writers wait.
const PIPE: usize = 24;
/// Bytes that a host reads at once.
const PIECE: usize = 64;

/// The pipes of one process.
#[derive(Debug, Default)]
pub struct Pipes {
    /// Standard output that its host has not read.
    out: VecDeque<u8>,
    /// Whether the host waits for the next piece of each stream.
    wanted: [bool; 2],
    /// Standard input that the program has not read.
    input: VecDeque<u8>,
    /// A piece of it that does not fit yet: its number, and the piece.
    waiting: Option<(u64, ByteBuf)>,
    /// The other end of standard input is closed.
    is_over: bool,
    /// The process has ended, and its ends of the pipes are closed.
    has_ended: bool,
}

impl Pipes {
    /// Bytes that the program can print now.
    pub fn room(&self) -> usize {
        PIPE - self.out.len()
    }

    /// The next piece for the host, if it waits for one. An empty one is the end.
    fn piece(&mut self, stream: OutputStream, has_ended: bool) -> Option<Vec<u8>> {
        if !self.wanted[stream as usize] {
            return None;
        }
        let piece: Vec<u8> = match stream {
            OutputStream::Stdout => self.out.drain(..self.out.len().min(PIECE)).collect(),
            OutputStream::Stderr => Vec::new(),
        };
        let is_some = !piece.is_empty() || has_ended;
        self.wanted[stream as usize] = !is_some;
        is_some.then_some(piece)
    }

    /// Moves the piece that waits into the pipe if there is room. Its number, if so.
    fn fill(&mut self) -> Option<u64> {
        let fits = |(_, piece): &mut (u64, ByteBuf)| self.input.len() + piece.len() <= PIPE;
        let (number, piece) = self.waiting.take_if(fits)?;
        self.is_over |= piece.is_empty();
        self.input.extend(piece.iter());
        Some(number)
    }
}

impl World {
    /// The program prints; there is room for that in the pipe.
    pub fn put(&mut self, pid: u32, bytes: &[u8]) {
        let position = self.lib(pid).observer.journal().end();
        self.trace(|| format!("process {pid} prints {bytes:?} at {position} of its journal"));
        let pipes = &mut self.processes[pid as usize].pipes;
        assert!(bytes.len() <= pipes.room(), "the program prints what the pipe takes");
        let is_garbled = self.breaks.garbled && self.checks.epoch > Epoch::FIRST;
        pipes.out.extend(bytes.iter().map(|byte| if is_garbled { !byte } else { *byte }));
        self.pump_output(pid);
    }

    /// The pipes of a process that has ended are closed there: what is in them is read to its end.
    pub fn end_output(&mut self, pid: u32) {
        self.processes[pid as usize].pipes.has_ended = true;
        self.pump_output(pid);
    }

    /// The host of a process waits for the next piece of a stream.
    pub fn want_output(&mut self, pid: u32, stream: OutputStream) {
        self.processes[pid as usize].pipes.wanted[stream as usize] = true;
        self.pump_output(pid);
    }

    /// Hands to the host what it waits for and is there.
    pub fn pump_output(&mut self, pid: u32) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let process = &mut self.processes[pid as usize];
            let (id, at, has_ended) = (process.id, process.machine, process.pipes.has_ended);
            if let Some(piece) = process.pipes.piece(stream, has_ended) {
                let boot = self.machines[at].boot;
                let input = Input::ProcessOutput(id, stream, ByteBuf::from(piece));
                self.queue.push(self.now + super::LOCAL, Event::OfProcess(at, boot, pid, Box::new(input)));
            }
        }
    }

    /// The host has a piece of standard input for rank 0. If that rank does not run, the piece counts as taken.
    pub fn give_input(&mut self, at: usize, job: JobId, number: u64, data: ByteBuf) {
        let Some(pid) = self.machines[at].ranks.get(&ProcessId { job, rank: Rank(0) }).copied() else { return };
        if !self.is_running(pid) {
            return self.input_soon(at, Input::StdinTaken(job, number));
        }
        self.processes[pid as usize].pipes.waiting = Some((number, data));
        self.fill_input(pid);
    }

    fn fill_input(&mut self, pid: u32) {
        let process = &mut self.processes[pid as usize];
        let (at, job) = (process.machine, process.id.job);
        if let Some(number) = process.pipes.fill() {
            self.input_soon(at, Input::StdinTaken(job, number));
        }
    }

    /// The program reads at most `max` bytes of standard input. None: there is nothing yet. Empty: its end.
    pub fn take_input(&mut self, pid: u32, max: usize) -> Option<Vec<u8>> {
        let pipes = &mut self.processes[pid as usize].pipes;
        let bytes: Vec<u8> = pipes.input.drain(..pipes.input.len().min(max)).collect();
        let is_over = pipes.is_over;
        self.fill_input(pid);
        (!bytes.is_empty() || is_over).then_some(bytes)
    }

    /// G3: standard input comes to a program.
    pub fn check_input(&mut self, offset: u64, bytes: &[u8]) {
        let due: Vec<u8> = (offset..offset + bytes.len() as u64).map(|at| self.plan.input_at(at)).collect();
        assert_eq!(due, bytes, "G3: standard input at {offset}");
        let end = offset + bytes.len() as u64;
        assert!(end <= self.plan.input, "G3: standard input goes on at {end}");
        assert!(!bytes.is_empty() || end == self.plan.input, "G3: standard input ends at {end} of {}", self.plan.input);
    }

    /// The job's home wants standard input from this offset on; none: the terminal is to know.
    pub fn send_input(&mut self, from: Option<u64>) {
        let offset = from.unwrap_or(self.terminal.input_sent);
        let end = (offset + 1 + self.dice.below(12) as u64).min(self.plan.input);
        let data: Vec<u8> = (offset..end).map(|at| self.plan.input_at(at)).collect();
        self.trace(|| format!("the terminal sends standard input from {offset} to {end}: asked for {from:?}"));
        self.terminal.input_sent = end;
        self.ask(Request::Stdin { offset, data: ByteBuf::from(data) });
    }
}
