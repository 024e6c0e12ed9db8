// Paged attention for consecutive tokens (prefill): chunks of any length at any position, causal, through block tables.
//
// Versions. 1: a block of four warps has 64 rows: some consecutive tokens of one sequence times the query heads of one key
// head. Keys and values pass through two stages of shared memory (cp.async), so each is read once for 64 rows; a warp has
// 16 rows and their sums in registers. Tiles of positions are absolute, so bits don't depend on how a prompt was cut.
// Queries came in and outputs went out a number at a time, and each 16 bytes of keys cost a division by the block size.
// 2 (this one): queries by cp.async, outputs up to 16 bytes at once, shifts where blocks are a power of two. Same bits.
// Estimated, not measured: a warp's 16 rows use 16 bytes a lane of keys or values for two products, so reading shared
// memory takes at least as long as multiplying. 32 rows a warp would halve those reads, for twice the registers of sums.
// Measurements: not yet measured on a device.
// Registers and spills: README.md. Limit: tensor core rate of mma.sync (about 60 % of what wgmma reaches on sm_90).
#include "attention.cuh"

namespace prefill {

constexpr u32 WARPS = 4;
constexpr u32 ROWS = 64;

// Positions of a stage: as many as fit 99 KB of shared memory (sm_89) with the queries.
DEVICE constexpr u32 tile(u32 head_dim) { return head_dim > 128 ? 16 : 64; }

template <u32 D>
DEVICE constexpr u32 stage_numbers() { return tile(D) * (key_stride(D) + value_stride(D)); }

// Where a sequence's numbers of a key head lie in the pool.
struct Places {
    const AttentionParams& p;
    const u32* table;
    u32 kv_head;
    u32 shift;  // log2 of the block size; NONE: not a power of two. A division takes some twenty instructions.

    DEVICE Places(const AttentionParams& p, const u32* table, u32 kv_head)
        : p(p), table(table), kv_head(kv_head),
          shift((p.block_size & (p.block_size - 1)) == 0 ? trailing_zeros(p.block_size) : NONE) {}

    DEVICE u64 index(u32 position, u32 head_dim) const {
        const u32 entry = shift != NONE ? position >> shift : position / p.block_size;
        return pool_index(p, entry, table[entry], kv_head, position, head_dim);
    }
};

template <class T, u32 D>
DEVICE void load_stage(const Places& places, T* keys, T* values, u32 start, u32 first, u32 end) {
    const AttentionParams& p = places.p;
    constexpr u32 CHUNKS = D / 8;
    for (u32 i = threadIdx.x; i < tile(D) * CHUNKS; i += WARPS * WARP) {
        const u32 row = i / CHUNKS, chunk = i % CHUNKS * 8;
        const u32 position = start + row;
        const bool seen = position >= first && position < end;
        const u64 index = seen ? places.index(position, D) + chunk : 0;
        copy_async<16>(keys + row * key_stride(D) + chunk, static_cast<const T*>(p.keys) + index, seen);
        copy_async<16>(values + row * value_stride(D) + chunk, static_cast<const T*>(p.values) + index, seen);
    }
    commit_copies();
}

template <class T, u32 D>
DEVICE void attend(const AttentionParams& p, unsigned char* shared) {
    constexpr u32 TILE = tile(D);
    const u32 token = p.items[2 * blockIdx.y], count = p.items[2 * blockIdx.y + 1];
    if (token == NONE) return;
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 group = p.heads / p.kv_heads, kv_head = blockIdx.x;
    const u32 first_position = p.positions[token];
    const u32 first = first_seen(p, first_position), end = first_position + count;
    const Places places(p, p.blocks + p.tables[token], kv_head);

    T* q = reinterpret_cast<T*>(shared);
    T* stages = q + ROWS * key_stride(D);
    const auto keys = [&](u32 stage) { return stages + stage * stage_numbers<D>(); };
    const auto values = [&](u32 stage) { return keys(stage) + TILE * key_stride(D); };
    u32 start = first / TILE * TILE;
    // Queries belong to the first stage's group of copies.
    for (u32 i = thread; i < ROWS * D / 8; i += WARPS * WARP) {
        const u32 row = i / (D / 8), chunk = i % (D / 8) * 8;
        const bool there = row < count * group;
        const u64 start_of_token = static_cast<u64>(token + row / group) * p.q_stride;
        const u64 at = there ? start_of_token + (kv_head * group + row % group) * D + chunk : 0;
        copy_async<16>(q + row * key_stride(D) + chunk, static_cast<const T*>(p.q) + at, there);
    }
    load_stage<T, D>(places, keys(0), values(0), start, first, end);

    // Rows beyond the last one repeat it; their sums are ignored.
    u32 positions[2];
    for (u32 half = 0; half < 2; half++) {
        const u32 row = warp * 16 + half * 8 + lane / 4;
        const u32 last = count * group - 1;
        positions[half] = first_position + (row < last ? row : last) / group;
    }
    Rows16<T, D> sums;
    sums.clear();
    for (u32 stage = 0; start < end; start += TILE, stage ^= 1) {
        if (start + TILE < end) {
            load_stage<T, D>(places, keys(stage ^ 1), values(stage ^ 1), start + TILE, first, end);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        sync_block();
        float scores[TILE / 8][4];
        products<T, D, TILE / 8>(q + warp * 16 * key_stride(D), lane, scores, [&](u32 i, u32 d, auto& words) {
            read_words(keys(stage) + i * key_stride(D) + d, words);
        });
#pragma unroll
        for (u32 n = 0; n < TILE / 8; n++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 position = start + n * 8 + lane % 4 * 2 + j % 2, own = positions[j / 2];
                const bool seen = position <= own && (p.window == 0 || position + p.window > own);
                scores[n][j] = seen ? score(p, scores[n][j]) : negative_infinity();
            }
        sums.template soften<TILE / 8>(scores);
#pragma unroll
        for (u32 n = 0; n < TILE / 8; n += 2)
            sums.add_values(scores[n], scores[n + 1], lane, [&](u32 i, u32 d, auto& words) {
                read_words(values(stage) + (n * 8 + i) * value_stride(D) + d, words);
            });
        sync_block();
    }
    T* out = static_cast<T*>(p.out);
    float inverse[2];
    for (u32 half = 0; half < 2; half++) inverse[half] = 1.0f / sums.total[half];
    sums.each_run(lane, inverse, [&](u32 half, u32 dimension, const auto& words) {
        const u32 row = warp * 16 + half * 8 + lane / 4;
        if (row >= count * group) return;
        const u64 head = static_cast<u64>(token + row / group) * p.heads + kv_head * group + row % group;
        write_words(out + head * D + dimension, words);
    });
}

}  // namespace prefill

#define PREFILL(T, D)                                                                        \
    KERNEL(attention_prefill_##T##_##D, AttentionParams, prefill::WARPS * WARP) {            \
        SHARED_MEMORY(shared);                                                               \
        prefill::attend<T, D>(p, shared);                                                    \
    }
#define PREFILL_TYPE(T)                                                                      \
    PREFILL(T, 32)                                                                           \
    PREFILL(T, 64)                                                                           \
    PREFILL(T, 80)                                                                           \
    PREFILL(T, 96)                                                                           \
    PREFILL(T, 128)                                                                          \
    PREFILL(T, 256)
PREFILL_TYPE(bf16)
PREFILL_TYPE(f16)
