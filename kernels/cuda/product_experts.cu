// Products of layers of experts: of each expert's weights and the rows that chose it, wherever these are. A block multiplies
// some outputs with a tile of rows of one expert, which it finds by the lists of route.cu. Rows are read from and written to
// their own places, so nothing is gathered or scattered beside. Biases, and the activations of gates, belong to the product.
//
// Three forms. `few`: tiles of up to 8 or 16 rows, for decodes, where an expert's weights are read once for each of its
// tiles; as `product_few` does, with its tensor core fragments the other way round. `tiled`: up to 64 rows and 256 outputs,
// for prompts and under --deterministic; inputs are summed in order whatever is beside a row, and fragments without rows are
// not multiplied. `plain`: any type, any width.
//
// A block can't read weights before its turn, since the kernel ahead says which. Blocks that run at the same time are of one tile
// if it is of few rows, so each reads on where the one before ends. Otherwise they are of all tiles and of few outputs, as in
// product.cu: an expert of many rows has many tiles, and its weights may be larger than the L2 cache.
//
// Versions. 1 (this one): the loops of product_few.cu (8) and of product.cu (`tiled` 2, `plain` 1).
// Measurements: none; not measured on a GPU, nor are the numbers of rows at which one form takes over from another
// (`ExpertShape::form`). Limit: `few`: memory bandwidth; `tiled`: mma.sync rate (wgmma would reach about twice that on sm_90).
#include "device.cuh"

struct ExpertsParams {
    const void* x;         // [pair / sharing][inputs]
    const void* w;         // [expert][output][inputs]
    const float* bias;     // [expert][outputs], or null.
    void* y;               // [pair][outputs]; gated: [pair][outputs / 2]
    const float* scales;   // gated: of each row of x, if these lack the scale of their norm, or null.
    const u32* pairs;      // By route.cu.
    const u32* tiles;      // By route.cu, cut for this form.
    u32 inputs;            // Not 0.
    u32 outputs;           // gated: of both halves, the gates first.
    u32 sharing;           // Consecutive pairs that have one row of x.
    u32 activation;        // gated: 0: SiLU; 1: GELU by its tanh approximation; 2: of clamped numbers (`gate`).
    float alpha;           // Of the last one.
    float limit;
};

namespace grouped {

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / WARP;

struct Tile {
    u32 expert;
    const u32* pairs;
    u32 count;             // At least 1, unless `expert` is NONE.
};

DEVICE Tile tile_of(const ExpertsParams& p, u32 index) {
    const Words4 words = reinterpret_cast<const Words4*>(p.tiles)[index];
    return {words.w[0], p.pairs + words.w[1], words.w[2]};
}

template <class T>
DEVICE const T* weights_of(const ExpertsParams& p, const Tile& tile) {
    return static_cast<const T*>(p.w) + static_cast<u64>(tile.expert) * p.outputs * p.inputs;
}

template <class T>
DEVICE const T* row_of(const ExpertsParams& p, u32 pair) {
    return static_cast<const T*>(p.x) + static_cast<u64>(pair / p.sharing) * p.inputs;
}

// What the sums of a pair are multiplied by.
DEVICE float scale_of(const ExpertsParams& p, u32 pair) { return p.scales != nullptr ? p.scales[pair / p.sharing] : 1.0f; }

DEVICE float bias_of(const ExpertsParams& p, const Tile& tile, u32 output) {
    return p.bias != nullptr ? p.bias[static_cast<u64>(tile.expert) * p.outputs + output] : 0.0f;
}

// `up` times the activation of the gate. NaN stays NaN.
DEVICE float activated(const ExpertsParams& p, float gate, float up) {
    if (p.activation != 2) return ::gate(p.activation == 1, gate, up);
    gate = gate > p.limit ? p.limit : gate;
    up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    return gate * reciprocal_fast(1.0f + exp2_fast(-p.alpha * gate * LOG2_E)) * (up + 1.0f);
}

// The output that row `line` of a block's LINES rows of w belongs to, or NONE. Those of gates and of what they multiply take
// turns, GROUP of each.
template <u32 LINES, u32 GROUP, bool GATED>
DEVICE u32 output_of(const ExpertsParams& p, u32 block, u32 line) {
    if (!GATED) {
        const u32 output = block * LINES + line;
        return output < p.outputs ? output : NONE;
    }
    const u32 half = p.outputs / 2, output = block * (LINES / 2) + line / (2 * GROUP) * GROUP + line % GROUP;
    return output < half ? line / GROUP % 2 * half + output : NONE;
}

namespace few {

// See product_few.cu.
constexpr u32 OUTPUTS = 16;
constexpr u32 HALF = OUTPUTS / 2;
constexpr u32 TURN = 64;
constexpr u32 TURNS = 4;
constexpr u32 AHEAD = 2;
constexpr u32 PAIR = 2 * OUTPUTS + 8;

template <class T, u32 N, bool GATED>
DEVICE void product(const ExpertsParams& p, unsigned char* shared) {
    constexpr u32 ROWS = N * 8;
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const Tile tile = tile_of(p, blockIdx.y);
    if (tile.expert == NONE) return;
    // A lane reads only the words that it copied itself, so no barrier is needed.
    Words4* own = reinterpret_cast<Words4*>(shared) + warp * TURNS * 4 * WARP + lane;
    const auto place = [&](u32 stage, u32 chunk, u32 half) { return own + ((stage * 2 + chunk) * 2 + half) * WARP; };
    const auto input_of = [&](u32 turn, u32 chunk) { return turn * TURN + chunk * 32 + lane % 4 * 8; };
    const auto at_most = [](u32 at, u32 last) { return at < last ? at : last; };
    const u32 turns = (p.inputs + TURN - 1) / TURN;
    const T* w = weights_of<T>(p, tile);
    // An expert has fewer weights than 32 bits count.
    u32 from[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 output = output_of<OUTPUTS, HALF, GATED>(p, blockIdx.x, half * 8 + lane / 4);
        from[half] = output != NONE ? output * p.inputs : NONE;
    }
    u32 next_turn = warp;
    // Past the end it copies zeros, which keeps the number of groups of copies in flight constant.
    const auto start_weights = [&](u32 stage) {
#pragma unroll
        for (u32 half = 0; half < 2; half++)
#pragma unroll
            for (u32 chunk = 0; chunk < 2; chunk++) {
                const u32 input = input_of(next_turn, chunk);
                const bool there = from[half] != NONE && input < p.inputs;
                copy_async<16>(place(stage, chunk, half), w + (there ? from[half] + input : 0), there);
            }
        commit_copies();
        next_turn += WARPS;
    };
#pragma unroll
    for (u32 stage = 0; stage < TURNS; stage++) start_weights(stage);
    const T* rows[N];
#pragma unroll
    for (u32 n = 0; n < N; n++) rows[n] = row_of<T>(p, tile.pairs[at_most(n * 8 + lane / 4, tile.count - 1)]);
    // Past the end it reads the last inputs or the last row again: their weights are zeros, or their sums aren't stored.
    const auto read_inputs = [&](u32 turn, Words4 (&x)[2][N]) {
#pragma unroll
        for (u32 chunk = 0; chunk < 2; chunk++)
#pragma unroll
            for (u32 n = 0; n < N; n++)
                x[chunk][n] = *reinterpret_cast<const Words4*>(rows[n] + at_most(input_of(turn, chunk), p.inputs - 8));
    };
    Words4 x[AHEAD][2][N];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) read_inputs(warp + i * WARPS, x[i]);
    fence_loads();
    float sums[N][4];
    for (u32 n = 0; n < N; n++)
        for (u32 j = 0; j < 4; j++) sums[n][j] = 0.0f;
    const auto multiply = [&](u32 turn, u32 stage, Words4 (&inputs)[2][N]) {
        wait_copies<TURNS - 1>();
#pragma unroll
        for (u32 chunk = 0; chunk < 2; chunk++) {
            const Words4 low = *place(stage, chunk, 0), high = *place(stage, chunk, 1);
            const Fragment even = {{low.w[0], high.w[0], low.w[1], high.w[1]}};
            const Fragment odd = {{low.w[2], high.w[2], low.w[3], high.w[3]}};
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                Number<T>::multiply(sums[n], even, inputs[chunk][n].w[0], inputs[chunk][n].w[1]);
                Number<T>::multiply(sums[n], odd, inputs[chunk][n].w[2], inputs[chunk][n].w[3]);
            }
        }
        read_inputs(turn + AHEAD * WARPS, inputs);
        fence_loads();
        start_weights(stage);
    };
    u32 stage = 0;
    for (u32 turn = warp; turn < turns; turn += AHEAD * WARPS) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) multiply(turn + i * WARPS, stage + i, x[i]);
        stage = (stage + AHEAD) % TURNS;
    }
    // The warps' sums reuse the weights' memory.
    wait_copies<0>();
    sync_block();
    float* all = reinterpret_cast<float*>(shared);
    const auto pair = [&](u32 w, u32 row) { return all + (w * ROWS + row) / 2 * PAIR; };
    for (u32 n = 0; n < N; n++)
        for (u32 j = 0; j < 4; j++) {
            const u32 row = n * 8 + lane % 4 * 2 + j % 2;
            pair(warp, row)[j % 2 * OUTPUTS + lane / 4 + j / 2 * 8] = sums[n][j];
        }
    sync_block();
    const auto sum = [&](u32 row, u32 i) {
        float sum = 0.0f;
        for (u32 w = 0; w < WARPS; w++) sum += pair(w, row)[row % 2 * OUTPUTS + i];
        return sum;
    };
    constexpr u32 WIDE = GATED ? HALF : OUTPUTS;
    const u32 i = thread % WIDE, row = thread / WIDE, output = output_of<OUTPUTS, HALF, GATED>(p, blockIdx.x, i);
    static_assert(ROWS * OUTPUTS <= THREADS, "a thread has one output");
    if (row >= tile.count || row >= ROWS || output == NONE) return;
    const u32 width = GATED ? p.outputs / 2 : p.outputs;
    const u32 own_pair = tile.pairs[row];
    const float scale = scale_of(p, own_pair);
    float y = sum(row, i) * scale + bias_of(p, tile, output);
    if (GATED) y = activated(p, y, sum(row, HALF + i) * scale + bias_of(p, tile, width + output));
    static_cast<T*>(p.y)[static_cast<u64>(own_pair) * width + output] = Number<T>::round(y);
}

}  // namespace few

namespace tiled {

constexpr u32 ROWS = 64;
constexpr u32 LINES = 256;
constexpr u32 STAGES = 3;
constexpr u32 STEP = 32;
// Fragments of a warp: all rows, an eighth of the rows of w.
constexpr u32 TALL = ROWS / 16;
constexpr u32 WIDE = LINES / WARPS / 8;
constexpr u32 CHUNKS = STEP / 8;
static_assert(THREADS / CHUNKS == ROWS, "a thread copies of one row of x");

template <class T, bool GATED>
DEVICE void product(const ExpertsParams& p, unsigned char* shared) {
    const u32 lane = lane_of(threadIdx.x), warp = warp_of(threadIdx.x);
    const Tile tile = tile_of(p, blockIdx.x);
    if (tile.expert == NONE) return;
    T* stages = reinterpret_cast<T*>(shared);
    const auto stage = [&](u32 step) { return stages + step % STAGES * (ROWS + LINES) * STEP; };
    // A thread copies 8 inputs of one row of x and of every 64th row of w.
    const u32 line = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS * 8;
    const T* w = weights_of<T>(p, tile);
    const bool has_row = line < tile.count;
    const T* x_row = row_of<T>(p, tile.pairs[has_row ? line : 0]);
    u32 outputs[LINES / ROWS];
#pragma unroll
    for (u32 turn = 0; turn < LINES / ROWS; turn++)
        outputs[turn] = output_of<LINES, 8, GATED>(p, blockIdx.y, turn * ROWS + line);
    const auto load_stage = [&](u32 step) {
        T* to = stage(step) + line * STEP + chunk;
        const u32 input = step * STEP + chunk;
        const bool inside = input < p.inputs;
        copy_async<16>(to, inside && has_row ? x_row + input : w, inside && has_row);
#pragma unroll
        for (u32 turn = 0; turn < LINES / ROWS; turn++) {
            const bool there = inside && outputs[turn] != NONE;
            const u64 at = there ? static_cast<u64>(outputs[turn]) * p.inputs + input : 0;
            copy_async<16>(to + (turn + 1) * ROWS * STEP, w + at, there);
        }
        commit_copies();
    };
    float sums[TALL][WIDE][4];
    for (u32 i = 0; i < TALL; i++)
        for (u32 n = 0; n < WIDE; n++)
            for (u32 j = 0; j < 4; j++) sums[i][n][j] = 0.0f;
    const u32 steps = (p.inputs + STEP - 1) / STEP;
    for (u32 step = 0; step < STAGES - 1; step++) load_stage(step);
    for (u32 step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        sync_block();
        // Past the end it loads zeros, which keeps the number of groups in flight constant.
        load_stage(step + STAGES - 1);
        const T* x_at = stage(step) + lane / 4 * STEP + lane % 4 * 8;
        const T* w_at = stage(step) + (ROWS + warp * WIDE * 8 + lane / 4) * STEP + lane % 4 * 8;
        Words4 columns[WIDE];
#pragma unroll
        for (u32 n = 0; n < WIDE; n++) columns[n] = *reinterpret_cast<const Words4*>(w_at + n * 8 * STEP);
#pragma unroll
        for (u32 i = 0; i < TALL; i++) {
            // The same for all warps.
            if (i * 16 >= tile.count) break;
            const Words4 a = *reinterpret_cast<const Words4*>(x_at + i * 16 * STEP);
            const Words4 b = *reinterpret_cast<const Words4*>(x_at + (i * 16 + 8) * STEP);
            const Fragment even = {{a.w[0], b.w[0], a.w[1], b.w[1]}};
            const Fragment odd = {{a.w[2], b.w[2], a.w[3], b.w[3]}};
#pragma unroll
            for (u32 n = 0; n < WIDE; n++) {
                Number<T>::multiply(sums[i][n], even, columns[n].w[0], columns[n].w[1]);
                Number<T>::multiply(sums[i][n], odd, columns[n].w[2], columns[n].w[3]);
            }
        }
    }
    wait_copies<0>();
    const u32 width = GATED ? p.outputs / 2 : p.outputs;
    u32 pairs[TALL * 2];
    float scales[TALL * 2];
#pragma unroll
    for (u32 i = 0; i < TALL * 2; i++) {
        const u32 row = i * 8 + lane / 4;
        pairs[i] = row < tile.count ? tile.pairs[row] : NONE;
        scales[i] = row < tile.count ? scale_of(p, pairs[i]) : 0.0f;
    }
#pragma unroll
    for (u32 n = 0; n < WIDE; n += GATED ? 2 : 1) {
        const u32 output = output_of<LINES, 8, GATED>(p, blockIdx.y, (warp * WIDE + n) * 8 + lane % 4 * 2);
        if (output == NONE) continue;
        float biases[2][2];
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            biases[0][j] = bias_of(p, tile, output + j);
            biases[1][j] = GATED ? bias_of(p, tile, width + output + j) : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < TALL * 2; i++) {
            if (pairs[i] == NONE) continue;
            float y[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                y[j] = sums[i / 2][n][i % 2 * 2 + j] * scales[i] + biases[0][j];
                if constexpr (GATED)
                    y[j] = activated(p, y[j], sums[i / 2][n + 1][i % 2 * 2 + j] * scales[i] + biases[1][j]);
            }
            // Widths are multiples of 8, so two numbers are a word.
            T* to = static_cast<T*>(p.y) + static_cast<u64>(pairs[i]) * width + output;
            *reinterpret_cast<u32*>(to) = pack<T>(y[0], y[1]);
        }
    }
}

}  // namespace tiled

namespace plain {

constexpr u32 TILE = 64;
constexpr u32 STEP = 16;
constexpr u32 STRIDE = TILE + 4;

template <class T, bool GATED>
DEVICE void product(const ExpertsParams& p, unsigned char* shared) {
    const Tile tile = tile_of(p, blockIdx.x);
    if (tile.expert == NONE) return;
    float* x = reinterpret_cast<float*>(shared);
    float* w = x + STEP * STRIDE;
    const T* weights = weights_of<T>(p, tile);
    const u32 own_row = threadIdx.x / 16 * 4, own_line = threadIdx.x % 16 * 4;
    float sums[4][4];
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) sums[i][j] = 0.0f;
    for (u32 step = 0; step < p.inputs; step += STEP) {
        for (u32 i = threadIdx.x; i < TILE * STEP; i += THREADS) {
            const u32 line = i / STEP, at = i % STEP * STRIDE + line, input = step + i % STEP;
            const u32 output = output_of<TILE, 1, GATED>(p, blockIdx.y, line);
            const bool inside = input < p.inputs;
            x[at] = inside && line < tile.count ? Number<T>::widen(row_of<T>(p, tile.pairs[line])[input]) : 0.0f;
            w[at] = inside && output != NONE
                        ? Number<T>::widen(weights[static_cast<u64>(output) * p.inputs + input])
                        : 0.0f;
        }
        sync_block();
#pragma unroll
        for (u32 k = 0; k < STEP; k++)
            for (u32 i = 0; i < 4; i++)
                for (u32 j = 0; j < 4; j++)
                    sums[i][j] += x[k * STRIDE + own_row + i] * w[k * STRIDE + own_line + j];
        sync_block();
    }
    const u32 width = GATED ? p.outputs / 2 : p.outputs;
    for (u32 i = 0; i < 4; i++) {
        if (own_row + i >= tile.count) continue;
        const u32 pair = tile.pairs[own_row + i];
        const float scale = scale_of(p, pair);
        T* y = static_cast<T*>(p.y) + static_cast<u64>(pair) * width;
        for (u32 j = 0; j < 4; j += GATED ? 2 : 1) {
            const u32 output = output_of<TILE, 1, GATED>(p, blockIdx.y, own_line + j);
            if (output == NONE) continue;
            float value = sums[i][j] * scale + bias_of(p, tile, output);
            if (GATED) value = activated(p, value, sums[i][(j + 1) % 4] * scale + bias_of(p, tile, width + output));
            y[output] = Number<T>::round(value);
        }
    }
}

}  // namespace plain
}  // namespace grouped

// As many blocks as their shared memory allows fit a multiprocessor: of sm_90 BLOCKS, of older ones two.
#define EXPERTS(NAME, BLOCKS, ...)                                                           \
    KERNEL(NAME, ExpertsParams, grouped::THREADS, BLOCKS, 2) {                               \
        SHARED_MEMORY(shared);                                                               \
        grouped::__VA_ARGS__(p, shared);                                                     \
    }
#define EXPERTS_PLAIN(T)                                                                     \
    EXPERTS(experts_plain_##T, 2, plain::product<T, false>)                                  \
    EXPERTS(experts_gated_plain_##T, 2, plain::product<T, true>)
#define EXPERTS_TYPE(T)                                                                      \
    EXPERTS_PLAIN(T)                                                                         \
    EXPERTS(experts_few_##T##_1, 3, few::product<T, 1, false>)                               \
    EXPERTS(experts_few_##T##_2, 3, few::product<T, 2, false>)                               \
    EXPERTS(experts_gated_few_##T##_1, 3, few::product<T, 1, true>)                          \
    EXPERTS(experts_gated_few_##T##_2, 3, few::product<T, 2, true>)                          \
    EXPERTS(experts_tiled_##T, 2, tiled::product<T, false>)                                  \
    EXPERTS(experts_gated_tiled_##T, 2, tiled::product<T, true>)
EXPERTS_PLAIN(float)
EXPERTS_TYPE(bf16)
EXPERTS_TYPE(f16)
