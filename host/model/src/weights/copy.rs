//! The baseline for loading: the same bytes in the same order, read the same way, but copied unchanged into memory of the
//! same kind.

use std::num::NonZero;
use std::time::{Duration, Instant};

use infer_kernels::Arena;

use super::does_not_fit;
use super::files::Files;
use super::order::ReadAhead;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::source::Source;

/// Copies all matrices on all cores. Returns their bytes and the time until all were copied.
pub(crate) fn copy(source: &Source<'_>, config: &ModelConfig) -> Result<(u64, Duration), ModelError> {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let files = Files::open(source, config)?;
    let mut ahead = ReadAhead::new(&files, config);
    let (mut arena, mut copies, mut done) = (Arena::default(), Vec::new(), 0);
    for (name, shape) in ahead.matrices() {
        let tensor = files.tensor(&name, &shape)?;
        ahead.ask(&files, done);
        files.prefetch(&tensor);
        for bytes in tensor.own_parts().into_iter().filter(|bytes| !bytes.is_empty()) {
            let mut copy = arena.numbers::<u8>(bytes.len()).map_err(|error| does_not_fit(&error))?;
            let part = bytes.len().div_ceil(threads).max(1);
            std::thread::scope(|scope| {
                for (to, from) in copy.chunks_mut(part).zip(bytes.chunks(part)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
            copies.push(copy);
        }
        files.release(&tensor);
        done += tensor.own_len();
    }
    Ok((done, began.elapsed()))
}
