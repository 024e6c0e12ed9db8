// Who computes what in decode attention: contexts in units, blocks' shares of them, and the pieces of a share.
#pragma once

#include "attention.cuh"

namespace decode {

constexpr u32 WARPS = 4;
constexpr u32 TILE = 16;

// Positions that a block's warps take at once: contexts are cut between them.
constexpr u32 UNIT = WARPS * TILE;
constexpr u32 THREADS = WARPS * WARP;

// An item's token, and its context in units.
struct Context {
    u32 token = NONE;
    u32 length = 0; // The token's own position included.
    u32 table = 0;  // Where its block table starts.
    u32 first = 0;  // First visible position.
    u32 start = 0;  // Of the first unit that has visible positions.
    u32 units = 0;  // None if the item is padding.

    Context() = default;
    // What this reads, no kernel writes.
    DEVICE Context(const AttentionParams& p, u32 item) : token(load_early(p.items + item)) {
        if (token == NONE) return;
        length = load_early(p.positions + token) + 1;
        table = load_early(p.tables + token);
        first = first_seen(p, length - 1);
        start = first / UNIT * UNIT;
        units = (length - start + UNIT - 1) / UNIT;
    }
};

// What a block computes at a time: some positions of a context, for the query heads of one tile.
struct Piece {
    u32 item;
    u32 tile;      // Of heads: [key head][tile of its query heads].
    u32 index;     // Among the pieces of this context and tile, each of which has a place in `partial` if there are several.
    u32 pieces;
    u32 places[3]; // Of the first piece, and of piece i > 0: the second number plus i times the third.
    Context context;
    u32 begin;     // Positions.
    u32 end;

    DEVICE u64 place(u32 i) const { return i == 0 ? places[0] : places[1] + static_cast<u64>(i) * places[2]; }
};

// All units of all tiles and contexts in a row, of which each block gets its share: as many as the others, or one more. If the
// contexts are equally long and the blocks a multiple of them, no share goes beyond a context's end.
struct Shares {
    u32 units;
    u32 blocks;

    DEVICE u32 start(u32 block) const { return static_cast<u32>(static_cast<u64>(block) * units / blocks); }
    DEVICE u32 block_of(u32 unit) const { return static_cast<u32>(((unit + 1ull) * blocks - 1) / units); }
};

// Blocks of a grid that get a share. `contexts`: one for each tile and item; `least`: units that a block gets at least, if
// there are as many. A share that ends one context and begins another makes its block start over, which in a short launch
// takes longer than a unit more; where all blocks have much to do, no more than an eighth of them is left out for it.
DEVICE u32 sharing(u32 units, u32 contexts, u32 least, u32 grid) {
    const u32 most = units / least, blocks = most < grid ? most : grid;
    if (blocks < contexts) return blocks > 0 ? blocks : 1;
    const u32 over = blocks % contexts;
    return most < grid || over * 8 <= blocks ? blocks - over : blocks;
}

// Pieces of a block, in order. All threads of the block construct it; the rest each does alone.
struct Agenda {
    // What its threads tell each other; not to be overwritten before the next barrier.
    struct Notes {
        u32 units[WARPS];
        u32 contexts[WARPS];
        u32 item, base;
        Context context;
    };

    u32 tiles;
    u32 unit = 0;  // The next one, and the end of the block's share.
    u32 end = 0;
    u32 item = 0;  // The one that is due or an earlier one, its context, and the first unit of it.
    u32 base = 0;
    Context context;
    Shares shares = {1, 1};

    DEVICE Agenda(const AttentionParams& p, u32 tiles, u32 least, Notes& notes) : tiles(tiles) {
        if (p.part_tokens != 0) {
            end = 1;
            return;
        }
        // Each thread adds up some items, and the threads before it.
        const u32 thread = threadIdx.x, lane = lane_of(thread), warp = warp_of(thread);
        const u32 some = (p.count + THREADS - 1) / THREADS, from = thread * some;
        const u32 to = from + some < p.count ? from + some : p.count;
        u32 own = 0, contexts = 0;
        Context last;
        for (u32 i = from; i < to; i++) {
            last = Context(p, i);
            own += last.units;
            contexts += last.units > 0 ? 1 : 0;
        }
        u32 before = 0, sum = own;
#pragma unroll
        for (u32 lanes = 1; lanes < WARP; lanes *= 2) {
            const u32 other = shuffle_xor(sum, lanes);
            if ((lane & lanes) != 0) before += other;
            sum += other;
            contexts += shuffle_xor(contexts, lanes);
        }
        if (lane == 0) {
            notes.units[warp] = sum;
            notes.contexts[warp] = contexts;
        }
        sync_block();
        sum = contexts = 0;
        for (u32 i = 0; i < WARPS; i++) {
            if (i < warp) before += notes.units[i];
            sum += notes.units[i];
            contexts += notes.contexts[i];
        }
        const u32 blocks = sharing(sum * tiles, contexts * tiles, least, gridDim.x);
        if (blockIdx.x >= blocks || sum == 0) return;
        shares = {sum * tiles, blocks};
        unit = shares.start(blockIdx.x);
        end = shares.start(blockIdx.x + 1);
        // One of them has the block's first unit. It goes back from its last item, whose context it has at hand.
        const u32 first = before * tiles;
        if (unit >= first && unit - first < own * tiles) {
            u32 at = to - 1, start = first + (own - last.units) * tiles;
            while (unit < start) {
                last = Context(p, --at);
                start -= last.units * tiles;
            }
            notes.item = at;
            notes.base = start;
            notes.context = last;
        }
        sync_block();
        item = notes.item;
        base = notes.base;
        context = notes.context;
    }

    DEVICE bool next(const AttentionParams& p, Piece& piece) {
        if (unit == end) return false;
        if (p.part_tokens != 0) {
            unit = end;
            return fixed(p, piece);
        }
        while (unit - base >= context.units * tiles) {
            base += context.units * tiles;
            context = Context(p, ++item);
        }
        const u32 tile = (unit - base) / context.units, from = (unit - base) % context.units, start = unit - from;
        const u32 to = end - start < context.units ? end - start : context.units;
        const u32 first = shares.block_of(start), last = shares.block_of(start + context.units - 1);
        // A block's share may end one context and begin another, so it has two places.
        piece = {item, tile, blockIdx.x - first, last - first + 1, {2 * first + 1, 2 * first, 2}, context, 0, 0};
        see(context.start + from * UNIT, context.start + to * UNIT, piece);
        unit = start + to;
        return true;
    }

    // A part of a fixed number of tokens from position 0 on: a row's sums depend on nothing else.
    DEVICE bool fixed(const AttentionParams& p, Piece& piece) const {
        const Context context(p, blockIdx.z);
        const u32 size = p.part_tokens, first = context.first / size, parts = (context.length + size - 1) / size;
        const u32 place = (blockIdx.z * tiles + blockIdx.y) * gridDim.x + first;
        piece = {blockIdx.z, blockIdx.y, blockIdx.x - first, parts - first, {place, place, 1}, context, 0, 0};
        see(blockIdx.x * size, (blockIdx.x + 1) * size, piece);
        return piece.begin < piece.end;
    }

    // Cuts a piece's positions to those that there are and that the token sees.
    static DEVICE void see(u32 begin, u32 end, Piece& piece) {
        piece.begin = begin > piece.context.first ? begin : piece.context.first;
        piece.end = end < piece.context.length ? end : piece.context.length;
    }
};

}  // namespace decode
