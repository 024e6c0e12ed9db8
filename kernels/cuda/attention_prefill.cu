// Paged attention for consecutive tokens (prefill): chunks of any length at any position, causal, through block tables.
//
// A block has 64 or 128 rows; the host chooses (`PrefillForm` in attention.rs). A row's bits depend on which, but within
// one form neither on its batch nor on how its prompt was cut.
//
// Versions. 1: a block of four warps has 64 rows: some consecutive tokens of one sequence times the query heads of one key
// head. Keys and values pass through two stages of shared memory (cp.async), so each is read once for 64 rows; a warp has
// 16 rows and their sums in registers. Tiles of positions are absolute, so bits don't depend on how a prompt was cut.
// Queries came in and outputs went out a number at a time, and each 16 bytes of keys cost a division by the block size.
// 2: queries by cp.async, outputs up to 16 bytes at once, shifts where blocks are a power of two. Same bits. 3: also 128
// rows a block, 32 a warp, up to 128 dimensions, the shape of FlashAttention-2 (Dao 2023): each fragment of keys or values
// serves two products. Warps whose rows are all beyond the last one don't compute.
// 4 (this one): whether there is a soft cap, and whether a tile has positions that some row doesn't see, is asked once per
// tile. It was asked for each score, one branch after another: more clocks than the products took. Queries lie in the order
// of fragments, and a stage reads its words of the block table at once. Of a tile of 32 positions with 128 rows of 128
// dimensions, a warp executes some 610 instructions for 128 products, 1,350 before, and 170 to copy the next one.
// Estimated, not measured: with 16 rows a warp reads 288 bytes of shared memory a product at 64 positions a stage, 256 of
// keys or values and for scores 64 of queries, which takes 2.25 clocks of a multiprocessor against 1.6 of multiplying
// (H100). With 32 rows it is 160 bytes, and 192 at 32 positions, where each read of queries serves fewer keys.
// Sinks (attention.cuh) came later and have not been on a GPU: without them the end of a row has a branch more.
// Measurements (H200, bf16): 128 rows of 128 dimensions 255 TFLOP/s at 2,048 tokens, 287 at 16,384; 64 rows 214 and 240, and
// faster up to 512 tokens. 64 dimensions 242 and 276. 256 dimensions, one key head 41 and 179.
// Registers and spills: README.md. Limit: tensor core rate of mma.sync (about 60 % of what wgmma reaches on sm_90).
#include "attention.cuh"

namespace prefill {

constexpr u32 WARPS = 4;

// Rows of a block whose warps have `sets` times 16.
DEVICE constexpr u32 rows_of(u32 sets) { return WARPS * sets * 16; }

// Positions of a stage: as many as fit 99 KB of shared memory (sm_89) with the queries, and with 32 rows a warp as many as
// let two blocks fit a multiprocessor of sm_80 and sm_90. As in attention.rs.
DEVICE constexpr u32 tile(u32 head_dim, u32 sets) { return head_dim > 128 ? 16 : sets > 1 && head_dim > 80 ? 32 : 64; }

template <class T, u32 D, u32 TILE, bool SHIFTS>
DEVICE void load_stage(const Places& places, T* keys, T* values, u32 start, u32 first, u32 end) {
    const AttentionParams& p = places.p;
    constexpr u32 CHUNKS = D / 8, THREADS = WARPS * WARP;
    static_assert(TILE * CHUNKS % THREADS == 0, "as many copies for each thread");
    // All words of the table at once: each copy would wait for its own.
    u32 blocks[TILE * CHUNKS / THREADS];
    const auto row_of = [](u32 turn) { return (turn * THREADS + threadIdx.x) / CHUNKS; };
    const auto is_seen = [&](u32 position) { return position >= first && position < end; };
#pragma unroll
    for (u32 turn = 0; turn < TILE * CHUNKS / THREADS; turn++) {
        const u32 position = start + row_of(turn);
        blocks[turn] = is_seen(position) ? load_now(places.table + places.entry<SHIFTS>(position)) : 0;
    }
#pragma unroll
    for (u32 turn = 0; turn < TILE * CHUNKS / THREADS; turn++) {
        const u32 row = row_of(turn), chunk = (turn * THREADS + threadIdx.x) % CHUNKS * 8;
        const bool seen = is_seen(start + row);
        const u64 index = seen ? places.index<SHIFTS>(start + row, blocks[turn], D) + chunk : 0;
        copy_async<16>(keys + row * key_stride(D) + chunk, static_cast<const T*>(p.keys) + index, seen);
        copy_async<16>(values + row * value_stride(D) + chunk, static_cast<const T*>(p.values) + index, seen);
    }
    commit_copies();
}

// One branch for all copies of a stage.
template <class T, u32 D, u32 TILE>
DEVICE void load_stage(const Places& places, T* keys, T* values, u32 start, u32 first, u32 end) {
    if (places.shift != NONE)
        load_stage<T, D, TILE, true>(places, keys, values, start, first, end);
    else
        load_stage<T, D, TILE, false>(places, keys, values, start, first, end);
}

// M: sets of 16 rows of a warp.
template <class T, u32 D, u32 M>
DEVICE void attend(const AttentionParams& p, unsigned char* shared) {
    constexpr u32 ROWS = rows_of(M), TILE = tile(D, M);
    constexpr u32 STAGE = TILE * (key_stride(D) + value_stride(D));
    const u32 token = p.items[2 * blockIdx.y], count = p.items[2 * blockIdx.y + 1];
    if (token == NONE) return;
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 group = p.heads / p.kv_heads, kv_head = blockIdx.x;
    const u32 first_position = p.positions[token];
    const u32 first = first_seen(p, first_position), end = first_position + count;
    const Places places(p, p.blocks + p.tables[token], kv_head);

    T* q = reinterpret_cast<T*>(shared);
    T* stages = q + Queries<T, D, ROWS, WARPS * WARP>::NUMBERS;
    const auto keys = [&](u32 stage) { return stages + stage * STAGE; };
    const auto values = [&](u32 stage) { return keys(stage) + TILE * key_stride(D); };
    u32 start = first / TILE * TILE;
    const u32 rows = count * group, first_row = warp * M * 16;
    Queries<T, D, ROWS, WARPS * WARP> queries;
    queries.read([&](u32 row, u32 dimension) {
        const u64 start_of_token = static_cast<u64>(token + row / group) * p.q_stride;
        const T* at = static_cast<const T*>(p.q) + start_of_token + (kv_head * group + row % group) * D + dimension;
        return row < rows ? at : nullptr;
    });
    load_stage<T, D, TILE>(places, keys(0), values(0), start, first, end);
    queries.store(q);

    // Warps whose rows are all beyond the last one only copy. In others, rows beyond it repeat it; their sums are ignored.
    const bool has_rows = first_row < rows;
    const auto position_of = [&](u32 row) { return first_position + (row < rows ? row : rows - 1) / group; };
    const u32 lowest = position_of(first_row), highest = position_of(first_row + M * 16 - 1);
    const float factor = score_factor(p);
    Rows16<T, D> sums[M];
    for (u32 m = 0; m < M; m++) sums[m].clear();
    for (u32 stage = 0; start < end; start += TILE, stage ^= 1) {
        if (start + TILE < end) {
            load_stage<T, D, TILE>(places, keys(stage ^ 1), values(stage ^ 1), start + TILE, first, end);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        sync_block();
        if (has_rows) {
            float scores[M][TILE / 8][4];
            products<T, D>(q + first_row / 2 * pair_stride(D), lane, scores, [&](u32 i, u32 d, auto& words) {
                read_words(keys(stage) + i * key_stride(D) + d, words);
            });
            if (p.soft_cap > 0.0f)
                for (u32 m = 0; m < M; m++) cap(p, scores[m]);
            // Most tiles are seen by all rows of a warp.
            const bool whole = start + TILE - 1 <= lowest && (p.window == 0 || start + p.window > highest);
            if (!whole)
#pragma unroll
                for (u32 m = 0; m < M; m++) {
                    const u32 row = first_row + m * 16 + lane / 4;
                    hide_unseen(p, scores[m], start, lane, {position_of(row), position_of(row + 8)});
                }
#pragma unroll
            for (u32 m = 0; m < M; m++) sums[m].template soften<TILE / 8>(scores[m], factor);
#pragma unroll
            for (u32 n = 0; n < TILE / 8; n += 2)
                add_values(sums, scores, n, lane, [&](u32 i, u32 d, auto& words) {
                    read_words(values(stage) + (n * 8 + i) * value_stride(D) + d, words);
                });
        }
        sync_block();
    }
    if (!has_rows) return;
    T* out = static_cast<T*>(p.out);
#pragma unroll
    for (u32 m = 0; m < M; m++) {
        float inverse[2];
        for (u32 half = 0; half < 2; half++) {
            const u32 head = kv_head * group + (first_row + m * 16 + half * 8 + lane / 4) % group;
            inverse[half] = 1.0f / (sums[m].total[half] + sink_weight(p, head, sums[m].largest[half]));
        }
        sums[m].each_run(lane, inverse, [&](u32 half, u32 dimension, const auto& words) {
            const u32 row = first_row + m * 16 + half * 8 + lane / 4;
            if (row >= rows) return;
            const u64 head = static_cast<u64>(token + row / group) * p.heads + kv_head * group + row % group;
            write_words(out + head * D + dimension, words);
        });
    }
}

}  // namespace prefill

// BLOCKS: what must fit a multiprocessor of sm_90, as in the test of attention.rs.
#define PREFILL(ROWS, T, D, BLOCKS)                                                                  \
    KERNEL(attention_prefill_rows##ROWS##_##T##_##D, AttentionParams, prefill::WARPS * WARP, BLOCKS) {\
        SHARED_MEMORY(shared);                                                                       \
        prefill::attend<T, D, ROWS / prefill::rows_of(1)>(p, shared);                                \
    }
// With 128 rows, two sets of 256 sums would not fit a lane's registers.
#define PREFILL_TYPE(T)                                                                              \
    PREFILL(64, T, 32, 5)                                                                            \
    PREFILL(64, T, 64, 4)                                                                            \
    PREFILL(64, T, 80, 3)                                                                            \
    PREFILL(64, T, 96, 3)                                                                            \
    PREFILL(64, T, 128, 2)                                                                           \
    PREFILL(64, T, 256, 3)                                                                           \
    PREFILL(128, T, 32, 3)                                                                           \
    PREFILL(128, T, 64, 2)                                                                           \
    PREFILL(128, T, 80, 2)                                                                           \
    PREFILL(128, T, 96, 2)                                                                           \
    PREFILL(128, T, 128, 2)
PREFILL_TYPE(bf16)
PREFILL_TYPE(f16)
