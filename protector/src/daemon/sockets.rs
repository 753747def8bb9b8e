//! One socket of a connection between daemons: its task brings what comes to the machine that decides, and sends what that wants
//! sent.

use std::io;
use std::net::SocketAddr;

use radic_wire::key::ClusterKey;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::wire::{Connection, WireError};
use crate::peers::Gone;

/// What a task is to do.
pub enum Order {
    /// Send this frame.
    Send(Vec<u8>),
    /// Send the frames that wait.
    Write,
}

/// What a task has of its machine.
pub trait End {
    /// The peer's machine has taken the connection.
    fn connected(&self);
    /// A frame has come. Waits until the node has room for what it said.
    fn frame(&self, frame: &[u8]) -> impl Future<Output = ()>;
    /// All that has come was handled.
    fn quiet(&self);
    /// The next frame that waits.
    fn poll_frame(&self) -> Option<Vec<u8>>;
    /// The connection has ended.
    fn closed(&self, gone: Gone);
}

/// Connects, and serves the connection until it ends or no more orders are to come.
pub async fn dial(address: SocketAddr, key: ClusterKey, orders: mpsc::UnboundedReceiver<Order>, end: impl End) {
    match TcpStream::connect(address).await {
        Ok(socket) => {
            end.connected();
            serve(Connection::initiator(socket, &key), orders, end).await;
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => end.closed(Gone::NoListener),
        Err(error) => end.closed(Gone::NoWay(error.to_string())),
    }
}

/// Serves a connection that a peer has opened.
pub async fn accept(socket: TcpStream, key: ClusterKey, orders: mpsc::UnboundedReceiver<Order>, end: impl End) {
    serve(Connection::responder(socket, &key), orders, end).await;
}

async fn serve(connection: Result<Connection, WireError>, mut orders: mpsc::UnboundedReceiver<Order>, end: impl End) {
    let served = match connection {
        Ok(mut connection) => follow(&mut connection, &mut orders, &end).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        end.closed(error.gone());
    }
}

/// Until no more orders are to come, which is how the machine closes a connection in order.
async fn follow(
    connection: &mut Connection,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    end: &impl End,
) -> Result<(), WireError> {
    loop {
        let frame = tokio::select! {
            biased;
            order = orders.recv() => match order {
                None => return Ok(()),
                Some(Order::Send(frame)) => {
                    connection.send(&frame).await?;
                    continue;
                }
                Some(Order::Write) => {
                    while let Some(frame) = end.poll_frame() {
                        connection.send(&frame).await?;
                    }
                    continue;
                }
            },
            frame = next(connection, end) => frame?,
        };
        end.frame(&frame).await;
    }
}

/// The next frame. Cancelling it loses nothing.
async fn next(connection: &mut Connection, end: &impl End) -> Result<Vec<u8>, WireError> {
    if let Some(frame) = connection.poll_frame()? {
        return Ok(frame);
    }
    end.quiet();
    connection.receive().await
}
