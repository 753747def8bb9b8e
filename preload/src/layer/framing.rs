//! Bytes of the program on the sockets of links: there they lie in frames ([`radic_observer::frames`]).

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use radic_observer::Front;
use radic_observer::connection::{Link, Slot};
use radic_observer::frames::{BadFrame, Deframer, Leaving};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};

use super::Layer;
use crate::buffers::{BUFFERS, clip, clip_mut};
use crate::ending::sure;
use crate::fds::{self, Kind};
use crate::{pointers, sys, watches};

/// Up to this many bytes, their header included, are copied together and leave by `send`, which costs less than `sendmsg` of two parts.
pub(super) const SMALL: usize = 2 << 10;
/// Bytes in a socket that are looked at first, beside as many as are asked for: a header and its causes, as a rule.
const LOOKED_AT_FIRST: usize = 4 << 10;
/// Bytes in a socket that are looked at, at most: more than a kernel keeps for one.
const LOOKED_AT: usize = 64 << 20;
/// Bytes that one system call reads. While a call reads, what comes on the socket waits, and so do the acknowledgements that its
/// sender goes on by: calls that read all of 4 MiB at once took longer (docs/performance.md).
const READ: usize = 256 << 10;

/// A header and what follows are read together up to this many bytes, by `recv` and a copy, which costs less than `recvmsg` of two
/// parts: a call that finds nothing by 150 ns (docs/performance.md). What a library of MPI reads at once is shorter, as a rule.
pub(super) const SHORT: usize = 16 << 10;

fn bad(_: BadFrame) -> Errno {
    Errno::PROTO
}

impl Layer {
    /// As `recv` that never waits, of at most `len` bytes after the first `filled` of these buffers. `EPROTO`: no frame came.
    #[inline(always)]
    pub fn read_link(
        &mut self,
        slot: Slot,
        socket: BorrowedFd<'_>,
        buffers: &mut [IoSliceMut<'_>],
        (filled, len): (usize, usize),
    ) -> Result<usize, Errno> {
        let Layer { observer, short, .. } = self;
        let deframer = observer.deframer(slot).ok_or(Errno::BADF)?;
        let mut taken = if deframer.has_ahead() { take_ahead(deframer, buffers, (filled, len))? } else { 0 };
        if taken > 0 && !deframer.expects_more() {
            return Ok(taken);
        }
        while taken < len {
            match read_once(deframer, socket, buffers, (filled + taken, len - taken), short) {
                // The end; if bytes came before, the next call finds it. So it does an error.
                Ok(Reading { count: 0, .. }) => break,
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
                Ok(Reading { bytes, is_full, .. }) => {
                    taken += bytes;
                    if taken > 0 && !is_full {
                        break;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// The kernel says that the socket of a protected connection is readable. Before the program is told so, the header in front
    /// of its bytes is read, and what they depend on is kept. True: there is nothing but that, or a part of it. Bytes that follow
    /// are read along, unless another thread sleeps (it may wait for these, and no kernel would tell it), or the program asks in
    /// a way that only the kernel can serve.
    pub fn has_only_header(&mut self, fd: i32) -> bool {
        if self.observer.causes().is_none() || !matches!(fds::kind(fd), Kind::Connection | Kind::Alias) {
            return false;
        }
        let fd = self.primary(fd);
        let Ok(slot) = self.observer.table().slot_of(fd as u32) else { return false };
        if self.observer.table().get(slot).is_none_or(|connection| connection.link() != Link::Up) {
            // Bytes on a link that was given up come again on the next one. An end is told.
            let looked = rustix::net::recv(sys::borrow(fd), &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK);
            return looked.is_ok_and(|(_, count)| count > 0);
        }
        let alone = self.sleepers == 0 && watches::is_plain(fd);
        let read = |room: &mut [u8]| match rustix::net::recv(sys::borrow(fd), room, RecvFlags::DONTWAIT) {
            Ok((_, count)) => Some(count),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) => Some(0),
        };
        let front = sure(self.observer.look_past_header(slot, alone, read));
        if front == Front::Bytes {
            self.note_ahead(slot);
        }
        front == Front::Header
    }

    fn note_ahead(&mut self, slot: Slot) {
        if !self.ahead.contains(&slot) {
            self.ahead.push(slot);
        }
    }

    /// Whether bytes of some connection were read ahead, and the program has not taken them.
    #[inline]
    pub fn has_ahead(&mut self) -> bool {
        !self.ahead.is_empty() && self.still_has_ahead()
    }

    fn still_has_ahead(&mut self) -> bool {
        let Layer { ahead, observer, .. } = self;
        ahead.retain(|slot| observer.has_ahead(*slot));
        !ahead.is_empty()
    }

    /// As `recv` with MSG_PEEK, of at most `len` bytes.
    pub fn peek_link(
        &mut self,
        slot: Slot,
        socket: BorrowedFd<'_>,
        buffers: &mut [IoSliceMut<'_>],
        len: usize,
    ) -> Result<usize, Errno> {
        let deframer = self.observer.deframer(slot).ok_or(Errno::BADF)?;
        deframer.expect_more(true);
        let deframer = deframer.clone();
        // Headers and causes lie between the bytes: more is looked at until there are enough, or that is all.
        let mut most = len.saturating_add(LOOKED_AT_FIRST).min(LOOKED_AT);
        let (looked, bytes, taken) = loop {
            let mut looked = deframer.clone();
            let mut bytes = looked.give_back_ahead();
            let in_socket = match look(socket, most) {
                Ok(more) if more.is_empty() && bytes.is_empty() => return Ok(0),
                Ok(more) => more,
                Err(error) if bytes.is_empty() => return Err(error),
                Err(_) => Vec::new(),
            };
            bytes.extend(&in_socket);
            let taken = looked.unframe(&mut bytes).map_err(bad)?.min(len);
            if taken == len || in_socket.len() < most || most == LOOKED_AT {
                break (looked, bytes, taken);
            }
            most = most.saturating_mul(2).min(LOOKED_AT);
        };
        sure(self.observer.keep_peeked(slot, looked.causes()));
        let mut rest = &bytes[..taken];
        for mut part in clip_mut(buffers, 0, taken) {
            let (now, later) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = later;
        }
        if taken > 0 { Ok(taken) } else { Err(Errno::AGAIN) }
    }

    /// Bytes of the program that lie in the socket of a link.
    pub fn unread(&self, slot: Slot, socket: BorrowedFd<'_>) -> u64 {
        self.look_at_unread(slot, socket).map_or(0, |(unread, _)| unread)
    }

    /// The same for the program's own question, with what these bytes depend on. It expects that many of its next call.
    pub fn unread_by_program(&mut self, slot: Slot, socket: BorrowedFd<'_>) -> (u64, Vec<u8>) {
        if let Some(deframer) = self.observer.deframer(slot) {
            deframer.expect_more(true);
        }
        let looked = self.look_at_unread(slot, socket);
        looked.map_or((0, Vec::new()), |(unread, looked)| (unread, looked.causes().to_vec()))
    }

    /// What takes the program's bytes out has seen what lies there, too. None: nothing lies there.
    fn look_at_unread(&self, slot: Slot, socket: BorrowedFd<'_>) -> Option<(u64, Deframer)> {
        let raw = rustix::io::ioctl_fionread(socket).unwrap_or(0);
        let deframer = self.observer.table().get(slot)?.incoming().deframer();
        if raw == 0 && !deframer.has_ahead() {
            return None;
        }
        let mut deframer = deframer.clone();
        let mut bytes = deframer.give_back_ahead();
        if deframer.left() >= bytes.len() as u64 + raw {
            return Some((bytes.len() as u64 + raw, deframer));
        }
        if raw > 0 {
            let looked = look(socket, usize::try_from(raw).unwrap_or(usize::MAX).min(LOOKED_AT));
            bytes.extend(looked.unwrap_or_default());
        }
        let unread = deframer.unframe(&mut bytes).unwrap_or(0) as u64;
        Some((unread, deframer))
    }

    /// Lets the frame under way leave from these buffers of the program, of which the first `skip` bytes have left: at most this
    /// many of the bytes that it carries. Whether the socket has taken all that it was offered. `EAGAIN`: it has taken nothing.
    #[inline(always)]
    pub fn write_link(
        &mut self,
        slot: Slot,
        socket: BorrowedFd<'_>,
        buffers: &[IoSlice<'_>],
        (skip, most): (usize, usize),
    ) -> Result<bool, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let Layer { observer, packed, .. } = self;
        let Some(Leaving { header, payload }) = observer.leaving(slot) else { return Ok(false) };
        let payload = usize::try_from(payload).unwrap_or(usize::MAX).min(most);
        let (offered, sent) = if skip == 0 && header.len() + payload <= SMALL {
            packed.clear();
            packed.extend_from_slice(header);
            for part in buffers {
                packed.extend_from_slice(&part[..part.len().min(header.len() + payload - packed.len())]);
            }
            (packed.len(), rustix::net::send(socket, packed, flags)?)
        } else {
            let mut parts = clip(buffers, skip, payload);
            parts.insert(0, IoSlice::new(header));
            parts.truncate(BUFFERS);
            let offered = parts.iter().map(|part| part.len()).sum();
            (offered, rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags)?)
        };
        self.observer.handle_transmitted(slot, sent as u64);
        Ok(sent == offered)
    }

    /// The same from the outbox, of which the bytes of this stream are there up to `kept`. Whether the socket has taken some.
    pub fn transmit_frame(&mut self, slot: Slot, socket: BorrowedFd<'_>, offset: u64, kept: u64) -> Result<bool, Errno> {
        let Some(Leaving { header, payload }) = self.observer.leaving(slot) else { return Ok(false) };
        let mut parts = [&[][..]; sys::PARTS];
        parts[0] = header;
        let (mut left, mut count) = (payload.min(kept - offset), 1);
        for (part, piece) in parts[1..].iter_mut().zip(self.observer.outgoing(slot, offset)) {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            *part = &piece[..length];
            (left, count) = (left - length as u64, count + 1);
        }
        let sent = sys::send_parts(socket, &parts[..count])? as u64;
        self.observer.handle_transmitted(slot, sent);
        Ok(sent > 0)
    }
}

/// Takes what was read ahead.
#[inline(never)]
fn take_ahead(deframer: &mut Deframer, buffers: &mut [IoSliceMut<'_>], (filled, len): (usize, usize)) -> Result<usize, Errno> {
    // As a rule there is one: what its part lies in needs no memory.
    if let [one] = buffers {
        let to = filled.saturating_add(len).min(one.len());
        let part = &mut one[filled..to];
        let count = part.len().min(deframer.ahead());
        return match pointers::is_writable(part.as_ptr(), count) {
            true => deframer.take_ahead(&mut part[..count]).map_err(bad),
            false => Err(Errno::FAULT),
        };
    }
    let mut taken = 0;
    for mut part in clip_mut(buffers, filled, len) {
        let count = part.len().min(deframer.ahead());
        match pointers::is_writable(part.as_ptr(), count) {
            true => taken += deframer.take_ahead(&mut part[..count]).map_err(bad)?,
            // As the kernel says it: what it could move counts.
            false if taken == 0 => return Err(Errno::FAULT),
            false => break,
        }
    }
    Ok(taken)
}

/// What one system call has brought.
struct Reading {
    /// 0: the socket has ended.
    count: usize,
    /// Of them the program's.
    bytes: usize,
    /// It has brought all that was asked for: there may be more.
    is_full: bool,
}

/// Reads what comes next by one system call: the rest of a header, bytes of the program, and the frames after them where one
/// buffer takes all.
#[inline(always)]
fn read_once(
    deframer: &mut Deframer,
    socket: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
    (filled, len): (usize, usize),
    short: &mut [u8],
) -> Result<Reading, Errno> {
    let reading = match buffers {
        [one] => {
            let to = (filled + len.min(READ)).min(one.len());
            read_frames(deframer, socket, &mut one[filled..to], short)?
        }
        // What goes into several buffers is not moved there: a header by itself, then the rest of its frame.
        _ if deframer.left() == 0 => read_frames(deframer, socket, &mut [], short)?,
        many => {
            let len = usize::try_from(deframer.left()).unwrap_or(usize::MAX).min(len);
            let mut room = clip_mut(many, filled, len);
            room.truncate(BUFFERS);
            let count = rustix::net::recvmsg(socket, &mut room, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?.bytes;
            deframer.handle_payload(count);
            Reading { count, bytes: count, is_full: count == len && deframer.expects_more() }
        }
    };
    if !reading.is_full {
        deframer.expect_more(false);
    }
    Ok(reading)
}

/// Reads what lacks of a header, and what follows into this buffer. `short`: room of [`SHORT`] bytes.
#[inline(always)]
fn read_frames(deframer: &mut Deframer, socket: BorrowedFd<'_>, buffer: &mut [u8], short: &mut [u8]) -> Result<Reading, Errno> {
    let header = deframer.header_room();
    let lacks = header.len();
    let most = lacks + buffer.len();
    let count = if lacks == 0 {
        rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT)?.1
    } else if most <= short.len() && pointers::is_writable(buffer.as_ptr(), buffer.len()) {
        let count = rustix::net::recv(socket, &mut short[..most], RecvFlags::DONTWAIT)?.1;
        let (of_header, rest) = short[..count].split_at(count.min(lacks));
        header[..of_header.len()].copy_from_slice(of_header);
        buffer[..rest.len()].copy_from_slice(rest);
        count
    } else {
        let mut parts = [IoSliceMut::new(header), IoSliceMut::new(buffer)];
        rustix::net::recvmsg(socket, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?.bytes
    };
    let of_header = count.min(lacks);
    deframer.handle_header(of_header).map_err(bad)?;
    let bytes = deframer.unframe(&mut buffer[..count - of_header]).map_err(bad)?;
    Ok(Reading { count, bytes, is_full: count == most })
}

/// A copy of what lies in a socket, as it came, at most `most` bytes. Empty: it has ended.
fn look(socket: BorrowedFd<'_>, most: usize) -> Result<Vec<u8>, Errno> {
    let there = usize::try_from(rustix::io::ioctl_fionread(socket)?).unwrap_or(usize::MAX).clamp(1, most.max(1));
    let mut bytes = vec![0; there];
    let count = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT | RecvFlags::PEEK)?.1;
    bytes.truncate(count);
    Ok(bytes)
}
