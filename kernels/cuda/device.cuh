// The base of every kernel file: 16-bit number types, warp reductions, matrix fragments, asynchronous copies.
//
// Two compilers read the same sources: nvcc, and with INFER_EMULATE a host C++ compiler (../emulator). So everything
// that is not plain C++ is wrapped here: kernels use no intrinsics, inline PTX or static shared memory directly. No
// CUDA header is needed, so the compiler of any 12.x or 13.x toolkit works.
#pragma once

#ifdef INFER_EMULATE
#include "emulate.h"
#else
#define DEVICE __device__ __forceinline__

#ifdef INFER_STAMPS
#include "stamps.cuh"
#else
#define NOTE_TURN()
#define STAMPED(NAME, ...) __VA_ARGS__
#endif

// Allows the next kernel to be launched once all blocks of this one got here (programmatic dependent launch, PTX ISA:
// griddepcontrol). What a block holds is its own: it loses nothing by saying so at once.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until all earlier kernels are done and their writes are visible. Every thread of every kernel does this before it
// accesses memory that kernels write, so they take effect in launch order; only launch latency, and reads of what no kernel
// writes, overlap with the kernels ahead. Images of an older architecture don't wait, so none of their kernels is launched
// early (`WAITING_PTX` in driver/mod.rs).
DEVICE void wait_turn() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    NOTE_TURN();
}
DEVICE void take_turn() {
    let_next_start();
    wait_turn();
}

// Threads of a block and, for kernels that say so, blocks that must fit a multiprocessor of sm_90 and of older ones, which
// limits registers.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define BOUNDS_OF(THREADS, BLOCKS, OLDER, ...) __launch_bounds__(THREADS, BLOCKS)
#else
#define BOUNDS_OF(THREADS, BLOCKS, OLDER, ...) __launch_bounds__(THREADS, OLDER)
#endif
#define BOUNDS(...) BOUNDS_OF(__VA_ARGS__, 0, 0, 0)

// A kernel takes one plain struct, so that Rust mirrors structs and not argument lists.
#define ENTRY(NAME, PARAMS, BEFORE, ...)                                                    \
    DEVICE void NAME##_body(const PARAMS& p);                                               \
    extern "C" __global__ void BOUNDS(__VA_ARGS__) NAME(const __grid_constant__ PARAMS p) { \
        STAMPED(NAME, BEFORE; NAME##_body(p));                                              \
    }                                                                                       \
    DEVICE void NAME##_body(const PARAMS& p)
// The last arguments are its BOUNDS.
#define KERNEL(NAME, PARAMS, ...) ENTRY(NAME, PARAMS, take_turn(), __VA_ARGS__)
// A kernel that takes its turn itself, after it started to read what no kernel writes: weights, or the host's words of
// the step. Every block must wait for it before it ends, or later kernels could start before earlier ones are done.
#define EARLY_KERNEL(NAME, PARAMS, ...) ENTRY(NAME, PARAMS, , __VA_ARGS__)
#define SHARED_MEMORY(NAME) extern __shared__ __align__(16) unsigned char NAME[]
// The same for matrices that products of warpgroups read (`warpgroup.cuh`). All of a file's kernels have one alignment.
#define SWIZZLED_MEMORY(NAME) extern __shared__ __align__(1024) unsigned char swizzled_##NAME[]; unsigned char* NAME = swizzled_##NAME
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// "No token", "no slot" or "no row": padding that every kernel skips.
constexpr u32 NONE = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr u32 WARP = 32;

struct alignas(8) Words2 {
    u32 w[2];
};
struct alignas(16) Words4 {
    u32 w[4];
};
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

#ifdef INFER_EMULATE
DEVICE void let_next_start() {}
DEVICE void wait_turn() {}
DEVICE void take_turn() {}
DEVICE float bits_to_float(u32 bits) { return emulate::from_bits(bits); }
DEVICE u32 float_to_bits(float value) { return emulate::to_bits(value); }
DEVICE u16 round_bf16(float value) { return emulate::round_bf16(value); }
DEVICE u16 round_f16(float value) { return emulate::round_f16(value); }
DEVICE float widen_f16(u16 bits) { return emulate::widen_f16(bits); }
DEVICE float negative_infinity() { return -__builtin_inff(); }
DEVICE float exp2_fast(float x) { return __builtin_exp2f(x); }
DEVICE float reciprocal_fast(float x) { return 1.0f / x; }
DEVICE float larger(float a, float b) { return __builtin_fmaxf(a, b); }
DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float rsqrt_fast(float x) { return 1.0f / __builtin_sqrtf(x); }
DEVICE u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | (b << 16); }
DEVICE u32 high_halves(u32 a, u32 b) { return (a >> 16) | (b & 0xffff0000u); }
DEVICE u32 pick_bytes(u32 a, u32 b, u32 digits) {
    const u64 bytes = static_cast<u64>(b) << 32 | a;
    u32 picked = 0;
    for (u32 i = 0; i < 4; i++) picked |= static_cast<u32>(bytes >> (digits >> 4 * i) % 8 * 8 & 0xff) << 8 * i;
    return picked;
}
DEVICE u32 select_bits(u32 a, u32 mask, u32 more) { return (a & mask) | more; }
DEVICE u32 trailing_zeros(u32 x) { return static_cast<u32>(__builtin_ctz(x)); }
DEVICE float shuffle_xor(float value, u32 lanes) { return bits_to_float(emulate::shuffle_xor(float_to_bits(value), lanes)); }
DEVICE u64 shuffle_xor(u64 value, u32 lanes) { return emulate::shuffle_xor(value, lanes); }
DEVICE u32 shuffle_xor(u32 value, u32 lanes) { return static_cast<u32>(emulate::shuffle_xor(value, lanes)); }
DEVICE float load_now(const float* from) { return *from; }
DEVICE u32 load_now(const u32* from) { return *from; }
DEVICE u32 load_early(const u32* from) { return *from; }
DEVICE void fence_loads() {}
template <class T>
DEVICE const T* in_global(const T* at) { return at; }
DEVICE u32 shared_address(const void* at) { return emulate::shared_address(at); }
DEVICE void sync_block() { emulate::sync_block(); }
DEVICE u32 atomic_add(u32* at, u32 value) { u32 old = *at; *at += value; return old; }
DEVICE u64 atomic_max(u64* at, u64 value) { u64 old = *at; if (value > old) *at = value; return old; }
DEVICE u32 atomic_or(u32* at, u32 value) { u32 old = *at; *at |= value; return old; }
DEVICE u32 take_ticket(u32* at, u32 last) { u32 old = *at; *at = old >= last ? 0 : old + 1; return old; }
template <u32 BYTES>
DEVICE void copy_async(void* to, const void* from, bool there) { emulate::copy_async(to, from, BYTES, there); }
DEVICE void commit_copies() { emulate::commit_copies(); }
template <int LEFT>
DEVICE void wait_copies() { emulate::wait_copies(LEFT); }
#else
DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_to_bits(float value) { return __float_as_uint(value); }
DEVICE u16 round_bf16(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
DEVICE u16 round_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
DEVICE float widen_f16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEVICE float negative_infinity() { return __int_as_float(0xff800000); }
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The one that is a number, if only one is.
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
// a * b + c, rounded once. Whether `*` and `+` are is up to the compiler, at each place anew.
DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE float rsqrt_fast(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The low (or high) halves of two words, the first word's half low.
DEVICE u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
DEVICE u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }
// The bytes, of a (0 to 3) and of b (4 to 7), that the four lowest hexadecimal digits name.
DEVICE u32 pick_bytes(u32 a, u32 b, u32 digits) { return __byte_perm(a, b, digits); }
// (a & mask) | more as one instruction, which ptxas doesn't make of two constants: an instruction has one at most.
DEVICE u32 select_bits(u32 a, u32 mask, u32 more) {
    u32 bits;
    asm("lop3.b32 %0, %1, %2, %3, 234;" : "=r"(bits) : "r"(a), "r"(mask), "r"(more));
    return bits;
}
DEVICE u32 trailing_zeros(u32 x) { return static_cast<u32>(__ffs(static_cast<int>(x)) - 1); }
DEVICE float shuffle_xor(float value, u32 lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }
DEVICE u64 shuffle_xor(u64 value, u32 lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }
DEVICE u32 shuffle_xor(u32 value, u32 lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }
// A load that stays in program order. nvcc sinks ordinary loads to their first use, where each waits for memory alone.
DEVICE float load_now(const float* from) {
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
    return value;
}
DEVICE u32 load_now(const u32* from) {
    u32 word;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
// The same before `take_turn`, of a word that only copies between steps write, no kernel. They end before the first
// kernel after them starts. It skips the L1 cache, which may have the last step's word.
DEVICE u32 load_early(const u32* from) {
    u32 word;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
// Loads written before this are issued before it, and uses written after it wait until then. All lanes of a warp must
// get here together. `load_now` doesn't suffice where later arithmetic could be scheduled between the loads.
DEVICE void fence_loads() { __syncwarp(); }
// A pointer that a kernel read from memory. nvcc knows only of those among a kernel's parameters that they are global.
template <class T>
DEVICE const T* in_global(const T* at) {
    __builtin_assume(__isGlobal(at));
    return at;
}
DEVICE u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE u32 atomic_add(u32* at, u32 value) { return atomicAdd(at, value); }
DEVICE u64 atomic_max(u64* at, u64 value) { return atomicMax(at, value); }
DEVICE u32 atomic_or(u32* at, u32 value) { return atomicOr(at, value); }
// The number of tickets that other blocks took from a counter in global memory; the last one sets it back to 0. Whoever took
// ticket n sees what threads wrote before a barrier of their block after which one of them took an earlier ticket, and so do
// the threads of its own block behind the next barrier (PTX ISA, memory consistency model: causality order).
DEVICE u32 take_ticket(u32* at, u32 last) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(last) : "memory");
    return old;
}
// Copies 16 (8, 4) bytes to shared memory asynchronously. If `there` is false it writes zeros and reads nothing. L2
// fetches whole lines of 128 bytes, since the neighbouring bytes are needed next.
template <u32 BYTES>
DEVICE void copy_async(void* to, const void* from, bool there) {
    const u32 target = shared_address(to);
    const u32 bytes = there ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                     ::"r"(target), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %3, %2;"
                     ::"r"(target), "l"(from), "r"(bytes), "n"(BYTES) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LEFT groups of this thread's copies are in flight.
template <int LEFT>
DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#endif

// Storage types: widened to f32 in registers, rounded to nearest even on the way back.
template <class T>
struct Number;

template <>
struct Number<float> {
    static DEVICE float widen(float x) { return x; }
    static DEVICE float round(float x) { return x; }
};

// `d += a * b` of one warp: a 16x16 by rows, b 16x8 by columns, d 16x8 in f32 (PTX ISA, mma.m16n8k16). Lane l has
// g = l / 4 and t = l % 4. a: words of row g and row g + 8 at columns 2t, then the same at columns 2t + 8.
// b: column g, rows 2t and 2t + 8. d: row g, columns 2t and 2t + 1; then row g + 8.
struct Fragment {
    u32 a[4];
};

template <>
struct Number<bf16> {
    static DEVICE float widen(bf16 x) { return bits_to_float(static_cast<u32>(x.bits) << 16); }
    static DEVICE bf16 round(float x) { return bf16{round_bf16(x)}; }
    // The differences of two pairs, each rounded once.
    static DEVICE u32 subtract(u32 a, u32 b) {
#ifdef INFER_EMULATE
        const auto number = [](u32 pair, u32 shift) { return bits_to_float(pair << shift & 0xffff0000u); };
        const auto difference = [&](u32 shift) { return number(a, shift) - number(b, shift); };
        return round_bf16(difference(16)) | static_cast<u32>(round_bf16(difference(0))) << 16;
#else
        u32 differences;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(differences) : "r"(b), "r"(0xbf80bf80u), "r"(a));
        return differences;
#endif
    }
    static DEVICE void multiply(float (&d)[4], const Fragment& a, u32 b0, u32 b1) {
#ifdef INFER_EMULATE
        emulate::multiply_16x8x16(d, a.a, b0, b1, true);
#else
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b0), "r"(b1));
#endif
    }
};

template <>
struct Number<f16> {
    static DEVICE float widen(f16 x) { return widen_f16(x.bits); }
    static DEVICE f16 round(float x) { return f16{round_f16(x)}; }
    static DEVICE u32 subtract(u32 a, u32 b) {
#ifdef INFER_EMULATE
        const auto difference = [&](u32 shift) {
            return widen_f16(static_cast<u16>(a >> shift)) - widen_f16(static_cast<u16>(b >> shift));
        };
        return round_f16(difference(0)) | static_cast<u32>(round_f16(difference(16))) << 16;
#else
        u32 differences;
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(differences) : "r"(b), "r"(0xbc00bc00u), "r"(a));
        return differences;
#endif
    }
    static DEVICE void multiply(float (&d)[4], const Fragment& a, u32 b0, u32 b1) {
#ifdef INFER_EMULATE
        emulate::multiply_16x8x16(d, a.a, b0, b1, false);
#else
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b0), "r"(b1));
#endif
    }
};

// Two numbers in a word, the first one low.
template <class T>
DEVICE u32 pack(float first, float second) {
    return static_cast<u32>(Number<T>::round(first).bits) | (static_cast<u32>(Number<T>::round(second).bits) << 16);
}

// Eight consecutive numbers, aligned to 16 bytes.
template <class T>
struct Eight {
    Words4 words[sizeof(T) / 2];

    DEVICE void read(const T* from) {
#pragma unroll
        for (u32 i = 0; i < sizeof(T) / 2; i++) words[i] = reinterpret_cast<const Words4*>(from)[i];
    }
    DEVICE void write(T* to) const {
#pragma unroll
        for (u32 i = 0; i < sizeof(T) / 2; i++) reinterpret_cast<Words4*>(to)[i] = words[i];
    }
    DEVICE float get(u32 i) const {
        if constexpr (sizeof(T) == 4)
            return bits_to_float(words[i / 4].w[i % 4]);
        else
            return Number<T>::widen(T{static_cast<u16>(words[0].w[i / 2] >> i % 2 * 16)});
    }
    // Sets two numbers at an even index.
    DEVICE void set(u32 i, float first, float second) {
        if constexpr (sizeof(T) == 4) {
            words[i / 4].w[i % 4] = float_to_bits(first);
            words[i / 4].w[i % 4 + 1] = float_to_bits(second);
        } else {
            words[0].w[i / 2] = pack<T>(first, second);
        }
    }
};

// Random bits that depend only on seed and index (splitmix64).
DEVICE u64 random_bits(u64 seed, u64 index) {
    u64 z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

DEVICE u32 lane_of(u32 thread) { return thread % WARP; }
DEVICE u32 warp_of(u32 thread) { return thread / WARP; }

// Exact to some 1e-7 of 1, also where x is small. No branch.
DEVICE float tanh_fast(float x) { return 1.0f - 2.0f * reciprocal_fast(1.0f + exp2_fast(2.0f * LOG2_E * x)); }

// `y` times the activation of x: SiLU, or GELU by its tanh approximation.
DEVICE float gate(bool gelu, float x, float y) {
    // Both are x * sigmoid(g(x)).
    const float inner = gelu ? 1.5957691216f * (x + 0.044715f * x * x * x) : x;
    return x * reciprocal_fast(1.0f + exp2_fast(-inner * LOG2_E)) * y;
}

// Sum over a warp, in a fixed order; every lane gets it.
template <class T>
DEVICE T warp_sum(T x) {
    for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
    return x;
}

// Sum over a block of whole warps; every thread gets it. `scratch`: one float per warp, reusable afterwards.
DEVICE float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    if (lane_of(threadIdx.x) == 0) scratch[warp_of(threadIdx.x)] = x;
    sync_block();
    float total = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) total += scratch[warp];
    sync_block();
    return total;
}

// Maximum over a block, likewise.
DEVICE float block_largest(float x, float* scratch) {
    for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) x = larger(x, shuffle_xor(x, lanes));
    if (lane_of(threadIdx.x) == 0) scratch[warp_of(threadIdx.x)] = x;
    sync_block();
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) x = larger(x, scratch[warp]);
    sync_block();
    return x;
}
