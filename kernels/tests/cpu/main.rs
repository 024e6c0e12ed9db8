//! Every operation of every instruction set of this machine: against the scalar reference on ragged random shapes
//! (`attention`, `experts`, `products`, `rows`), and bit for bit against itself in other batches (`invariance`).

mod attention;
mod common;
mod experts;
mod inlined;
mod invariance;
mod products;
mod rows;

use infer_kernels::{Cpu, Isa};

fn cpus() -> impl Iterator<Item = Cpu> {
    Isa::available().into_iter().map(|isa| Cpu::with_isa(isa, 1).expect("no threads are needed"))
}

fn assert_close(got: &[f32], want: &[f32], tolerance: f32, context: &str) {
    assert_eq!(got.len(), want.len(), "{context}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / want.abs().max(1.0);
        assert!(error <= tolerance, "{context}: element {i} is {got}, should be {want}");
    }
}
