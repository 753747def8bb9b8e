//! The interposition layer of `libradic.so`.
//!
//! This crate will hold the symbols that a protected program calls instead of libc's: each hook a line or two that turns C
//! arguments into Rust values, calls the observer, and turns the answer back, with `errno` preserved. Every pass-through will
//! name its reason. It is empty until the observer is built (issue 4): `radic run` launches programs without it.
#![forbid(unsafe_code)]
