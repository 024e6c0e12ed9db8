//! Blocks of 4-bit floats of a file as those that the kernels multiply, which keep all their bits.

use infer_kernels::Mx4;

/// Converts a row of codes, two a byte, the first in the low half, with an exponent for each block elsewhere: the layout of
/// gpt-oss's checkpoints.
pub(super) fn apart(bytes: &[u8], exponents: &[u8], blocks: &mut [Mx4]) {
    assert!(bytes.len() == 16 * blocks.len() && exponents.len() == blocks.len(), "as many blocks");
    for ((block, bytes), exponent) in blocks.iter_mut().zip(bytes.chunks_exact(16)).zip(exponents) {
        *block =
            Mx4 { exponent: *exponent, codes: std::array::from_fn(|i| bytes[i / 2] >> (i % 2 * 4) & 15) };
    }
}

/// Converts a row of blocks of an exponent and sixteen bytes, whose low halves are the first sixteen codes and whose high halves
/// are the others: ggml's layout.
pub(super) fn inside(bytes: &[u8], blocks: &mut [Mx4]) {
    assert_eq!(bytes.len(), 17 * blocks.len(), "as many blocks");
    for (block, bytes) in blocks.iter_mut().zip(bytes.chunks_exact(17)) {
        let codes = std::array::from_fn(|i| bytes[1 + i % 16] >> (i / 16 * 4) & 15);
        *block = Mx4 { exponent: bytes[0], codes };
    }
}
