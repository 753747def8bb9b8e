//! Images of recovery lines: one counts when all ranks of its job have theirs, and every node knows that.

use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId, Rank};
use radic_wire::log::LineMark;

use super::Store;
use super::types::{File, Notice, Output};

/// What is known of the lines of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lines {
    epoch: Epoch,
    /// The newest that is complete.
    complete: u64,
    /// The lines after the first number, up to the second, are given up.
    given_up: (u64, u64),
}

/// What is held of the images of one recovery line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineHeld {
    /// The newest line of which there is an image, or was heard.
    pub newest: u64,
    /// Ranks with an image of the line, or a later one, and the newest incarnation that is listened to.
    pub has: Vec<(Rank, Incarnation)>,
    /// Ranks that could be brought back from here, but not from an image of the line, and of which none is on its way.
    pub lacks: Vec<Rank>,
}

impl Store {
    fn known_lines(&mut self, job: JobId, epoch: Epoch) -> &mut Lines {
        let known = self.lines.entry(job).or_default();
        if known.epoch < epoch {
            *known = Lines { epoch, ..Lines::default() };
        }
        known
    }

    fn lines_of(&self, id: ProcessId) -> Option<&Lines> {
        let epoch = self.processes.get(&id)?.incarnation.epoch;
        self.lines.get(&id.job).filter(|lines| lines.epoch == epoch)
    }

    /// The newest complete line of the process's job, in its epoch.
    pub(super) fn complete_line(&self, id: ProcessId) -> u64 {
        self.lines_of(id).map_or(0, |lines| lines.complete)
    }

    /// Whether an image of this line never counts.
    pub(super) fn is_given_up(&self, id: ProcessId, line: LineMark) -> bool {
        let is_within = |(after, to): (u64, u64)| after < line.newest && line.newest <= to;
        line.joins && self.lines_of(id).is_some_and(|lines| line.newest > lines.complete && is_within(lines.given_up))
    }

    /// Images of this line count from now on, and those of lines before.
    pub fn complete(&mut self, job: JobId, epoch: Epoch, line: u64) {
        let known = self.known_lines(job, epoch);
        known.complete = known.complete.max(line);
        self.of_job(job).into_iter().for_each(|id| self.settle(id));
    }

    /// No image of the lines after `after`, up to `to`, ever counts.
    pub fn give_up(&mut self, job: JobId, epoch: Epoch, (after, to): (u64, u64)) {
        let known = self.known_lines(job, epoch);
        let (before, last) = known.given_up;
        // Lines are given up one after the other; those before the last complete one do not matter.
        known.given_up = (if after <= last { after.min(before) } else { after }, last.max(to));
        for id in self.of_job(job) {
            let incoming = self.processes.get(&id).and_then(|process| process.images.incoming.as_ref());
            let Some((number, line)) = incoming.map(|image| (image.number, image.line)) else { continue };
            if self.is_given_up(id, line) {
                self.drop_image(id, number, Notice::GivenUp(id, number));
            }
        }
    }

    /// What is held of the images of this line.
    pub fn held_of_line(&mut self, job: JobId, epoch: Epoch, line: u64) -> LineHeld {
        let known = self.known_lines(job, epoch);
        let mut held = LineHeld { newest: known.complete.max(known.given_up.1), ..LineHeld::default() };
        for (id, process) in self.processes.iter().filter(|(id, _)| id.job == job) {
            if process.incarnation.epoch != epoch || !process.is_current() {
                continue;
            }
            let newest = |of: Option<&super::Image>| of.map_or(0, |image| image.line.newest);
            let (committed, incoming) = (newest(process.images.newest()), process.images.incoming.as_ref());
            held.newest = held.newest.max(committed).max(newest(incoming));
            let joining = incoming.filter(|image| image.line.joins && image.line.newest == line);
            if committed >= line || joining.is_some_and(|image| image.is_told) {
                held.has.push((id.rank, process.incarnation));
            } else if process.images.newest().is_some() && joining.is_none() {
                held.lacks.push(id.rank);
            }
        }
        held
    }

    /// Nothing of a job is held any more.
    pub fn remove_job(&mut self, job: JobId) {
        self.of_job(job).into_iter().for_each(|id| self.remove(id));
        self.lines.remove(&job);
    }

    /// The process is brought back: its image of a line that is not complete never counts.
    pub(super) fn drop_incomplete(&mut self, id: ProcessId) {
        let complete = self.complete_line(id);
        let Some(process) = self.processes.get_mut(&id) else { return };
        let is_over = |image: &mut super::Image| image.line.joins && image.line.newest > complete;
        if let Some(image) = process.images.incoming.take_if(is_over) {
            process.in_memory -= image.content.in_memory();
            self.outputs.push_back(Output::Delete(File::Image(id, image.number)));
        }
    }
}
