// Matrix products of our own, y = x * w^T: for few rows (decode), where reading the weights is all there is to it; and a
// tiled one for where cuBLASLt is missing or its shape-dependent algorithms are not wanted (--deterministic).
//
// Versions.
//   few    1: a warp multiplies 16 outputs (rows of w) with up to 32 rows of x; weights go from memory straight into
//          registers (the order of the inputs in a product is free, so a lane takes 8 in a row); a block's eight warps
//          share the inputs and add up in their order. A row's bits don't depend on how many rows there are.
//   tiled  1: 128 x 128 tiles, 32 inputs a stage, three stages of cp.async; a stage's rows are 64 bytes, which the
//          fragment loads read without bank conflicts and without padding.
//   plain  1: 64 x 64 tiles in f32, any type, any width.
// Measurements: not yet measured on a device.
// The limits: memory bandwidth (few), mma.sync rate (tiled; wgmma would reach about twice that on sm_90).
#include "device.cuh"

struct ProductParams {
    const void* x;      // [row][inputs]
    const void* w;      // [output][inputs]
    void* y;            // [row][outputs]
    u32 rows;
    u32 inputs;
    u32 outputs;
    u32 out_f32;        // 1: y is f32 whatever the type.
};

namespace product {

constexpr u32 THREADS = 256;

template <class T>
DEVICE void store(const ProductParams& p, u32 row, u32 output, float value) {
    const u64 at = static_cast<u64>(row) * p.outputs + output;
    if (p.out_f32 != 0)
        static_cast<float*>(p.y)[at] = value;
    else
        static_cast<T*>(p.y)[at] = Number<T>::round(value);
}

DEVICE Words4 read_or_zero(const void* from, u64 number, u32 bytes, bool there) {
    if (!there) return Words4{{0, 0, 0, 0}};
    return *reinterpret_cast<const Words4*>(static_cast<const u8*>(from) + number * bytes);
}

// Inputs of a warp's turn: four chunks of 32.
constexpr u32 TURN = 128;

template <class T, u32 N>
DEVICE void few(const ProductParams& p, unsigned char* shared) {
    constexpr u32 WARPS = THREADS / WARP;
    const u32 lane = lane_of(threadIdx.x), warp = warp_of(threadIdx.x);
    const u32 first = blockIdx.x * 16 + lane / 4;
    float sums[N][4];
    for (u32 n = 0; n < N; n++)
        for (u32 j = 0; j < 4; j++) sums[n][j] = 0.0f;
    for (u32 turn = warp * TURN; turn < p.inputs; turn += WARPS * TURN) {
        Words4 low[4], high[4];
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            const u32 input = turn + c * 32 + lane % 4 * 8;
            const bool there = input < p.inputs;
            low[c] = read_or_zero(p.w, static_cast<u64>(first) * p.inputs + input, sizeof(T),
                                  there && first < p.outputs);
            high[c] = read_or_zero(p.w, static_cast<u64>(first + 8) * p.inputs + input, sizeof(T),
                                   there && first + 8 < p.outputs);
        }
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            const u32 input = turn + c * 32 + lane % 4 * 8;
            const Fragment even = {{low[c].w[0], high[c].w[0], low[c].w[1], high[c].w[1]}};
            const Fragment odd = {{low[c].w[2], high[c].w[2], low[c].w[3], high[c].w[3]}};
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const u32 row = n * 8 + lane / 4;
                const Words4 x = read_or_zero(p.x, static_cast<u64>(row) * p.inputs + input, sizeof(T),
                                              row < p.rows && input < p.inputs);
                Number<T>::multiply(sums[n], even, x.w[0], x.w[1]);
                Number<T>::multiply(sums[n], odd, x.w[2], x.w[3]);
            }
        }
    }
    float* all = reinterpret_cast<float*>(shared);
    for (u32 n = 0; n < N; n++)
        for (u32 j = 0; j < 4; j++) {
            const u32 output = lane / 4 + j / 2 * 8, row = n * 8 + lane % 4 * 2 + j % 2;
            all[(warp * N * 8 + row) * 16 + output] = sums[n][j];
        }
    sync_block();
    for (u32 i = threadIdx.x; i < N * 8 * 16; i += THREADS) {
        const u32 row = i / 16, output = blockIdx.x * 16 + i % 16;
        if (row >= p.rows || output >= p.outputs) continue;
        float sum = 0.0f;
        for (u32 w = 0; w < WARPS; w++) sum += all[w * N * 8 * 16 + i];
        store<T>(p, row, output, sum);
    }
}

constexpr u32 TILE = 128;
constexpr u32 STEP = 32;
constexpr u32 STAGES = 3;

template <class T>
DEVICE void load_stage(const ProductParams& p, T* stage, u32 row, u32 output, u32 input) {
#pragma unroll
    for (u32 turn = 0; turn < 2 * TILE * STEP / 8 / THREADS; turn++) {
        const u32 i = turn * THREADS + threadIdx.x;
        const u32 line = i / (STEP / 8), chunk = i % (STEP / 8) * 8;
        const bool of_x = line < TILE;
        const u32 at = of_x ? row + line : output + line - TILE;
        const bool there = at < (of_x ? p.rows : p.outputs) && input + chunk < p.inputs;
        const T* from = static_cast<const T*>(of_x ? p.x : p.w);
        copy_async16(stage + line * STEP + chunk,
                     there ? from + static_cast<u64>(at) * p.inputs + input + chunk : from, there);
    }
    commit_copies();
}

template <class T>
DEVICE void tiled(const ProductParams& p, unsigned char* shared) {
    // Eight warps, two by four: 64 rows and 32 outputs each.
    const u32 lane = lane_of(threadIdx.x), warp = warp_of(threadIdx.x);
    const u32 row = blockIdx.y * TILE, output = blockIdx.x * TILE;
    const u32 warp_row = warp / 4 * 64, warp_output = warp % 4 * 32;
    T* stages = reinterpret_cast<T*>(shared);
    const auto stage = [&](u32 step) { return stages + step % STAGES * 2 * TILE * STEP; };
    float sums[4][4][4];
    for (u32 i = 0; i < 4; i++)
        for (u32 n = 0; n < 4; n++)
            for (u32 j = 0; j < 4; j++) sums[i][n][j] = 0.0f;
    const u32 steps = (p.inputs + STEP - 1) / STEP;
    for (u32 step = 0; step < STAGES - 1; step++) load_stage(p, stage(step), row, output, step * STEP);
    for (u32 step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        sync_block();
        // Past the end it loads zeros, which keeps the count of groups even.
        load_stage(p, stage(step + STAGES - 1), row, output, (step + STAGES - 1) * STEP);
        const T* x = stage(step) + (warp_row + lane / 4) * STEP + lane % 4 * 8;
        const T* w = stage(step) + (TILE + warp_output + lane / 4) * STEP + lane % 4 * 8;
        Words4 columns[4];
#pragma unroll
        for (u32 n = 0; n < 4; n++) columns[n] = *reinterpret_cast<const Words4*>(w + n * 8 * STEP);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const Words4 a = *reinterpret_cast<const Words4*>(x + i * 16 * STEP);
            const Words4 b = *reinterpret_cast<const Words4*>(x + (i * 16 + 8) * STEP);
            const Fragment even = {{a.w[0], b.w[0], a.w[1], b.w[1]}};
            const Fragment odd = {{a.w[2], b.w[2], a.w[3], b.w[3]}};
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                Number<T>::multiply(sums[i][n], even, columns[n].w[0], columns[n].w[1]);
                Number<T>::multiply(sums[i][n], odd, columns[n].w[2], columns[n].w[3]);
            }
        }
    }
    wait_copies<0>();
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 n = 0; n < 4; n++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 to_row = row + warp_row + i * 16 + lane / 4 + j / 2 * 8;
                const u32 to_output = output + warp_output + n * 8 + lane % 4 * 2 + j % 2;
                if (to_row < p.rows && to_output < p.outputs) store<T>(p, to_row, to_output, sums[i][n][j]);
            }
}

constexpr u32 PLAIN_TILE = 64;
constexpr u32 PLAIN_STEP = 16;

template <class T>
DEVICE void plain(const ProductParams& p, unsigned char* shared) {
    constexpr u32 STRIDE = PLAIN_TILE + 4;
    float* x = reinterpret_cast<float*>(shared);
    float* w = x + PLAIN_STEP * STRIDE;
    const u32 row = blockIdx.y * PLAIN_TILE, output = blockIdx.x * PLAIN_TILE;
    const u32 own_row = threadIdx.x / 16 * 4, own_output = threadIdx.x % 16 * 4;
    float sums[4][4];
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) sums[i][j] = 0.0f;
    for (u32 step = 0; step < p.inputs; step += PLAIN_STEP) {
        for (u32 i = threadIdx.x; i < PLAIN_TILE * PLAIN_STEP; i += THREADS) {
            const u32 line = i / PLAIN_STEP, input = step + i % PLAIN_STEP;
            const auto read = [&](const void* from, u32 at, u32 limit) {
                return at < limit && input < p.inputs
                           ? Number<T>::widen(static_cast<const T*>(from)[static_cast<u64>(at) * p.inputs + input])
                           : 0.0f;
            };
            x[i % PLAIN_STEP * STRIDE + line] = read(p.x, row + line, p.rows);
            w[i % PLAIN_STEP * STRIDE + line] = read(p.w, output + line, p.outputs);
        }
        sync_block();
#pragma unroll
        for (u32 k = 0; k < PLAIN_STEP; k++)
            for (u32 i = 0; i < 4; i++)
                for (u32 j = 0; j < 4; j++)
                    sums[i][j] += x[k * STRIDE + own_row + i] * w[k * STRIDE + own_output + j];
        sync_block();
    }
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++)
            if (row + own_row + i < p.rows && output + own_output + j < p.outputs)
                store<T>(p, row + own_row + i, output + own_output + j, sums[i][j]);
}

}  // namespace product

#define PRODUCT_PLAIN(T)                                                                     \
    KERNEL(product_plain_##T, ProductParams, product::THREADS) {                             \
        SHARED_MEMORY(shared);                                                               \
        product::plain<T>(p, shared);                                                        \
    }
#define PRODUCT_FEW(T, N)                                                                    \
    KERNEL(product_few_##T##_##N, ProductParams, product::THREADS) {                         \
        SHARED_MEMORY(shared);                                                               \
        product::few<T, N>(p, shared);                                                       \
    }
#define PRODUCT(T)                                                                           \
    PRODUCT_PLAIN(T)                                                                         \
    PRODUCT_FEW(T, 1)                                                                        \
    PRODUCT_FEW(T, 2)                                                                        \
    PRODUCT_FEW(T, 4)                                                                        \
    KERNEL(product_tiled_##T, ProductParams, product::THREADS) {                             \
        SHARED_MEMORY(shared);                                                               \
        product::tiled<T>(p, shared);                                                        \
    }
PRODUCT_PLAIN(float)
PRODUCT(bf16)
PRODUCT(f16)
