// Products y = x * w^T of up to 32 rows (decode), which only have to read the weights at full bandwidth, and what surrounds
// them in a layer: a step of one sequence is a chain of some ten kernels per layer, and each of the small ones takes longer to
// start, wait and end than to compute.
//
// Four kernels differ in what becomes of the sums. `product_few` stores them. `product_gated` multiplies the gates with the
// other half of its outputs. `product_rope` ropes queries and keys and writes keys and values into their slots, as `kv_write`
// does, but without norms of heads, which need a whole head. `product_add` adds them to the residual stream and hands the
// next product its inputs: a norm is x * weight * scale, where only the scale needs the whole row, so a block writes its
// outputs times their weights and its share of the row's squares, and the next product adds the shares up and scales its
// own sums. In bf16 only, because a row without its scale may be too large for f16. A factor of what is added (Granite) makes
// that sum a multiply-add, with the same bits if it is 1; it has not been on a GPU.
//
// Versions. 1: a warp multiplied 16 outputs (rows of w) with up to 32 rows of x; weights went from memory straight into
// registers. nvcc sank each load to its use, which left two of eight in flight (1 KB a warp).
// 2: weights pass through shared memory (cp.async), 8 KB a warp in flight, the first 64 KB of a block before `wait_turn`. A
// lane reads only what it copied, so there is no barrier. Inputs may be summed in any order, so a lane takes 8 consecutive
// ones; the order doesn't depend on the number of rows. Inputs were read a turn ahead and then copied from one set of
// registers to the other, and the copy waited for the read it had just issued.
// 3: two sets of input registers take turns, so a read has a whole turn before its use; with 17 to 32 rows registers allow
// one set, read as soon as its last product is issued. Reads were skipped past the end; nvcc made each a conditional one and
// a copy of its words at the end of the loop, which waited for it.
// 4: reads past the end are of other inputs. Without a condition they go to where they are used, and the loop of up to 8
// rows has 160 instructions on sm_90 instead of 194, that of up to 16 has 214 to 220, not 290.
// 5: norms, residual sums and gates within the products, seven kernels a layer instead of ten (Llama, Qwen3). What the end
// of a block needs was read into registers before its loop. With more than 8 rows these were spilled, which waits for them
// there. The shares of squares were added up before the loop, too, each read on its own.
// 6: what the end needs is copied to shared memory meanwhile. Shares are read all at once, beside the first inputs, and a
// row's sum is finished at the end.
// 7: bias, rope and KV writes within the product of queries, keys and values (Llama, Qwen2), a kernel less, which took 2.5 to
// 3 us, most of them to start and to end. Where a row goes and its rope are read before `wait_turn`.
// 8 (this one): with up to 8 rows of up to 2,048 inputs, products that store or gate have as many blocks as run at once. They
// take several groups of 16 outputs each, and request the next group's weights before they end one: a block of so few inputs
// requested all of its weights when it started, and nothing while it ended. With 4,096 inputs this was 0.6 % slower (8B).
// Weights may be integers (quantized.cuh): a warp's fragments are then whole numbers, and the sums of each 32 inputs are added
// to its own sums times the group's scale, in f32, plus the group's base times the sum of its inputs, which is a product with
// ones. Such kernels have not been on a GPU; what the others compute, and how, is not touched.
// Measured and left out (H200, a decode of the 1B shape, context 256): before its turn, the product after attention asks for
// the beginning of the next one's weights in the L2 cache (cp.async.bulk.prefetch): 8 MB cost 1 % of the step, 16 MB 3 %, 32
// MB 6 %. Blocks of 16 warps, if there are fewer groups than multiprocessors: 1 % faster, but not at context 4,096.
//
// Estimated, not measured: a multiprocessor of an H100 needs about 32 KB in flight for 90 % of its share of memory bandwidth
// (23 GB/s times about 1.4 us with queueing), one of an H200 40 to 48. A block keeps 48 to 64 KB in flight, three fit a
// multiprocessor (71 KB of shared memory, at most 80 registers), and the smallest shapes still give each multiprocessor
// one block (2,048 outputs on 132 multiprocessors).
// Measurements (H200, bf16, of the copy rate, one row): 28,672 x 4,096 98 %, 6,144 x 4,096 87 %, 4,096 x 4,096 80 %, 4,096
// x 14,336 99 %; 16,384 x 2,048 94 % (83 % in version 7), 3,072 x 2,048 62 %, 2,048 x 2,048 50 %, 2,048 x 8,192 75 %. 8 rows
// 74 to 95 % of the wide ones, 16 rows 65 to 83 %: each block reads all inputs. Blocks spread by their shared memory
// (few.rs) make a step 3 % (8B) to 6 % (1B) shorter. Limit: memory bandwidth.
#include "kv_write.cuh"
#include "quantized.cuh"

struct FewParams {
    const void* x;         // [row][inputs]
    const void* w;         // [output][inputs], or tiles (quantized.cuh); read before `wait_turn`.
    void* y;               // few: [row][outputs]. gated: [row][outputs / 2]. add: [row][outputs], the next product's x.
    const float* squares;  // few, gated, rope: [row][inputs / 16, rounded up] if x lacks the scale of its norm, or null.
    const float* bias;     // add, gated, rope: [outputs], or null; read before `wait_turn`.
    float* residual;       // add: [row][outputs], updated.
    const float* norm;     // add: the next norm's weights, read before `wait_turn`; or null: `y` and `shares_out` aren't written.
    float* shares_out;     // add: [row][gridDim.x], of the residual's squares.
    u32 rows;
    u32 inputs;            // A multiple of 8, of 32 if weights are integers; not 0.
    u32 outputs;           // gated: of both halves, each a multiple of 8 if weights are integers.
    u32 out_f32;           // few: y is f32 whatever the type.
    float epsilon;         // Of the norm of x.
    u32 gelu;              // gated: see `gate`.
    float factor;          // add: of the sums and biases; 1 in most models.
    u32 unused;
};

// Outputs are queries, keys and values: [heads + 2 * kv_heads][head_dim], where `head_dim` is a multiple of 16 and heads have no
// norms. Rope, positions and slots are read before `wait_turn`.
struct RopeParams : FewParams {
    KvWriteParams write;
};

namespace few {

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / WARP;
// Outputs of a block.
constexpr u32 OUTPUTS = 16;
constexpr u64 NOWHERE = ~static_cast<u64>(0);
// Pairs of outputs: of a gate and what it multiplies, or of two dimensions that rope turns.
constexpr u32 PAIRS = OUTPUTS / 2;
// Inputs of a warp's turn, in two chunks of 32: one 128-byte line of each of its 16 rows of w.
constexpr u32 TURN = 64;
// Turns of weights in flight: 8 KB a warp.
constexpr u32 TURNS = 4;
// Shared memory of a block for them, and as much for integers, which need less.
constexpr u32 WEIGHT_BYTES = WARPS * TURNS * 4 * WARP * sizeof(Words4);
// Maximum rows.
constexpr u32 MOST = 32;
// Floats of two rows of a warp's sums, between which banks don't conflict: sums are stored eight of four even, or four odd,
// rows at a time, and read sixteen of two rows or eight of four. The first two of the rest are the rows' squares.
constexpr u32 PAIR = 2 * OUTPUTS + 8;

enum class After { STORE, ADD, GATE, ROPE };

// Weights in the type of the inputs.
struct Plain {
    static constexpr bool PLAIN = true, BASES = false;
    static constexpr u32 TURNS = few::TURNS;
};

// Whether a block takes several groups of outputs, one after another, if there are more of them than blocks run at once.
template <u32 N, After AFTER>
constexpr bool WALKS = N == 1 && (AFTER == After::STORE || AFTER == After::GATE);

// The output that row i of a group's 16 rows of w belongs to, or NONE. A group of pairs has 8 outputs of either half: of all
// outputs if they are gates, of a head if they are roped.
template <After AFTER, class P>
DEVICE u32 output_of(const P& p, u32 group, u32 i) {
    if constexpr (AFTER == After::GATE) {
        const u32 half = p.outputs / 2, output = group * PAIRS + i % PAIRS;
        return output < half ? i / PAIRS * half + output : NONE;
    }
    if constexpr (AFTER == After::ROPE) {
        const u32 half = p.write.head_dim / 2, pair = group * PAIRS + i % PAIRS;
        return pair / half * p.write.head_dim + pair % half + i / PAIRS * half;
    }
    const u32 output = group * OUTPUTS + i;
    return output < p.outputs ? output : NONE;
}

// What the end of a block needs, copied to shared memory behind the weights while the block multiplies: registers would have
// to hold it meanwhile, or be spilled, which waits for it before the loop.
template <u32 N>
struct End {
    float weights[2 * OUTPUTS];           // Biases, then norm weights.
    float residual[N * 8 * OUTPUTS];      // [row][output]. rope: [row][cosines, then sines].
    float shares[N * THREADS];            // Each thread's, of every eighth row.
    u64 to[N * 8];                        // rope: where each row's outputs of the low half begin, or NOWHERE.
};

template <After AFTER, u32 N, class P>
DEVICE void start_end_weights(const P& p, End<N>& end) {
    const u32 thread = threadIdx.x;
    if (AFTER == After::STORE || WALKS<N, AFTER> || thread >= 2 * OUTPUTS) return;
    const float* from = thread < OUTPUTS ? p.bias : p.norm;
    const u32 output = output_of<AFTER>(p, blockIdx.x, thread % OUTPUTS);
    const bool there = from != nullptr && output != NONE;
    copy_async<4>(end.weights + thread, there ? from + output : p.w, there);
}

template <u32 N>
DEVICE void start_end_residual(const FewParams& p, End<N>& end) {
    const u32 output = output_of<After::ADD>(p, blockIdx.x, threadIdx.x % OUTPUTS);
#pragma unroll
    for (u32 at = threadIdx.x; at < N * 8 * OUTPUTS; at += THREADS) {
        const u32 row = at / OUTPUTS;
        const bool there = row < p.rows && output != NONE;
        copy_async<4>(end.residual + at, p.residual + (there ? static_cast<u64>(row) * p.outputs + output : 0), there);
    }
}

// The position and slot of a thread's row. Nothing waits for them here, so weights can be requested meanwhile.
struct Place {
    u32 position;
    u32 slot;
};

DEVICE Place read_place(const KvWriteParams& p) {
    const u32 row = threadIdx.x / PAIRS;
    if (row >= p.tokens) return {NONE, NONE};
    return {load_early(p.positions + row), load_early(p.slots + row)};
}

template <u32 N>
DEVICE void start_end_rope(const KvWriteParams& p, Place place, End<N>& end) {
    const u32 row = threadIdx.x / PAIRS, pair = threadIdx.x % PAIRS, half = p.head_dim / 2;
    if (row >= p.tokens) return;
    const u32 head = blockIdx.x * PAIRS / half, at = blockIdx.x * PAIRS % half;
    const bool there = place.slot != NONE;
    const float* cosine = p.rope + static_cast<u64>(place.position) * p.head_dim + at + pair;
    copy_async<4>(end.residual + row * OUTPUTS + pair, cosine, there);
    copy_async<4>(end.residual + row * OUTPUTS + PAIRS + pair, cosine + half, there);
    if (pair > 0) return;
    const u64 query = (static_cast<u64>(row) * (p.heads + 2 * p.kv_heads) + head) * p.head_dim;
    const u64 to = head < p.heads ? query : slot_index(p, head, place.slot);
    end.to[row] = there ? to + at : NOWHERE;
}

// A lane's part of the weights if they are integers: those of either half of a group of outputs in memory, and those in flight,
// each turn's integers and units.
template <class W>
struct Tiles {
    typedef typename W::Integers Integers;
    typedef typename W::Units Units;
    static constexpr u32 WARP_INTEGERS = W::TURNS * 2 * WARP;
    static_assert(quantized::INPUTS == TURN && quantized::OUTPUTS == PAIRS, "a turn is a tile for either half of a group");
    static_assert(WARPS * WARP_INTEGERS * (sizeof(Integers) + sizeof(Units)) <= WEIGHT_BYTES, "there is room");
    Integers* integers;
    Units* units;
    // The next turn's integers, and how far behind them the lane's units are.
    const u8* from[2];
    u32 behind;

    DEVICE Tiles(unsigned char* shared, u32 warp, u32 lane) {
        integers = reinterpret_cast<Integers*>(shared) + warp * WARP_INTEGERS + lane;
        units = reinterpret_cast<Units*>(shared + WARPS * WARP_INTEGERS * sizeof(Integers)) + warp * WARP_INTEGERS + lane;
        behind = static_cast<u32>(quantized::units_at<W>(0, lane) - quantized::integers_at<W>(0, lane));
    }
    DEVICE void enter(const void* w, u32 half, u32 output, u32 turns) {
        const u32 thread = threadIdx.x;
        const u64 tile = static_cast<u64>(output == NONE ? 0 : output / quantized::OUTPUTS) * turns + warp_of(thread);
        from[half] = static_cast<const u8*>(w) + quantized::integers_at<W>(tile, lane_of(thread));
    }
    DEVICE void start(const void* w, u32 stage, u32 half, bool there) {
        const u8* at = there ? from[half] : static_cast<const u8*>(w);
        copy_async<sizeof(Integers)>(integers + (stage * 2 + half) * WARP, at, there);
        copy_async<sizeof(Units)>(units + (stage * 2 + half) * WARP, at + behind, there);
        from[half] += WARPS * quantized::TILE_BYTES<W>;
    }
};
template <>
struct Tiles<Plain> {
    DEVICE Tiles(unsigned char*, u32, u32) {}
};

// What a turn's weights add to a warp's sums.
template <class T, u32 N, class W>
DEVICE void multiply_integers(const Tiles<W>& tiles, u32 stage, const Words4 (&inputs)[2][N], float (&sums)[N][4]) {
    const u32 at = stage * 2 * WARP;
    const typename W::Integers low = tiles.integers[at], high = tiles.integers[at + WARP];
    const typename W::Units units[2] = {tiles.units[at], tiles.units[at + WARP]};
#pragma unroll
    for (u32 group = 0; group < 2; group++) {
        u32 a[4], b[4];
        W::template pairs<T>(low, group, a);
        W::template pairs<T>(high, group, b);
        const Fragment even = {{a[0], b[0], a[1], b[1]}}, odd = {{a[2], b[2], a[3], b[3]}};
        const float scales[2] = {W::scale(units[0], group), W::scale(units[1], group)};
        const float bases[2] = {W::base(units[0], group), W::base(units[1], group)};
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            const Words4& x = inputs[group][n];
            float part[4] = {}, of_inputs[4] = {};
            Number<T>::multiply(part, even, x.w[0], x.w[1]);
            Number<T>::multiply(part, odd, x.w[2], x.w[3]);
            if constexpr (W::BASES) {
                constexpr u32 ONES = quantized::Whole<T>::ONES;
                const Fragment ones = {{ONES, ONES, ONES, ONES}};
                Number<T>::multiply(of_inputs, ones, x.w[0], x.w[1]);
                Number<T>::multiply(of_inputs, ones, x.w[2], x.w[3]);
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                sums[n][j] = multiply_add(part[j], scales[j / 2], sums[n][j]);
                if constexpr (W::BASES) sums[n][j] = multiply_add(of_inputs[j % 2], bases[j / 2], sums[n][j]);
            }
        }
    }
}

template <class T, u32 N, After AFTER, class W, class P>
DEVICE void product(const P& p, unsigned char* shared) {
    constexpr u32 ROWS = N * 8;
    constexpr bool WALKING = WALKS<N, AFTER>;
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    // A lane reads only the words that it copied itself, so no barrier is needed.
    Words4* own = reinterpret_cast<Words4*>(shared) + warp * TURNS * 4 * WARP + lane;
    [[maybe_unused]] Tiles<W> tiles(shared, warp, lane);
    End<N>& end = *reinterpret_cast<End<N>*>(shared + WEIGHT_BYTES);
    // The warps' sums have a place of their own if weights of the next group are on their way.
    float* all = reinterpret_cast<float*>(shared + (WALKING ? WEIGHT_BYTES + sizeof(end) : 0));
    const auto place = [&](u32 stage, u32 chunk, u32 half) { return own + ((stage * 2 + chunk) * 2 + half) * WARP; };
    const auto input_of = [&](u32 turn, u32 chunk) { return turn * TURN + chunk * 32 + lane % 4 * 8; };
    const u32 turns = (p.inputs + TURN - 1) / TURN;
    // Of outputs, for a block that walks.
    const u32 groups = AFTER == After::GATE ? (p.outputs / 2 + PAIRS - 1) / PAIRS : (p.outputs + OUTPUTS - 1) / OUTPUTS;
    // Sets of inputs. Each is read again as soon as its products are issued, AHEAD turns before its next use. They take
    // turns by name, and reads have no condition, so no copy of registers waits for a read that was just issued.
    constexpr u32 AHEAD = N < 4 ? 2 : 1;
    // A warp's turns of a group end before this one. With two sets an odd number of them ends with one of zeros.
    const u32 last = turns > warp ? warp + (turns - warp + AHEAD * WARPS - 1) / (AHEAD * WARPS) * AHEAD * WARPS : warp;
    // Requests the weights of the warp's next turn. Past the end it copies zeros, which keeps the number of groups of copies in
    // flight constant.
    u32 outputs[2], next_turn = warp, next_group = blockIdx.x;
    const auto enter_group = [&] {
#pragma unroll
        for (u32 half = 0; half < 2; half++)
            outputs[half] = !WALKING || next_group < groups ? output_of<AFTER>(p, next_group, half * 8 + lane / 4) : NONE;
        if constexpr (!W::PLAIN) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) tiles.enter(p.w, half, outputs[half], turns);
        }
    };
    enter_group();
    const auto start_weights = [&](u32 stage) {
        if constexpr (W::PLAIN) {
#pragma unroll
            for (u32 half = 0; half < 2; half++)
#pragma unroll
                for (u32 chunk = 0; chunk < 2; chunk++) {
                    const u32 input = input_of(next_turn, chunk), output = outputs[half];
                    const bool there = input < p.inputs && output != NONE;
                    const u64 at = there ? static_cast<u64>(output) * p.inputs + input : 0;
                    copy_async<16>(place(stage, chunk, half), static_cast<const T*>(p.w) + at, there);
                }
        } else {
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                tiles.start(p.w, stage, half, next_turn < turns && outputs[half] != NONE);
        }
        commit_copies();
        next_turn += WARPS;
        if (WALKING && next_turn >= last) {
            next_turn = warp;
            next_group += gridDim.x;
            enter_group();
        }
    };
    const auto at_most = [](u32 at, u32 last) { return at < last ? at : last; };
    // Past the end it reads the last inputs or the last row again: their weights are zeros, or their sums aren't stored. A
    // condition would keep the words from going straight to the registers that are multiplied.
    const auto read_inputs = [&](u32 turn, Words4 (&x)[2][N]) {
#pragma unroll
        for (u32 chunk = 0; chunk < 2; chunk++)
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const u32 input = at_most(input_of(turn, chunk), p.inputs - 8);
                const u32 row = at_most(n * 8 + lane / 4, p.rows - 1);
                const T* from = static_cast<const T*>(p.x) + static_cast<u64>(row) * p.inputs + input;
                x[chunk][n] = *reinterpret_cast<const Words4*>(from);
            }
    };
    // A lane adds up shares of the squares of every eighth row, one a turn. They are requested beside the first inputs, all
    // at once in up to 8,192 / N inputs, and the sums wait in shared memory until the end. Their order doesn't depend on N.
    const bool scaled = AFTER != After::ADD && p.squares != nullptr;
    const auto add_shares = [&] {
        constexpr u32 SHARES = 16 / N;
        const u32 last_share = (p.inputs - 1) / OUTPUTS;
        const auto share_of = [&](u32 turn) { return turn * (TURN / OUTPUTS) + lane % 4; };
        float sums[N];
        for (u32 n = 0; n < N; n++) sums[n] = 0.0f;
        for (u32 turn = warp; turn < turns; turn += SHARES * WARPS) {
            float shares[SHARES][N];
#pragma unroll
            for (u32 i = 0; i < SHARES; i++)
#pragma unroll
                for (u32 n = 0; n < N; n++) {
                    const u32 row = at_most(n * 8 + lane / 4, p.rows - 1);
                    shares[i][n] = p.squares[row * (last_share + 1) + at_most(share_of(turn + i * WARPS), last_share)];
                }
            fence_loads();
#pragma unroll
            for (u32 i = 0; i < SHARES; i++)
#pragma unroll
                for (u32 n = 0; n < N; n++) sums[n] += share_of(turn + i * WARPS) <= last_share ? shares[i][n] : 0.0f;
        }
        for (u32 n = 0; n < N; n++) end.shares[n * THREADS + thread] = sums[n];
    };
    start_end_weights<AFTER>(p, end);
    Place row_place = {};
    if constexpr (AFTER == After::ROPE) row_place = read_place(p.write);
#pragma unroll
    for (u32 stage = 0; stage < W::TURNS; stage++) start_weights(stage);
    // Before this thread waits for its row's place.
    let_next_start();
    if constexpr (AFTER == After::ROPE) start_end_rope(p.write, row_place, end);
    wait_turn();
    Words4 x[AHEAD][2][N];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) read_inputs(warp + i * WARPS, x[i]);
    if constexpr (AFTER == After::ADD) start_end_residual(p, end);
    if (scaled) add_shares();
    fence_loads();
    float sums[N][4];
    const auto multiply = [&](u32 turn, u32 stage, Words4 (&inputs)[2][N]) {
        wait_copies<W::TURNS - 1>();
        if constexpr (W::PLAIN) {
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
        } else {
            multiply_integers<T, N>(tiles, stage, inputs, sums);
        }
        // The next group begins with the same inputs.
        const u32 next = turn + AHEAD * WARPS;
        read_inputs(WALKING && next >= last ? next - (last - warp) : next, inputs);
        fence_loads();
        start_weights(stage);
    };
    u32 stage = 0;
    const auto pair = [&](u32 w, u32 row) { return all + (w * ROWS + row) / 2 * PAIR; };
    // The scale of the norm of x.
    const auto scale = [&](u32 row) {
        if (!scaled) return 1.0f;
        float sum = 0.0f;
        for (u32 w = 0; w < WARPS; w++) sum += pair(w, row)[2 * OUTPUTS + row % 2];
        const float root = rsqrt_fast(static_cast<float>(p.inputs));
        return rsqrt_fast(sum * root * root + p.epsilon);
    };
    const auto sum = [&](u32 row, u32 i) {
        float sum = 0.0f;
        for (u32 w = 0; w < WARPS; w++) sum += pair(w, row)[row % 2 * OUTPUTS + i];
        return sum;
    };
    // A thread that walks has one row, whose scale it keeps.
    float factor = 1.0f;
    // What becomes of a group's sums.
    const auto finish = [&](u32 group) {
        const u32 first = thread % PAIRS, second = PAIRS + first;
        if constexpr (AFTER == After::GATE) {
            const u32 width = p.outputs / 2, gate_at = output_of<AFTER>(p, group, first);
            const auto bias = [&](u32 i, u32 output) {
                if constexpr (WALKING) return p.bias != nullptr ? p.bias[output] : 0.0f;
                return end.weights[i];
            };
            for (u32 row = thread / PAIRS; row < ROWS && row < p.rows && gate_at != NONE; row += THREADS / PAIRS) {
                if (!WALKING || group == blockIdx.x) factor = scale(row);
                const float gated = sum(row, first) * factor + bias(first, gate_at);
                const float other = sum(row, second) * factor + bias(second, width + gate_at);
                const u64 at = static_cast<u64>(row) * width + gate_at;
                static_cast<T*>(p.y)[at] = Number<T>::round(gate(p.gelu != 0, gated, other));
            }
            return;
        }
        if constexpr (AFTER == After::ROPE) {
            static_assert(THREADS == MOST * PAIRS, "a thread has one pair");
            const u32 row = thread / PAIRS;
            if (row >= ROWS || row >= p.rows) return;
            const u64 to = end.to[row];
            if (to == NOWHERE) return;
            const KvWriteParams& write = p.write;
            const u32 head = group * OUTPUTS / write.head_dim, values = write.heads + write.kv_heads;
            factor = scale(row);
            float low = sum(row, first) * factor + end.weights[first];
            float high = sum(row, second) * factor + end.weights[second];
            if (head < values) {
                const float* turn = end.residual + row * OUTPUTS;
                const float x = low, y = high, c = turn[first], s = turn[second];
                low = x * c - y * s;
                high = y * c + x * s;
            }
            T* at = static_cast<T*>(head < write.heads ? write.qkv : head < values ? write.keys : write.values) + to;
            at[first] = Number<T>::round(low);
            at[write.head_dim / 2 + first] = Number<T>::round(high);
            return;
        }
        const u32 output = output_of<AFTER>(p, group, thread % OUTPUTS);
        u32 row = thread / OUTPUTS;
#pragma unroll
        for (u32 i = 0; i * THREADS < ROWS * OUTPUTS; i++, row += THREADS / OUTPUTS) {
            if (row >= ROWS) break;  // Whole warps: a warp has two rows.
            const bool there = row < p.rows && output != NONE;
            const u64 at = static_cast<u64>(row) * p.outputs + output;
            if constexpr (AFTER == After::STORE) {
                if (!there) continue;
                if (!WALKING || group == blockIdx.x) factor = scale(row);
                const float y = sum(row, thread % OUTPUTS) * factor;
                if (p.out_f32 != 0)
                    static_cast<float*>(p.y)[at] = y;
                else
                    static_cast<T*>(p.y)[at] = Number<T>::round(y);
            } else {
                float added = 0.0f;
                if (there) {
                    const float bias = end.weights[thread % OUTPUTS];
                    added = end.residual[i * THREADS + thread] + (sum(row, thread % OUTPUTS) + bias) * p.factor;
                    p.residual[at] = added;
                }
                if (p.norm == nullptr) continue;
                if (there) static_cast<T*>(p.y)[at] = Number<T>::round(added * end.weights[OUTPUTS + thread % OUTPUTS]);
                float squares = added * added;
                for (u32 lanes = OUTPUTS / 2; lanes > 0; lanes /= 2) squares += shuffle_xor(squares, lanes);
                if (row < p.rows && thread % OUTPUTS == 0)
                    p.shares_out[static_cast<u64>(row) * gridDim.x + blockIdx.x] = squares;
            }
        }
    };
    for (u32 group = blockIdx.x;; group += gridDim.x) {
        for (u32 n = 0; n < N; n++)
            for (u32 j = 0; j < 4; j++) sums[n][j] = 0.0f;
        for (u32 turn = warp; turn < turns; turn += AHEAD * WARPS) {
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) multiply(turn + i * WARPS, stage + i, x[i]);
            stage = (stage + AHEAD) % W::TURNS;
        }
        if (!WALKING) {
            // Copies of the residual or the rope are in the group of the first turn, or in this one if the warp had no turn.
            commit_copies();
            wait_copies<0>();
        }
        // The warps' sums reuse the weights' shared memory, but not what is behind it; or that of the group before.
        sync_block();
        for (u32 n = 0; n < N; n++) {
            for (u32 j = 0; j < 4; j++) {
                const u32 row = n * 8 + lane % 4 * 2 + j % 2;
                pair(warp, row)[j % 2 * OUTPUTS + lane / 4 + j / 2 * 8] = sums[n][j];
            }
            if (!scaled || (WALKING && group != blockIdx.x)) continue;
            const u32 row = n * 8 + lane / 4;
            float squares = end.shares[n * THREADS + thread];
            for (u32 lanes = 1; lanes < 4; lanes *= 2) squares += shuffle_xor(squares, lanes);
            if (lane % 4 == 0) pair(warp, row)[2 * OUTPUTS + row % 2] = squares;
        }
        sync_block();
        finish(group);
        if (!WALKING || group + gridDim.x >= groups) break;
    }
    if (WALKING) wait_copies<0>();
}

}  // namespace few

namespace few {

// Blocks that must fit a multiprocessor of sm_90 by their registers: as many as its shared memory allows. With integers and more
// than 8 rows, whose sums of groups need more registers, two fit without a limit (0), or with a few spills.
template <u32 N, class W>
constexpr u32 BLOCKS = W::PLAIN || N == 1 ? 3 : N == 4 && W::BASES ? 2 : 0;

}  // namespace few

#define FEW(NAME, PARAMS, T, N, AFTER, W)                                                    \
    EARLY_KERNEL(NAME##_##T##_##N, PARAMS, few::THREADS, (few::BLOCKS<N, W>)) {              \
        SHARED_MEMORY(shared);                                                               \
        few::product<T, N, few::After::AFTER, W>(p, shared);                                 \
    }
#define FEW_ROWS(NAME, PARAMS, T, AFTER, W)                                                  \
    FEW(NAME, PARAMS, T, 1, AFTER, W)                                                        \
    FEW(NAME, PARAMS, T, 2, AFTER, W)                                                        \
    FEW(NAME, PARAMS, T, 4, AFTER, W)
// Of weights that are stored in the type of the inputs, and as integers.
#define FEW_WEIGHTS(NAME, PARAMS, T, AFTER)                                                  \
    FEW_ROWS(NAME, PARAMS, T, AFTER, few::Plain)                                             \
    FEW_ROWS(NAME##_int8, PARAMS, T, AFTER, quantized::Int8)                                 \
    FEW_ROWS(NAME##_int4, PARAMS, T, AFTER, quantized::Int4)
FEW_WEIGHTS(product_few, FewParams, bf16, STORE)
FEW_WEIGHTS(product_few, FewParams, f16, STORE)
FEW_WEIGHTS(product_gated, FewParams, bf16, GATE)
FEW_WEIGHTS(product_gated, FewParams, f16, GATE)
FEW_WEIGHTS(product_rope, RopeParams, bf16, ROPE)
FEW_WEIGHTS(product_rope, RopeParams, f16, ROPE)
FEW_WEIGHTS(product_add, FewParams, bf16, ADD)
