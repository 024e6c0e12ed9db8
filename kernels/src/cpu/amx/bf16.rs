//! Sums of bf16 products: one instruction multiplies sixteen rows by sixteen columns by 32 inputs, which are written in tiles.
//! It adds the products to a sum in its own order, which is fixed whatever the other rows are, but differs from that of the
//! vector instructions. Denormals are treated as zeros.

use std::arch::asm;

use super::{FEW, ROW_BYTES, Shape, Tiles};
use crate::cpu::matmul::{ACROSS, Block};
use crate::inputs::TILE_ROWS;
use crate::simd::LANES;

/// Steps (pairs of inputs) of a chunk: the rows of a tile.
pub(super) const CHUNK: usize = 16;
/// Chunks of a piece: their weights take half of the L1 cache.
const PIECE: usize = 8;
/// Bytes that few rows prefetch ahead: two chunks of a full panel.
const AHEAD: usize = 8 << 10;
/// Bytes from one row of sums to the next.
const SUM_BYTES: usize = ACROSS * size_of::<f32>();

/// Computes all sums of blocks.
///
/// # Safety
/// As [`super::product`].
pub(super) unsafe fn product<'a, B: Iterator<Item = Block<'a>>>(blocks: impl Fn() -> B) {
    let Some(Block { weights, width, rows, .. }) = blocks().next() else { return };
    let steps = weights.len() / (width * size_of::<u32>());
    let (whole, rest) = (steps / CHUNK, steps % CHUNK);
    let piece = if rows <= FEW { whole } else { PIECE };
    let mut tiles = Tiles::new();
    let mut first = 0;
    while first < whole {
        let chunks = (whole - first).min(piece);
        for block in blocks() {
            // SAFETY: the caller's promise; pieces follow each other to the panel's last whole chunk.
            unsafe { tiles.piece(&block, Piece { first, chunks, pairs: CHUNK }) };
        }
        first += chunks;
    }
    for block in blocks().take(if rest > 0 { usize::MAX } else { 0 }) {
        // SAFETY: the caller's promise; this is the rest.
        unsafe { tiles.piece(&block, Piece { first: whole, chunks: 1, pairs: rest }) };
    }
}

/// Some steps of a panel.
#[derive(Clone, Copy)]
struct Piece {
    /// Its first chunk.
    first: usize,
    chunks: usize,
    /// Steps of a chunk.
    pairs: usize,
}

/// Operands of a loop over chunks.
struct Run {
    chunks: usize,
    /// The first row of tiles.
    x: *const u32,
    /// The next one.
    below: *const u32,
    weights: *const u8,
    /// Bytes from one step to the next.
    step_bytes: usize,
    sums: *mut f32,
    /// Whether to add to existing sums.
    goes_on: bool,
    /// Where prefetching starts.
    ahead: *const u8,
    /// Cache lines to prefetch with each chunk, unless rows are few.
    lines: usize,
}

impl Tiles {
    /// # Safety
    /// As [`product`]; the panel has these steps.
    unsafe fn piece(&mut self, block: &Block<'_>, piece: Piece) {
        // SAFETY: the caller's promise.
        unsafe { self.configure(Shape { rows: TILE_ROWS, words: piece.pairs }) };
        let few = block.rows <= FEW;
        let step_bytes = block.width * size_of::<u32>();
        let weights = block.weights[piece.first * CHUNK * step_bytes..].as_ptr();
        let bytes = piece.chunks * piece.pairs * step_bytes;
        let vectors = block.columns.len() / LANES;
        let (twos, ones) = (block.rows.div_ceil(TILE_ROWS) / 2, block.rows.div_ceil(TILE_ROWS) % 2);
        let calls = twos * vectors.div_ceil(2) + ones;
        let lines = bytes.div_ceil(64 * calls * piece.chunks);
        let mut ahead = weights.wrapping_add(bytes);
        for row in (0..block.rows).step_by(2 * TILE_ROWS) {
            let two = block.rows - row > TILE_ROWS;
            let x = block.x.row(block.row + row);
            let x_words = x.words.wrapping_add(piece.first * CHUNK * TILE_ROWS);
            for column in block.columns.clone().step_by(if two { 2 * LANES } else { 4 * LANES }) {
                let weights = weights.wrapping_add(column * size_of::<u32>());
                let run = Run {
                    chunks: piece.chunks,
                    x: x_words,
                    below: x_words.wrapping_add(TILE_ROWS * x.stride),
                    weights,
                    step_bytes,
                    sums: block.sums.wrapping_add(row * ACROSS + column),
                    goes_on: piece.first > 0,
                    ahead: if few { weights.wrapping_add(AHEAD) } else { ahead },
                    lines,
                };
                // SAFETY: the caller's promise; inputs and sums have whole tiles.
                unsafe {
                    match ((block.columns.end - column) / LANES, two, few) {
                        (2.., true, _) => two_by_two(&run),
                        (_, true, _) => two_by_one(&run),
                        (4.., _, true) => streamed_4(&run),
                        (3, _, true) => streamed_3(&run),
                        (2, _, true) => streamed_2(&run),
                        (_, _, true) => streamed_1(&run),
                        (4.., _, false) => held_4(&run),
                        (3, _, false) => held_3(&run),
                        (2, _, false) => held_2(&run),
                        (_, _, false) => held_1(&run),
                    }
                }
                ahead = ahead.wrapping_add(64 * lines * piece.chunks);
            }
        }
    }
}

/// A loop over chunks. `sums` lists tiles with their byte offsets from `run.sums`; `work` is the code for a chunk, `ahead`
/// the code that prefetches weights, followed by its operands.
macro_rules! over_chunks {
    (fn $name:ident($run:ident), sums: [$(($sum:literal, $offset:literal)),*], work: [$($work:expr),*],
        ahead: [$($ahead:expr),*] $($operands:tt)*) => {
        /// # Safety
        /// Tiles are configured for the run, whose memory is valid.
        unsafe fn $name($run: &Run) {
            // SAFETY: the caller's promise. Any address may be prefetched.
            unsafe {
                asm!(
                    "test {left}, {left}",
                    "jz 2f",
                    $(concat!("tileloadd tmm", $sum, ", [{s} + {ss} + ", $offset, "]"),)*
                    "jmp 3f",
                    "2:",
                    $(concat!("tilezero tmm", $sum),)*
                    "3:",
                    $($work,)*
                    $($ahead,)*
                    "add {x}, 1024",
                    "add {below}, 1024",
                    "lea {w}, [{w} + 8*{ws}]",
                    "lea {w}, [{w} + 8*{ws}]",
                    "dec {n}",
                    "jnz 3b",
                    $(concat!("tilestored [{s} + {ss} + ", $offset, "], tmm", $sum),)*
                    left = inout(reg) usize::from($run.goes_on) => _,
                    x = inout(reg) $run.x => _,
                    below = inout(reg) $run.below => _,
                    xs = in(reg) ROW_BYTES,
                    w = inout(reg) $run.weights => _,
                    ws = in(reg) $run.step_bytes,
                    s = in(reg) $run.sums,
                    ss = in(reg) SUM_BYTES,
                    n = inout(reg) $run.chunks => _,
                    p = inout(reg) $run.ahead => _,
                    $($operands)*
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

/// Weights from memory: each chunk prefetches its columns of a later chunk.
macro_rules! streamed {
    (fn $name:ident, sums: $sums:tt, work: $work:tt, columns: [$($offset:literal),*]) => {
        over_chunks!(
            fn $name(run), sums: $sums, work: $work,
            ahead: [".rept 16", $(concat!("prefetcht0 [{p} + ", $offset, "]"),)* "add {p}, {ws}", ".endr"]
        );
    };
}

/// Weights from a cache, while others are prefetched.
macro_rules! held {
    (fn $name:ident, sums: $sums:tt, work: $work:tt) => {
        over_chunks!(
            fn $name(run), sums: $sums, work: $work,
            ahead: ["mov {left}, {lines}", "4:", "prefetcht1 [{p}]", "add {p}, 64", "dec {left}", "jnz 4b"]
            lines = in(reg) run.lines,
        );
    };
}

/// One tile of rows by some tiles of columns. Weights alternate between two tiles.
macro_rules! one_by {
    ($streamed:ident, $held:ident, [$(($sum:literal, $weights:literal, $offset:literal)),*]) => {
        streamed!(
            fn $streamed, sums: [$(($sum, $offset)),*],
            work: ["tileloadd tmm4, [{x} + {xs}]" $(,
                concat!("tileloadd tmm", $weights, ", [{w} + {ws} + ", $offset, "]"),
                concat!("tdpbf16ps tmm", $sum, ", tmm4, tmm", $weights)
            )*],
            columns: [$($offset),*]
        );
        held!(
            fn $held, sums: [$(($sum, $offset)),*],
            work: ["tileloadd tmm4, [{x} + {xs}]" $(,
                concat!("tileloadd tmm", $weights, ", [{w} + {ws} + ", $offset, "]"),
                concat!("tdpbf16ps tmm", $sum, ", tmm4, tmm", $weights)
            )*]
        );
    };
}

one_by!(streamed_1, held_1, [(0, 6, 0)]);
one_by!(streamed_2, held_2, [(0, 6, 0), (1, 7, 64)]);
one_by!(streamed_3, held_3, [(0, 6, 0), (1, 7, 64), (2, 6, 128)]);
one_by!(streamed_4, held_4, [(0, 6, 0), (1, 7, 64), (2, 6, 128), (3, 7, 192)]);

held!(
    fn two_by_one, sums: [(0, 0), (2, 4096)],
    work: [
        "tileloadd tmm4, [{x} + {xs}]",
        "tileloadd tmm6, [{w} + {ws}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{below} + {xs}]",
        "tdpbf16ps tmm2, tmm5, tmm6"
    ]
);

held!(
    fn two_by_two, sums: [(0, 0), (1, 64), (2, 4096), (3, 4160)],
    work: [
        "tileloadd tmm4, [{x} + {xs}]",
        "tileloadd tmm6, [{w} + {ws}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{w} + {ws} + 64]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tileloadd tmm5, [{below} + {xs}]",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tdpbf16ps tmm3, tmm5, tmm7"
    ]
);

// The offset between two tiles of sums in the assembly below.
const _: () = assert!(TILE_ROWS * SUM_BYTES == 4096);
