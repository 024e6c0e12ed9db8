// RMS norm fused with what comes before it: bias of the last projection, that output's own norm (Gemma), and the sum
// into the residual stream, which stays in f32. A norm's `1 + w` is in the weights since they were loaded.
//
// Versions. 1 (this one): a block per row, the row read twice (the second time from cache).
// Measurements: not yet measured on a device. The limit: memory bandwidth; at decode, launch latency.
#include "device.cuh"

struct NormParams {
    float* residual;           // [token][width], updated where there is a `delta`.
    const void* delta;         // [token][width], or null.
    const float* delta_bias;   // Or null.
    const float* delta_norm;   // Weights of the delta's own norm, or null.
    const float* weight;
    void* out;                 // [row][width]
    const u32* select;         // Row i is token select[i] (NONE: nothing); null: token i.
    u32 width;
    float epsilon;
};

namespace rms {

constexpr u32 THREADS = 512;

template <class T>
DEVICE void add_norm(const NormParams& p, unsigned char* shared) {
    const u32 token = p.select != nullptr ? p.select[blockIdx.x] : blockIdx.x;
    if (token == NONE) return;
    float* scratch = reinterpret_cast<float*>(shared);
    const u64 start = static_cast<u64>(token) * p.width;
    float* residual = p.residual + start;
    const auto delta = [&](u32 i) {
        const float x = Number<T>::widen(static_cast<const T*>(p.delta)[start + i]);
        return p.delta_bias != nullptr ? x + p.delta_bias[i] : x;
    };
    float delta_scale = 1.0f;
    if (p.delta != nullptr && p.delta_norm != nullptr) {
        float squares = 0.0f;
        for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) squares += delta(i) * delta(i);
        delta_scale = 1.0f / sqrtf(block_sum(squares, scratch) / p.width + p.epsilon);
    }
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float x = residual[i];
        if (p.delta != nullptr) {
            x += p.delta_norm != nullptr ? delta(i) * delta_scale * p.delta_norm[i] : delta(i);
            residual[i] = x;
        }
        squares += x * x;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, scratch) / p.width + p.epsilon);
    T* out = static_cast<T*>(p.out) + static_cast<u64>(blockIdx.x) * p.width;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x)
        out[i] = Number<T>::round(residual[i] * scale * p.weight[i]);
}

}  // namespace rms

#define ADD_NORM(T)                                                                          \
    KERNEL(add_norm_##T, NormParams, rms::THREADS) {                                        \
        SHARED_MEMORY(shared);                                                               \
        rms::add_norm<T>(p, shared);                                                        \
    }
ADD_NORM(float)
ADD_NORM(bf16)
ADD_NORM(f16)
