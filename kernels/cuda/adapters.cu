// What adapters (LoRA) add to a product, for the rows of a batch that have one: y[row] += scale * B (A x[row]). Two kernels, as A
// has few outputs, which all of B's need: `shrink` computes A x of each row, in slices of the inputs so that a decode's few rows
// are work for many blocks, and `expand` adds the slices' sums in order, multiplies them by B and updates y.
//
// Rows are listed by adapter, by the host, which knows them, and cut into tiles of up to 16 rows (64 if they are many), of which
// a block reads each weight once. Rows without an adapter are in no list and cost nothing. A batch of few rows is launched with
// as many tiles as any adapters of so many rows need, so that launches depend on the number of rows alone; blocks of tiles beyond
// the listed ones end at once, as do those of an adapter that adds nothing to this product.
//
// An input is summed in an order that depends on its place and on the length of a slice only, which --deterministic fixes. Sums
// of A x are rounded to the type of the weights before B, as on the CPU. What is added to a row of y is rounded with it.
//
// Two forms: of `mma.sync`, whose tiles have the batch's rows as their rows; and `plain` for any type and width.
//
// Versions. 1 (this one): in decodes the chain of reads from the list to the first weights is before `wait_turn`, as none of it
// is written by a kernel. Prompts read x once for each 32 ranks of A, without shared memory.
// Measurements: none; not measured on a GPU. Limit: launch latency at decode; L2 bandwidth (y is read and written, x read) in
// prompts.
#include "device.cuh"

// Of one of the projections stacked in a product.
struct AdapterPart {
    const void* wide;      // B: [outputs][rank]
    u32 first;             // The projection's first output in the product. Even, as `outputs`, but for `plain`.
    u32 outputs;           // 0: no part.
    u32 rank;              // A multiple of 8, to which A and B are filled up with zeros.
    float scale;
};

// What an adapter adds to a product.
struct AdapterDelta {
    const void* narrow;    // A of all parts, stacked in their order: [ranks][inputs]
    u32 ranks;             // Of all parts; 0: it adds nothing.
    u32 unused;
    AdapterPart parts[3];
};

struct AdaptersParams {
    const void* x;         // [row][inputs]
    void* y;               // [row][outputs], updated.
    const AdapterDelta* deltas;  // [adapter]. They and their weights are read before `wait_turn`.
    float* narrow;         // [slice][place][stride]
    const u32* places;     // [place]: rows that have adapters, by adapter.
    const u32* tiles;      // [tile][4]: adapter (NONE: no tile), first place, number of places, 0.
    u32 inputs;
    u32 outputs;
    u32 stride;            // A multiple of 8, at least the ranks of any adapter.
    u32 room;              // Places that `narrow` has room for.
    u32 slice;             // Inputs of a slice, a multiple of a turn's.
    u32 slices;
};

namespace adapters {

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 PARTS = 3;
// Consecutive inputs that a fragment of each warp multiplies.
constexpr u32 STEP = 32;
// Those of all warps.
constexpr u32 TURN = WARPS * STEP;
// Outputs of a block of `expand`.
constexpr u32 LINES = 128;
// Ranks that `expand` multiplies at a time.
constexpr u32 RANKS = 64;

struct Tile {
    u32 adapter;
    u32 first;
    u32 count;
};

// The host wrote them.
DEVICE Tile tile_of(const AdaptersParams& p) {
    const u32* words = p.tiles + 4 * blockIdx.y;
    return {load_early(words), load_early(words + 1), load_early(words + 2)};
}

// A part's outputs that a block of `expand` has, and where its ranks begin among all.
struct Share {
    u32 part;                  // PARTS: none.
    u32 line;
    u32 offset;
};

DEVICE Share share_of(const AdapterDelta& delta) {
    u32 block = blockIdx.x, offset = 0;
    for (u32 i = 0; i < PARTS; i++) {
        const AdapterPart& part = delta.parts[i];
        const u32 blocks = (part.outputs + LINES - 1) / LINES;
        if (block < blocks) return {i, block * LINES, offset};
        block -= blocks;
        offset += part.rank;
    }
    return {PARTS, 0, 0};
}

// Where the sums of a place are, of the first slice.
DEVICE float* sums_of(const AdaptersParams& p, u32 place) { return p.narrow + static_cast<u64>(place) * p.stride; }
DEVICE u64 slice_stride(const AdaptersParams& p) { return static_cast<u64>(p.room) * p.stride; }

// Eight numbers of 16 bits from `at` on of a row of `width`, or zeros from `end` on and where there is no row (NONE).
template <class T>
DEVICE Words4 read_or_zeros(const T* rows, u32 row, u32 width, u32 at, u32 end) {
    if (row == NONE || at >= end) return Words4{{0, 0, 0, 0}};
    return *reinterpret_cast<const Words4*>(rows + static_cast<u64>(row) * width + at);
}

// `sums += a * b` for 32 consecutive columns of each, of which a lane has eight; a's rows are `low` and `high`.
template <class T>
DEVICE void multiply(float (&sums)[4], const Words4& low, const Words4& high, const Words4& b) {
    const Fragment even = {{low.w[0], high.w[0], low.w[1], high.w[1]}};
    const Fragment odd = {{low.w[2], high.w[2], low.w[3], high.w[3]}};
    Number<T>::multiply(sums, even, b.w[0], b.w[1]);
    Number<T>::multiply(sums, odd, b.w[2], b.w[3]);
}

// TALL: fragments of 16 rows. WIDE: of 8 ranks, an even number. AHEAD: turns that are read at once.
template <class T, u32 TALL, u32 WIDE, u32 AHEAD>
DEVICE void shrink(const AdaptersParams& p, unsigned char* shared) {
    constexpr u32 ROWS = TALL * 16;
    // Sums of two fragments of ranks, so that those of all warps fit; padded against bank conflicts.
    constexpr u32 PAIR = 16, PADDED = PAIR + 8;
    let_next_start();
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 slice = blockIdx.x % p.slices, first = blockIdx.x / p.slices * (WIDE * 8);
    const Tile tile = tile_of(p);
    const u32 ranks = tile.adapter != NONE ? p.deltas[tile.adapter].ranks : 0;
    if (first >= ranks) return wait_turn();
    const u32 start = slice * p.slice, left = p.inputs - start, end = start + (left < p.slice ? left : p.slice);
    const T* narrow = static_cast<const T*>(in_global(p.deltas[tile.adapter].narrow));
    // Of which lines of A and rows of x a lane reads: indexes take fewer registers than addresses.
    u32 lines[WIDE], rows[TALL * 2];
#pragma unroll
    for (u32 n = 0; n < WIDE; n++) lines[n] = first + n * 8 < ranks ? first + n * 8 + lane / 4 : NONE;
#pragma unroll
    for (u32 i = 0; i < TALL * 2; i++) {
        const u32 row = i * 8 + lane / 4;
        rows[i] = row < tile.count ? load_early(p.places + tile.first + row) : NONE;
    }
    float sums[TALL][WIDE][4];
    for (u32 i = 0; i < TALL; i++)
        for (u32 n = 0; n < WIDE; n++)
            for (u32 j = 0; j < 4; j++) sums[i][n][j] = 0.0f;
    bool waited = false;
    for (u32 from = start; from < end; from += TURN * AHEAD) {
        const auto input_of = [&](u32 turn) { return from + turn * TURN + warp * STEP + lane % 4 * 8; };
        const auto read = [&](const T* of, u32 row, u32 turn) {
            return read_or_zeros(of, row, p.inputs, input_of(turn), end);
        };
        // Of two fragments of rows at a time: more don't fit the registers beside the sums.
        constexpr u32 SOME = TALL < 2 ? TALL : 2;
        Words4 b[AHEAD][WIDE];
#pragma unroll
        for (u32 turn = 0; turn < AHEAD; turn++)
#pragma unroll
            for (u32 n = 0; n < WIDE; n++) b[turn][n] = read(narrow, lines[n], turn);
        if (!waited) wait_turn();
        waited = true;
#pragma unroll
        for (u32 above = 0; above < TALL; above += SOME) {
            // The same for all warps, as below.
            if (above * 16 >= tile.count) break;
            Words4 a[AHEAD][SOME * 2];
#pragma unroll
            for (u32 turn = 0; turn < AHEAD; turn++)
#pragma unroll
                for (u32 i = 0; i < SOME * 2; i++)
                    a[turn][i] = read(static_cast<const T*>(p.x), rows[above * 2 + i], turn);
            fence_loads();
#pragma unroll
            for (u32 turn = 0; turn < AHEAD; turn++)
#pragma unroll
                for (u32 i = 0; i < SOME; i++)
#pragma unroll
                    for (u32 n = 0; n < WIDE; n++)
                        if (first + n * 8 < ranks)
                            multiply<T>(sums[above + i][n], a[turn][2 * i], a[turn][2 * i + 1], b[turn][n]);
        }
    }
    float* all = reinterpret_cast<float*>(shared);
    const auto sum_at = [&](u32 w, u32 row, u32 rank) { return all + (w * ROWS + row) * PADDED + rank; };
#pragma unroll
    for (u32 n = 0; n < WIDE; n += 2) {
        if (first + n * 8 >= ranks) break;
        if (n > 0) sync_block();
#pragma unroll
        for (u32 i = 0; i < TALL; i++)
#pragma unroll
            for (u32 j = 0; j < 8; j++)
                *sum_at(warp, i * 16 + j % 4 / 2 * 8 + lane / 4, j / 4 * 8 + lane % 4 * 2 + j % 2) = sums[i][n + j / 4][j % 4];
        sync_block();
        for (u32 i = thread; i < tile.count * PAIR; i += THREADS) {
            const u32 row = i / PAIR, rank = i % PAIR;
            if (first + n * 8 + rank >= ranks) continue;
            float sum = 0.0f;
            for (u32 w = 0; w < WARPS; w++) sum += *sum_at(w, row, rank);
            sums_of(p, tile.first + row)[slice * slice_stride(p) + first + n * 8 + rank] = sum;
        }
    }
}

template <class T, u32 TALL>
DEVICE void expand(const AdaptersParams& p, unsigned char* shared) {
    // Fragments of 8 outputs of a warp, and numbers of a row in shared memory, padded against bank conflicts.
    constexpr u32 WIDE = LINES / WARPS / 8, PADDED = RANKS + 32, CHUNKS = RANKS / STEP;
    let_next_start();
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const Tile tile = tile_of(p);
    if (tile.adapter == NONE) return wait_turn();
    const Share share = share_of(p.deltas[tile.adapter]);
    if (share.part == PARTS) return wait_turn();
    const AdapterPart part = p.deltas[tile.adapter].parts[share.part];
    const T* wide = static_cast<const T*>(in_global(part.wide));
    float sums[TALL][WIDE][4];
    for (u32 i = 0; i < TALL; i++)
        for (u32 n = 0; n < WIDE; n++)
            for (u32 j = 0; j < 4; j++) sums[i][n][j] = 0.0f;
    u32* narrow = reinterpret_cast<u32*>(shared);
    for (u32 from = 0; from < part.rank; from += RANKS) {
        Words4 b[CHUNKS][WIDE];
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
            for (u32 n = 0; n < WIDE; n++) {
                const u32 line = share.line + (warp * WIDE + n) * 8 + lane / 4;
                const u32 rank = from + chunk * STEP + lane % 4 * 8;
                b[chunk][n] = read_or_zeros(wide, line < part.outputs ? line : NONE, part.rank, rank, part.rank);
            }
        if (from == 0) wait_turn();
        // The slices' sums, two numbers of a row in a word.
        for (u32 i = thread; i < TALL * 16 * RANKS / 2; i += THREADS) {
            const u32 row = i / (RANKS / 2), rank = i % (RANKS / 2) * 2;
            float low = 0.0f, high = 0.0f;
            if (row < tile.count && from + rank < part.rank) {
                const float* own = sums_of(p, tile.first + row) + share.offset + from + rank;
                for (u32 slice = 0; slice < p.slices; slice++, own += slice_stride(p)) {
                    const Words2 both = *reinterpret_cast<const Words2*>(own);
                    low += bits_to_float(both.w[0]);
                    high += bits_to_float(both.w[1]);
                }
            }
            narrow[row * (PADDED / 2) + rank / 2] = pack<T>(low, high);
        }
        sync_block();
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            // The same for all warps, as below.
            if (from + chunk * STEP >= part.rank) break;
            const T* at = reinterpret_cast<const T*>(shared) + lane / 4 * PADDED + chunk * STEP + lane % 4 * 8;
#pragma unroll
            for (u32 i = 0; i < TALL; i++) {
                if (i * 16 >= tile.count) break;
                const Words4 low = *reinterpret_cast<const Words4*>(at + i * 16 * PADDED);
                const Words4 high = *reinterpret_cast<const Words4*>(at + (i * 16 + 8) * PADDED);
#pragma unroll
                for (u32 n = 0; n < WIDE; n++) multiply<T>(sums[i][n], low, high, b[chunk][n]);
            }
        }
        if (from + RANKS < part.rank) sync_block();
    }
#pragma unroll
    for (u32 i = 0; i < TALL * 2; i++) {
        const u32 row = i * 8 + lane / 4;
        if (row >= tile.count) continue;
        const u64 token = p.places[tile.first + row];
        T* y = static_cast<T*>(p.y) + token * p.outputs + part.first;
#pragma unroll
        for (u32 n = 0; n < WIDE; n++) {
            const u32 line = share.line + (warp * WIDE + n) * 8 + lane % 4 * 2;
            if (line >= part.outputs) continue;
            // Both numbers are even ones' neighbours, so they are a word.
            u32* to = reinterpret_cast<u32*>(y + line);
            const u32 before = *to;
            const float low = Number<T>::widen(T{static_cast<u16>(before)});
            const float high = Number<T>::widen(T{static_cast<u16>(before >> 16)});
            const float* added = sums[i / 2][n] + i % 2 * 2;
            *to = pack<T>(low + part.scale * added[0], high + part.scale * added[1]);
        }
    }
}

namespace plain {

// Ranks of a block of `shrink`.
constexpr u32 GROUP = 16;
// Rows of a tile that `expand` takes at a time, and the outputs of a thread then.
constexpr u32 ROWS = 16;
constexpr u32 OWN = ROWS * LINES / THREADS;

// A warp has a rank of a row.
template <class T>
DEVICE void shrink(const AdaptersParams& p) {
    const Tile tile = tile_of(p);
    if (tile.adapter == NONE) return;
    const AdapterDelta& delta = p.deltas[tile.adapter];
    const u32 slice = blockIdx.x % p.slices, first = blockIdx.x / p.slices * GROUP;
    const u32 start = slice * p.slice, left = p.inputs - start, end = start + (left < p.slice ? left : p.slice);
    for (u32 i = warp_of(threadIdx.x); i < tile.count * GROUP; i += WARPS) {
        const u32 place = tile.first + i / GROUP, rank = first + i % GROUP;
        if (rank >= delta.ranks) continue;
        const T* x = static_cast<const T*>(p.x) + static_cast<u64>(p.places[place]) * p.inputs;
        const T* line = static_cast<const T*>(in_global(delta.narrow)) + static_cast<u64>(rank) * p.inputs;
        float sum = 0.0f;
        for (u32 input = start + lane_of(threadIdx.x); input < end; input += WARP)
            sum += Number<T>::widen(x[input]) * Number<T>::widen(line[input]);
        sum = warp_sum(sum);
        if (lane_of(threadIdx.x) == 0) sums_of(p, place)[slice * slice_stride(p) + rank] = sum;
    }
}

// A thread has an output of every other row.
template <class T>
DEVICE void expand(const AdaptersParams& p, float* narrow) {
    const Tile tile = tile_of(p);
    if (tile.adapter == NONE) return;
    const Share share = share_of(p.deltas[tile.adapter]);
    if (share.part == PARTS) return;
    const AdapterPart part = p.deltas[tile.adapter].parts[share.part];
    const u32 line = share.line + threadIdx.x % LINES, own_row = threadIdx.x / LINES;
    const T* wide = static_cast<const T*>(in_global(part.wide)) + static_cast<u64>(line) * part.rank;
    for (u32 above = 0; above < tile.count; above += ROWS) {
        float sums[OWN];
        for (u32 i = 0; i < OWN; i++) sums[i] = 0.0f;
        for (u32 from = 0; from < part.rank; from += RANKS) {
            sync_block();
            for (u32 i = threadIdx.x; i < ROWS * RANKS; i += THREADS) {
                const u32 row = above + i / RANKS, rank = from + i % RANKS;
                float sum = 0.0f;
                if (row < tile.count && rank < part.rank) {
                    const float* own = sums_of(p, tile.first + row) + share.offset + rank;
                    for (u32 slice = 0; slice < p.slices; slice++) sum += own[slice * slice_stride(p)];
                }
                narrow[i] = Number<T>::widen(Number<T>::round(sum));
            }
            sync_block();
            const u32 count = part.rank - from < RANKS ? part.rank - from : RANKS;
            for (u32 rank = 0; rank < count && line < part.outputs; rank++) {
                const float weight = Number<T>::widen(wide[from + rank]);
#pragma unroll
                for (u32 i = 0; i < OWN; i++) sums[i] += weight * narrow[(i * 2 + own_row) * RANKS + rank];
            }
        }
        for (u32 i = 0; i < OWN; i++) {
            const u32 row = above + i * 2 + own_row;
            if (row >= tile.count || line >= part.outputs) continue;
            const u64 token = p.places[tile.first + row];
            T* y = static_cast<T*>(p.y) + token * p.outputs + part.first + line;
            *y = Number<T>::round(Number<T>::widen(*y) + part.scale * sums[i]);
        }
    }
}

static_assert(THREADS == 2 * LINES, "threads take every other row");

}  // namespace plain
}  // namespace adapters

#define ADAPTERS_PLAIN(T)                                                                    \
    KERNEL(adapters_shrink_plain_##T, AdaptersParams, adapters::THREADS) {                   \
        adapters::plain::shrink<T>(p);                                                       \
    }                                                                                        \
    KERNEL(adapters_expand_plain_##T, AdaptersParams, adapters::THREADS) {                   \
        SHARED_MEMORY(shared);                                                               \
        adapters::plain::expand<T>(p, reinterpret_cast<float*>(shared));                     \
    }
// The last number of a name is that of a tile's fragments.
#define ADAPTERS_TILES(T, TALL, WIDE, AHEAD)                                                 \
    EARLY_KERNEL(adapters_shrink_##T##_##TALL, AdaptersParams, adapters::THREADS, 2, 2) {    \
        SHARED_MEMORY(shared);                                                               \
        adapters::shrink<T, TALL, WIDE, AHEAD>(p, shared);                                   \
    }                                                                                        \
    EARLY_KERNEL(adapters_expand_##T##_##TALL, AdaptersParams, adapters::THREADS, 2, 2) {    \
        SHARED_MEMORY(shared);                                                               \
        adapters::expand<T, TALL>(p, shared);                                                \
    }
#define ADAPTERS_TYPE(T)                                                                     \
    ADAPTERS_PLAIN(T)                                                                        \
    ADAPTERS_TILES(T, 1, 2, 4)                                                               \
    ADAPTERS_TILES(T, 4, 4, 1)
ADAPTERS_PLAIN(float)
ADAPTERS_TYPE(bf16)
ADAPTERS_TYPE(f16)
