//! An emulated GPU for trying out `--device cuda`, and the scripts of kernels/cuda, on a machine without one.

use std::path::Path;

use crate::cargo::{build_files, cargo, target_dir};

/// Built libraries, and the names by which they are opened: those that are tried first, and those that a driver has.
const LIBRARIES: [(&str, [&str; 2]); 2] = [
    ("libinfer_emulated_driver.so", ["libcuda.so", "libcuda.so.1"]),
    ("libinfer_emulated_blas.so", ["libcublasLt.so", "libcublasLt.so.13"]),
];

/// An image that the emulated driver recognizes: a header, and eight bytes. The kernels are its own.
const IMAGE: [u8; 24] = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Builds the libraries into a folder, and prints a shell's commands that make programs use them.
pub fn gpu() -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("the emulated driver is a library for Linux".to_owned());
    }
    let mut libraries =
        cargo(&["build", "--package", "infer-emulated-driver", "--package", "infer-emulated-blas"]);
    let built = build_files(&mut libraries, &LIBRARIES.map(|(file, _)| file))?;
    let folder = target_dir()?.join("emulated-gpu");
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    // Programs that use it keep what they opened.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    for (file, (_, names)) in built.iter().zip(LIBRARIES) {
        let [first, second] = names.map(|name| folder.join(name));
        std::fs::copy(file, &first).map_err(|error| failed(&first, error))?;
        // One file, or opening both names would load two drivers.
        std::fs::hard_link(&first, &second).map_err(|error| failed(&second, error))?;
    }
    let image = folder.join("kernels.fatbin");
    std::fs::write(&image, IMAGE).map_err(|error| failed(&image, error))?;
    println!("export LD_LIBRARY_PATH='{0}' INFER_CUDA_LIB='{0}'", folder.display());
    println!("export INFER_CUDA_IMAGE='{}'", image.display());
    eprintln!(
        "To use it:  eval \"$(cargo xtask emulated-gpu)\", then a program built with `--features cuda`. It is slow: a token \
         of the demo model takes 0.2 s."
    );
    Ok(())
}
