//! The checkpoint engine, usable alone.
//!
//! This crate will hold the image format, the code that stops a process from inside and saves it, and the libc-free restorer
//! that rebuilds it. It is empty until issue 3.
#![forbid(unsafe_code)]
