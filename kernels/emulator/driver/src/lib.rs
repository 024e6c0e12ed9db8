//! A `libcuda.so.1` without a GPU: the part of the CUDA driver API that the host uses, on the emulated device. With it the
//! whole program runs as it does on a GPU, from opening the libraries to recorded decodes, on any machine with Linux.
//!
//! It is stricter than a driver. What the documentation forbids is refused although a GPU may tolerate it: calls without a
//! context, handles that were destroyed, calls that a capture doesn't allow, the first launch of a kernel within one. Each
//! refusal is a line on standard error that begins with [`MARK`], and so is what is left when a context is released, so a
//! test also sees what the host ignores. Numbers are those of an H100 but for the four multiprocessors.
//!
//! Variables: `INFER_EMULATED_CAPABILITY` (9.0), `INFER_EMULATED_MEMORY` (2147483648 bytes), `INFER_EMULATED_PTX`, a file of
//! PTX to interpret instead of running the compiled sources, and `INFER_EMULATED_FAULTS`, a list such as
//! `cuGraphLaunch:40:CUDA_ERROR_ILLEGAL_ADDRESS`: the call that fails, which one of them, and how.

mod calls;
mod faults;
mod object;
mod refusal;
mod state;

use std::io;
use std::path::{Path, PathBuf};

pub use refusal::MARK;

/// Whether there is a device behind this library: the build found a C++ compiler.
pub fn works() -> bool {
    infer_cuda_emulator::Emulator::new(0).is_some()
}

/// Puts this library into a folder under the name by which it is opened there.
///
/// # Errors
/// If the build made no such library, or the folder can't be written.
pub fn install(folder: &Path) -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.with_file_name("libinfer_emulated_driver.so");
    let installed = folder.join("libcuda.so.1");
    std::fs::copy(built, &installed)?;
    Ok(installed)
}
