//! Packs what a machine with a GPU needs that has neither cargo nor a toolkit: the program, the scripts of kernels/cuda, the
//! golden checkpoints, and images for comparisons. As small as it gets, because whatever carries it there may take only
//! so much.

use std::process::Command;

use crate::cargo::{root, run, target_dir};
use crate::cuda;
use crate::pack::{self, Compressor};

/// What is packed as it lies in the repository, so that the scripts find each other.
const FILES: [&str; 6] = [
    "kernels/cuda/gpu-bench.sh",
    "kernels/cuda/gpu-check.sh",
    "kernels/cuda/gpu-run.sh",
    "kernels/cuda/peers.py",
    "kernels/cuda/stamps.py",
    "tests/golden",
];
/// Of these, `peers.py` needs the tokenizer.
const TOKENIZER: &str = "host/demo/checkpoint";

/// Builds and packs all of it. `args`: a revision whose kernels are an image to compare with, if any.
pub fn bundle(args: &[String]) -> Result<(), String> {
    let baseline = match args {
        [] => None,
        [revision] if !revision.starts_with('-') => Some(revision),
        _ => return Err("usage: cargo xtask gpu-bundle [REVISION]".to_owned()),
    };
    let time = pack::time()?;
    let target = target_dir()?;
    let folder = target.join("gpu-bundle");
    let _ = std::fs::remove_dir_all(&folder);
    for file in FILES.into_iter().chain([TOKENIZER]) {
        let to = folder.join(file);
        let parent = to.parent().expect("it is in the folder");
        std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
        run(Command::new("cp").arg("-R").arg(root().join(file)).arg(to))?;
    }
    let home = cuda::ensure()?;
    let source = root().join("kernels/cuda");
    cuda::image(&home, &source, &["-DINFER_STAMPS"], &folder.join("stamps.fatbin"))?;
    if let Some(revision) = baseline {
        let old = target.join("gpu-bundle-baseline");
        pack::checkout(revision, &["kernels/cuda"], &old)?;
        cuda::image(&home, &old.join("kernels/cuda"), &[], &folder.join("baseline.fatbin"))?;
    }
    let infer = cuda::build_infer(&home)?;
    pack::program(&infer, &folder.join("infer"))?;
    let compressor = Compressor::smallest();
    if compressor == Compressor::Gzip {
        eprintln!("there is no xz, so the bundle is packed with gzip, and half as large again");
    }
    // One of the other kind would be of an earlier build.
    for old in [Compressor::Gzip, Compressor::Xz] {
        let _ = std::fs::remove_file(target.join(name(old)));
    }
    let archive = target.join(name(compressor));
    pack::pack(&folder, &archive, time, compressor)?;
    let bytes = std::fs::metadata(&archive).map_err(|e| format!("{}: {e}", archive.display()))?.len();
    println!("{}", archive.display());
    eprintln!(
        "{:.1} MiB. On the machine with the GPU:  python3 -m tarfile -e {} && sh gpu-bundle/kernels/cuda/gpu-run.sh figures OUT",
        bytes as f64 / f64::from(1 << 20),
        name(compressor)
    );
    Ok(())
}

/// The archive's name.
fn name(compressor: Compressor) -> String {
    format!("gpu-bundle.{}", compressor.suffix())
}
