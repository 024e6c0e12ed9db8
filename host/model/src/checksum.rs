//! Checksums of a model, which tell whether two processes have the same one: CRC-32 finds every changed byte, and is computed
//! about as fast as memory is read.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use infer_kernels::Activation;

use crate::config::RopeScaling;
use crate::model::Model;

/// Bytes of a matrix that a thread takes at once.
const PIECE_BYTES: usize = 16 << 20;
/// A position whose rotation shows any change of a frequency.
const POSITION: usize = 63;

impl Model {
    /// Checksums of everything that decides keys and values: matrices as they are packed, norms, biases and sinks, and of the
    /// configuration what may not show at the first positions, which are windows, the frequencies of rope and the bounds of
    /// activations.
    pub fn checksums(&self, threads: usize) -> Vec<u32> {
        let pieces: Vec<&[u8]> =
            self.weights.matrices().flat_map(|matrix| matrix.data().chunks(PIECE_BYTES)).collect();
        let mut sums = of_pieces(&pieces, threads);
        sums.extend(self.weights.vectors().map(|vector| of_numbers(vector.iter().copied())));
        for rope in &self.config.ropes {
            let table = rope.table(self.config.head_dim, POSITION + 1);
            let (cosines, sines) = table.at(POSITION as u32);
            sums.push(of_numbers(cosines.iter().chain(sines).copied()));
            if let RopeScaling::Long(long) = &rope.scaling {
                sums.push(of_numbers(long.short.iter().chain(&long.long).copied()));
            }
        }
        if let Activation::ClampedSwish { alpha, limit } = self.config.activation {
            sums.push(of_numbers([alpha, limit].into_iter()));
        }
        sums.extend(
            self.config.layers.iter().flat_map(|layer| [layer.window.unwrap_or(0), layer.rope as u32]),
        );
        sums
    }
}

/// The checksum of each piece. Threads take one after another.
fn of_pieces(pieces: &[&[u8]], threads: usize) -> Vec<u32> {
    let sums: Vec<AtomicU32> = pieces.iter().map(|_| AtomicU32::new(0)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(at) else { return };
            sums[at].store(crc32fast::hash(piece), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    sums.into_iter().map(AtomicU32::into_inner).collect()
}

fn of_numbers(numbers: impl Iterator<Item = f32>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    numbers.for_each(|number| hasher.update(&number.to_le_bytes()));
    hasher.finalize()
}
