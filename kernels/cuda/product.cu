// Matrix products y = x * w^T of any number of rows, in tiles: for when cuBLASLt is missing or its shape-dependent choice of
// algorithm is unwanted (--deterministic). Products of few rows: product_few.cu.
//
// Versions.
//   tiled  1: tiles of 128 x 128, 32 inputs a stage, three stages of cp.async; a stage's rows are 64 bytes, which the
//          fragment loads read without bank conflicts or padding. A wave of blocks ran along the outputs, so it read
//          all of w once per 128 rows.
//          2 (this one): a wave runs along the rows first (2,048 rows: 16 tiles of rows by 16 of outputs, 33 MB at 4,096
//          inputs), and up to 64 rows use tiles of 16 x 64 with 16 stages, `narrow`: 60 KB of weights in flight per
//          block. Both sum the inputs in order, so they agree bit by bit.
//          Estimated, not measured: a step of `narrow` is a chain of some 150 clocks for 4 KB, so 64 blocks (4,096
//          outputs) could consume all the bandwidth of an H100; the large products occupy every multiprocessor.
//   plain  1: tiles of 64 x 64 in f32, any type, any width.
// Measurements (H200, bf16): `tiled` 247 to 272 TFLOP/s at 2,048 rows, where cuBLASLt reaches 750; `narrow` a fifth of the
// copy rate (4,096 outputs) to two thirds (28,672) at one row, not what was estimated.
// Limit: mma.sync rate (wgmma would reach about twice that on sm_90).
#include "device.cuh"

struct ProductParams {
    const void* x;      // [row][inputs]
    const void* w;      // [output][inputs]
    void* y;            // [row][outputs]
    u32 rows;
    u32 inputs;         // Not 0.
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

// Rows and outputs of a block and of each of its warps, and the number of stages of inputs in flight.
template <u32 BLOCK_ROWS, u32 BLOCK_OUTPUTS, u32 ROWS, u32 OUTPUTS, u32 COUNT>
struct Tile {
    static constexpr u32 block_rows = BLOCK_ROWS, block_outputs = BLOCK_OUTPUTS;
    static constexpr u32 rows = ROWS, outputs = OUTPUTS;
    static constexpr u32 stages = COUNT;
    static constexpr u32 lines = BLOCK_ROWS + BLOCK_OUTPUTS;
    static_assert(BLOCK_ROWS / ROWS * (BLOCK_OUTPUTS / OUTPUTS) == THREADS / WARP, "a tile for each warp");
};
using Large = Tile<128, 128, 64, 32, 3>;
using Narrow = Tile<16, 64, 16, 8, 16>;
constexpr u32 STEP = 32;

template <class T, class TILE>
DEVICE void load_stage(const ProductParams& p, T* stage, u32 row, u32 output, u32 input) {
#pragma unroll
    for (u32 turn = 0; turn * THREADS < TILE::lines * STEP / 8; turn++) {
        const u32 i = turn * THREADS + threadIdx.x;
        const u32 line = i / (STEP / 8), chunk = i % (STEP / 8) * 8;
        if (TILE::lines * STEP / 8 % THREADS != 0 && line >= TILE::lines) continue;
        const bool of_x = line < TILE::block_rows;
        const u32 at = of_x ? row + line : output + line - TILE::block_rows;
        const bool there = at < (of_x ? p.rows : p.outputs) && input + chunk < p.inputs;
        const T* from = static_cast<const T*>(of_x ? p.x : p.w);
        copy_async<16>(stage + line * STEP + chunk,
                       there ? from + static_cast<u64>(at) * p.inputs + input + chunk : from, there);
    }
    commit_copies();
}

template <class T, class TILE>
DEVICE void tiled(const ProductParams& p, unsigned char* shared) {
    constexpr u32 ROWS = TILE::rows / 16, OUTPUTS = TILE::outputs / 8, STAGES = TILE::stages;
    constexpr u32 BESIDE = TILE::block_outputs / TILE::outputs;
    const u32 lane = lane_of(threadIdx.x), warp = warp_of(threadIdx.x);
    // Blocks that run at the same time share rows of w, so little of it is read at once, and only once.
    const u32 row = blockIdx.x * TILE::block_rows, output = blockIdx.y * TILE::block_outputs;
    const u32 warp_row = warp / BESIDE * TILE::rows, warp_output = warp % BESIDE * TILE::outputs;
    T* stages = reinterpret_cast<T*>(shared);
    const auto stage = [&](u32 step) { return stages + step % STAGES * TILE::lines * STEP; };
    float sums[ROWS][OUTPUTS][4];
    for (u32 i = 0; i < ROWS; i++)
        for (u32 n = 0; n < OUTPUTS; n++)
            for (u32 j = 0; j < 4; j++) sums[i][n][j] = 0.0f;
    const u32 steps = (p.inputs + STEP - 1) / STEP;
    for (u32 step = 0; step < STAGES - 1; step++) load_stage<T, TILE>(p, stage(step), row, output, step * STEP);
    for (u32 step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        sync_block();
        // Past the end it loads zeros, which keeps the number of groups in flight constant.
        load_stage<T, TILE>(p, stage(step + STAGES - 1), row, output, (step + STAGES - 1) * STEP);
        const T* x = stage(step) + (warp_row + lane / 4) * STEP + lane % 4 * 8;
        const T* w = stage(step) + (TILE::block_rows + warp_output + lane / 4) * STEP + lane % 4 * 8;
        Words4 columns[OUTPUTS];
#pragma unroll
        for (u32 n = 0; n < OUTPUTS; n++) columns[n] = *reinterpret_cast<const Words4*>(w + n * 8 * STEP);
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            const Words4 a = *reinterpret_cast<const Words4*>(x + i * 16 * STEP);
            const Words4 b = *reinterpret_cast<const Words4*>(x + (i * 16 + 8) * STEP);
            const Fragment even = {{a.w[0], b.w[0], a.w[1], b.w[1]}};
            const Fragment odd = {{a.w[2], b.w[2], a.w[3], b.w[3]}};
#pragma unroll
            for (u32 n = 0; n < OUTPUTS; n++) {
                Number<T>::multiply(sums[i][n], even, columns[n].w[0], columns[n].w[1]);
                Number<T>::multiply(sums[i][n], odd, columns[n].w[2], columns[n].w[3]);
            }
        }
    }
    wait_copies<0>();
#pragma unroll
    for (u32 i = 0; i < ROWS; i++)
#pragma unroll
        for (u32 n = 0; n < OUTPUTS; n++)
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
#define PRODUCT_TILED(T, NAME, TILE)                                                         \
    KERNEL(NAME, ProductParams, product::THREADS) {                                          \
        SHARED_MEMORY(shared);                                                               \
        product::tiled<T, product::TILE>(p, shared);                                         \
    }
#define PRODUCT(T)                                                                           \
    PRODUCT_PLAIN(T)                                                                         \
    PRODUCT_TILED(T, product_tiled_##T, Large)                                               \
    PRODUCT_TILED(T, product_narrow_##T, Narrow)
PRODUCT_PLAIN(float)
PRODUCT(bf16)
PRODUCT(f16)
