// Small kernels: gated activations, embedding gather, tokens of the last samples, block copies, random fill.
//
// Versions. 1: a thread computed four numbers one after another, each in its own branch. 2: activations take
// 8 consecutive numbers, 16 bytes; block copies move 16 bytes per thread. 3 (this one): so does the gather, which read two
// bytes at a time and wrote four: 16 rounds of loads and stores per thread at a width of 4,096, now one in each of two
// blocks. Counted: 32 KB of rows in flight on a multiprocessor, not up to 16, and an eighth of the
// instructions.
// Measurements (H200, bf16, 16,384 rows of 4,096): `gated` 99 % of the copy rate, `copy_blocks` 97 %, `embed` 64 % (60 % in
// version 2); `follow_draws` and `fill` have none. Limit: memory bandwidth; at decode, launch latency.
#include "device.cuh"

struct GatedParams {
    const void* gate_up;    // [row][2 * width]
    void* out;              // [row][width]
    const float* bias;      // [2 * width], or null.
    u32 width;
    u32 rows;
    u32 gelu;               // 0: SiLU; 1: GELU by its tanh approximation.
};

struct EmbedParams {
    const void* table;      // [vocabulary][width]
    float* out;             // [token][width]
    const u32* tokens;      // NONE gives a row of zeros.
    u32 width;
    float scale;
};

struct FollowParams {
    u32* tokens;
    const u32* drawn;
    const u32* pairs;       // Index of the token to set, index into `drawn`.
    u32 count;
};

// Copies blocks of every layer, keys and values, 16 bytes at a time if all of them are aligned to that. `from` and `to`
// may be the same pool (copy-on-write), or one of them host memory that the device can access (offload).
struct CopyParams {
    const void* from;
    void* to;
    const u32* pairs;       // Block to read, block to write.
    u64 from_stride;        // Bytes from one layer's keys to its values, and on to the next layer's keys.
    u64 to_stride;
    u32 block_bytes;
    u32 parts;              // Layers times two.
};

struct FillParams {
    void* out;
    u64 count;
    u64 seed;
    float scale;
};

namespace elementwise {

constexpr u32 THREADS = 256;
// Consecutive numbers of a thread.
constexpr u32 NUMBERS = 8;

DEVICE float gate(const GatedParams& p, u32 i, float x, float y) {
    if (p.bias != nullptr) {
        x += p.bias[i];
        y += p.bias[p.width + i];
    }
    return ::gate(p.gelu != 0, x, y);
}

template <class T>
DEVICE void gated(const GatedParams& p) {
    const u32 row = blockIdx.y;
    const T* gates = static_cast<const T*>(p.gate_up) + static_cast<u64>(row) * 2 * p.width;
    T* out = static_cast<T*>(p.out) + static_cast<u64>(row) * p.width;
    const u32 first = (blockIdx.x * THREADS + threadIdx.x) * NUMBERS;
    if (first >= p.width) return;
    if (p.width % NUMBERS != 0) {
        for (u32 i = first; i < p.width && i < first + NUMBERS; i++)
            out[i] = Number<T>::round(gate(p, i, Number<T>::widen(gates[i]), Number<T>::widen(gates[p.width + i])));
        return;
    }
    Eight<T> x, y;
    x.read(gates + first);
    y.read(gates + p.width + first);
#pragma unroll
    for (u32 i = 0; i < NUMBERS; i += 2)
        x.set(i, gate(p, first + i, x.get(i), y.get(i)), gate(p, first + i + 1, x.get(i + 1), y.get(i + 1)));
    x.write(out + first);
}

template <class T>
DEVICE void embed(const EmbedParams& p) {
    const u32 token = p.tokens[blockIdx.x], first = (blockIdx.y * THREADS + threadIdx.x) * NUMBERS;
    if (first >= p.width) return;
    const T* from = static_cast<const T*>(p.table) + static_cast<u64>(token) * p.width;
    float* out = p.out + static_cast<u64>(blockIdx.x) * p.width;
    if (p.width % NUMBERS != 0) {
        for (u32 i = first; i < p.width && i < first + NUMBERS; i++)
            out[i] = token == NONE ? 0.0f : Number<T>::widen(from[i]) * p.scale;
        return;
    }
    Eight<T> x;
    Eight<float> y;
    if (token != NONE) x.read(from + first);
#pragma unroll
    for (u32 i = 0; i < NUMBERS; i += 2)
        y.set(i, token == NONE ? 0.0f : x.get(i) * p.scale, token == NONE ? 0.0f : x.get(i + 1) * p.scale);
    y.write(out + first);
}

// A number in [-scale, scale) that depends only on seed and index.
template <class T>
DEVICE void fill(const FillParams& p) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count; i += step) {
        const float unit = static_cast<float>(random_bits(p.seed, i) >> 40) / 8388608.0f - 1.0f;
        static_cast<T*>(p.out)[i] = Number<T>::round(unit * p.scale);
    }
}

}  // namespace elementwise

#define ELEMENTWISE(T)                                                                       \
    KERNEL(gated_##T, GatedParams, elementwise::THREADS) { elementwise::gated<T>(p); }       \
    KERNEL(embed_##T, EmbedParams, elementwise::THREADS) { elementwise::embed<T>(p); }       \
    KERNEL(fill_##T, FillParams, elementwise::THREADS) { elementwise::fill<T>(p); }
ELEMENTWISE(float)
ELEMENTWISE(bf16)
ELEMENTWISE(f16)

KERNEL(follow_draws, FollowParams, elementwise::THREADS) {
    const u32 i = blockIdx.x * elementwise::THREADS + threadIdx.x;
    if (i < p.count) p.tokens[p.pairs[2 * i]] = p.drawn[p.pairs[2 * i + 1]];
}

KERNEL(copy_blocks, CopyParams, elementwise::THREADS) {
    const u64 from = p.pairs[2 * blockIdx.x], to = p.pairs[2 * blockIdx.x + 1];
    const u64 part = blockIdx.y;
    const u8* source = static_cast<const u8*>(p.from) + part * p.from_stride + from * p.block_bytes;
    u8* target = static_cast<u8*>(p.to) + part * p.to_stride + to * p.block_bytes;
    // Blocks of odd sizes are not aligned to 16 bytes.
    const u32 wide = (p.block_bytes | p.from_stride | p.to_stride) % 16 == 0 ? p.block_bytes / 16 : 0;
    for (u32 i = threadIdx.x; i < wide; i += blockDim.x)
        reinterpret_cast<Words4*>(target)[i] = reinterpret_cast<const Words4*>(source)[i];
    for (u32 i = wide * 16 + threadIdx.x; i < p.block_bytes; i += blockDim.x) target[i] = source[i];
}
