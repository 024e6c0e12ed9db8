// RMS norm fused with the operations before it: the last projection's bias, the norm of that output (Gemma), its factor
// (Granite), and the sum into the residual stream, which stays in f32. Models with `1 + w` have the one added when weights
// are loaded. Those without norms before their projections (OLMo 2) only have the stream rounded.
//
// Versions. 1: a block per row, a thread read one number at a time, and the row was read twice (the second time from
// cache). Stores between the loads serialized them: 8 round trips per pass at a width of 4,096. 2 (this one): if rows
// are multiples of 8 and up to 8,192 wide, a thread reads 8 numbers at once, all of its numbers before the first sum,
// and keeps them. The factor is that of a multiply-add which was a sum: 1 gives the same bits. Neither it nor rows without a
// norm have been on a GPU.
// Measurements (H200, bf16, width 4,096): 2.7 to 3.2 us for one row; 79 to 86 % of the copy rate at 2,048, 84 to 95 % at 16,384.
// Limit: memory bandwidth; at decode, launch latency.
#include "device.cuh"

struct NormParams {
    float* residual;           // [token][width], updated if there is a `delta`.
    const void* delta;         // [token][width], or null.
    const float* delta_bias;   // Or null.
    const float* delta_norm;   // Weights of the delta's norm, or null.
    const float* weight;       // Or null: `out` is the residual, rounded.
    void* out;                 // [row][width]
    const u32* select;         // Row i is token select[i] (NONE: nothing); null: token i.
    u32 width;
    float epsilon;
    float delta_factor;        // Of the delta, after bias and norm; 1 in most models.
    u32 unused;
};

namespace rms {

constexpr u32 THREADS = 512;

// Rows kept in registers: TURNS times eight numbers per thread.
template <class T, u32 TURNS>
DEVICE void kept(const NormParams& p, u32 token, float* scratch) {
    const u64 start = static_cast<u64>(token) * p.width;
    const auto place = [&](u32 turn) { return (turn * THREADS + threadIdx.x) * 8; };
    Eight<float> residual[TURNS], bias[TURNS], norm[TURNS], weight[TURNS];
    Eight<T> delta[TURNS];
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        const u32 at = place(turn);
        if (at >= p.width) continue;
        residual[turn].read(p.residual + start + at);
        if (p.delta != nullptr) delta[turn].read(static_cast<const T*>(p.delta) + start + at);
        if (p.delta_bias != nullptr) bias[turn].read(p.delta_bias + at);
        if (p.delta_norm != nullptr) norm[turn].read(p.delta_norm + at);
        if (p.weight != nullptr)
            weight[turn].read(p.weight + at);
        else
            for (u32 i = 0; i < 8; i += 2) weight[turn].set(i, 1.0f, 1.0f);
    }
    float x[TURNS][8], squares = 0.0f;
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            x[turn][i] = 0.0f;
            if (place(turn) >= p.width || p.delta == nullptr) continue;
            x[turn][i] = delta[turn].get(i) + (p.delta_bias != nullptr ? bias[turn].get(i) : 0.0f);
            squares += x[turn][i] * x[turn][i];
        }
    const bool own_norm = p.delta != nullptr && p.delta_norm != nullptr;
    const float own_scale = own_norm ? 1.0f / sqrtf(block_sum(squares, scratch) / p.width + p.epsilon) : 1.0f;
    const float delta_scale = own_scale * p.delta_factor;
    squares = 0.0f;
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        if (place(turn) >= p.width) continue;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float added = own_norm ? x[turn][i] * delta_scale * norm[turn].get(i) : x[turn][i] * delta_scale;
            x[turn][i] = residual[turn].get(i) + added;
            squares += x[turn][i] * x[turn][i];
        }
#pragma unroll
        for (u32 i = 0; i < 8; i += 2) residual[turn].set(i, x[turn][i], x[turn][i + 1]);
        if (p.delta != nullptr) residual[turn].write(p.residual + start + place(turn));
    }
    const float scale = p.weight != nullptr ? 1.0f / sqrtf(block_sum(squares, scratch) / p.width + p.epsilon) : 1.0f;
    T* out = static_cast<T*>(p.out) + static_cast<u64>(blockIdx.x) * p.width;
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        if (place(turn) >= p.width) continue;
        const auto normed = [&](u32 i) { return x[turn][i] * scale * weight[turn].get(i); };
        Eight<T> numbers;
#pragma unroll
        for (u32 i = 0; i < 8; i += 2) numbers.set(i, normed(i), normed(i + 1));
        numbers.write(out + place(turn));
    }
}

// Rows of any width.
template <class T>
DEVICE void read_twice(const NormParams& p, u32 token, float* scratch) {
    const u64 start = static_cast<u64>(token) * p.width;
    float* residual = p.residual + start;
    const auto delta = [&](u32 i) {
        const float x = Number<T>::widen(static_cast<const T*>(p.delta)[start + i]);
        return p.delta_bias != nullptr ? x + p.delta_bias[i] : x;
    };
    float delta_scale = p.delta_factor;
    if (p.delta != nullptr && p.delta_norm != nullptr) {
        float squares = 0.0f;
        for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) squares += delta(i) * delta(i);
        delta_scale *= 1.0f / sqrtf(block_sum(squares, scratch) / p.width + p.epsilon);
    }
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float x = residual[i];
        if (p.delta != nullptr) {
            x += p.delta_norm != nullptr ? delta(i) * delta_scale * p.delta_norm[i] : delta(i) * delta_scale;
            residual[i] = x;
        }
        squares += x * x;
    }
    const bool norms = p.weight != nullptr;
    const float scale = norms ? 1.0f / sqrtf(block_sum(squares, scratch) / p.width + p.epsilon) : 1.0f;
    T* out = static_cast<T*>(p.out) + static_cast<u64>(blockIdx.x) * p.width;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x)
        out[i] = Number<T>::round(norms ? residual[i] * scale * p.weight[i] : residual[i]);
}

}  // namespace rms

#define ADD_NORM(NAME, NORM)                                                                 \
    KERNEL(NAME, NormParams, rms::THREADS) {                                                 \
        SHARED_MEMORY(shared);                                                               \
        const u32 token = p.select != nullptr ? p.select[blockIdx.x] : blockIdx.x;           \
        if (token != NONE) NORM(p, token, reinterpret_cast<float*>(shared));                 \
    }
#define ADD_NORM_TYPE(T)                                                                     \
    ADD_NORM(add_norm_##T, rms::read_twice<T>)                                               \
    ADD_NORM(add_norm_##T##_1, (rms::kept<T, 1>))                                            \
    ADD_NORM(add_norm_##T##_2, (rms::kept<T, 2>))
ADD_NORM_TYPE(float)
ADD_NORM_TYPE(bf16)
ADD_NORM_TYPE(f16)
