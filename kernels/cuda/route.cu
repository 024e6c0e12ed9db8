// Layers of experts but for their products (product_experts.cu): which experts compute which row, the lists by which their
// products find these rows, and the sum of what they make of a row.
//
// A warp chooses the experts of a row by its logits alone, of equal ones the lower, and leaves them in ascending order. Then
// a warp lists the pairs (row, place among the row's experts) of each expert in ascending order, and cuts them into tiles
// of rows that a block multiplies together. Where an expert's pairs and tiles begin follows from the counts of those before
// it, which each block takes anew: no block waits for another, and no order depends on time. How many tiles there are is
// known on the device only, so products are launched with as many blocks as any routing needs (`ExpertShape::tiles`), and the
// tiles beyond say so. The sum adds a row's experts in ascending order. Nothing here depends on the other rows but places in
// the lists, which no sum follows.
//
// With few rows both ends do what surrounds a layer, as the products of product_few.cu do: the choice applies the scale of the
// norm that rows still lack to their logits and leaves it to the products, and the sum goes into the residual stream and
// hands the next product its inputs. In bf16 only, for the reason given there.
//
// Versions. 1 (this one): up to 32 rows choose and list in one block, since a small kernel takes longer to start than to
// compute; more rows in two kernels. The largest logit is searched once per expert of a row, in L1.
// Measurements: none; not measured on a GPU. Limit: at decode, launch latency; `combine`: memory bandwidth.
#include "device.cuh"

struct RouteParams {
    const float* logits;   // [row][experts]
    const float* bias;     // [experts], or null.
    const u32* tokens;     // [row]; NONE: padding, which no expert computes. Or null.
    u32* chosen;           // [row][per_row]: experts in ascending order; NONE for padding.
    float* weights;        // [row][per_row]
    u32* pairs;            // [row * per_row]: indexes into the two above by expert, in ascending order.
    const float* squares;  // [row][width / 16, rounded up] if rows lack the scale of their norm (product_few.cu), or null.
    float* scales;         // [row]: that scale, if there are squares.
    u32* tiles;            // [room][4]: expert (NONE: no tile), first place in `pairs`, number of pairs, 0.
    u32 rows;
    u32 experts;           // 1 to MOST.
    u32 per_row;           // 1 to `experts`.
    u32 normalized;        // 1: a row's weights are divided by their sum.
    u32 tile_rows;
    u32 room;              // Tiles that the products are launched with.
    u32 width;             // Of rows.
    float epsilon;         // Of their norm.
};

struct CombineParams {
    const void* x;         // [row][per_row][width]
    const u32* chosen;     // As in RouteParams.
    const float* weights;
    void* out;             // [row][width]; zeros for padding. add: the next product's x.
    float* residual;       // add: [row][width], updated.
    const float* norm;     // add: the next norm's weights; or null: `out` and `shares_out` aren't written.
    float* shares_out;     // add: [row][width / 16, rounded up], of the residual's squares.
    u32 width;             // add: a multiple of 8.
    u32 per_row;
    float factor;          // add: of the sum; 1 in most models.
    u32 unused;
};

namespace route {

constexpr u32 THREADS = 256;
constexpr u32 ALL_THREADS = 1024;
// Experts: a bit for each of a lane's.
constexpr u32 MOST = WARP * 32;
// Consecutive pairs that a lane looks at together.
constexpr u32 PAIRS = 4;
// Consecutive numbers of a thread.
constexpr u32 NUMBERS = 8;
// Numbers of a share of squares.
constexpr u32 SHARE = 2 * NUMBERS;

// Larger for a larger logit, and of equal ones for the lower expert; never 0. NaN is below all numbers.
DEVICE u64 rank(float logit, u32 expert) {
    const u32 bits = logit == 0.0f ? 0 : float_to_bits(logit);
    const u32 order = !(logit == logit) ? 0 : bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<u64>(order) << 32 | (MOST - expert);
}

// Sums over a warp: of the lanes before this one, and of all.
struct Sums {
    u32 before;
    u32 all;
};

DEVICE Sums sums_over_warp(u32 own) {
    Sums sums = {0, own};
    for (u32 lanes = 1; lanes < WARP; lanes *= 2) {
        const u32 other = shuffle_xor(sums.all, lanes);
        if ((lane_of(threadIdx.x) & lanes) != 0) sums.before += other;
        sums.all += other;
    }
    return sums;
}

// Chooses a row's experts, by one warp.
DEVICE void choose(const RouteParams& p, u32 row) {
    const u32 lane = lane_of(threadIdx.x);
    u32* chosen = p.chosen + static_cast<u64>(row) * p.per_row;
    float* weights = p.weights + static_cast<u64>(row) * p.per_row;
    if (p.tokens != nullptr && p.tokens[row] == NONE) {
        for (u32 i = lane; i < p.per_row; i += WARP) {
            chosen[i] = NONE;
            weights[i] = 0.0f;
        }
        return;
    }
    // A lane's experts are consecutive, so their order is that of the lanes.
    const u32 most = (p.experts + WARP - 1) / WARP, first = lane * most;
    const u32 count = first >= p.experts ? 0 : first + most <= p.experts ? most : p.experts - first;
    const float* logits = p.logits + static_cast<u64>(row) * p.experts + first;
    float scale = 1.0f;
    if (p.squares != nullptr) {
        const u32 shares = (p.width + SHARE - 1) / SHARE;
        float sum = 0.0f;
        for (u32 i = lane; i < shares; i += WARP) sum += p.squares[static_cast<u64>(row) * shares + i];
        const float root = rsqrt_fast(static_cast<float>(p.width));
        scale = rsqrt_fast(warp_sum(sum) * root * root + p.epsilon);
        if (lane == 0) p.scales[row] = scale;
    }
    // The same bits wherever it is computed, in any kernel: neither bias nor `largest` may be contracted with the scale here and
    // not there.
    const auto logit = [&](u32 i) {
        return multiply_add(logits[i], scale, p.bias != nullptr ? p.bias[first + i] : 0.0f);
    };
    u32 taken = 0;
    float largest = negative_infinity();
    for (u32 i = 0; i < count; i++) largest = larger(largest, logit(i));
    for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) largest = larger(largest, shuffle_xor(largest, lanes));
    const auto power = [&](u32 i) { return exp2_fast((logit(i) - largest) * LOG2_E); };
    float total = 0.0f;
    for (u32 i = 0; i < count; i++) total += power(i);
    total = warp_sum(total);
    for (u32 turn = 0; turn < p.per_row; turn++) {
        u64 best = 0;
        for (u32 i = 0; i < count; i++) {
            const u64 next = (taken >> i & 1) != 0 ? 0 : rank(logit(i), first + i);
            if (next > best) best = next;
        }
        for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) {
            const u64 other = shuffle_xor(best, lanes);
            if (other > best) best = other;
        }
        const u32 expert = MOST - static_cast<u32>(best);
        if (expert >= first && expert < first + count) taken |= 1u << (expert - first);
    }
    u32 own = 0;
    float sum = 0.0f;
    for (u32 i = 0; i < count; i++) {
        if ((taken >> i & 1) == 0) continue;
        own++;
        sum += power(i) / total;
    }
    sum = warp_sum(sum);
    u32 place = sums_over_warp(own).before;
    for (u32 i = 0; i < count; i++) {
        if ((taken >> i & 1) == 0) continue;
        const float weight = power(i) / total;
        chosen[place] = first + i;
        weights[place++] = p.normalized != 0 ? weight / sum : weight;
    }
}

// Lists pairs and tiles. `warp` of `warps` of the whole grid takes every so many experts.
DEVICE void list(const RouteParams& p, u32* counts, u32 warp, u32 warps) {
    const u32 lane = lane_of(threadIdx.x), pairs = p.rows * p.per_row;
    for (u32 i = threadIdx.x; i < p.experts; i += blockDim.x) counts[i] = 0;
    sync_block();
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x) {
        const u32 expert = p.chosen[i];
        if (expert != NONE) atomic_add(&counts[expert], 1u);
    }
    sync_block();
    const auto tiles_of = [&](u32 count) { return (count + p.tile_rows - 1) / p.tile_rows; };
    Words4* tiles = reinterpret_cast<Words4*>(p.tiles);
    u32 all = 0;
    for (u32 i = lane; i < p.experts; i += WARP) all += tiles_of(counts[i]);
    all = warp_sum(all);
    for (u32 i = all + warp * WARP + lane; i < p.room; i += warps * WARP) tiles[i] = Words4{{NONE, 0, 0, 0}};
    for (u32 expert = warp; expert < p.experts; expert += warps) {
        const u32 count = counts[expert];
        if (count == 0) continue;
        u32 start = 0, tile = 0;
        for (u32 i = lane; i < expert; i += WARP) {
            start += counts[i];
            tile += tiles_of(counts[i]);
        }
        start = warp_sum(start);
        tile = warp_sum(tile);
        for (u32 i = lane; i * p.tile_rows < count; i += WARP) {
            const u32 first = i * p.tile_rows, left = count - first;
            tiles[tile + i] = Words4{{expert, start + first, left < p.tile_rows ? left : p.tile_rows, 0}};
        }
        const u32 end = start + count;
        for (u32 first = lane * PAIRS; start < end; first += WARP * PAIRS) {
            u32 found = 0, own = 0;
#pragma unroll
            for (u32 i = 0; i < PAIRS; i++) {
                const bool is_one = first + i < pairs && p.chosen[first + i] == expert;
                found |= (is_one ? 1u : 0u) << i;
                own += is_one ? 1 : 0;
            }
            const Sums sums = sums_over_warp(own);
            u32 place = start + sums.before;
            for (u32 i = 0; i < PAIRS; i++)
                if ((found >> i & 1) != 0) p.pairs[place++] = first + i;
            start += sums.all;
        }
    }
}

// Experts of a row that `sum_of` adds: none for padding, whose parts nobody wrote.
DEVICE u32 places_of(const CombineParams& p, u64 row) { return p.chosen[row * p.per_row] == NONE ? 0 : p.per_row; }

// Adds up a row's experts for eight numbers from `first` on. All lanes of a warp must get here together.
template <class T>
DEVICE void sum_of(const CombineParams& p, u64 row, u32 first, float (&sums)[NUMBERS]) {
    // Experts read at once, before the first is added: nvcc sinks all but two of four such loads behind sums.
    constexpr u32 TOGETHER = 16 / sizeof(T);
    const T* x = static_cast<const T*>(p.x) + row * p.per_row * p.width + first;
    const float* weights = p.weights + row * p.per_row;
    const u32 places = places_of(p, row);
    for (u32 i = 0; i < NUMBERS; i++) sums[i] = 0.0f;
    for (u32 from = 0; from < places; from += TOGETHER) {
        Eight<T> numbers[TOGETHER];
        float own[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            // The last one is repeated to fill up, and not added.
            const u32 place = from + i < places ? from + i : places - 1;
            numbers[i].read(x + static_cast<u64>(place) * p.width);
            own[i] = weights[place];
        }
        fence_loads();
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            if (from + i >= places) break;
#pragma unroll
            for (u32 j = 0; j < NUMBERS; j++) sums[j] += own[i] * numbers[i].get(j);
        }
    }
}

// Where the eight numbers of a thread begin. Those past the end repeat the last ones, and don't store them.
DEVICE u32 first_of(const CombineParams& p, u32 first) { return first < p.width ? first : p.width - NUMBERS; }

// Rows of any width.
template <class T>
DEVICE void combine_each(const CombineParams& p, u64 row, u32 first) {
    const T* x = static_cast<const T*>(p.x) + row * p.per_row * p.width;
    const u32 places = places_of(p, row);
    for (u32 i = first; i < first + NUMBERS && i < p.width; i++) {
        float sum = 0.0f;
        for (u32 place = 0; place < places; place++)
            sum += p.weights[row * p.per_row + place] * Number<T>::widen(x[static_cast<u64>(place) * p.width + i]);
        static_cast<T*>(p.out)[row * p.width + i] = Number<T>::round(sum);
    }
}

template <class T>
DEVICE void combine(const CombineParams& p) {
    const u64 row = blockIdx.x;
    const u32 first = (blockIdx.y * THREADS + threadIdx.x) * NUMBERS;
    if (p.width % NUMBERS != 0) return combine_each<T>(p, row, first);
    float sums[NUMBERS];
    sum_of<T>(p, row, first_of(p, first), sums);
    if (first >= p.width) return;
    Eight<T> rounded;
#pragma unroll
    for (u32 i = 0; i < NUMBERS; i += 2) rounded.set(i, sums[i], sums[i + 1]);
    rounded.write(static_cast<T*>(p.out) + row * p.width + first);
}

// The same into the residual stream, as `product_add` does.
template <class T>
DEVICE void combine_add(const CombineParams& p) {
    const u64 row = blockIdx.x;
    const u32 first = (blockIdx.y * THREADS + threadIdx.x) * NUMBERS, from = first_of(p, first);
    const bool there = first < p.width;
    const u64 at = row * p.width + from;
    Eight<float> residual, norm;
    if (there) residual.read(p.residual + at);
    if (there && p.norm != nullptr) norm.read(p.norm + from);
    float sums[NUMBERS], squares = 0.0f;
    sum_of<T>(p, row, from, sums);
    if (there) {
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i++) {
            sums[i] = residual.get(i) + sums[i] * p.factor;
            squares += sums[i] * sums[i];
        }
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i += 2) residual.set(i, sums[i], sums[i + 1]);
        residual.write(p.residual + at);
        if (p.norm != nullptr) {
            Eight<T> next;
#pragma unroll
            for (u32 i = 0; i < NUMBERS; i += 2) next.set(i, sums[i] * norm.get(i), sums[i + 1] * norm.get(i + 1));
            next.write(static_cast<T*>(p.out) + at);
        }
    }
    if (p.norm == nullptr) return;
    // Two threads have a share; the second one of the last may have nothing.
    squares += shuffle_xor(squares, 1);
    const u64 shares = (p.width + SHARE - 1) / SHARE;
    if (there && first % SHARE == 0) p.shares_out[row * shares + first / SHARE] = squares;
}

}  // namespace route

KERNEL(route_rows, RouteParams, route::THREADS) {
    const u32 row = blockIdx.x * (route::THREADS / WARP) + warp_of(threadIdx.x);
    if (row < p.rows) route::choose(p, row);
}

KERNEL(route_lists, RouteParams, route::THREADS) {
    SHARED_MEMORY(shared);
    constexpr u32 WARPS = route::THREADS / WARP;
    route::list(p, reinterpret_cast<u32*>(shared), blockIdx.x * WARPS + warp_of(threadIdx.x), gridDim.x * WARPS);
}

// Both in one block.
KERNEL(route_few, RouteParams, route::ALL_THREADS, 1, 1) {
    SHARED_MEMORY(shared);
    constexpr u32 WARPS = route::ALL_THREADS / WARP;
    const u32 warp = warp_of(threadIdx.x);
    for (u32 row = warp; row < p.rows; row += WARPS) route::choose(p, row);
    sync_block();
    route::list(p, reinterpret_cast<u32*>(shared), warp, WARPS);
}

#define COMBINE(T)                                                                           \
    KERNEL(combine_##T, CombineParams, route::THREADS) { route::combine<T>(p); }
COMBINE(float)
COMBINE(bf16)
COMBINE(f16)

KERNEL(combine_add_bf16, CombineParams, route::THREADS) { route::combine_add<bf16>(p); }
