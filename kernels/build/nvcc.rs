//! Where the CUDA compiler is, for the build script and its test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variables that name a toolkit.
pub const HOMES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// `INFER_NVCC` (a path, or `none`), else the toolkit that a variable names, else the default location. `None` if there
/// is no toolkit.
///
/// # Errors
/// If variables name toolkits and none of these has a compiler: a program without kernels is not what was asked for. An
/// empty variable is that of a command that failed to find one.
pub fn find(
    variable: &dyn Fn(&str) -> Option<OsString>,
    exists: &dyn Fn(&Path) -> bool,
) -> Result<Option<PathBuf>, String> {
    if let Some(nvcc) = variable("INFER_NVCC").filter(|value| !value.is_empty()) {
        return Ok(Some(PathBuf::from(nvcc)));
    }
    let nvcc = |home: &Path| Some(home.join("bin/nvcc")).filter(|nvcc| exists(nvcc));
    let mut named = Vec::new();
    for name in HOMES {
        let Some(home) = variable(name).map(PathBuf::from) else { continue };
        // A relative path would depend on the folder that a command runs in.
        if let Some(nvcc) = nvcc(&home).filter(|_| home.is_absolute()) {
            return Ok(Some(nvcc));
        }
        named.push(format!("{name}={}", home.display()));
    }
    if named.is_empty() {
        return Ok(nvcc(Path::new("/usr/local/cuda")));
    }
    Err(format!(
        "{}: no absolute path of a toolkit with bin/nvcc, so the program would have no GPU kernels. Name a CUDA \
         toolkit by its absolute path (`cargo xtask cuda-toolkit` prints one), unset the variable to look in \
         /usr/local/cuda, or set INFER_NVCC=none to build without kernels",
        named.join(", ")
    ))
}
