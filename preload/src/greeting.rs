//! Greetings on sockets: a byte that says how long, the greeting, its code.
//!
//! The code's key is that of the accepting process's job and the connection ([`JobKey::greeting_key`]): who opens a connection to another job gets this
//! one key from its node.

use std::os::fd::BorrowedFd;

use radic_wire::bytes::Writer;
use radic_wire::determinant::ConnectionId;
use radic_wire::log::{GREETING, Greeting};
use radic_wire::mac::{JobKey, MAC, Purpose};
use rustix::io::Errno;

use crate::sys;

/// Time for the other end to write its greeting, in milliseconds: it does so inside its connect().
const GREETING_MS: u64 = 5_000;

/// Writes a greeting to a new socket, whose buffer is empty; `key`: that of its connection.
pub fn write(fd: BorrowedFd<'_>, key: &JobKey, greeting: &Greeting) -> Result<(), Errno> {
    let mut out = [0; 1 + GREETING + MAC];
    let mut writer = Writer::new(&mut out[1..=GREETING]);
    greeting.write(&mut writer);
    let length = writer.finish().ok_or(Errno::MSGSIZE)?;
    let code = key.mac(Purpose::Greeting, &[&out[1..=length]]);
    out[0] = length as u8;
    out[1 + length..][..MAC].copy_from_slice(&code);
    sys::send_all(fd, &out[..1 + length + MAC], GREETING_MS)
}

/// Reads a greeting, whose key depends on the connection that it is about.
pub fn read(fd: BorrowedFd<'_>, key_of: impl FnOnce(&ConnectionId) -> JobKey) -> Result<Greeting, Errno> {
    let mut bytes = [0; 1 + GREETING + MAC];
    sys::receive_all(fd, &mut bytes[..1], GREETING_MS)?;
    let length = usize::from(bytes[0]);
    if length > GREETING {
        return Err(Errno::PROTO);
    }
    let rest = &mut bytes[1..1 + length + MAC];
    sys::receive_all(fd, rest, GREETING_MS)?;
    let (body, code) = rest.split_at(length);
    let greeting = Greeting::read(body).map_err(|_| Errno::PROTO)?;
    if !key_of(&greeting.connection).verify(Purpose::Greeting, &[body], code) {
        return Err(Errno::ACCESS);
    }
    Ok(greeting)
}
