//! With the feature `cuda`, compiles `cuda/*.cu` into one image. Without a toolkit the image is empty: the program still
//! builds, and says so when a GPU is requested.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cuda");
    for variable in ["INFER_NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let image = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("kernels.fatbin");
    match find_nvcc() {
        Some(nvcc) => compile(&nvcc, &image),
        None => std::fs::write(&image, []).expect("the output directory can be written"),
    }
}

/// `INFER_NVCC` (a path, or `none`), else the toolkit named by the usual variables, else the default location.
fn find_nvcc() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(nvcc) = variable("INFER_NVCC") {
        return (nvcc != "none").then(|| PathBuf::from(nvcc));
    }
    let roots = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from);
    let mut places = roots.chain([PathBuf::from("/usr/local/cuda")]).map(|root| root.join("bin/nvcc"));
    places.find(|path| path.exists())
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
