//! Builds the restorer: a freestanding program at a far address, from one source file and four shared ones, without crates.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if arch != "x86_64" {
        // The library says so in a better place (compile_error! in lib.rs).
        return;
    }
    for file in ["restorer", "src/plan.rs", "src/crc.rs", "src/image/format.rs", "src/page.rs", "build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let variable = |name: &str| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let (root, out) = (variable("CARGO_MANIFEST_DIR"), variable("OUT_DIR"));
    let mut script = std::ffi::OsString::from("link-arg=-Wl,-T,");
    script.push(root.join("restorer/layout.ld"));
    let status = Command::new(variable("RUSTC"))
        .args(["--edition=2024", "--crate-type=bin", "--crate-name=restorer", "-Dwarnings"])
        .args(["-Cpanic=abort", "-Copt-level=2", "-Crelocation-model=pic", "-Ctarget-feature=+sse4.2"])
        .args(["-Cforce-unwind-tables=no", "-Coverflow-checks=no", "-Cdebuginfo=0", "-Cstrip=symbols"])
        .args(["-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib", "-Clink-arg=-static", "-Clink-arg=-no-pie"])
        .args(["-Clink-arg=-Wl,-z,max-page-size=4096", "-Clink-arg=-Wl,-z,norelro", "-Clink-arg=-Wl,--build-id=none"])
        .arg("-C")
        .arg(script)
        .arg("-o")
        .arg(out.join("restorer"))
        .arg(root.join("restorer/main.rs"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!("cargo::error=the restorer could not be built ({status}); see above");
            exit(1);
        }
        Err(error) => {
            println!("cargo::error=rustc could not be started for the restorer: {error}");
            exit(1);
        }
    }
}
