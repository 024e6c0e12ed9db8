//! Time of sampling.

use std::sync::Arc;

use super::{Table, random, time_us};
use crate::cuda::{Buffer, CudaError, Device, SampleParams, SampleRow, Type, sample};

pub(super) static SAMPLING: Table = Table {
    title: "sampling",
    columns: &[("rows", "rows"), ("vocabulary", "vocabulary"), ("how", "how"), ("us", "us")],
};

/// Every row is drawn like `draw`, whatever row that names.
pub(super) fn sample_us(
    device: &Arc<dyn Device>,
    [rows, vocab]: [u32; 2],
    draw: SampleRow,
) -> Result<f64, CudaError> {
    let logits = random(device, Type::F32, (rows * vocab) as usize)?;
    let draws: Vec<u8> = (0..rows).flat_map(|row| SampleRow { row, ..draw }.as_bytes().to_vec()).collect();
    let draws = Buffer::from_bytes(device, &draws)?;
    let (lists, seen) = (
        Buffer::from_indexes(device, &[0])?,
        Buffer::new(device, rows as usize * vocab.div_ceil(32) as usize * 4)?,
    );
    seen.fill(0)?;
    let out = Buffer::new(device, rows as usize * 4)?;
    let params = SampleParams {
        logits: logits.at(),
        rows: draws.at(),
        tokens: lists.at(),
        seen: seen.at(),
        out: out.at(),
        vocab,
        soft_cap: 0.0,
    };
    // SAFETY: shapes as allocated.
    time_us(device.as_ref(), &mut || unsafe { sample(device.as_ref(), &params, rows) })
}
