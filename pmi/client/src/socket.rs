//! The socket of `PMI_FD`. It stays open when this is dropped: it belongs to the process. It is read and written by functions of the C library, which libradic.so has hooks for.

use std::io::{self, Read, Write};
use std::os::fd::RawFd;

use nix::sys::socket::{MsgFlags, recv, send};

use crate::Stream;

/// See the module's text.
#[derive(Debug)]
pub struct Socket(pub RawFd);

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buffer, MsgFlags::empty())?)
    }
}

impl Write for Socket {
    /// A dead protector is an error of the call, not a SIGPIPE for the program.
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, buffer, MsgFlags::MSG_NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Socket {
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buffer, MsgFlags::MSG_DONTWAIT)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_has_not_come_yet_is_not_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut socket = Socket(ours.as_raw_fd());
        let mut room = [0; 8];
        assert_eq!(socket.read_now(&mut room).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        theirs.write_all(b"word").unwrap();
        assert_eq!(socket.read_now(&mut room).unwrap(), 4);
        drop(theirs);
        assert_eq!(socket.read_now(&mut room).unwrap(), 0);
        assert_eq!(socket.write(b"word").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
