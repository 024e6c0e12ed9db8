// Paged attention for single tokens (decode): the context is cut into parts, one block of four warps each, and a second
// kernel adds the parts up.
//
// The 16 rows of a tensor core product are query heads of one key head, so each key is read once for all of them. The
// four warps of a block take tiles of 16 positions in turn. The host fixes the number of parts, so one captured graph
// serves any context: blocks of parts without positions return at once, and the second pass skips those parts.
//
// Versions. 1: keys and values went from memory straight into registers. nvcc sank each load to its use: 512 bytes a
// warp in flight for most of the time, 8 KB a multiprocessor. 2: two tiles a warp (one at 256 dimensions) pass through
// shared memory by cp.async; the next keys are requested before the softmax of the current ones. 3: the second pass has
// 16 parts' numbers in flight, kept together by `fence_loads`; it read one after another. 4: the chain of words that
// leads to the first keys (token, position, table, block) is read before `take_turn`, later blocks a tile ahead, and when
// warps merge, rows are padded: 16 lanes met in a bank. Same bits. 5 (this one): the softmax asks once per tile for a soft
// cap and for positions beyond the part, and queries lie in the order of fragments (attention.cuh).
// Considered and not built: products with the heads as the 8 columns (half the registers for groups up to 8, but the
// weights then need a transpose); the next tiles in registers (126 + 64, two blocks); three stages (two blocks).
// Estimated, not measured: at 128 dimensions three blocks fit a multiprocessor (71 KB each), 12 warps with 12 to 16 KB
// in flight, 144 KB at least; at 64 dimensions four with 24 KB, at 256 three with 32 KB. An H200 needs 40 to 48 KB
// (product_few.cu). A warp's own chain for a tile (8 dependent products of keys, two shuffles, 8 KB) is some 800 clocks, so
// 12 warps could consume 120 bytes a clock, of which memory delivers 13 (H100).
// Measurements (H200, bf16, of the copy rate): 128 dimensions, context 16,384: 80 % at batch 256, 68 % at 32, 44 % at 1; at
// context 256 and batch 1 both passes take 10 to 16 us (README.md).
// Registers and spills: README.md. Limit: memory bandwidth (each key and value is read once).
#include "attention.cuh"

namespace decode {

constexpr u32 WARPS = 4;
constexpr u32 TILE = 16;
constexpr u32 ROWS = 16;

// How a context is cut.
struct Cut {
    u32 first;     // First visible position.
    u32 start;     // Where part 0 begins.
    u32 tokens;    // Positions of a part.
    u32 context;

    DEVICE Cut(const AttentionParams& p, u32 context)
        : first(first_seen(p, context - 1)), start(0), tokens(p.part_tokens), context(context) {
        if (tokens != 0) return;
        start = first / TILE * TILE;
        tokens = ((context - start + p.parts - 1) / p.parts + TILE - 1) / TILE * TILE;
    }

    // A part's positions, [begin, end).
    DEVICE u32 begin(u32 part) const {
        const u32 begin = start + part * tokens;
        return begin > first ? begin : first;
    }
    DEVICE u32 end(u32 part) const {
        const u32 end = start + (part + 1) * tokens;
        return end < context ? end : context;
    }

    // The parts that hold positions, [first_part, parts). The sums of others are neither written nor read.
    DEVICE u32 first_part() const { return (first - start) / tokens; }
    DEVICE u32 parts() const { return (context - start + tokens - 1) / tokens; }
};

// Tiles that a warp has in flight: as many as let at least two blocks share 227 KB (and one fit 99 KB).
DEVICE constexpr u32 stages(u32 head_dim) { return head_dim > 128 ? 1 : 2; }

// A lane's share of a tile's keys or values in shared memory: the words that it reads, in reading order. The lane
// copied them itself, so warps need no barrier and rows no padding.
template <class T, u32 D>
struct Share {
    static constexpr u32 BYTES = TILE * D * sizeof(T);
    unsigned char* next;
    u32 lane;

    template <u32 WORDS>
    DEVICE unsigned char* take() {
        unsigned char* at = next + lane * 4 * WORDS;
        next += WARP * 4 * WORDS;
        return at;
    }
    template <u32 WORDS>
    DEVICE void copy(const T* from, bool there, const u32 (&)[WORDS]) { copy_async<4 * WORDS>(take<WORDS>(), from, there); }
    template <u32 WORDS>
    DEVICE void read(u32 (&words)[WORDS]) { read_words(reinterpret_cast<const T*>(take<WORDS>()), words); }
};

template <class T, u32 D>
DEVICE void attend(const AttentionParams& p, unsigned char* shared) {
    constexpr u32 STAGES = stages(D);
    const u32 token = load_early(p.items + blockIdx.z);
    // Padding has no context, so no part of it has positions.
    const u32 context = token != NONE ? load_early(p.positions + token) + 1 : 0;
    const u32* table = p.blocks + (token != NONE ? load_early(p.tables + token) : 0);
    const Cut cut(p, context);
    const u32 begin = cut.begin(blockIdx.x), end = cut.end(blockIdx.x);
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 group = p.heads / p.kv_heads;
    const u32 tiles = (group + ROWS - 1) / ROWS;
    const u32 kv_head = blockIdx.y / tiles, first_row = blockIdx.y % tiles * ROWS;
    const u32 rows = group - first_row < ROWS ? group - first_row : ROWS;
    const u32 first_head = kv_head * group + first_row;

    const bool whole_tiles = p.block_size % TILE == 0;
    // A tile's block, if tiles lie within blocks.
    const auto has_block = [&](u32 tile) { return whole_tiles && tile * TILE < end; };
    const auto entry = [&](u32 tile) { return tile * TILE / p.block_size; };
    u32 tile = begin / TILE + warp;
    u32 blocks[STAGES];
#pragma unroll
    for (u32 stage = 0; stage < STAGES; stage++) {
        const u32 at = tile + stage * WARPS;
        blocks[stage] = has_block(at) ? load_early(table + entry(at)) : 0;
    }
    take_turn();
    if (begin >= end) return;

    T* q = reinterpret_cast<T*>(shared);
    Queries<T, D, ROWS, WARPS * WARP> queries;
    float* largest = reinterpret_cast<float*>(shared + queries.NUMBERS * sizeof(T));
    float* total = largest + WARPS * ROWS;
    unsigned char* tiles_here = reinterpret_cast<unsigned char*>(total + WARPS * ROWS);
    const T* source = static_cast<const T*>(p.q) + static_cast<u64>(token) * p.q_stride + first_head * D;
    queries.read([&](u32 row, u32 dimension) { return row < rows ? source + row * D + dimension : nullptr; });

    const auto share = [&](u32 stage, u32 values) {
        return Share<T, D>{tiles_here + ((warp * STAGES + stage) * 2 + values) * Share<T, D>::BYTES, lane};
    };
    // Locates this lane's numbers of a tile, `block` being the tile's if it lies in one; `position_of` gives the lane's
    // i-th position. Past the end nothing is copied, but the group is still committed.
    const auto locate = [&](u32 tile, u32 block, auto& at, auto& there, auto position_of) {
        const u32 start = tile * TILE;
        const u64 tile_index = pool_index(p, entry(tile), block, kv_head, start, D);
#pragma unroll
        for (u32 i = 0; i < sizeof(there) / sizeof(there[0]); i++) {
            const u32 position = start + position_of(i);
            there[i] = position >= begin && position < end;
            at[i] = !there[i]      ? 0
                    : whole_tiles ? tile_index + position_of(i) * D
                                  : pool_index(p, table, kv_head, position, D);
        }
    };
    const auto start_keys = [&](u32 tile, u32 block, u32 stage) {
        if (tile * TILE < end) {
            u64 at[2];
            bool there[2];
            locate(tile, block, at, there, [&](u32 i) { return key_position(lane, i); });
            Share<T, D> to = share(stage, 0);
            each_key<D, 2>(lane, [&](u32 i, u32 dimension, const auto& words) {
                to.copy(static_cast<const T*>(p.keys) + at[i] + (there[i] ? dimension : 0), there[i], words);
            });
        }
        commit_copies();
    };
    const auto start_values = [&](u32 tile, u32 block, u32 stage) {
        if (tile * TILE < end) {
            u64 at[4];
            bool there[4];
            locate(tile, block, at, there, [&](u32 i) { return value_position(lane, i); });
            Share<T, D> to = share(stage, 1);
            each_value<D>(lane, [&](u32 i, u32 dimension, const auto& words) {
                to.copy(static_cast<const T*>(p.values) + at[i] + (there[i] ? dimension : 0), there[i], words);
            });
        }
        commit_copies();
    };
#pragma unroll
    for (u32 stage = 0; stage < STAGES; stage++) {
        start_keys(tile + stage * WARPS, blocks[stage], stage);
        start_values(tile + stage * WARPS, blocks[stage], stage);
    }
    queries.store(q);
    sync_block();

    Rows16<T, D> rows_here[1];
    Rows16<T, D>& sums = rows_here[0];
    sums.clear();
    for (u32 stage = 0; tile * TILE < end; tile += WARPS, stage = (stage + 1) % STAGES) {
        // Requested before it is needed.
        const u32 next = tile + STAGES * WARPS;
        const u32 block = has_block(next) ? load_now(table + entry(next)) : 0;
        float scores[1][2][4];
        wait_copies<2 * STAGES - 1>();
        Share<T, D> keys = share(stage, 0);
        products<T, D>(q, lane, scores, [&](u32, u32, auto& words) { keys.read(words); });
        start_keys(next, block, stage);
        if (p.soft_cap > 0.0f) cap(p, scores[0]);
        if (tile * TILE < begin || tile * TILE + TILE > end) {
#pragma unroll
            for (u32 n = 0; n < 2; n++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const u32 position = tile * TILE + n * 8 + lane % 4 * 2 + j % 2;
                    if (position < begin || position >= end) scores[0][n][j] = negative_infinity();
                }
        }
        sums.template soften<2>(scores[0], score_factor(p));
        wait_copies<2 * STAGES - 1>();
        Share<T, D> values = share(stage, 1);
        add_values(rows_here, scores, 0, lane, [&](u32, u32, auto& words) { values.read(words); });
        start_values(next, block, stage);
    }
    // Reuses the tiles' memory once all warps are done with it. In a warp's store two lanes meet in a bank, mostly t and t + 2
    // of a row (four lanes in the last 16 of 80 dimensions).
    constexpr u32 STRIDE = D + 2;
    static_assert(ROWS * STRIDE * sizeof(float) <= 2 * WARPS * STAGES * Share<T, D>::BYTES, "sums fit the tiles' memory");
    float* merged = reinterpret_cast<float*>(tiles_here);

    // Warps add their sums in a fixed order.
    if (lane % 4 == 0)
        for (u32 half = 0; half < 2; half++) {
            largest[warp * ROWS + half * 8 + lane / 4] = sums.largest[half];
            total[warp * ROWS + half * 8 + lane / 4] = sums.total[half];
        }
    sync_block();
    float shrink[2];
    for (u32 half = 0; half < 2; half++) {
        const u32 row = half * 8 + lane / 4;
        float most = largest[row];
        for (u32 i = 1; i < WARPS; i++) most = larger(most, largest[i * ROWS + row]);
        shrink[half] = sums.largest[half] == negative_infinity() ? 0.0f : exp2_fast(sums.largest[half] - most);
    }
    for (u32 turn = 0; turn < WARPS; turn++) {
        if (warp == turn)
            sums.each(lane, [&](u32 half, u32 dimension, float sum) {
                const u32 row = half * 8 + lane / 4;
                if (row >= rows) return;
                float* place = merged + row * STRIDE + dimension;
                *place = turn == 0 ? sum * shrink[half] : *place + sum * shrink[half];
            });
        sync_block();
    }
    for (u32 i = thread; i < rows * D; i += WARPS * WARP) {
        const u32 row = i / D, dimension = i % D;
        float most = largest[row], sum = 0.0f;
        for (u32 w = 1; w < WARPS; w++) most = larger(most, largest[w * ROWS + row]);
        for (u32 w = 0; w < WARPS; w++)
            if (largest[w * ROWS + row] > negative_infinity())
                sum += total[w * ROWS + row] * exp2_fast(largest[w * ROWS + row] - most);
        const u64 head = first_head + row;
        if (p.parts == 1) {
            T* out = static_cast<T*>(p.out) + (static_cast<u64>(token) * p.heads + head) * D;
            out[dimension] = Number<T>::round(merged[row * STRIDE + dimension] / sum);
        } else {
            const u64 place = (static_cast<u64>(blockIdx.z) * p.heads + head) * p.parts + blockIdx.x;
            float* part = p.partial + place * (D + 2);
            part[dimension] = merged[row * STRIDE + dimension];
            if (dimension == 0) {
                part[D] = most;
                part[D + 1] = sum;
            }
        }
    }
}

constexpr u32 REDUCERS = 128;

// Adds up the parts of one head of one token in order. One block per head, one thread per dimension (or two).
template <class T>
DEVICE void reduce(const AttentionParams& p, unsigned char* shared) {
    const u32 token = load_early(p.items + blockIdx.y), head = blockIdx.x, width = p.head_dim, thread = threadIdx.x;
    const u32 context = token != NONE ? load_early(p.positions + token) + 1 : 0;
    take_turn();
    if (token == NONE) return;
    const Cut cut(p, context);
    const u32 first = cut.first_part(), parts = cut.parts();
    const float* partial = p.partial + (static_cast<u64>(blockIdx.y) * p.heads + head) * p.parts * (width + 2);
    const auto part_at = [&](u32 part) { return partial + part * (width + 2); };
    float* weights = reinterpret_cast<float*>(shared);
    float* totals = weights + REDUCERS;

    float most = negative_infinity();
    for (u32 part = first + thread; part < parts; part += REDUCERS) most = larger(most, part_at(part)[width]);
    most = block_largest(most, weights);
    float sums[2] = {0.0f, 0.0f}, total = 0.0f;
    for (u32 here = first; here < parts; here += REDUCERS) {
        const u32 count = parts - here < REDUCERS ? parts - here : REDUCERS;
        const float own = thread < count ? part_at(here + thread)[width] : negative_infinity();
        weights[thread] = own == negative_infinity() ? 0.0f : exp2_fast(own - most);
        totals[thread] = thread < count ? part_at(here + thread)[width + 1] * weights[thread] : 0.0f;
        sync_block();
        for (u32 i = 0; i < count; i++) total += totals[i];
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            if (k * REDUCERS >= width) break;
            // `fence_loads` needs whole warps: threads past the last dimension repeat it, and their sums are not
            // stored.
            const u32 dimension = k * REDUCERS + thread < width ? k * REDUCERS + thread : width - 1;
            // In flight at once, since each load goes to the L2 cache. Weights past the end are 0.
            constexpr u32 TOGETHER = 16;
            for (u32 i = 0; i < count; i += TOGETHER) {
                float numbers[TOGETHER];
#pragma unroll
                for (u32 j = 0; j < TOGETHER; j++)
                    numbers[j] = part_at(here + (i + j < count ? i + j : count - 1))[dimension];
                fence_loads();
#pragma unroll
                for (u32 j = 0; j < TOGETHER; j++) sums[k] += numbers[j] * weights[i + j];
            }
        }
        sync_block();
    }
    T* out = static_cast<T*>(p.out) + (static_cast<u64>(token) * p.heads + head) * width;
#pragma unroll
    for (u32 k = 0; k < 2; k++)
        if (k * REDUCERS + thread < width) out[k * REDUCERS + thread] = Number<T>::round(sums[k] / total);
}

}  // namespace decode

// BLOCKS: as in `blocks_at_once` of attention.rs.
#define DECODE(T, D, BLOCKS)                                                                 \
    EARLY_KERNEL(attention_decode_##T##_##D, AttentionParams, decode::WARPS * WARP, BLOCKS) {\
        SHARED_MEMORY(shared);                                                               \
        decode::attend<T, D>(p, shared);                                                     \
    }
#define DECODE_TYPE(T)                                                                       \
    DECODE(T, 32, 8)                                                                         \
    DECODE(T, 64, 4)                                                                         \
    DECODE(T, 80, 4)                                                                         \
    DECODE(T, 96, 4)                                                                         \
    DECODE(T, 128, 3)                                                                        \
    DECODE(T, 256, 3)                                                                        \
    EARLY_KERNEL(attention_reduce_##T, AttentionParams, decode::REDUCERS) {                  \
        SHARED_MEMORY(shared);                                                               \
        decode::reduce<T>(p, shared);                                                        \
    }
DECODE_TYPE(bf16)
DECODE_TYPE(f16)
