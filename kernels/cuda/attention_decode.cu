// Paged attention for single tokens (decode). All contexts lie in a row, cut into units of 64 positions of one tile of query
// heads, and each block of four warps gets an equal share of the row, whatever the lengths: the end of one context, some whole
// ones, the beginning of another. Of a context that several blocks share, each writes its sums, and the one that ends last
// adds them up.
//
// The 16 rows of a tensor core product are query heads of one key head, so each key is read once for all of them. The four
// warps of a block take tiles of 16 positions in turn. The host fixes the number of blocks, so one captured graph serves any
// contexts: every block finds its share by adding up the lengths, before its turn comes.
//
// Work begins before the block's turn (device.cuh): the words that lead to the first keys, and then these and their values,
// as far as earlier steps wrote them. Only queries, and the step's own keys and values, have to wait.
//
// Versions. 1: keys and values went from memory straight into registers. nvcc sank each load to its use: 512 bytes a
// warp in flight for most of the time, 8 KB a multiprocessor. 2: two tiles a warp (one at 256 dimensions) pass through
// shared memory by cp.async; the next keys are requested before the softmax of the current ones. 3: a second kernel, which
// added up equal parts of each context, has 16 parts' numbers in flight, kept together by `fence_loads`; it read one after
// another. 4: the chain of words that leads to the first keys (token, position, table, block) is read before the turn, later
// blocks a tile ahead, and when warps merge, rows are padded: 16 lanes met in a bank. 5: the softmax asks once per tile for a
// soft cap and for positions beyond the part, and queries lie in the order of fragments (attention.cuh).
// 6 (this one): shares of all contexts together, and no second kernel. Each context was cut into as many parts as fill the
// device once. 32 sequences with 8 key heads were 256 blocks of one part where 396 run at once, so most multiprocessors had
// two (58 % of the copy rate at 4,096); of sequences of different lengths the longest ran on alone; and at context 256 two
// thirds of the blocks had nothing to do and a part was 16 positions, which one warp took while three waited. The second
// kernel took 5 to 6 us of each layer of a step, of which the last block's sums should take 1 to 4. At 256
// dimensions two blocks, not three, fit a multiprocessor, and little is spilled. Where many blocks have little to do, shares
// end where contexts do: cut blindly, a context of 257 to 320 tokens and 8 key heads was 10 shares, 6 of which began a second
// context from nothing, and all 8 contexts had pieces to add up. Keys are requested before the turn. Pieces are read once, not
// for the largest score first, and warps leave their sums side by side instead of adding to them in turns. A context's words
// are read once per block, a tile's block a turn before it is needed, and no tile divides by the block size. A tile's copies
// share one address, from which they lie at fixed distances: each had been computed from its position, five instructions.
// Considered and not built: products with the heads as the 8 columns (half the registers for groups up to 8, but the
// weights then need a transpose); the next tiles in registers (126 + 64, two blocks); three stages (two blocks); the host
// computing shares (layers with windows of their own would need one each).
// Estimated, not measured: at 128 dimensions three blocks fit a multiprocessor (71 KB each), 12 warps with 12 to 16 KB
// in flight, 144 KB at least; at 64 dimensions four with 24 KB, at 256 two with 64 KB. An H200 needs 40 to 48 KB
// (product_few.cu). A warp's own chain for a tile (8 dependent products of keys, two shuffles, 8 KB) is some 800 clocks, so
// 12 warps could consume 120 bytes a clock, of which memory delivers 13 (H100).
// Sinks (attention.cuh) came later and have not been on a GPU: without them the end of a row has a branch more.
// Measurements (H200, bf16, of the copy rate): 128 dimensions, context 16,384: 82 % at batch 256, 80 % at 32 (68 % in version
// 5), 51 % at 1 (44 %); 64 dimensions 81, 77 and 41 %, 256 dimensions 79, 74 and 15 %. At context 256 and batch 1 it takes 6.2
// us (64 dimensions) to 7.0 (128), where both kernels of version 5 took 10 to 16.
// Registers and spills: README.md. Limit: memory bandwidth (each key and value is read once).
#include "attention_shares.cuh"

namespace decode {

constexpr u32 ROWS = 16;

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

// Tiles of a key head's query heads.
DEVICE u32 row_tiles(const AttentionParams& p) { return (p.heads / p.kv_heads + ROWS - 1) / ROWS; }

// Where a row's sums of a piece are: D numbers, then the largest score and the total weight. Padded to 16 bytes.
template <u32 D>
DEVICE float* sums_at(const AttentionParams& p, u64 place, u32 row) {
    const u32 group = p.heads / p.kv_heads, rows = group < ROWS ? group : ROWS;
    return p.partial + (place * rows + row) * (D + 4);
}

// Adds up the pieces of `rows` rows from this head on in order, so that the bits don't depend on which of them ended last.
template <class T, u32 D>
DEVICE void add_pieces(const AttentionParams& p, const Piece& piece, u32 first_head, u32 rows, T* out) {
    // Pieces in flight at once, since each load goes to the L2 cache, and a thread's numbers: with four query heads of a key
    // head the fewest for which no thread is left over.
    constexpr u32 TOGETHER = 16, WIDE = D >= 128 ? 4 : 2, COLUMNS = D / WIDE;
    for (u32 from = 0; from < rows * COLUMNS; from += THREADS) {
        // `fence_loads` needs whole warps: threads past the end repeat the last column, and don't store it.
        const u32 own = from + threadIdx.x, at = own < rows * COLUMNS ? own : rows * COLUMNS - 1;
        const u32 row = at / COLUMNS, column = at % COLUMNS * WIDE;
        float sums[WIDE], most = negative_infinity(), total = 0.0f;
        for (u32 k = 0; k < WIDE; k++) sums[k] = 0.0f;
        for (u32 i = 0; i < piece.pieces; i += TOGETHER) {
            // The last piece is repeated to fill up, with weight 0.
            u32 numbers[TOGETHER][WIDE], scale[TOGETHER][2];
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) {
                const float* from = sums_at<D>(p, piece.place(i + j < piece.pieces ? i + j : piece.pieces - 1), row);
                read_words(from + column, numbers[j]);
                read_words(from + D, scale[j]);
            }
            fence_loads();
            float here = most;
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) here = larger(here, bits_to_float(scale[j][0]));
            const float decay = exp2_fast(most - here);
            most = here;
            total *= decay;
#pragma unroll
            for (u32 k = 0; k < WIDE; k++) sums[k] *= decay;
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) {
                const float weight = i + j < piece.pieces ? exp2_fast(bits_to_float(scale[j][0]) - most) : 0.0f;
                total += bits_to_float(scale[j][1]) * weight;
#pragma unroll
                for (u32 k = 0; k < WIDE; k++) sums[k] += bits_to_float(numbers[j][k]) * weight;
            }
        }
        total += sink_weight(p, first_head + row, most);
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

// Where a warp's next tile is: in which entry of the block table, and how far into that block. Divides once, not per tile.
struct Cursor {
    u32 entry;
    u32 offset;
    u32 entries;   // A step of the block's warps.
    u32 rest;
    u32 block_size;

    DEVICE Cursor(u32 position, u32 block_size)
        : entry(position / block_size),
          offset(position % block_size),
          entries(UNIT / block_size),
          rest(UNIT % block_size),
          block_size(block_size) {}
    DEVICE void step() {
        entry += entries;
        offset += rest;
        if (offset < block_size) return;
        offset -= block_size;
        entry++;
    }
};

// Computes a piece. `waited`: whether `wait_turn` was called.
template <class T, u32 D>
DEVICE void attend(const AttentionParams& p, const Piece& piece, const Room<T, D>& room, bool& waited) {
    constexpr u32 STAGES = stages(D);
    const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
    const u32 group = p.heads / p.kv_heads, tiles = row_tiles(p);
    const u32 begin = piece.begin, end = piece.end;
    const u32 kv_head = piece.tile / tiles, first_row = piece.tile % tiles * ROWS;
    const u32 rows = group - first_row < ROWS ? group - first_row : ROWS;
    const u32 first_head = kv_head * group + first_row;
    const u32* table = p.blocks + piece.context.table;
    const bool whole_tiles = p.block_size % TILE == 0;
    u32 tile = begin / TILE + warp;

    // Of a tile, if it lies within a block: where its numbers begin in the pool.
    Cursor cursor(tile * TILE, p.block_size);
    const auto index_of = [&](u32 block, u32 offset) {
        return ((static_cast<u64>(block) * p.kv_heads + kv_head) * p.block_size + offset) * D;
    };
    u64 index[STAGES];
    u32 blocks[STAGES], offsets[STAGES];
#pragma unroll
    for (u32 stage = 0; stage < STAGES; stage++) {
        const u32 at = tile + stage * WARPS;
        blocks[stage] = whole_tiles && at * TILE < end ? load_early(table + cursor.entry) : 0;
        offsets[stage] = cursor.offset;
        cursor.step();
    }
#pragma unroll
    for (u32 stage = 0; stage < STAGES; stage++) index[stage] = index_of(blocks[stage], offsets[stage]);
    // The block of the tile behind these, which is read one turn ahead of its first use.
    const auto fetch = [&](u32 at) { return whole_tiles && at * TILE < end ? load_now(table + cursor.entry) : 0; };

    const auto share = [&](u32 stage, u32 values) {
        return Share<T, D>{room.tiles + ((warp * STAGES + stage) * 2 + values) * Share<T, D>::BYTES, lane};
    };
    // Copies this lane's share of a tile's keys or values: words at i-th positions, as `position_of` and `each` tell, of which
    // the first is of this dimension. Past the end nothing is copied, but the group is still committed. Within a block all
    // words lie at fixed distances from the first one, so nothing is computed for each, not even for a position that isn't
    // there: of that nothing is read.
    const auto start = [&](const void* pool, u32 tile, u64 index, Share<T, D> to, u32 first, auto position_of, auto each) {
        const u32 begins = tile * TILE;
        const auto is_there = [&](u32 i) { return begins + position_of(i) >= begin && begins + position_of(i) < end; };
        if (begins < end && whole_tiles) {
            const T* here = static_cast<const T*>(pool) + (position_of(0) * D + first) + index;
            each([&](u32 i, u32 dimension, const auto& words) {
                const int distance = static_cast<int>((position_of(i) - position_of(0)) * D + dimension - first);
                to.copy(here + distance, is_there(i), words);
            });
        } else if (begins < end) {
            each([&](u32 i, u32 dimension, const auto& words) {
                const u64 at = is_there(i) ? pool_index(p, table, kv_head, begins + position_of(i), D) + dimension : 0;
                to.copy(static_cast<const T*>(pool) + at, is_there(i), words);
            });
        }
        commit_copies();
    };
    const auto start_keys = [&](u32 tile, u64 index, u32 stage) {
        start(p.keys, tile, index, share(stage, 0), lane % 4 * 8, [&](u32 i) { return key_position(lane, i); },
              [&](auto visit) { each_key<D, 2>(lane, visit); });
    };
    const auto start_values = [&](u32 tile, u64 index, u32 stage) {
        start(p.values, tile, index, share(stage, 1), lane / 4 * (D >= 64 ? 8 : 4),
              [&](u32 i) { return value_position(lane, i); }, [&](auto visit) { each_value<D>(lane, visit); });
    };
    // A step writes at most `count` of a context's positions, the last ones. Tiles before these are requested before the turn,
    // where no copy goes through the L1 cache, which may have a line as it was.
    const auto is_settled = [&](u32 tile) { return D % 64 == 0 && whole_tiles && tile * TILE + TILE + p.count <= piece.context.length; };
    typename Room<T, D>::Rows queries;
    // The first time, if it isn't the block's turn yet, it requests what is settled, the second time all else.
    const bool early = !waited;
#pragma unroll 1
    for (u32 time = early ? 0 : 1; time < 2; time++) {
        if (time == 1) {
            if (early) wait_turn();
            waited = true;
            const T* source = static_cast<const T*>(p.q) + static_cast<u64>(piece.context.token) * p.q_stride + first_head * D;
            queries.read([&](u32 row, u32 dimension) { return row < rows ? source + row * D + dimension : nullptr; });
        }
#pragma unroll
        for (u32 stage = 0; stage < STAGES; stage++) {
            const u32 at = tile + stage * WARPS;
            if ((early && is_settled(at)) != (time == 0)) continue;
            start_keys(at, index[stage], stage);
            start_values(at, index[stage], stage);
        }
    }
    u32 block = fetch(tile + STAGES * WARPS);
    queries.store(room.q);
    sync_block();

    Rows16<T, D> rows_here[1];
    Rows16<T, D>& sums = rows_here[0];
    sums.clear();
    for (u32 stage = 0; tile * TILE < end; tile += WARPS, stage = (stage + 1) % STAGES) {
        const u32 next = tile + STAGES * WARPS;
        const u64 next_index = index_of(block, cursor.offset);
        cursor.step();
        block = fetch(next + WARPS);
        float scores[1][2][4];
        wait_copies<2 * STAGES - 1>();
        Share<T, D> keys = share(stage, 0);
        products<T, D>(room.q, lane, scores, [&](u32, u32, auto& words) { keys.read(words); });
        start_keys(next, next_index, stage);
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
        start_values(next, next_index, stage);
    }

    // Warps add their sums in a fixed order: each leaves its own in the tiles' memory, once all are done with that.
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
    // Rows are turned by two numbers each: then two lanes of a warp's store meet in a bank, mostly t and t + 2 of a row (four
    // lanes in the last 16 of 80 dimensions), and not all lanes of a column.
    static_assert(ROWS * D * sizeof(float) <= 2 * STAGES * Share<T, D>::BYTES, "a warp's sums fit its tiles' memory");
    float* const merged = reinterpret_cast<float*>(room.tiles);
    const auto place = [&](u32 warp, u32 row, u32 dimension) {
        const u32 turned = dimension + 2 * row;
        return merged + (warp * ROWS + row) * D + (turned < D ? turned : turned - D);
    };
    sums.each(lane, [&](u32 half, u32 dimension, float sum) {
        const u32 row = half * 8 + lane / 4;
        if (row < rows) *place(warp, row, dimension) = sum * shrink[half];
    });
    sync_block();
    T* out = static_cast<T*>(p.out) + (static_cast<u64>(piece.context.token) * p.heads + first_head) * D;
    for (u32 i = thread; i < rows * D; i += THREADS) {
        const u32 row = i / D, dimension = i % D;
        float most = largest[row], sum = 0.0f, own = 0.0f;
        for (u32 w = 1; w < WARPS; w++) most = larger(most, largest[w * ROWS + row]);
        for (u32 w = 0; w < WARPS; w++) {
            if (largest[w * ROWS + row] > negative_infinity())
                sum += total[w * ROWS + row] * exp2_fast(largest[w * ROWS + row] - most);
            own += *place(w, row, dimension);
        }
        if (piece.pieces == 1) {
            out[i] = Number<T>::round(own / (sum + sink_weight(p, first_head + row, most)));
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
    if (*is_last != 0) add_pieces<T, D>(p, piece, first_head, rows, out);
    sync_block();
}

template <class T, u32 D>
DEVICE void work(const AttentionParams& p, unsigned char* shared) {
    let_next_start();
    const Room<T, D> room(shared);
    // A block with few units has requested all of their keys and values once its warps took two turns.
    Agenda agenda(p, p.kv_heads * row_tiles(p), 2 * stages(D), *reinterpret_cast<Agenda::Notes*>(room.largest));
    bool waited = false;
    for (Piece piece; agenda.next(p, piece);) attend<T, D>(p, piece, room, waited);
    if (!waited) wait_turn();
}

}  // namespace decode

// BLOCKS: as in `blocks_at_once` of attention.rs. OLDER: those for which an A100 has shared memory, which is less.
#define DECODE(T, D, BLOCKS, OLDER)                                                              \
    EARLY_KERNEL(attention_decode_##T##_##D, AttentionParams, decode::THREADS, BLOCKS, OLDER) { \
        SHARED_MEMORY(shared);                                                                   \
        decode::work<T, D>(p, shared);                                                           \
    }
#define DECODE_TYPE(T)                                                                           \
    DECODE(T, 32, 5, 4)                                                                          \
    DECODE(T, 64, 4, 4)                                                                          \
    DECODE(T, 80, 4, 3)                                                                          \
    DECODE(T, 96, 4, 3)                                                                          \
    DECODE(T, 128, 3, 2)                                                                         \
    DECODE(T, 256, 2, 2)
DECODE_TYPE(bf16)
DECODE_TYPE(f16)
