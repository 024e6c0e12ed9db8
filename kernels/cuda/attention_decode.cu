// Paged attention for tokens that stand alone (decode): the context is cut into parts, one block of four warps each,
// and a second kernel adds the parts up.
//
// Versions. 1 (this one): keys and values go from memory straight into the registers of the tensor core products;
// 16 rows are the query heads of one key head, so each key is read once for all of them; a warp takes tiles of 16
// positions in turn, four warps a block; the parts' number is fixed by the host, so that a captured graph serves any
// context. Tried on paper and not built: products with the heads as the 8 columns (half the registers for groups up to
// 8, but the weights then need a transpose).
// Measurements: not yet measured on a device.
// Registers and spills: README.md. The limit: memory bandwidth (each key and value is read once).
#include "attention.cuh"

namespace decode {

constexpr u32 WARPS = 4;
constexpr u32 TILE = 16;
constexpr u32 ROWS = 16;

// A part's range of positions, [x, y).
DEVICE void part_range(const AttentionParams& p, u32 context, u32 part, u32& begin, u32& end) {
    const u32 first = first_seen(p, context - 1);
    u32 tokens = p.part_tokens, start = 0;
    if (tokens == 0) {
        start = first / TILE * TILE;
        tokens = ((context - start + p.parts - 1) / p.parts + TILE - 1) / TILE * TILE;
    }
    begin = start + part * tokens;
    end = begin + tokens < context ? begin + tokens : context;
    begin = begin > first ? begin : first;
}

template <class T, u32 D>
DEVICE void attend(const AttentionParams& p, unsigned char* shared) {
    const u32 token = p.items[blockIdx.z];
    if (token == NONE) return;
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 group = p.heads / p.kv_heads;
    const u32 tiles = (group + ROWS - 1) / ROWS;
    const u32 kv_head = blockIdx.y / tiles, first_row = blockIdx.y % tiles * ROWS;
    const u32 rows = group - first_row < ROWS ? group - first_row : ROWS;
    const u32 first_head = kv_head * group + first_row;

    T* q = reinterpret_cast<T*>(shared);
    float* merged = reinterpret_cast<float*>(shared + ROWS * key_stride(D) * sizeof(T));
    float* largest = merged + ROWS * D;
    float* total = largest + WARPS * ROWS;
    const T* source = static_cast<const T*>(p.q) + static_cast<u64>(token) * p.q_stride + first_head * D;
    for (u32 i = thread; i < ROWS * D; i += WARPS * WARP)
        q[i / D * key_stride(D) + i % D] = i / D < rows ? source[i] : Number<T>::round(0.0f);
    sync_block();

    u32 begin, end;
    part_range(p, p.positions[token] + 1, blockIdx.x, begin, end);
    const u32* table = p.blocks + p.tables[token];
    const T* keys = static_cast<const T*>(p.keys);
    const T* values = static_cast<const T*>(p.values);
    const bool whole_tiles = p.block_size % TILE == 0;
    Rows16<T, D> sums;
    sums.clear();
    for (u32 tile = begin / TILE + warp; tile * TILE < end; tile += WARPS) {
        const u32 start = tile * TILE;
        const u64 tile_index = whole_tiles ? pool_index(p, table, kv_head, start, D) : 0;
        const auto seen = [&](u32 i) { return start + i >= begin && start + i < end; };
        const auto index = [&](u32 i) {
            return whole_tiles ? tile_index + i * D : pool_index(p, table, kv_head, start + i, D);
        };
        const auto load = [&](const T* from, u32 i, u32 dimension, auto& words) {
            if (seen(i)) {
                read_words(from + index(i) + dimension, words);
            } else {
                for (u32& word : words) word = 0;
            }
        };
        float scores[2][4];
        products<T, D, 2>(q, lane, scores, [&](u32 i, u32 d, auto& words) { load(keys, i, d, words); });
#pragma unroll
        for (u32 n = 0; n < 2; n++)
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                scores[n][j] =
                    seen(n * 8 + lane % 4 * 2 + j % 2) ? score(p, scores[n][j]) : negative_infinity();
        sums.template soften<2>(scores);
        sums.add_values(scores[0], scores[1], lane, [&](u32 i, u32 d, auto& words) { load(values, i, d, words); });
    }

    // The warps' sums, in their order.
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
                float* place = merged + (half * 8 + lane / 4) * D + dimension;
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
            out[dimension] = Number<T>::round(merged[i] / sum);
        } else {
            const u64 place = (static_cast<u64>(blockIdx.z) * p.heads + head) * p.parts + blockIdx.x;
            float* part = p.partial + place * (D + 2);
            part[dimension] = merged[i];
            if (dimension == 0) {
                part[D] = most;
                part[D + 1] = sum;
            }
        }
    }
}

// Adds the parts of one head of one token up, in their order. One block a head, a thread a dimension.
template <class T>
DEVICE void reduce(const AttentionParams& p) {
    const u32 token = p.items[blockIdx.y], head = blockIdx.x, width = p.head_dim;
    if (token == NONE) return;
    const float* parts = p.partial + (static_cast<u64>(blockIdx.y) * p.heads + head) * p.parts * (width + 2);
    float most = negative_infinity();
    for (u32 part = 0; part < p.parts; part++) most = larger(most, parts[part * (width + 2) + width]);
    for (u32 dimension = threadIdx.x; dimension < width; dimension += blockDim.x) {
        float sum = 0.0f, total = 0.0f;
        for (u32 part = 0; part < p.parts; part++) {
            const float* from = parts + part * (width + 2);
            if (from[width] == negative_infinity()) continue;
            const float weight = exp2_fast(from[width] - most);
            sum += from[dimension] * weight;
            total += from[width + 1] * weight;
        }
        T* out = static_cast<T*>(p.out) + (static_cast<u64>(token) * p.heads + head) * width;
        out[dimension] = Number<T>::round(sum / total);
    }
}

}  // namespace decode

#define DECODE(T, D)                                                                        \
    KERNEL(attention_decode_##T##_##D, AttentionParams, decode::WARPS * WARP) {              \
        SHARED_MEMORY(shared);                                                               \
        decode::attend<T, D>(p, shared);                                                     \
    }
#define DECODE_TYPE(T)                                                                       \
    DECODE(T, 32)                                                                            \
    DECODE(T, 64)                                                                            \
    DECODE(T, 80)                                                                            \
    DECODE(T, 96)                                                                            \
    DECODE(T, 128)                                                                           \
    DECODE(T, 256)                                                                           \
    KERNEL(attention_reduce_##T, AttentionParams, 128) { decode::reduce<T>(p); }
DECODE_TYPE(bf16)
DECODE_TYPE(f16)
