// Products of warpgroups (PTX ISA: wgmma), which only sm_90a has: four warps multiply 64 rows by what lies in shared memory,
// asynchronously, at the full rate of the tensor cores, of which `mma.sync` reaches about 60 %.
//
// Lane l of warp w of a group, with g = l / 4 and t = l % 4, has of the 64 x N sums d[i] those of rows 16 * w + g (its first
// two) and 16 * w + g + 8 (the others), columns 8 * i + 2 * t and the next: the layout of mma.m16n8k16, whose factor a
// registers hold likewise.
//
// Factors in shared memory are swizzled: of each row of 64 numbers, 128 bytes, the eight parts of 16 bytes lie in an order that
// depends on the row, so that neither the copies nor the tensor cores have bank conflicts. A wider matrix is several such, one
// behind the other. The memory is aligned to 1,024 bytes, eight rows.
#pragma once

#include "device.cuh"

// Whether the compiler has these instructions. Images for other architectures lack the kernels that use them.
#if defined(INFER_EMULATE) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPGROUPS 1
#else
#define WARPGROUPS 0
#endif

#if WARPGROUPS

constexpr u32 WARPGROUP = 4 * WARP;
// Numbers of a swizzled row, its bytes, and its parts of 16 bytes.
constexpr u32 SWIZZLED = 64;
constexpr u32 SWIZZLED_BYTES = 128;
constexpr u32 SWIZZLED_PARTS = 8;

// Where in a swizzled matrix of `rows` rows the part of 16 bytes lies that has eight numbers of a row from `part * 8` on.
DEVICE u32 swizzled(u32 rows, u32 row, u32 part) {
    return (part / SWIZZLED_PARTS * rows + row) * SWIZZLED + (part ^ row) % SWIZZLED_PARTS * 8;
}

// What the tensor cores are told of a factor in shared memory.
struct Factor {
    u64 descriptor;

    // A swizzled matrix of `rows` rows, of which the sums run along the columns or along the rows.
    DEVICE Factor(const void* matrix, u32 rows) {
        // In units of 16 bytes: to the next 64 columns, to the next eight rows. Bit 62: swizzled by 128 bytes.
        const u64 wide = rows * SWIZZLED_BYTES / 16, eight_rows = 8 * SWIZZLED_BYTES / 16;
        descriptor = (shared_address(matrix) & 0x3ffffu) >> 4 | wide << 16 | eight_rows << 32 | 1ull << 62;
    }

    // Sixteen columns from `16 * step` on, if sums run along the columns.
    DEVICE u64 columns(u32 rows, u32 step) const {
        return descriptor + (step / 4 * rows * SWIZZLED_BYTES + step % 4 * 32) / 16;
    }
    // Sixteen rows from `16 * step` on, if sums run along the rows.
    DEVICE u64 rows(u32 step) const { return descriptor + step * (16 * SWIZZLED_BYTES / 16); }
};

#ifdef INFER_EMULATE
template <class T>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<bf16> = true;

DEVICE void publish_shared() {}
DEVICE void begin_products() {}
DEVICE void commit_products() { emulate::commit_products(); }
template <int LEFT, u32 N>
DEVICE void wait_products(float (&)[N][4]) { emulate::wait_products(LEFT); }
template <u32 N>
DEVICE void keep_until_here(u32 (&)[N][4]) {}
DEVICE void hold_until(float) {}
template <class T, u32 N>
DEVICE void multiply(float (&d)[N][4], u64 a, u64 b, bool add) {
    emulate::multiply_group(&d[0][0], 8 * N, nullptr, a, b, add, IS_BF16<T>);
}
template <class T, u32 N>
DEVICE void multiply_add(float (&d)[N][4], const u32 (&a)[4], u64 b) {
    emulate::multiply_group(&d[0][0], 8 * N, a, 0, b, true, IS_BF16<T>);
}
#else
// What this thread wrote or copied to shared memory becomes visible to the tensor cores behind the next barrier.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Registers that were written before are ready for the products after this.
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Products since the last call are a group.
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most LEFT groups are in flight. Of the others `d` are the sums, which nothing may access before.
template <int LEFT, u32 N>
DEVICE void wait_products(float (&d)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (u32 i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

// Factors in registers keep theirs up to here, behind a wait for their products: ptxas before 13.3 may not know that these read
// them until then, and reuse them.
template <u32 N>
DEVICE void keep_until_here(u32 (&a)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

// What is written before, up to this sum of numbers that aren't negative, is computed before what is written after. Without a
// branch between, ptxas moves a wait for products ahead of all that doesn't need them, which then doesn't overlap with them.
DEVICE void hold_until(float sum) {
    asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; vote.sync.any.pred p, p, -1; @p trap; }" ::"f"(sum));
}

#define NAMES_32                                                                                    \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32                                                                           \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "            \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128 NAMES_64                                                                          \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "            \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "              \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "  \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(I) "+f"(d[I][0]), "+f"(d[I][1]), "+f"(d[I][2]), "+f"(d[I][3])
#define SUMS_16(I) SUMS_4(I), SUMS_4(I + 1), SUMS_4(I + 2), SUMS_4(I + 3)
#define SUMS_32 SUMS_16(0), SUMS_16(4)
#define SUMS_64 SUMS_32, SUMS_16(8), SUMS_16(12)
#define SUMS_128 SUMS_64, SUMS_16(16), SUMS_16(20), SUMS_16(24), SUMS_16(28)

// `d` = a * b, or with `add` `d` += a * b: b's rows are the columns of the sums, and both factors are summed along their
// columns, sixteen.
template <class T, u32 N>
struct Multiply;
// The operands behind the sums have these numbers.
#define MULTIPLY(T, NAME, COLUMNS, NUMBERS, A0, A1, A2, A3, A4)                                                       \
    template <>                                                                                                       \
    struct Multiply<T, COLUMNS / 8> {                                                                                 \
        static DEVICE void shared(float (&d)[COLUMNS / 8][4], u64 a, u64 b, bool add) {                               \
            asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #A2 ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS \
                         "k16.f32." NAME "." NAME " {" NAMES_##NUMBERS "}, %" #A0 ", %" #A1 ", add, 1, 1, 0, 0; }"    \
                         : SUMS_##NUMBERS                                                                             \
                         : "l"(a), "l"(b), "r"(static_cast<u32>(add))                                                 \
                         : "memory");                                                                                 \
        }                                                                                                             \
        static DEVICE void registers(float (&d)[COLUMNS / 8][4], const u32 (&a)[4], u64 b) {                          \
            asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS        \
                         "k16.f32." NAME "." NAME " {" NAMES_##NUMBERS "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3      \
                         "}, %" #A4 ", add, 1, 1, 1; }"                                                               \
                         : SUMS_##NUMBERS                                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                         \
                         : "memory");                                                                                 \
        }                                                                                                             \
    };
#define MULTIPLY_TYPE(T, NAME)                           \
    MULTIPLY(T, NAME, 64, 32, 32, 33, 34, 35, 36)        \
    MULTIPLY(T, NAME, 128, 64, 64, 65, 66, 67, 68)       \
    MULTIPLY(T, NAME, 256, 128, 128, 129, 130, 131, 132)
MULTIPLY_TYPE(bf16, "bf16")
MULTIPLY_TYPE(f16, "f16")

// Begins d = a * b, or with `add` d += a * b, of sixteen columns of each: rows of b are columns of d.
template <class T, u32 N>
DEVICE void multiply(float (&d)[N][4], u64 a, u64 b, bool add) {
    Multiply<T, N>::shared(d, a, b, add);
}
// Begins d += a * b, of sixteen rows of b.
template <class T, u32 N>
DEVICE void multiply_add(float (&d)[N][4], const u32 (&a)[4], u64 b) {
    Multiply<T, N>::registers(d, a, b);
}
#endif

#endif
