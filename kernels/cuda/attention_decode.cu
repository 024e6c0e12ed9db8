// Paged attention for single tokens (decode). All contexts lie in a row, cut into units of 64 positions of one tile of query
// heads, and each block of four warps gets an equal share of the row, whatever the lengths: the end of one context, some whole
// ones, the beginning of another. Of a context that several blocks share, each writes its sums, and the one that ends last
// adds them up.
//
// The 16 rows of a tensor core product are query heads of one key head, so each key is read once for all of them. The four
// warps of a block take tiles of 16 positions in turn. The host fixes the number of blocks, so one captured graph serves any
// contexts: every block finds its share by adding up the lengths, before its turn comes.
//
// Versions. 1: keys and values went from memory straight into registers. nvcc sank each load to its use: 512 bytes a
// warp in flight for most of the time, 8 KB a multiprocessor. 2: two tiles a warp (one at 256 dimensions) pass through
// shared memory by cp.async; the next keys are requested before the softmax of the current ones. 3: a second kernel, which
// added up equal parts of each context, has 16 parts' numbers in flight, kept together by `fence_loads`; it read one after
// another. 4: the chain of words that leads to the first keys (token, position, table, block) is read before `take_turn`, later
// blocks a tile ahead, and when warps merge, rows are padded: 16 lanes met in a bank. 5: the softmax asks once per tile for a
// soft cap and for positions beyond the part, and queries lie in the order of fragments (attention.cuh).
// 6 (this one): shares of all contexts together, and no second kernel. Each context was cut into as many parts as fill the
// device once. 32 sequences with 8 key heads were 256 blocks of one part where 396 run at once, so most multiprocessors had
// two (58 % of the copy rate at 4,096); of sequences of different lengths the longest ran on alone; and at context 256 two
// thirds of the blocks had nothing to do and a part was 16 positions, which one warp took while three waited. The second
// kernel took 5 to 6 us of each layer of a step, of which the last block's sums should take 1 to 4 (estimated). At 256
// dimensions two blocks, not three, fit a multiprocessor, and nothing is spilled.
// Considered and not built: products with the heads as the 8 columns (half the registers for groups up to 8, but the
// weights then need a transpose); the next tiles in registers (126 + 64, two blocks); three stages (two blocks); the host
// computing shares (layers with windows of their own would need one each).
// Estimated, not measured: at 128 dimensions three blocks fit a multiprocessor (71 KB each), 12 warps with 12 to 16 KB
// in flight, 144 KB at least; at 64 dimensions four with 24 KB, at 256 two with 64 KB. An H200 needs 40 to 48 KB
// (product_few.cu). A warp's own chain for a tile (8 dependent products of keys, two shuffles, 8 KB) is some 800 clocks, so
// 12 warps could consume 120 bytes a clock, of which memory delivers 13 (H100).
// Measurements of version 5 (H200, bf16, of the copy rate): 128 dimensions, context 16,384: 80 % at batch 256, 68 % at 32, 44 %
// at 1; at context 256 and batch 1 both kernels took 10 to 16 us (README.md). Version 6 has not been measured.
// Registers and spills: README.md. Limit: memory bandwidth (each key and value is read once).
#include "attention.cuh"

namespace decode {

constexpr u32 WARPS = 4;
constexpr u32 TILE = 16;
constexpr u32 ROWS = 16;

// Positions that a block's warps take at once: contexts are cut between them.
constexpr u32 UNIT = WARPS * TILE;
constexpr u32 THREADS = WARPS * WARP;

// Tiles that a warp has in flight: as many as let at least two blocks share 227 KB (and one fit 99 KB).
DEVICE constexpr u32 stages(u32 head_dim) { return head_dim > 128 ? 1 : 2; }

// A lane's share of a tile's keys or values in shared memory: the words that it reads, in reading order. The lane
// copied them itself, so warps need no barrier and rows no padding.
template <class T, u32 D>
struct Share {
    static constexpr u32 BYTES = TILE * D * sizeof(T);
    unsigned char* next;
    u32 lane;

    template <u32 WORDS>
    DEVICE unsigned char* take() {
        unsigned char* at = next + lane * 4 * WORDS;
        next += WARP * 4 * WORDS;
        return at;
    }
    template <u32 WORDS>
    DEVICE void copy(const T* from, bool there, const u32 (&)[WORDS]) { copy_async<4 * WORDS>(take<WORDS>(), from, there); }
    template <u32 WORDS>
    DEVICE void read(u32 (&words)[WORDS]) { read_words(reinterpret_cast<const T*>(take<WORDS>()), words); }
};

// What a block computes at a time: some positions of a context, for the query heads of one tile.
struct Piece {
    u32 item;
    u32 token;
    u32 tile;      // Of heads: [key head][tile of its query heads].
    u32 begin;     // Positions.
    u32 end;
    u32 index;     // Among the pieces of this context and tile, each of which has a place in `partial` if there are several.
    u32 pieces;
    u32 places[3]; // Of the first piece, and of piece i > 0: the second number plus i times the third.

    DEVICE u64 place(u32 i) const { return i == 0 ? places[0] : places[1] + static_cast<u64>(i) * places[2]; }
};

// An item's token, and its context in units.
struct Context {
    u32 token;
    u32 length;
    u32 first;     // First visible position.
    u32 start;     // Of the first unit that has visible positions.
    u32 units;

    // Padding has no units. What this reads, no kernel writes.
    DEVICE Context(const AttentionParams& p, u32 item) : token(load_early(p.items + item)) {
        length = token != NONE ? load_early(p.positions + token) + 1 : 0;
        first = first_seen(p, length - 1);
        start = first / UNIT * UNIT;
        units = (length - start + UNIT - 1) / UNIT;
    }
};

// All units of all tiles and contexts in a row, of which each block gets its share: as many as the others, or one more.
struct Shares {
    u32 least;
    u32 more;      // Blocks that get one more, the first ones.

    DEVICE Shares(u32 units, u32 blocks) : least(units / blocks), more(units % blocks) {}
    DEVICE u32 start(u32 block) const { return block * least + (block < more ? block : more); }
    DEVICE u32 block_of(u32 unit) const {
        const u32 longer = more * (least + 1);
        return unit < longer ? unit / (least + 1) : more + (unit - longer) / least;
    }
};

// Pieces of a block, in order. All threads of the block construct it; the rest each does alone. `scratch`: a word per warp and
// two more, not to be written before the next barrier.
struct Agenda {
    u32 tiles;
    u32 unit;      // The next one, and the end of the block's share.
    u32 end;
    u32 item;      // The one that is due or a later one, and the first unit of its context.
    u32 base;
    Shares shares;

    // `least`: units that a block gets at least, if there are as many.
    DEVICE Agenda(const AttentionParams& p, u32 tiles, u32 least, u32* scratch)
        : tiles(tiles), unit(0), end(0), item(0), base(0), shares(0, 1) {
        if (p.part_tokens != 0) {
            end = 1;
            return;
        }
        // Each thread adds up some items, and the threads before it.
        const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
        const u32 some = (p.count + THREADS - 1) / THREADS, from = thread * some;
        const u32 to = from + some < p.count ? from + some : p.count;
        u32 own = 0;
        for (u32 i = from; i < to; i++) own += Context(p, i).units;
        u32 before = 0, sum = own;
#pragma unroll
        for (u32 lanes = 1; lanes < WARP; lanes *= 2) {
            const u32 other = shuffle_xor(sum, lanes);
            if ((lane & lanes) != 0) before += other;
            sum += other;
        }
        if (lane == 0) scratch[warp] = sum;
        sync_block();
        sum = 0;
        for (u32 i = 0; i < WARPS; i++) {
            if (i < warp) before += scratch[i];
            sum += scratch[i];
        }
        const u32 most = sum * tiles / least, blocks = most < gridDim.x ? (most > 0 ? most : 1) : gridDim.x;
        if (blockIdx.x >= blocks || sum == 0) return;
        shares = Shares(sum * tiles, blocks);
        unit = shares.start(blockIdx.x);
        end = shares.start(blockIdx.x + 1);
        // One of them has the block's first unit.
        u32 first = before * tiles;
        if (unit >= first && unit < first + own * tiles)
            for (u32 i = from; i < to; i++) {
                const u32 units = Context(p, i).units * tiles;
                if (unit < first + units) {
                    scratch[WARPS] = i;
                    scratch[WARPS + 1] = first;
                    break;
                }
                first += units;
            }
        sync_block();
        item = scratch[WARPS];
        base = scratch[WARPS + 1];
    }

    DEVICE bool next(const AttentionParams& p, Piece& piece) {
        if (unit == end) return false;
        if (p.part_tokens != 0) {
            unit = end;
            return fixed(p, piece);
        }
        Context context(p, item);
        while (unit - base >= context.units * tiles) {
            base += context.units * tiles;
            context = Context(p, ++item);
        }
        const u32 tile = (unit - base) / context.units, from = (unit - base) % context.units, start = unit - from;
        const u32 to = end - start < context.units ? end - start : context.units;
        const u32 first = shares.block_of(start), last = shares.block_of(start + context.units - 1);
        // A block's share may end one context and begin another, so it has two places.
        piece = {item, context.token, tile, 0, 0, blockIdx.x - first, last - first + 1, {2 * first + 1, 2 * first, 2}};
        see(context, context.start + from * UNIT, context.start + to * UNIT, piece);
        unit = start + to;
        return true;
    }

    // A part of a fixed number of tokens from position 0 on: a row's sums depend on nothing else.
    DEVICE bool fixed(const AttentionParams& p, Piece& piece) const {
        const Context context(p, blockIdx.z);
        const u32 size = p.part_tokens, first = context.first / size, parts = (context.length + size - 1) / size;
        const u32 place = (blockIdx.z * tiles + blockIdx.y) * gridDim.x + first;
        piece = {blockIdx.z, context.token, blockIdx.y, 0, 0, blockIdx.x - first, parts - first, {place, place, 1}};
        see(context, blockIdx.x * size, (blockIdx.x + 1) * size, piece);
        return piece.begin < piece.end;
    }

    static DEVICE void see(const Context& context, u32 begin, u32 end, Piece& piece) {
        piece.begin = begin > context.first ? begin : context.first;
        piece.end = end < context.length ? end : context.length;
    }
};

// Tiles of a key head's query heads.
DEVICE u32 row_tiles(const AttentionParams& p) { return (p.heads / p.kv_heads + ROWS - 1) / ROWS; }

// Where a row's sums of a piece are: D numbers, then the largest score and the total weight. Padded to 16 bytes.
template <u32 D>
DEVICE float* sums_at(const AttentionParams& p, u64 place, u32 row) {
    const u32 group = p.heads / p.kv_heads, rows = group < ROWS ? group : ROWS;
    return p.partial + (place * rows + row) * (D + 4);
}

// Adds up the pieces of `rows` rows in order, so that the bits don't depend on which of them ended last.
template <class T, u32 D>
DEVICE void add_pieces(const AttentionParams& p, const Piece& piece, u32 rows, T* out, float* scratch) {
    const u32 thread = threadIdx.x, lane = lane_of(thread);
    for (u32 row = warp_of(thread); row < rows; row += WARPS) {
        float most = negative_infinity(), sum = 0.0f;
        for (u32 i = lane; i < piece.pieces; i += WARP) most = larger(most, sums_at<D>(p, piece.place(i), row)[D]);
        for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) most = larger(most, shuffle_xor(most, lanes));
        for (u32 i = lane; i < piece.pieces; i += WARP) {
            const float* sums = sums_at<D>(p, piece.place(i), row);
            sum += sums[D + 1] * exp2_fast(sums[D] - most);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            scratch[row] = most;
            scratch[ROWS + row] = sum;
        }
    }
    sync_block();
    // Pieces in flight at once, since each load goes to the L2 cache, and a thread's numbers: with four query heads of a key
    // head the fewest for which no thread is left over.
    constexpr u32 TOGETHER = 16, WIDE = D >= 128 ? 4 : 2, COLUMNS = D / WIDE;
    for (u32 from = 0; from < rows * COLUMNS; from += THREADS) {
        // `fence_loads` needs whole warps: threads past the end repeat the last column, and don't store it.
        const u32 own = from + thread, at = own < rows * COLUMNS ? own : rows * COLUMNS - 1;
        const u32 row = at / COLUMNS, column = at % COLUMNS * WIDE;
        float sums[WIDE];
        for (u32 k = 0; k < WIDE; k++) sums[k] = 0.0f;
        for (u32 i = 0; i < piece.pieces; i += TOGETHER) {
            u32 numbers[TOGETHER][WIDE];
            float largest[TOGETHER];
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) {
                const float* from = sums_at<D>(p, piece.place(i + j < piece.pieces ? i + j : piece.pieces - 1), row);
                read_words(from + column, numbers[j]);
                largest[j] = from[D];
            }
            fence_loads();
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) {
                const float weight = i + j < piece.pieces ? exp2_fast(largest[j] - scratch[row]) : 0.0f;
#pragma unroll
                for (u32 k = 0; k < WIDE; k++) sums[k] += bits_to_float(numbers[j][k]) * weight;
            }
        }
        const float total = scratch[ROWS + row];
        u32 words[WIDE / 2];
        for (u32 k = 0; k < WIDE; k += 2) words[k / 2] = pack<T>(sums[k] / total, sums[k + 1] / total);
        if (own == at) write_words(out + row * D + column, words);
    }
}

// A block's shared memory.
template <class T, u32 D>
struct Room {
    using Rows = Queries<T, D, ROWS, THREADS>;
    T* q;
    float* largest;             // Of each warp's rows; also words that only some threads know.
    float* total;
    unsigned char* tiles;

    DEVICE explicit Room(unsigned char* shared)
        : q(reinterpret_cast<T*>(shared)),
          largest(reinterpret_cast<float*>(shared + Rows::NUMBERS * sizeof(T))),
          total(largest + WARPS * ROWS),
          tiles(reinterpret_cast<unsigned char*>(total + WARPS * ROWS)) {}
};

// Computes a piece. `waited`: whether `take_turn` was called.
template <class T, u32 D>
DEVICE void attend(const AttentionParams& p, const Piece& piece, const Room<T, D>& room, bool& waited) {
    constexpr u32 STAGES = stages(D);
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 group = p.heads / p.kv_heads, tiles = row_tiles(p);
    const u32 begin = piece.begin, end = piece.end;
    const u32 kv_head = piece.tile / tiles, first_row = piece.tile % tiles * ROWS;
    const u32 rows = group - first_row < ROWS ? group - first_row : ROWS;
    const u32 first_head = kv_head * group + first_row;
    const u32* table = p.blocks + load_early(p.tables + piece.token);
    const bool whole_tiles = p.block_size % TILE == 0;
    // A tile's block, if tiles lie within blocks.
    const auto has_block = [&](u32 tile) { return whole_tiles && tile * TILE < end; };
    const auto entry = [&](u32 tile) { return tile * TILE / p.block_size; };
    u32 tile = begin / TILE + warp;
    u32 blocks[STAGES];
#pragma unroll
    for (u32 stage = 0; stage < STAGES; stage++) {
        const u32 at = tile + stage * WARPS;
        blocks[stage] = has_block(at) ? load_early(table + entry(at)) : 0;
    }
    if (!waited) take_turn();
    waited = true;

    const T* source = static_cast<const T*>(p.q) + static_cast<u64>(piece.token) * p.q_stride + first_head * D;
    typename Room<T, D>::Rows queries;
    queries.read([&](u32 row, u32 dimension) { return row < rows ? source + row * D + dimension : nullptr; });

    const auto share = [&](u32 stage, u32 values) {
        return Share<T, D>{room.tiles + ((warp * STAGES + stage) * 2 + values) * Share<T, D>::BYTES, lane};
    };
    // Locates this lane's numbers of a tile, `block` being the tile's if it lies in one; `position_of` gives the lane's
    // i-th position. Past the end nothing is copied, but the group is still committed.
    const auto locate = [&](u32 tile, u32 block, auto& at, auto& there, auto position_of) {
        const u32 start = tile * TILE;
        const u64 tile_index = pool_index(p, entry(tile), block, kv_head, start, D);
#pragma unroll
        for (u32 i = 0; i < sizeof(there) / sizeof(there[0]); i++) {
            const u32 position = start + position_of(i);
            there[i] = position >= begin && position < end;
            at[i] = !there[i]      ? 0
                    : whole_tiles ? tile_index + position_of(i) * D
                                  : pool_index(p, table, kv_head, position, D);
        }
    };
    const auto start_keys = [&](u32 tile, u32 block, u32 stage) {
        if (tile * TILE < end) {
            u64 at[2];
            bool there[2];
            locate(tile, block, at, there, [&](u32 i) { return key_position(lane, i); });
            Share<T, D> to = share(stage, 0);
            each_key<D, 2>(lane, [&](u32 i, u32 dimension, const auto& words) {
                to.copy(static_cast<const T*>(p.keys) + at[i] + (there[i] ? dimension : 0), there[i], words);
            });
        }
        commit_copies();
    };
    const auto start_values = [&](u32 tile, u32 block, u32 stage) {
        if (tile * TILE < end) {
            u64 at[4];
            bool there[4];
            locate(tile, block, at, there, [&](u32 i) { return value_position(lane, i); });
            Share<T, D> to = share(stage, 1);
            each_value<D>(lane, [&](u32 i, u32 dimension, const auto& words) {
                to.copy(static_cast<const T*>(p.values) + at[i] + (there[i] ? dimension : 0), there[i], words);
            });
        }
        commit_copies();
    };
#pragma unroll
    for (u32 stage = 0; stage < STAGES; stage++) {
        start_keys(tile + stage * WARPS, blocks[stage], stage);
        start_values(tile + stage * WARPS, blocks[stage], stage);
    }
    queries.store(room.q);
    sync_block();

    Rows16<T, D> rows_here[1];
    Rows16<T, D>& sums = rows_here[0];
    sums.clear();
    for (u32 stage = 0; tile * TILE < end; tile += WARPS, stage = (stage + 1) % STAGES) {
        // Requested before it is needed.
        const u32 next = tile + STAGES * WARPS;
        const u32 block = has_block(next) ? load_now(table + entry(next)) : 0;
        float scores[1][2][4];
        wait_copies<2 * STAGES - 1>();
        Share<T, D> keys = share(stage, 0);
        products<T, D>(room.q, lane, scores, [&](u32, u32, auto& words) { keys.read(words); });
        start_keys(next, block, stage);
        if (p.soft_cap > 0.0f) cap(p, scores[0]);
        if (tile * TILE < begin || tile * TILE + TILE > end) {
#pragma unroll
            for (u32 n = 0; n < 2; n++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const u32 position = tile * TILE + n * 8 + lane % 4 * 2 + j % 2;
                    if (position < begin || position >= end) scores[0][n][j] = negative_infinity();
                }
        }
        sums.template soften<2>(scores[0], score_factor(p));
        wait_copies<2 * STAGES - 1>();
        Share<T, D> values = share(stage, 1);
        add_values(rows_here, scores, 0, lane, [&](u32, u32, auto& words) { values.read(words); });
        start_values(next, block, stage);
    }
    // Reuses the tiles' memory once all warps are done with it. In a warp's store two lanes meet in a bank, mostly t and t + 2
    // of a row (four lanes in the last 16 of 80 dimensions).
    constexpr u32 STRIDE = D + 2;
    static_assert(ROWS * STRIDE * sizeof(float) <= 2 * WARPS * STAGES * Share<T, D>::BYTES, "sums fit the tiles' memory");
    float* merged = reinterpret_cast<float*>(room.tiles);

    // Warps add their sums in a fixed order.
    float *const largest = room.largest, *const total = room.total;
    if (lane % 4 == 0)
        for (u32 half = 0; half < 2; half++) {
            largest[warp * ROWS + half * 8 + lane / 4] = sums.largest[half];
            total[warp * ROWS + half * 8 + lane / 4] = sums.total[half];
        }
    sync_block();
    float shrink[2];
    for (u32 half = 0; half < 2; half++) {
        const u32 row = half * 8 + lane / 4;
        float most = largest[row];
        for (u32 i = 1; i < WARPS; i++) most = larger(most, largest[i * ROWS + row]);
        shrink[half] = sums.largest[half] == negative_infinity() ? 0.0f : exp2_fast(sums.largest[half] - most);
    }
    for (u32 turn = 0; turn < WARPS; turn++) {
        if (warp == turn)
            sums.each(lane, [&](u32 half, u32 dimension, float sum) {
                const u32 row = half * 8 + lane / 4;
                if (row >= rows) return;
                float* place = merged + row * STRIDE + dimension;
                *place = turn == 0 ? sum * shrink[half] : *place + sum * shrink[half];
            });
        sync_block();
    }
    T* out = static_cast<T*>(p.out) + (static_cast<u64>(piece.token) * p.heads + first_head) * D;
    for (u32 i = thread; i < rows * D; i += THREADS) {
        const u32 row = i / D, dimension = i % D;
        float most = largest[row], sum = 0.0f;
        for (u32 w = 1; w < WARPS; w++) most = larger(most, largest[w * ROWS + row]);
        for (u32 w = 0; w < WARPS; w++)
            if (largest[w * ROWS + row] > negative_infinity())
                sum += total[w * ROWS + row] * exp2_fast(largest[w * ROWS + row] - most);
        const float own = merged[row * STRIDE + dimension];
        if (piece.pieces == 1) {
            out[i] = Number<T>::round(own / sum);
        } else {
            float* part = sums_at<D>(p, piece.place(piece.index), row);
            part[dimension] = own;
            if (dimension < 2) part[D + dimension] = dimension == 0 ? most : sum;
        }
    }
    sync_block();
    if (piece.pieces == 1) return;
    // The block that ends last adds up what all wrote: each writes, meets this barrier, then takes a ticket.
    u32* is_last = reinterpret_cast<u32*>(largest);
    if (thread == 0) {
        const u32 last = piece.pieces - 1;
        *is_last = take_ticket(p.tickets + piece.item * p.kv_heads * tiles + piece.tile, last) == last ? 1 : 0;
    }
    sync_block();
    if (*is_last != 0) add_pieces<T, D>(p, piece, rows, out, total);
    sync_block();
}

template <class T, u32 D>
DEVICE void work(const AttentionParams& p, unsigned char* shared) {
    const Room<T, D> room(shared);
    // A block with few units has requested all of their keys and values once its warps took two turns.
    Agenda agenda(p, p.kv_heads * row_tiles(p), 2 * stages(D), reinterpret_cast<u32*>(room.largest));
    bool waited = false;
    for (Piece piece; agenda.next(p, piece);) attend<T, D>(p, piece, room, waited);
    if (!waited) take_turn();
}

}  // namespace decode

// BLOCKS: as in `blocks_at_once` of attention.rs.
#define DECODE(T, D, BLOCKS)                                                                 \
    EARLY_KERNEL(attention_decode_##T##_##D, AttentionParams, decode::THREADS, BLOCKS) {      \
        SHARED_MEMORY(shared);                                                               \
        decode::work<T, D>(p, shared);                                                     \
    }
#define DECODE_TYPE(T)                                                                       \
    DECODE(T, 32, 5)                                                                         \
    DECODE(T, 64, 4)                                                                         \
    DECODE(T, 80, 4)                                                                         \
    DECODE(T, 96, 4)                                                                         \
    DECODE(T, 128, 3)                                                                        \
    DECODE(T, 256, 2)
DECODE_TYPE(bf16)
DECODE_TYPE(f16)
