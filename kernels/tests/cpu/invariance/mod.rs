//! The guarantee of this crate: a row's bits depend on that row alone, not on batches, chunks, thread counts or block sizes.

mod attention;
mod products;

use infer_kernels::{Cpu, Isa};

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn cpu(isa: Isa, threads: usize) -> Cpu {
    Cpu::with_isa(isa, threads).expect("two threads can be started")
}

/// Instruction sets that fuse multiplication and addition, which plain arrays do only on AArch64.
fn fused() -> Vec<Isa> {
    let fuses = |isa: &Isa| *isa != Isa::Portable || cfg!(target_arch = "aarch64");
    Isa::available().into_iter().filter(fuses).collect()
}
