//! libFuzzer's entry: `make fuzz`. RADIC_FUZZ says which of radic-fuzz's checks is run: one program for all of them, so that there is one to be built.
#![no_main]

mod memory;

use std::sync::LazyLock;

use radic_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("RADIC_FUZZ").expect("RADIC_FUZZ names a check");
    radic_fuzz::target(&name).unwrap_or_else(|| panic!("there is no check {name}"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = &**TARGET;
    let (_, peak) = memory::peak_of(|| (target.check)(data));
    if let Some((most, each)) = target.memory {
        assert!(peak <= most + each * data.len(), "{peak} bytes of memory for {} bytes of input", data.len());
    }
});
