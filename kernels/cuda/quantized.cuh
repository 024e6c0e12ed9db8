// Weights that stay integers in device memory: the numbers of the host's `Matrix`, n * scale or n * scale + base with a
// scale and a base in f16 per 32 inputs of an output. `cuda/quantized.rs` packs them.
//
// A tile is 8 outputs by 64 inputs: 32 lanes' integers one behind another, lane l those of output l / 4, and behind them each
// output's units. A lane has inputs 8t to 8t + 7 of either group of 32, where t = l % 4, which are the inputs that it reads of
// x (product_few.cu). So a warp asks for the integers of 8 outputs in 16 bytes a lane (8 if they have 4 bits), all of them
// next to each other, and for their units right behind. Tiles of an output follow one another, so a block reads memory from
// front to back; units in an array of their own would be a second stream of small pieces. 8 outputs and not 16, because the
// 16 of a block are two times 8 where gates or dimensions that rope turns are paired. What pads inputs to whole tiles is zeros;
// outputs beyond the last are never read.
#pragma once
#include "device.cuh"

namespace quantized {

constexpr u32 OUTPUTS = 8;
constexpr u32 INPUTS = 64;
// Inputs that share a scale.
constexpr u32 GROUP = 32;

// Tiles of an output.
DEVICE u32 tiles_of(u32 inputs) { return (inputs + INPUTS - 1) / INPUTS; }

// Pairs of whole numbers without a conversion: their bits are placed behind those of a power of two whose last place is 1, which
// is subtracted again. Everything is exact.
template <class T>
struct Whole;

template <>
struct Whole<bf16> {
    static constexpr u32 ONES = 0x3f803f80;
    // 128, which leaves room for 7 bits.
    static constexpr u32 LEAD = 0x43004300;
    // Signed bytes in the low bytes of both halves, LEAD's high bytes above. A byte's sign counts -128 and its other bits as they
    // are; with it the subtrahend is 256.
    static DEVICE u32 of_bytes(u32 halves) { return Number<bf16>::subtract(halves & 0xff7fff7f, halves & 0xff80ff80); }
};

template <>
struct Whole<f16> {
    static constexpr u32 ONES = 0x3c003c00;
    // 1,024, which leaves room for 10 bits. A byte is raised by 128.
    static constexpr u32 LEAD = 0x64006400;
    static DEVICE u32 of_bytes(u32 halves) { return Number<f16>::subtract(halves ^ 0x00800080, 0x64806480); }
};

// Signed bytes.
struct Int8 {
    static constexpr bool PLAIN = false, BASES = false;
    // Turns of weights in flight in product_few.cu.
    static constexpr u32 TURNS = 4;
    // Of a lane: of either group two words.
    typedef Words4 Integers;
    // Of an output: of either group a scale.
    typedef u32 Units;

    template <class T>
    static DEVICE void pairs(const Integers& integers, u32 group, u32 (&to)[4]) {
        const u32 lead = Whole<T>::LEAD >> 8;
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            to[i] = Whole<T>::of_bytes(pick_bytes(integers.w[2 * group + i / 2], lead, i % 2 == 0 ? 0x4140 : 0x4342));
    }
    // Number i of the eight, as a float.
    static DEVICE float number(const Integers& integers, u32 group, u32 i) {
        return static_cast<float>((integers.w[2 * group + i / 4] >> i % 4 * 8 & 0xff) ^ 0x80) - 128.0f;
    }
    static DEVICE float scale(Units units, u32 group) { return widen_f16(static_cast<u16>(units >> 16 * group)); }
    static DEVICE float base(Units, u32) { return 0.0f; }
    // Random integers, and units with which weights are in [-size, size].
    static DEVICE void fill(u64 a, u64 b, float size, Integers& integers, Units& units) {
        integers = {{static_cast<u32>(a), static_cast<u32>(a >> 32), static_cast<u32>(b), static_cast<u32>(b >> 32)}};
        units = round_f16(size / 128.0f) * 0x10001u;
    }
};

// Integers of 4 bits without a sign. Those of inputs 2i and 2i + 1 are at bits 4i and 4i + 16 of a word.
struct Int4 {
    static constexpr bool PLAIN = false, BASES = true;
    static constexpr u32 TURNS = 8;
    // Of either group a word.
    typedef Words2 Integers;
    // Both scales, both bases.
    typedef Words2 Units;

    template <class T>
    static DEVICE void pairs(const Integers& integers, u32 group, u32 (&to)[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            to[i] = Number<T>::subtract(select_bits(integers.w[group] >> 4 * i, 0x000f000f, Whole<T>::LEAD), Whole<T>::LEAD);
    }
    static DEVICE float number(const Integers& integers, u32 group, u32 i) {
        return static_cast<float>(integers.w[group] >> (i / 2 * 4 + i % 2 * 16) & 15);
    }
    static DEVICE float scale(const Units& units, u32 group) { return widen_f16(static_cast<u16>(units.w[0] >> 16 * group)); }
    static DEVICE float base(const Units& units, u32 group) { return widen_f16(static_cast<u16>(units.w[1] >> 16 * group)); }
    static DEVICE void fill(u64 a, u64, float size, Integers& integers, Units& units) {
        integers = {{static_cast<u32>(a), static_cast<u32>(a >> 32)}};
        units = {{round_f16(size / 7.5f) * 0x10001u, round_f16(-size) * 0x10001u}};
    }
};

template <class W>
constexpr u32 INTEGER_BYTES = WARP * sizeof(typename W::Integers);
template <class W>
constexpr u32 TILE_BYTES = INTEGER_BYTES<W> + OUTPUTS * sizeof(typename W::Units);

// Where a lane's integers are, and its output's units.
template <class W>
DEVICE u64 integers_at(u64 tile, u32 lane) { return tile * TILE_BYTES<W> + lane * sizeof(typename W::Integers); }
template <class W>
DEVICE u64 units_at(u64 tile, u32 lane) {
    return tile * TILE_BYTES<W> + INTEGER_BYTES<W> + lane / 4 * sizeof(typename W::Units);
}

}  // namespace quantized
