// Shared by both tensor-core attention kernels: products of rows of queries with 16 (or more) keys and values.
//
// A warp has one or two sets of 16 rows: query heads of one key head, in prefill for several tokens. Whatever a lane reads
// of keys and values it uses for all sets. Products use mma.m16n8k16 with two permutations that make every load 16 bytes
// wide and need neither ldmatrix nor transposes:
//   scores   the sum over dimensions may run in any order, so lane t of a quad takes 8 consecutive dimensions (t * 8 of 32)
//            of both queries and keys, and its four words serve two products;
//   values   a product's eight columns may be any dimensions, so lane group g takes 8 consecutive ones (g * 8 of 64) of two
//            neighbouring tokens, and interleaves their halves.
// Softmax is online (Milakov and Gimelshein 2018) in powers of two. A position that a row does not see has weight 0,
// and one that no row of the tile sees is never read: its value is taken as 0, so a stale NaN there is harmless.
// A head's sink (gpt-oss) has a weight but no value, so it is added to a row's total once, when all tokens are. It has not been
// on a GPU.
#pragma once

#include "device.cuh"

struct AttentionParams {
    const void* q;         // Token i's queries at i * q_stride, `heads * head_dim` of them.
    const void* keys;      // One layer: [block][kv head][position in block][dimension].
    const void* values;    // The same.
    void* out;             // [token][heads * head_dim].
    float* partial;        // Decode: sums of contexts of which several blocks have a piece.
    u32* tickets;          // Decode: [item][key head][tile of its query heads], all zero before and after.
    const u32* positions;  // Of each token.
    const u32* tables;     // Start of each token's block table in `blocks`.
    const u32* blocks;
    const float* sinks;    // A score for each query head that takes part in its softmax, but has no value; or null.
    const u32* items;      // Decode: tokens. Prefill: pairs of first token and count. NONE is padding.
    u32 q_stride;
    u32 heads;
    u32 kv_heads;
    u32 block_size;
    u32 window;            // 0: none.
    u32 count;             // Decode: of items.
    u32 part_tokens;       // Decode: a block has so many tokens, counted from position 0; 0: an equal share of all contexts.
    u32 head_dim;          // For kernels of any width.
    float scale;
    float soft_cap;        // 0: none.
};

// Numbers of a row in shared memory, padded so that the loads below have no bank conflicts. Rows of queries are pairs.
DEVICE constexpr u32 pair_stride(u32 head_dim) { return 2 * head_dim + 8; }
DEVICE constexpr u32 key_stride(u32 head_dim) { return head_dim + ((192 - 2 * head_dim % 128) % 128) / 2; }
DEVICE constexpr u32 value_stride(u32 head_dim) { return head_dim + ((80 - 2 * head_dim % 64) % 64) / 2; }

// A score is a product of a query and a key, `capped` if the model caps, times this factor, in units of log2. Tiles apply it
// within the softmax, and ask once whether there is a cap: a branch for each score would take longer than multiplying.
DEVICE float score_factor(const AttentionParams& p) { return (p.soft_cap > 0.0f ? 1.0f : p.scale) * LOG2_E; }
DEVICE float capped(const AttentionParams& p, float product) {
    return p.soft_cap * tanh_fast(product * (p.scale / p.soft_cap));
}

template <u32 N>
DEVICE void cap(const AttentionParams& p, float (&products)[N][4]) {
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) products[n][j] = capped(p, products[n][j]);
}

// What a head's sink adds to the total of a row whose weights are relative to `largest`: nothing if it is minus infinity. If it
// outweighs all of the row by more than an f32 holds, the sums over the total are 0.
DEVICE float sink_weight(const AttentionParams& p, u32 head, float largest) {
    return p.sinks != nullptr ? exp2_fast(p.sinks[head] * LOG2_E - largest) : 0.0f;
}

DEVICE u32 first_seen(const AttentionParams& p, u32 position) {
    return p.window > 0 && position + 1 > p.window ? position + 1 - p.window : 0;
}

// Index in the pool of one head's numbers at a position, which is in this block, the one of this entry of its table.
DEVICE u64 pool_index(const AttentionParams& p, u32 entry, u32 block, u32 kv_head, u32 position, u32 head_dim) {
    const u32 offset = position - entry * p.block_size;
    return ((static_cast<u64>(block) * p.kv_heads + kv_head) * p.block_size + offset) * head_dim;
}

DEVICE u64 pool_index(const AttentionParams& p, const u32* table, u32 kv_head, u32 position, u32 head_dim) {
    const u32 entry = position / p.block_size;
    return pool_index(p, entry, table[entry], kv_head, position, head_dim);
}

// Where a sequence's numbers of a key head lie in the pool.
struct Places {
    const AttentionParams& p;
    const u32* table;
    u32 kv_head;
    u32 shift;  // log2 of the block size; NONE: not a power of two. A division takes some twenty instructions.

    DEVICE Places(const AttentionParams& p, const u32* table, u32 kv_head)
        : p(p), table(table), kv_head(kv_head),
          shift((p.block_size & (p.block_size - 1)) == 0 ? trailing_zeros(p.block_size) : NONE) {}

    template <bool SHIFTS>
    DEVICE u32 entry(u32 position) const { return SHIFTS ? position >> shift : position / p.block_size; }

    template <bool SHIFTS>
    DEVICE u64 index(u32 position, u32 block, u32 head_dim) const {
        return pool_index(p, entry<SHIFTS>(position), block, kv_head, position, head_dim);
    }
};

// Reads WORDS words at once.
template <u32 WORDS, class T>
DEVICE void read_words(const T* from, u32 (&words)[WORDS]) {
    if constexpr (WORDS == 4) {
        const Words4 wide = *reinterpret_cast<const Words4*>(from);
        for (u32 i = 0; i < 4; i++) words[i] = wide.w[i];
    } else if constexpr (WORDS == 2) {
        const Words2 wide = *reinterpret_cast<const Words2*>(from);
        for (u32 i = 0; i < 2; i++) words[i] = wide.w[i];
    } else {
        words[0] = *reinterpret_cast<const u32*>(from);
    }
}

// Writes WORDS words at once.
template <u32 WORDS, class T>
DEVICE void write_words(T* to, const u32 (&words)[WORDS]) {
    if constexpr (WORDS == 4)
        *reinterpret_cast<Words4*>(to) = Words4{{words[0], words[1], words[2], words[3]}};
    else if constexpr (WORDS == 2)
        *reinterpret_cast<Words2*>(to) = Words2{{words[0], words[1]}};
    else
        *reinterpret_cast<u32*>(to) = words[0];
}

// The largest score of a lane's row (0: row g, 1: row g + 8), of all columns.
template <u32 N>
DEVICE float largest_of_row(const float (&scores)[N][4], u32 row) {
    float here = negative_infinity();
#pragma unroll
    for (u32 n = 0; n < N; n++) here = larger(here, larger(scores[n][2 * row], scores[n][2 * row + 1]));
    here = larger(here, shuffle_xor(here, 1));
    return larger(here, shuffle_xor(here, 2));
}

// What scores are taken relative to: for rows that have seen nothing yet any finite number works.
DEVICE float finite(float largest) { return largest == negative_infinity() ? 0.0f : largest; }

// Makes scores of positions from `start` on that the lane's rows g and g + 8, at these positions, don't see weigh nothing.
template <u32 N>
DEVICE void hide_unseen(const AttentionParams& p, float (&scores)[N][4], u32 start, u32 lane, const u32 (&positions)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++)
#pragma unroll
        for (u32 n = 0; n < N; n++)
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u32 position = start + n * 8 + lane % 4 * 2 + j, own = positions[half];
                const bool seen = position <= own && (p.window == 0 || position + p.window > own);
                if (!seen) scores[n][2 * half + j] = negative_infinity();
            }
}

// Sixteen rows' running softmax and sums. Lane (g, t) holds rows g and g + 8; of a chunk of 8 * W dimensions starting
// at `base`, sums[...][0] is dimension base + 2 * t * W + i and sums[...][1] is base + (2 * t + 1) * W + i.
template <class T, u32 D>
struct Rows16 {
    float sums[D / 8][4];
    float largest[2];
    float total[2];

    DEVICE void clear() {
#pragma unroll
        for (u32 i = 0; i < D / 8; i++)
            for (u32 j = 0; j < 4; j++) sums[i][j] = 0.0f;
        for (u32 row = 0; row < 2; row++) {
            largest[row] = negative_infinity();
            total[row] = 0.0f;
        }
    }

    // Turns scores of N * 8 positions, still without their factor, into weights in place, and rescales the sums so far.
    template <u32 N>
    DEVICE void soften(float (&scores)[N][4], float factor) {
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            const float most = larger(largest[row], largest_of_row(scores, row) * factor);
            const float from = finite(most);
            const float decay = exp2_fast(largest[row] - from);
            float sum = 0.0f;
#pragma unroll
            for (u32 n = 0; n < N; n++)
#pragma unroll
                for (u32 j = 2 * row; j < 2 * row + 2; j++) {
                    scores[n][j] = exp2_fast(scores[n][j] * factor - from);
                    sum += scores[n][j];
                }
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            largest[row] = most;
            total[row] = total[row] * decay + sum;
#pragma unroll
            for (u32 i = 0; i < D / 8; i++) {
                sums[i][2 * row] *= decay;
                sums[i][2 * row + 1] *= decay;
            }
        }
    }

    // Calls give(half, dimension, sum) for each sum of this lane; half 0 is row g, half 1 is row g + 8.
    template <class Give>
    DEVICE void each(u32 lane, Give give) const {
#pragma unroll
        for (u32 i = 0; i < D / 8; i++) {
            const u32 dimension = i * 8;
            u32 width = 8, base = dimension / 64 * 64;
            if (base + 64 > D) {
                width = 4;
                base = dimension / 32 * 32;
            }
            if (base + 8 * width > D) {
                width = 2;
                base = dimension / 16 * 16;
            }
            const u32 column = i - base / 8;
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                give(j / 2, base + (lane % 4 * 2 + j % 2) * width + column, sums[i][j]);
        }
    }

    // Calls give(half, dimension, words) for each run of eight, four or two consecutive dimensions of this lane, with their
    // sums times the row's factor in half as many words.
    template <class Give>
    DEVICE void each_run(u32 lane, const float (&factors)[2], Give give) const {
#pragma unroll
        for (u32 base = 0; base + 64 <= D; base += 64) runs<8>(base, lane, factors, give);
        if constexpr (D % 64 >= 32) runs<4>(D / 64 * 64, lane, factors, give);
        if constexpr (D % 32 >= 16) runs<2>(D / 32 * 32, lane, factors, give);
    }

    template <u32 W, class Give>
    DEVICE void runs(u32 base, u32 lane, const float (&factors)[2], Give give) const {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const float factor = factors[j / 2];
            u32 words[W / 2];
#pragma unroll
            for (u32 i = 0; i < W; i += 2)
                words[i / 2] = pack<T>(sums[base / 8 + i][j] * factor, sums[base / 8 + i + 1][j] * factor);
            give(j / 2, base + (lane % 4 * 2 + j % 2) * W, words);
        }
    }
};

// A block's rows of queries on their way to shared memory. There rows g and g + 8 of sixteen lie together, one word of each
// in turn, which is the order of a fragment's words. Row by row, each fragment would have to be put together by four moves,
// and nvcc does so for every product.
template <class T, u32 D, u32 ROWS, u32 THREADS>
struct Queries {
    static constexpr u32 CHUNKS = ROWS * D / 8;
    static constexpr u32 NUMBERS = ROWS / 2 * pair_stride(D);
    Words4 chunks[(CHUNKS + THREADS - 1) / THREADS];

    // from(row, dimension): where 8 dimensions of a row are, or null.
    template <class From>
    DEVICE void read(From from) {
        each([&](u32 i, u32 row, u32 dimension) {
            const T* at = from(row, dimension);
            chunks[i] = at != nullptr ? *reinterpret_cast<const Words4*>(at) : Words4{};
        });
    }

    DEVICE void store(T* q) const {
        each([&](u32 i, u32 row, u32 dimension) {
            T* pair = q + (row / 16 * 8 + row % 8) * pair_stride(D) + row / 8 % 2 * 2;
#pragma unroll
            for (u32 word = 0; word < 4; word++)
                *reinterpret_cast<u32*>(pair + 2 * dimension + 4 * word) = chunks[i].w[word];
        });
    }

    template <class Visit>
    static DEVICE void each(Visit visit) {
#pragma unroll
        for (u32 i = 0; i * THREADS < CHUNKS; i++) {
            const u32 chunk = i * THREADS + threadIdx.x;
            if (CHUNKS % THREADS == 0 || chunk < CHUNKS) visit(i, chunk / (D / 8), chunk % (D / 8) * 8);
        }
    }
};

// Adds products of M sets of 16 rows of queries with 8 * N keys, of 4 * W dimensions from `base` on.
template <class T, u32 D, u32 W, u32 M, u32 N, class Load>
DEVICE void add_products(const T* q, u32 base, u32 lane, float (&scores)[M][N][4], Load load) {
    const u32 dimension = base + lane % 4 * W;
    Fragment queries[M][W / 4];
#pragma unroll
    for (u32 m = 0; m < M; m++)
#pragma unroll
        for (u32 i = 0; i < W / 4; i++)
            read_words(q + (m * 8 + lane / 4) * pair_stride(D) + 2 * dimension + 8 * i, queries[m][i].a);
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        u32 key[W / 2];
        load(n * 8 + lane / 4, dimension, key);
#pragma unroll
        for (u32 m = 0; m < M; m++)
#pragma unroll
            for (u32 i = 0; i < W / 4; i++)
                Number<T>::multiply(scores[m][n], queries[m][i], key[2 * i], key[2 * i + 1]);
    }
}

// Products of M sets of 16 rows of queries (as `Queries` stores them) with 8 * N keys. load(key, dimension,
// words) reads 8 (or 4) dimensions of a key, once for all sets.
template <class T, u32 D, u32 M, u32 N, class Load>
DEVICE void products(const T* q, u32 lane, float (&scores)[M][N][4], Load load) {
#pragma unroll
    for (u32 m = 0; m < M; m++)
#pragma unroll
        for (u32 n = 0; n < N; n++)
            for (u32 j = 0; j < 4; j++) scores[m][n][j] = 0.0f;
#pragma unroll
    for (u32 base = 0; base + 32 <= D; base += 32) add_products<T, D, 8>(q, base, lane, scores, load);
    if constexpr (D % 32 == 16) add_products<T, D, 4>(q, D / 32 * 32, lane, scores, load);
}

// Adds weighted values to 8 * W dimensions of M sets of rows, from `base` on.
template <u32 W, class T, u32 D, u32 M, class Load>
DEVICE void add_columns(Rows16<T, D> (&rows)[M], const Fragment (&weights)[M], u32 base, u32 lane, Load load) {
    const u32 token = lane % 4 * 2;
    const u32 dimension = base + lane / 4 * W;
    u32 low[2][W / 2], high[2][W / 2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        load(token + i, dimension, low[i]);
        load(token + 8 + i, dimension, high[i]);
    }
#pragma unroll
    for (u32 word = 0; word < W / 2; word++) {
        const u32 at = base / 8 + 2 * word;
        const u32 even[2] = {low_halves(low[0][word], low[1][word]), low_halves(high[0][word], high[1][word])};
        const u32 odd[2] = {high_halves(low[0][word], low[1][word]), high_halves(high[0][word], high[1][word])};
#pragma unroll
        for (u32 m = 0; m < M; m++) {
            Number<T>::multiply(rows[m].sums[at], weights[m], even[0], even[1]);
            Number<T>::multiply(rows[m].sums[at + 1], weights[m], odd[0], odd[1]);
        }
    }
}

// Adds the values of 16 positions to M sets of rows, with the weights [m][n] and [m][n + 1]. load(position, dimension,
// words) reads two, four or eight dimensions of a position into half as many words, once for all sets.
template <class T, u32 D, u32 M, u32 N, class Load>
DEVICE void add_values(Rows16<T, D> (&rows)[M], const float (&weights)[M][N][4], u32 n, u32 lane, Load load) {
    Fragment packed[M];
#pragma unroll
    for (u32 m = 0; m < M; m++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float(&pair)[4] = weights[m][n + i / 2];
            packed[m].a[i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
#pragma unroll
    for (u32 base = 0; base + 64 <= D; base += 64) add_columns<8>(rows, packed, base, lane, load);
    if constexpr (D % 64 >= 32) add_columns<4>(rows, packed, D / 64 * 64, lane, load);
    if constexpr (D % 32 >= 16) add_columns<2>(rows, packed, D / 32 * 32, lane, load);
}

// Enumerates the keys and values that a lane reads above, for kernels in which lanes fetch their own: the same words in
// the same order. Calls visit(i, dimension, words) with an array of as many words, for the lane's i-th position of the
// tile.
DEVICE u32 key_position(u32 lane, u32 i) { return i * 8 + lane / 4; }
DEVICE u32 value_position(u32 lane, u32 i) { return lane % 4 * 2 + i / 2 + i % 2 * 8; }

template <u32 D, u32 N, class Visit>
DEVICE void each_key(u32 lane, Visit visit) {
    const u32 four[4] = {}, two[2] = {};
#pragma unroll
    for (u32 chunk = 0; chunk < D / 32; chunk++)
#pragma unroll
        for (u32 n = 0; n < N; n++) visit(n, chunk * 32 + lane % 4 * 8, four);
    if constexpr (D % 32 == 16)
#pragma unroll
        for (u32 n = 0; n < N; n++) visit(n, D / 32 * 32 + lane % 4 * 4, two);
}

template <u32 D, class Visit>
DEVICE void each_value(u32 lane, Visit visit) {
    const u32 four[4] = {}, two[2] = {}, one[1] = {};
#pragma unroll
    for (u32 base = 0; base + 64 <= D; base += 64)
#pragma unroll
        for (u32 i = 0; i < 4; i++) visit(i, base + lane / 4 * 8, four);
    if constexpr (D % 64 >= 32)
#pragma unroll
        for (u32 i = 0; i < 4; i++) visit(i, D / 64 * 64 + lane / 4 * 4, two);
    if constexpr (D % 32 >= 16)
#pragma unroll
        for (u32 i = 0; i < 4; i++) visit(i, D / 32 * 32 + lane / 4 * 2, one);
}
