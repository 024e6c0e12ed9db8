// Paged attention without tensor cores: any storage type, heads of any width up to 256, any number of query heads per
// key head. The fallback for what the other two kernels don't support (f32 models, odd widths), one token at a time, in
// decode and prefill.
//
// Versions. 1 (this one): a block of four warps per token and query head; a warp takes every fourth position, its lanes
// the dimensions; keys are not shared between heads or tokens.
// Sinks (attention.cuh) came later and have not been on a GPU.
// Measurements (H200, `infer bench kernels --device cuda`, "small kernels"): 58 us for one token. Limit: latency and
// repeated reads; it only has to be correct.
#include "attention.cuh"

namespace plain {

constexpr u32 WARPS = 4;
constexpr u32 LANE_NUMBERS = 8;

template <class T>
DEVICE void attend(const AttentionParams& p, unsigned char* shared) {
    const u32 token = p.items[blockIdx.y], head = blockIdx.x, width = p.head_dim;
    if (token == NONE) return;
    const u32 lane = lane_of(threadIdx.x), warp = warp_of(threadIdx.x);
    const u32 kv_head = head / (p.heads / p.kv_heads);
    const u32 position = p.positions[token];
    const u32* table = p.blocks + p.tables[token];
    const T* source = static_cast<const T*>(p.q) + static_cast<u64>(token) * p.q_stride + head * width;
    float q[LANE_NUMBERS], sums[LANE_NUMBERS];
#pragma unroll
    for (u32 i = 0; i < LANE_NUMBERS; i++) {
        const u32 dimension = lane + i * WARP;
        q[i] = dimension < width ? Number<T>::widen(source[dimension]) : 0.0f;
        sums[i] = 0.0f;
    }
    float largest = negative_infinity(), total = 0.0f;
    for (u32 at = first_seen(p, position) / WARPS * WARPS + warp; at <= position; at += WARPS) {
        if (at < first_seen(p, position)) continue;
        const u64 index = pool_index(p, table, kv_head, at, width);
        const T* key = static_cast<const T*>(p.keys) + index;
        const T* value = static_cast<const T*>(p.values) + index;
        float product = 0.0f;
#pragma unroll
        for (u32 i = 0; i < LANE_NUMBERS; i++)
            if (lane + i * WARP < width) product += q[i] * Number<T>::widen(key[lane + i * WARP]);
        const float sum = warp_sum(product);
        const float scaled = (p.soft_cap > 0.0f ? capped(p, sum) : sum) * score_factor(p);
        const float most = larger(largest, scaled);
        const float decay = exp2_fast(largest - most), weight = exp2_fast(scaled - most);
        largest = most;
        total = total * decay + weight;
#pragma unroll
        for (u32 i = 0; i < LANE_NUMBERS; i++)
            if (lane + i * WARP < width)
                sums[i] = sums[i] * decay + weight * Number<T>::widen(value[lane + i * WARP]);
    }
    float* all = reinterpret_cast<float*>(shared);
    float* mine = all + warp * (width + 2);
    for (u32 i = 0; i < LANE_NUMBERS; i++)
        if (lane + i * WARP < width) mine[lane + i * WARP] = sums[i];
    if (lane == 0) {
        mine[width] = largest;
        mine[width + 1] = total;
    }
    sync_block();
    float most = negative_infinity();
    for (u32 i = 0; i < WARPS; i++) most = larger(most, all[i * (width + 2) + width]);
    T* out = static_cast<T*>(p.out) + (static_cast<u64>(token) * p.heads + head) * width;
    for (u32 dimension = threadIdx.x; dimension < width; dimension += WARPS * WARP) {
        float sum = 0.0f, whole = 0.0f;
        for (u32 i = 0; i < WARPS; i++) {
            const float* from = all + i * (width + 2);
            if (from[width] == negative_infinity()) continue;
            const float weight = exp2_fast(from[width] - most);
            sum += from[dimension] * weight;
            whole += from[width + 1] * weight;
        }
        out[dimension] = Number<T>::round(sum / (whole + sink_weight(p, head, most)));
    }
}

}  // namespace plain

#define PLAIN(T)                                                                             \
    KERNEL(attention_plain_##T, AttentionParams, plain::WARPS * WARP) {                      \
        SHARED_MEMORY(shared);                                                               \
        plain::attend<T>(p, shared);                                                         \
    }
PLAIN(float)
PLAIN(bf16)
PLAIN(f16)
