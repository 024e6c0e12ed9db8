// One pass between projection and attention: bias, norm of queries and keys per head or of all heads together (OLMo 2), rope,
// and the write of keys and values into their blocks. Queries are updated in place.
//
// Versions. 1: a warp per token and head; a lane has pairs (i, i + half), so rope needs no shuffles. One token took five
// dependent reads: slot, row, position, rope, weights. 2 (this one): if heads are multiples of 16 wide, a lane has eight
// pairs, so that a few lanes make a head and every access is of 16 bytes; what no kernel writes, rope and weights
// included, is read before the kernel's turn, which leaves one read.
// Counted: a warp reads or writes 512 bytes per instruction, not 64, and has a quarter of the instructions
// per number; a multiprocessor has 24 KB of the rows in flight, of the 13 KB that the copy rate needs (at 0.8 us).
// Measurements (H200, bf16, width 4,096): 2.6 to 2.9 us for one token; 67 % of the copy rate at 16,384 (33 % in version 1).
// Norms of all heads have a kernel of their own, `kv_write_whole`: a block per token, since a scale needs the token's whole
// row before any query of it is replaced. It reads the row twice, the second time from cache, and has not been on a GPU.
// Limit: memory bandwidth; at decode, launch latency.
#include "kv_write.cuh"

namespace kv_write {

constexpr u32 WARPS = 4;
constexpr u32 PAIRS = 4;
constexpr u32 WHOLE_THREADS = 512;

// Where a head of this token goes: back into the row, or to a slot.
template <class T>
DEVICE T* target(const KvWriteParams& p, T* row, u32 head, u32 slot) {
    if (head < p.heads) return row;
    return static_cast<T*>(head >= p.heads + p.kv_heads ? p.values : p.keys) + slot_index(p, head, slot);
}

// Heads of multiples of 16. A power of two of lanes has a head, eight pairs each; if too many, the last ones have none.
template <class T>
DEVICE void write_eights(const KvWriteParams& p) {
    const u32 all = p.heads + 2 * p.kv_heads, width = p.head_dim, half = width / 2, token = blockIdx.y;
    u32 lanes = 1;
    while (lanes * 8 < half) lanes *= 2;
    const u32 head = (blockIdx.x * (WARPS * WARP) + threadIdx.x) / lanes, at = threadIdx.x % lanes * 8;
    const u32 slot = load_early(p.slots + token), position = load_early(p.positions + token);
    const bool there = head < all && at < half, turns = there && head < p.heads + p.kv_heads && slot != NONE;
    const float* norm = head < p.heads ? p.q_norm : p.k_norm;
    const bool biased = there && p.bias != nullptr, normed = turns && norm != nullptr;
    Eight<float> bias[2], weights[2], cosines, sines;
    if (biased) {
        bias[0].read(p.bias + head * width + at);
        bias[1].read(p.bias + head * width + half + at);
    }
    if (normed) {
        weights[0].read(norm + at);
        weights[1].read(norm + half + at);
    }
    if (turns) {
        cosines.read(p.rope + static_cast<u64>(position) * width + at);
        sines.read(p.rope + static_cast<u64>(position) * width + half + at);
    }
    take_turn();
    T* row = static_cast<T*>(p.qkv) + (static_cast<u64>(token) * all + head) * width;
    Eight<T> numbers[2];
    float x[2][8], squares = 0.0f;
    if (there) {
        numbers[0].read(row + at);
        numbers[1].read(row + half + at);
    }
#pragma unroll
    for (u32 side = 0; side < 2; side++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            x[side][i] = there ? numbers[side].get(i) : 0.0f;
            if (biased) x[side][i] += bias[side].get(i);
            squares += x[side][i] * x[side][i];
        }
    if (p.q_norm != nullptr || p.k_norm != nullptr)
        for (u32 other = lanes / 2; other > 0; other /= 2) squares += shuffle_xor(squares, other);
    if (!there || slot == NONE) return;
    const float scale = 1.0f / sqrtf(squares / width + p.epsilon);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (normed) {
            x[0][i] *= scale * weights[0].get(i);
            x[1][i] *= scale * weights[1].get(i);
        }
        if (turns) {
            const float low = x[0][i], high = x[1][i];
            x[0][i] = low * cosines.get(i) - high * sines.get(i);
            x[1][i] = high * cosines.get(i) + low * sines.get(i);
        }
    }
    T* to = target(p, row, head, slot) + at;
#pragma unroll
    for (u32 side = 0; side < 2; side++) {
#pragma unroll
        for (u32 i = 0; i < 8; i += 2) numbers[side].set(i, x[side][i], x[side][i + 1]);
        numbers[side].write(to + side * half);
    }
}

// Heads of any even width up to 256: a warp has a head.
template <class T>
DEVICE void write_pairs(const KvWriteParams& p) {
    take_turn();
    const u32 head = blockIdx.x * WARPS + warp_of(threadIdx.x), token = blockIdx.y, lane = lane_of(threadIdx.x);
    const u32 all = p.heads + 2 * p.kv_heads, width = p.head_dim, half = width / 2;
    if (head >= all || p.slots[token] == NONE) return;
    T* row = static_cast<T*>(p.qkv) + (static_cast<u64>(token) * all + head) * width;
    float low[PAIRS], high[PAIRS];
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) {
        const u32 at = lane + i * WARP;
        low[i] = high[i] = 0.0f;
        if (at < half) {
            low[i] = Number<T>::widen(row[at]);
            high[i] = Number<T>::widen(row[at + half]);
            if (p.bias != nullptr) {
                low[i] += p.bias[head * width + at];
                high[i] += p.bias[head * width + at + half];
            }
            squares += low[i] * low[i] + high[i] * high[i];
        }
    }
    const float* norm = head < p.heads ? p.q_norm : p.k_norm;
    if (head < p.heads + p.kv_heads) {
        const float scale = norm != nullptr ? 1.0f / sqrtf(warp_sum(squares) / width + p.epsilon) : 1.0f;
        const float* cosines = p.rope + static_cast<u64>(p.positions[token]) * width;
#pragma unroll
        for (u32 i = 0; i < PAIRS; i++) {
            const u32 at = lane + i * WARP;
            if (at >= half) continue;
            if (norm != nullptr) {
                low[i] *= scale * norm[at];
                high[i] *= scale * norm[at + half];
            }
            const float x = low[i], y = high[i], c = cosines[at], s = cosines[at + half];
            low[i] = x * c - y * s;
            high[i] = y * c + x * s;
        }
    }
    T* to = target(p, row, head, p.slots[token]);
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) {
        const u32 at = lane + i * WARP;
        if (at >= half) continue;
        to[at] = Number<T>::round(low[i]);
        to[at + half] = Number<T>::round(high[i]);
    }
}

template <class T>
DEVICE void write(const KvWriteParams& p) {
    if (p.head_dim % 16 == 0)
        write_eights<T>(p);
    else
        write_pairs<T>(p);
}

// N consecutive numbers: eight at once, or one.
template <u32 N, class T>
DEVICE void read_run(const T* from, float (&x)[N]) {
    if constexpr (N == 8) {
        Eight<T> numbers;
        numbers.read(from);
#pragma unroll
        for (u32 i = 0; i < N; i++) x[i] = numbers.get(i);
    } else {
        x[0] = Number<T>::widen(*from);
    }
}

template <u32 N, class T>
DEVICE void write_run(T* to, const float (&x)[N]) {
    if constexpr (N == 8) {
        Eight<T> numbers;
#pragma unroll
        for (u32 i = 0; i < N; i += 2) numbers.set(i, x[i], x[i + 1]);
        numbers.write(to);
    } else {
        *to = Number<T>::round(x[0]);
    }
}

// N numbers of either half of a head, with their biases.
template <u32 N, class T>
DEVICE void read_sides(const KvWriteParams& p, const T* row, u32 first, float (&x)[2][N]) {
#pragma unroll
    for (u32 side = 0; side < 2; side++) {
        const u32 at = first + side * (p.head_dim / 2);
        read_run(row + at, x[side]);
        if (p.bias == nullptr) continue;
        float bias[N];
        read_run(p.bias + at, bias);
#pragma unroll
        for (u32 i = 0; i < N; i++) x[side][i] += bias[i];
    }
}

// Norms all query heads of a block's token together, and all of its key heads. A thread takes N pairs of a head at a time, the
// same ones when it adds up squares and when it writes.
template <class T, u32 N>
DEVICE void write_whole(const KvWriteParams& p, float* scratch) {
    const u32 token = blockIdx.x, slot = p.slots[token];
    if (slot == NONE) return;
    const u32 values = p.heads + p.kv_heads, all = values + p.kv_heads;
    const u32 width = p.head_dim, half = width / 2, runs = half / N;
    T* row = static_cast<T*>(p.qkv) + static_cast<u64>(token) * all * width;
    float x[2][N], squares[2] = {0.0f, 0.0f};
    for (u32 i = threadIdx.x; i < values * runs; i += WHOLE_THREADS) {
        const u32 head = i / runs;
        read_sides(p, row, head * width + i % runs * N, x);
        float sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < N; j++) sum += x[0][j] * x[0][j] + x[1][j] * x[1][j];
        if (head < p.heads)
            squares[0] += sum;
        else
            squares[1] += sum;
    }
    const auto scale_of = [&](float squares, u32 heads) {
        return 1.0f / sqrtf(block_sum(squares, scratch) / (heads * width) + p.epsilon);
    };
    const float query_scale = scale_of(squares[0], p.heads), key_scale = scale_of(squares[1], p.kv_heads);
    const float* rope = p.rope + static_cast<u64>(p.positions[token]) * width;
    for (u32 i = threadIdx.x; i < all * runs; i += WHOLE_THREADS) {
        const u32 head = i / runs, at = i % runs * N;
        read_sides(p, row, head * width + at, x);
        if (head < values) {
            const bool query = head < p.heads;
            const float scale = query ? query_scale : key_scale;
            const float* norm = (query ? p.q_norm + head * width : p.k_norm + (head - p.heads) * width) + at;
            float weights[2][N], cosines[N], sines[N];
            read_run(norm, weights[0]);
            read_run(norm + half, weights[1]);
            read_run(rope + at, cosines);
            read_run(rope + half + at, sines);
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                const float low = x[0][j] * (scale * weights[0][j]), high = x[1][j] * (scale * weights[1][j]);
                x[0][j] = low * cosines[j] - high * sines[j];
                x[1][j] = high * cosines[j] + low * sines[j];
            }
        }
        T* to = target(p, row + head * width, head, slot) + at;
        write_run(to, x[0]);
        write_run(to + half, x[1]);
    }
}

template <class T>
DEVICE void write_whole(const KvWriteParams& p, float* scratch) {
    if (p.head_dim % 16 == 0)
        write_whole<T, 8>(p, scratch);
    else
        write_whole<T, 1>(p, scratch);
}

}  // namespace kv_write

EARLY_KERNEL(kv_write_float, KvWriteParams, kv_write::WARPS * WARP) { kv_write::write<float>(p); }
EARLY_KERNEL(kv_write_bf16, KvWriteParams, kv_write::WARPS * WARP) { kv_write::write<bf16>(p); }
EARLY_KERNEL(kv_write_f16, KvWriteParams, kv_write::WARPS * WARP) { kv_write::write<f16>(p); }

#define KV_WRITE_WHOLE(T)                                                                    \
    KERNEL(kv_write_whole_##T, KvWriteParams, kv_write::WHOLE_THREADS) {                     \
        SHARED_MEMORY(shared);                                                               \
        kv_write::write_whole<T>(p, reinterpret_cast<float*>(shared));                       \
    }
KV_WRITE_WHOLE(float)
KV_WRITE_WHOLE(bf16)
KV_WRITE_WHOLE(f16)
