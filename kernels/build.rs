//! With the feature `cuda`, compiles `cuda/*.cu` into one image. Without a toolkit the image is empty: the program still
//! builds, and says so when a GPU is requested.

#[path = "build/nvcc.rs"]
mod nvcc;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    for file in ["build.rs", "build"] {
        println!("cargo::rerun-if-changed={file}");
    }
    // Not the whole folder: documents and scripts there change nothing, and building takes minutes.
    for file in std::fs::read_dir("cuda").expect("the kernels are there").flatten() {
        if file
            .path()
            .extension()
            .is_some_and(|kind| ["cu", "cuh", "options"].map(OsStr::new).contains(&kind))
        {
            println!("cargo::rerun-if-changed={}", file.path().display());
        }
    }
    for name in nvcc::HOMES.into_iter().chain(["INFER_NVCC"]) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let image = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("kernels.fatbin");
    let empty = || std::fs::write(&image, []).expect("the output directory can be written");
    match nvcc::find(&variable, &Path::exists) {
        Ok(Some(nvcc)) if nvcc == Path::new("none") => empty(),
        Ok(Some(nvcc)) => compile(&nvcc, &image),
        Ok(None) => {
            println!(
                "cargo::warning=no CUDA toolkit: the program will have no GPU kernels; see `cargo xtask cuda-toolkit`"
            );
            empty();
        }
        Err(wrong) => println!("cargo::error={wrong}"),
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn compile(nvcc: &Path, image: &Path) {
    // Machine code for these architectures; PTX of the last one for what is newer.
    let mut command = Command::new(nvcc);
    let outcome = command.args(["-optf", "cuda/nvcc.options", "cuda/all.cu", "-o"]).arg(image).output();
    let output = outcome.unwrap_or_else(|error| panic!("{} can't be run: {error}", nvcc.display()));
    if !output.status.success() {
        panic!("{} failed:\n{}", nvcc.display(), String::from_utf8_lossy(&output.stderr));
    }
}
