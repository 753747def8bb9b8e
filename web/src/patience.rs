//! A connection whose other end has only so much time to take what it is sent: one that takes nothing is closed.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// A stream on which a write that makes no progress fails in the end.
#[derive(Debug)]
pub struct Patient {
    stream: TcpStream,
    limit: Duration,
    /// When the write that waits now is given up.
    until: Pin<Box<Sleep>>,
    waits: bool,
}

impl Patient {
    /// Waits at most this long for the other end to take something.
    pub fn new(stream: TcpStream, limit: Duration) -> Patient {
        Patient { stream, limit, until: Box::pin(tokio::time::sleep(limit)), waits: false }
    }

    fn bounded<T>(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let this = &mut *self;
        if let Poll::Ready(result) = poll(Pin::new(&mut this.stream), context) {
            this.waits = false;
            return Poll::Ready(result);
        }
        if !std::mem::replace(&mut this.waits, true) {
            this.until.as_mut().reset(Instant::now() + this.limit);
        }
        ready!(this.until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.bounded(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bounded(context, |stream, context| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bounded(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bounded(context, |stream, context| stream.poll_shutdown(context))
    }
}
