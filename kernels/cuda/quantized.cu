// Matrices of integers (quantized.cuh) where their products don't read them: widened for products of many rows, as rows of an
// embedding, and filled with random numbers for benchmarks. A warp has a tile. Measurements: none yet. Limit: memory bandwidth.
#include "quantized.cuh"

struct WidenParams {
    const void* w;          // Tiles.
    void* out;              // [output][inputs]
    u32 outputs;
    u32 inputs;             // A multiple of 32.
};

struct EmbedIntegersParams {
    const void* table;      // Tiles of [vocabulary][width].
    float* out;             // [token][width]
    const u32* tokens;      // NONE gives a row of zeros.
    u32 width;              // A multiple of 32.
    float scale;
};

struct FillIntegersParams {
    void* out;              // Tiles.
    u64 tiles;
    u64 seed;
    float scale;            // The largest magnitude.
};

namespace quantized {

constexpr u32 THREADS = 256;
// Consecutive numbers of a thread.
constexpr u32 NUMBERS = 8;

// A lane's integers of a tile, and its output's units.
template <class W>
struct Lane {
    typename W::Integers integers;
    typename W::Units units;

    DEVICE Lane(const void* tiles, u64 tile, u32 lane) {
        const u8* from = static_cast<const u8*>(tiles);
        integers = *reinterpret_cast<const typename W::Integers*>(from + integers_at<W>(tile, lane));
        units = *reinterpret_cast<const typename W::Units*>(from + units_at<W>(tile, lane));
    }
    DEVICE float weight(u32 group, u32 i) const {
        return multiply_add(W::number(integers, group, i), W::scale(units, group), W::base(units, group));
    }
};

template <class T, class W>
DEVICE void widen(const WidenParams& p) {
    const u32 lane = lane_of(threadIdx.x), across = tiles_of(p.inputs);
    const u64 tile = static_cast<u64>(blockIdx.x) * (THREADS / WARP) + warp_of(threadIdx.x);
    const u64 output = tile / across * OUTPUTS + lane / 4;
    if (output >= p.outputs) return;
    const Lane<W> from(p.w, tile, lane);
#pragma unroll
    for (u32 group = 0; group < INPUTS / GROUP; group++) {
        const u32 input = static_cast<u32>(tile % across) * INPUTS + group * GROUP + lane % 4 * NUMBERS;
        if (input >= p.inputs) return;
        Eight<T> to;
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i += 2) to.set(i, from.weight(group, i), from.weight(group, i + 1));
        to.write(static_cast<T*>(p.out) + output * p.inputs + input);
    }
}

template <class W>
DEVICE void embed(const EmbedIntegersParams& p) {
    const u32 token = p.tokens[blockIdx.x], first = (blockIdx.y * THREADS + threadIdx.x) * NUMBERS;
    if (first >= p.width) return;
    Eight<float> to;
    if (token == NONE) {
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i += 2) to.set(i, 0.0f, 0.0f);
    } else {
        const u64 tile = static_cast<u64>(token / OUTPUTS) * tiles_of(p.width) + first / INPUTS;
        const Lane<W> from(p.table, tile, token % OUTPUTS * 4 + first % GROUP / NUMBERS);
        const bool second = first % INPUTS >= GROUP;
        const auto weight = [&](u32 i) { return (second ? from.weight(1, i) : from.weight(0, i)) * p.scale; };
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i += 2) to.set(i, weight(i), weight(i + 1));
    }
    to.write(p.out + static_cast<u64>(blockIdx.x) * p.width + first);
}

template <class W>
DEVICE void fill(const FillIntegersParams& p) {
    const u32 lane = lane_of(threadIdx.x);
    const u64 step = static_cast<u64>(gridDim.x) * (THREADS / WARP);
    for (u64 tile = blockIdx.x * (THREADS / WARP) + warp_of(threadIdx.x); tile < p.tiles; tile += step) {
        typename W::Integers integers;
        typename W::Units units;
        const u64 first = (tile * WARP + lane) * 2;
        W::fill(random_bits(p.seed, first), random_bits(p.seed, first + 1), p.scale, integers, units);
        u8* to = static_cast<u8*>(p.out);
        *reinterpret_cast<typename W::Integers*>(to + integers_at<W>(tile, lane)) = integers;
        if (lane % 4 == 0) *reinterpret_cast<typename W::Units*>(to + units_at<W>(tile, lane)) = units;
    }
}

}  // namespace quantized

#define QUANTIZED(NAME, W)                                                                   \
    KERNEL(widen_##NAME##_bf16, WidenParams, quantized::THREADS) {                           \
        quantized::widen<bf16, quantized::W>(p);                                             \
    }                                                                                        \
    KERNEL(widen_##NAME##_f16, WidenParams, quantized::THREADS) {                            \
        quantized::widen<f16, quantized::W>(p);                                              \
    }                                                                                        \
    KERNEL(embed_##NAME, EmbedIntegersParams, quantized::THREADS) {                          \
        quantized::embed<quantized::W>(p);                                                   \
    }                                                                                        \
    KERNEL(fill_##NAME, FillIntegersParams, quantized::THREADS) {                            \
        quantized::fill<quantized::W>(p);                                                    \
    }
QUANTIZED(int8, Int8)
QUANTIZED(int4, Int4)
