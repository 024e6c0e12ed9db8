// What sampling a row is made of: the order of its tokens, their weights, passes over its logits, sums over the block.
#pragma once
#include "device.cuh"

namespace sample {

constexpr u32 THREADS = 1024;
constexpr u32 WARPS = THREADS / WARP;
// Vectors of four logits that a thread reads at once, and the consecutive tokens that a warp reads so: 64 KB a block.
constexpr u32 VECTORS = 4;
constexpr u32 GROUP = WARP * VECTORS * 4;

// One for each thread.
constexpr u32 BINS = THREADS;
// Candidates kept in shared memory, and those of them that are ranked one by one.
constexpr u32 LIST = 8192;
constexpr u32 RANKED = 128;

// Tokens fit into this many bits of a key.
constexpr u32 TOKEN_BITS = 24;

struct Candidate {
    u64 key;
    u64 weight;
};

// Keys from `bottom` to below `top`, and their bins, the largest first.
struct Keys {
    u64 bottom, top;
    u64 shift;                 // A bin has 2^shift keys.

    DEVICE u32 bin(u64 key) const { return static_cast<u32>((top - 1 - key) >> shift); }

    // As few to a bin as possible.
    DEVICE void fit() {
        shift = 0;
        while ((top - bottom - 1) >> shift >= BINS) shift++;
    }

    // Leaves the keys of bins `first` to `last`.
    DEVICE void narrow(u32 first, u32 last) {
        const u64 below = static_cast<u64>(last + 1) << shift;
        bottom = below < top - bottom ? top - below : bottom;
        top -= static_cast<u64>(first) << shift;
    }
};

struct Limits {
    u64 least;                 // Tokens of less weight don't count.
    float depth;               // Those whose logit is this far below the largest don't count either, or have no weight.
    float step;                // The weights at a bin's limits differ by a factor of 2^step.
};

// SAMPLE_SHARED in ops.rs has its size.
struct Shared {
    u64 list[LIST];            // Keys. Also weights of groups, if tokens are taken in order of their ids.
    Candidate ranked[RANKED];
    u64 weights[BINS];         // Of the bins of keys.
    u64 sums[3][WARPS];
    Keys keys;                 // Of the candidates that are left.
    Limits limits;
    u64 target;                // Position of the wanted candidate: by count, or weight.
    u64 unlisted;              // Weight of what the list lacks of candidates above it.
    u64 found;                 // A key.
    u64 through;               // Weight of all candidates up to it.
    u32 counts[BINS];          // Candidates in equal ranges of logits, the likeliest first,
    u32 finer[BINS];           // and in equal ranges of keys.
    u32 first, last;           // Bins.
    u32 before, until;         // Candidates before the first and up to the last.
    u32 listed;
    u32 few;
    u32 broken;                // A logit was NaN or +infinity.
    u32 unused;
};
static_assert(sizeof(Shared) == LIST * 8 + RANKED * 16 + BINS * 16 + 3 * WARPS * 8 + 9 * 8 + 8 * 4, "as in ops.rs");

// Larger keys are likelier; among equal logits the lower token has the larger key.
DEVICE u64 key_of(float logit, u32 token) {
    const u32 bits = float_to_bits(logit + 0.0f);
    const u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<u64>(ordered) << TOKEN_BITS | ((1u << TOKEN_BITS) - 1 - token);
}
// Of one that has it already.
DEVICE u64 key_of(float, u64 key) { return key; }

DEVICE u32 token_of(u64 key) { return (1u << TOKEN_BITS) - 1 - static_cast<u32>(key & ((1u << TOKEN_BITS) - 1)); }

DEVICE float logit_of(u64 key) {
    const u32 ordered = static_cast<u32>(key >> TOKEN_BITS);
    return bits_to_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// Weights of tokens relative to the likeliest are in units of 2^-44: sums of fewer than 2^20 tokens fit.
constexpr u32 WEIGHT_BITS = 44;
constexpr float ONE = 17592186044416.0f;

// `part` of ONE, for a part in 0..1, without the fraction. A device converts numbers to 64 bits at a quarter (sm_89: a
// 32nd) of the rate of 32 bits. So this takes the nearest multiple of 2^31 by adding 2^23, and then the rest, which is
// exact in f32. If the rest is negative, it has no fraction, and 2^31 more is exact, too.
DEVICE u64 weight_of(float part) {
    const float high = part * 8192.0f + 8388608.0f;
    const float rest = part * ONE - (high - 8388608.0f) * 2147483648.0f;
    const u32 borrowed = rest < 0.0f ? 1 : 0;
    const u32 low = static_cast<u32>(rest + (rest < 0.0f ? 2147483648.0f : 0.0f));
    return (static_cast<u64>(float_to_bits(high) - float_to_bits(8388608.0f) - borrowed) << 31) + low;
}

// Sixteen logits of a thread.
struct Group {
    float logits[VECTORS][4];
    u32 first;

    // Lowest token of a vector.
    DEVICE u32 token(u32 vector) const { return first + vector * (4 * WARP); }
};

// A row's logits.
struct Row {
    float* logits;
    u32 vocab;
    bool wide;         // Every fourth token's logit is aligned to 16 bytes, and there is no part of four.
    float largest;
    float rate;        // log2(e) / temperature
    float bins;        // Of equal ranges of logits, for each of their units.

    // Candidates of bin `i` have places from `i` to below `i + 1`.
    DEVICE float place(float logit) const { return (largest - logit) * bins; }
    DEVICE u64 weight(float logit) const { return weight_of(exp2_fast((largest - logit) * -rate)); }

    // Calls visit(group, index) for all tokens, whole warps at a time. Beyond the last token logits are -infinity.
    template <class Visit>
    DEVICE void each_group(Visit visit) const {
        for (u32 i = warp_of(threadIdx.x); i * GROUP < vocab; i += WARPS) {
            Group group;
            group.first = i * GROUP + 4 * lane_of(threadIdx.x);
            const float* from = logits + group.first;
            if (wide) {
                Words4 read[VECTORS];
#pragma unroll
                for (u32 v = 0; v < VECTORS; v++) {
#pragma unroll
                    for (u32 j = 0; j < 4; j++) read[v].w[j] = float_to_bits(negative_infinity());
                    if (group.token(v) < vocab) read[v] = *reinterpret_cast<const Words4*>(from + v * (4 * WARP));
                }
                fence_loads();
#pragma unroll
                for (u32 v = 0; v < VECTORS; v++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) group.logits[v][j] = bits_to_float(read[v].w[j]);
            } else {
#pragma unroll
                for (u32 v = 0; v < VECTORS; v++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        group.logits[v][j] = negative_infinity();
                        if (group.token(v) + j < vocab) group.logits[v][j] = from[v * (4 * WARP) + j];
                    }
            }
            visit(group, i);
        }
    }

    // Calls visit(logit, token) for all tokens, and some logits of -infinity.
    template <class Visit>
    DEVICE void each(Visit visit) const {
        each_group([&](const Group& group, u32) {
#pragma unroll
            for (u32 v = 0; v < VECTORS; v++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) visit(group.logits[v][j], group.token(v) + j);
        });
    }
};

// The candidates in the list. Calls visit(logit, key).
struct Listed {
    const u64* keys;
    u32 count;

    template <class Visit>
    DEVICE void each(Visit visit) const {
        for (u32 i = threadIdx.x; i < count; i += THREADS) visit(logit_of(keys[i]), keys[i]);
    }
};

// Adds to a shared weight. The device adds 32 bits atomically in shared memory, but 64 bits only by compare-and-swap;
// with the carry the sum is exact in any order.
DEVICE void add_weight(u64* at, u64 weight) {
    u32* words = reinterpret_cast<u32*>(at);
    const u32 low = static_cast<u32>(weight), before = atomic_add(&words[0], low);
    atomic_add(&words[1], static_cast<u32>(weight >> 32) + (before + low < before ? 1u : 0u));
}

// Replaces each number by the sum of those of the threads before this one. All threads of the block call it.
template <u32 COUNT>
DEVICE void sum_before(u64 (&numbers)[COUNT], Shared& s) {
    const u32 lane = lane_of(threadIdx.x), warp = warp_of(threadIdx.x);
    u64 sums[COUNT];
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        sums[i] = numbers[i];
        numbers[i] = 0;
    }
    // After each step a lane has the sum of its 2, 4, ... neighbours, and of those of them before it.
    for (u32 lanes = 1; lanes < WARP; lanes *= 2)
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            const u64 other = shuffle_xor(sums[i], lanes);
            numbers[i] += lane & lanes ? other : 0;
            sums[i] += other;
        }
    sync_block();
    if (lane == 0)
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) s.sums[i][warp] = sums[i];
    sync_block();
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) numbers[i] += warp_sum(lane < warp ? s.sums[i][lane] : 0);
}

// The sum of all threads' numbers.
DEVICE u64 sum_of_all(u64 number, Shared& s) {
    number = warp_sum(number);
    sync_block();
    if (lane_of(threadIdx.x) == 0) s.sums[0][warp_of(threadIdx.x)] = number;
    sync_block();
    return warp_sum(s.sums[0][lane_of(threadIdx.x)]);
}

}  // namespace sample
