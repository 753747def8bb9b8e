//! libFuzzer's entry: `make fuzz`.
#![no_main]

mod check;
#[path = "../../src/crc.rs"]
mod crc;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::check(data);
});
