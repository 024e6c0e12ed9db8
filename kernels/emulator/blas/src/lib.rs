//! A `libcublasLt.so.13` without a GPU: the products that the host asks cuBLASLt for, computed by its documentation
//! (column-major, `D = alpha op(A) op(B) + beta C`), in order with the emulated driver's stream through `cuLaunchHostFunc`.
//! It shares no code with our own products, so it also tells whether layouts and transpositions mean what we think.
//!
//! Refusals are lines on standard error that begin like the driver's. As a preference doesn't say otherwise, operands must
//! be aligned to 256 bytes: that is what the library's choice of an algorithm relies on.

mod calls;
mod descriptor;
mod matrix;

use std::io;
use std::path::{Path, PathBuf};

/// Puts this library into a folder under the name by which it is opened there.
///
/// # Errors
/// If the build made no such library, or the folder can't be written.
pub fn install(folder: &Path) -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.with_file_name("libinfer_emulated_blas.so");
    let installed = folder.join("libcublasLt.so.13");
    std::fs::copy(built, &installed)?;
    Ok(installed)
}
