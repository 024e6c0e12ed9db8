// Paged attention for consecutive tokens (prefill) by products of warpgroups: what `attention_prefill.cu` computes, on sm_90a.
//
// A block has 64 rows a warpgroup: consecutive tokens of one sequence times the query heads of one key head. Keys and values
// pass through two stages of shared memory each, in which they lie swizzled. While the tensor cores multiply queries by a tile's
// keys, all threads start the copies of the next keys and of these values; while they multiply the last tile's weights
// by its values, the lanes turn this tile's scores into weights (the overlap of FlashAttention-3, Shah et al. 2024, without
// warps that only copy). Tiles of positions are absolute and a row's sums run over them in order, so its bits depend neither on
// its batch nor on how its prompt was cut; they do on the tile's size, which differs with the number of warpgroups.
//
// Estimated, not measured: of a tile of 128 positions with 128 rows of 128 dimensions, the products take a multiprocessor of an
// H100 2,048 clocks, its 16,384 powers of two 1,024, and other instructions some 800 of each scheduler, of which half can't
// overlap with products of the same warpgroup.
#include "attention.cuh"
#include "warpgroup.cuh"

#if WARPGROUPS

namespace prefill_wgmma {

// Positions of a stage, as many as registers hold scores for. As in attention.rs.
DEVICE constexpr u32 tile(u32 head_dim, u32 groups) {
    return head_dim > 128 || (head_dim > 64 && groups == 1) ? 64 : 128;
}

// Starts copies of a tile of keys or of values. Positions before `first` or from `end` on are zeros.
template <class T, u32 D, u32 TILE, u32 THREADS, bool SHIFTS>
DEVICE void load_tile(const Places& places, const void* pool, T* to, u32 start, u32 first, u32 end) {
    constexpr u32 PARTS = D / 8, TURNS = (TILE * PARTS + THREADS - 1) / THREADS;
    // All words of the table at once: each copy would wait for its own.
    u32 blocks[TURNS];
    const auto row_of = [](u32 turn) { return (turn * THREADS + threadIdx.x) / PARTS; };
    const auto is_seen = [&](u32 row) { return row < TILE && start + row >= first && start + row < end; };
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        const u32 row = row_of(turn);
        blocks[turn] = is_seen(row) ? load_now(places.table + places.entry<SHIFTS>(start + row)) : 0;
    }
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        const u32 row = row_of(turn), part = (turn * THREADS + threadIdx.x) % PARTS;
        if (TILE * PARTS % THREADS != 0 && row >= TILE) break;
        const bool seen = is_seen(row);
        const u64 index = seen ? places.index<SHIFTS>(start + row, blocks[turn], D) + part * 8 : 0;
        copy_async<16>(to + swizzled(TILE, row, part), static_cast<const T*>(pool) + index, seen);
    }
}

// The same with one branch for all copies.
template <class T, u32 D, u32 TILE, u32 THREADS>
DEVICE void load_tile(const Places& places, const void* pool, T* to, u32 start, u32 first, u32 end) {
    if (places.shift != NONE)
        load_tile<T, D, TILE, THREADS, true>(places, pool, to, start, first, end);
    else
        load_tile<T, D, TILE, THREADS, false>(places, pool, to, start, first, end);
}

// The running softmax of a lane's two rows, g and g + 8 of its warp. Totals are of the lane's own columns until the end.
struct Softmax {
    float largest[2] = {negative_infinity(), negative_infinity()};
    float total[2] = {0.0f, 0.0f};

    // Turns scores, still without their factor, into weights in place. `decay`: what earlier sums of a row shrink by.
    template <u32 N>
    DEVICE void soften(float (&scores)[N][4], float factor, float (&decay)[2]) {
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            const float most = larger(largest[row], largest_of_row(scores, row) * factor);
            const float from = finite(most);
            decay[row] = exp2_fast(largest[row] - from);
            float sums[2] = {0.0f, 0.0f};
#pragma unroll
            for (u32 n = 0; n < N; n++)
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    float& score = scores[n][2 * row + j];
                    score = exp2_fast(score * factor - from);
                    sums[j] += score;
                }
            largest[row] = most;
            total[row] = total[row] * decay[row] + (sums[0] + sums[1]);
        }
    }

    // Of all columns.
    DEVICE float whole(u32 row) const {
        const float sum = total[row] + shuffle_xor(total[row], 1);
        return sum + shuffle_xor(sum, 2);
    }
};

template <class T, u32 D, u32 GROUPS>
DEVICE void attend(const AttentionParams& p, unsigned char* shared) {
    constexpr u32 ROWS = 64 * GROUPS, TILE = tile(D, GROUPS), THREADS = GROUPS * WARPGROUP, STAGE = TILE * D;
    const u32 token = p.items[2 * blockIdx.y], count = p.items[2 * blockIdx.y + 1];
    if (token == NONE) return;
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 heads = p.heads / p.kv_heads, kv_head = blockIdx.x, rows = count * heads;
    const u32 first_position = p.positions[token];
    const u32 first = first_seen(p, first_position), end = first_position + count;
    const Places places(p, p.blocks + p.tables[token], kv_head);

    T* q = reinterpret_cast<T*>(shared);
    const auto keys = [&](u32 stage) { return q + ROWS * D + stage * STAGE; };
    const auto values = [&](u32 stage) { return keys(2 + stage); };
    const auto load = [&](const void* pool, T* to, u32 start) {
        load_tile<T, D, TILE, THREADS>(places, pool, to, start, first, end);
    };
    // Copies that were started are there for the tensor cores, and all warps are done with what the next ones replace.
    const auto next_stage = [] {
        wait_copies<0>();
        publish_shared();
        sync_block();
    };
#pragma unroll 4
    for (u32 i = thread; i < ROWS * D / 8; i += THREADS) {
        const u32 row = i / (D / 8), part = i % (D / 8);
        const u64 start_of_token = static_cast<u64>(token + row / heads) * p.q_stride;
        const u64 index = start_of_token + (kv_head * heads + row % heads) * D + part * 8;
        copy_async<16>(q + swizzled(ROWS, row, part), static_cast<const T*>(p.q) + (row < rows ? index : 0), row < rows);
    }
    u32 start = first / TILE * TILE;
    load(p.keys, keys(0), start);
    commit_copies();

    // Rows beyond the last one repeat its position; their sums are ignored.
    const u32 first_row = warp * 16;
    const auto position_of = [&](u32 row) { return first_position + (row < rows ? row : rows - 1) / heads; };
    const u32 lowest = position_of(first_row), highest = position_of(first_row + 15);
    const float factor = score_factor(p);
    const Factor queries(q + first_row / 64 * 64 * SWIZZLED, ROWS);
    float scores[TILE / 8][4], sums[D / 8][4];
    u32 weights[TILE / 16][4];
    Softmax softmax;
#pragma unroll
    for (u32 i = 0; i < D / 8; i++)
        for (u32 j = 0; j < 4; j++) sums[i][j] = 0.0f;

    const auto begin_scores = [&](u32 stage) {
        const Factor factor(keys(stage), TILE);
#pragma unroll
        for (u32 k = 0; k < D / 16; k++)
            multiply<T>(scores, queries.columns(ROWS, k), factor.columns(TILE, k), k > 0);
        commit_products();
    };
    const auto begin_sums = [&](u32 stage) {
        const Factor factor(values(stage), TILE);
#pragma unroll
        for (u32 k = 0; k < TILE / 16; k++) multiply_add<T>(sums, weights[k], factor.rows(k));
        commit_products();
    };
    const auto soften = [&](float (&decay)[2]) {
        if (p.soft_cap > 0.0f) cap(p, scores);
        // Most tiles are seen by all rows of a warp.
        const bool whole = start + TILE - 1 <= lowest && (p.window == 0 || start + p.window > highest);
        if (!whole) {
            const u32 row = first_row + lane / 4;
            hide_unseen(p, scores, start, lane, {position_of(row), position_of(row + 8)});
        }
        softmax.soften(scores, factor, decay);
    };
    const auto pack_weights = [&] {
#pragma unroll
        for (u32 k = 0; k < TILE / 16; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const float(&pair)[4] = scores[2 * k + i / 2];
                weights[k][i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
    };

    float decay[2];
    next_stage();
    begin_products();
    begin_scores(0);
    if (start + TILE < end) load(p.keys, keys(1), start + TILE);
    load(p.values, values(0), start);
    commit_copies();
    wait_products<0>(scores);
    soften(decay);
    pack_weights();
    u32 stage = 0;
    while (start + TILE < end) {
        start += TILE;
        stage ^= 1;
        next_stage();
        begin_products();
        begin_scores(stage);
        begin_sums(stage ^ 1);
        if (start + TILE < end) load(p.keys, keys(stage ^ 1), start + TILE);
        load(p.values, values(stage), start);
        commit_copies();
        wait_products<1>(scores);
        soften(decay);
        hold_until(softmax.total[0] + softmax.total[1]);
        wait_products<0>(sums);
        keep_until_here(weights);
#pragma unroll
        for (u32 i = 0; i < D / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) sums[i][j] *= decay[j / 2];
        pack_weights();
    }
    next_stage();
    begin_products();
    begin_sums(stage);
    wait_products<0>(sums);
    keep_until_here(weights);

    T* out = static_cast<T*>(p.out);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 row = first_row + half * 8 + lane / 4;
        const float sink = sink_weight(p, kv_head * heads + row % heads, softmax.largest[half]);
        const float inverse = 1.0f / (softmax.whole(half) + sink);
        if (row >= rows) continue;
        const u64 head = static_cast<u64>(token + row / heads) * p.heads + kv_head * heads + row % heads;
#pragma unroll
        for (u32 i = 0; i < D / 8; i++) {
            const u32 words[1] = {pack<T>(sums[i][2 * half] * inverse, sums[i][2 * half + 1] * inverse)};
            write_words(out + head * D + i * 8 + lane % 4 * 2, words);
        }
    }
}

}  // namespace prefill_wgmma

// BLOCKS: what must fit a multiprocessor, as in the test of attention.rs.
#define PREFILL_WGMMA(GROUPS, ROWS, T, D, BLOCKS)                                                             \
    KERNEL(attention_prefill_wgmma##ROWS##_##T##_##D, AttentionParams, GROUPS * WARPGROUP, BLOCKS, BLOCKS) {  \
        SWIZZLED_MEMORY(shared);                                                                              \
        prefill_wgmma::attend<T, D, GROUPS>(p, shared);                                                       \
    }
#define PREFILL_WGMMA_TYPE(T)         \
    PREFILL_WGMMA(1, 64, T, 64, 3)    \
    PREFILL_WGMMA(2, 128, T, 64, 1)   \
    PREFILL_WGMMA(3, 192, T, 64, 1)   \
    PREFILL_WGMMA(1, 64, T, 128, 2)   \
    PREFILL_WGMMA(2, 128, T, 128, 1)  \
    PREFILL_WGMMA(1, 64, T, 256, 1)   \
    PREFILL_WGMMA(2, 128, T, 256, 1)
PREFILL_WGMMA_TYPE(bf16)
PREFILL_WGMMA_TYPE(f16)

#endif
