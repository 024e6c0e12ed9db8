// Just enough of a GPU to run one block at a time: threads are fibers, and a fiber runs until it reaches a barrier, a warp
// operation or its end. A seed determines which ready fiber runs next, so code that lacks a barrier fails under some seed.
// Asynchronous copies and products are performed when they are waited for, not when they are started. Shared memory is initially NaN.
// It checks correctness, not speed, and only memory ordering within a block.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define __global__
#define DEVICE inline __attribute__((unused))
#define SHARED_MEMORY(NAME) unsigned char* NAME = emulate::shared_memory()
#define SWIZZLED_MEMORY(NAME) SHARED_MEMORY(NAME)
// Registers have no limit, so only the first of a kernel's BOUNDS counts.
#define KERNEL(NAME, PARAMS, ...)                                                             \
    static void NAME(const PARAMS& p);                                                        \
    static emulate::Entry NAME##_entry(#NAME, sizeof(PARAMS), emulate::first(__VA_ARGS__),    \
                                       [](const void* params) { NAME(*static_cast<const PARAMS*>(params)); }); \
    static void NAME(const PARAMS& p)

// No early launches: each kernel runs after those before it are done.
#define EARLY_KERNEL(NAME, PARAMS, ...) KERNEL(NAME, PARAMS, __VA_ARGS__)

struct Index3 {
    unsigned int x, y, z;
};
extern thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {

// A kernel that can be launched by name.
struct Entry {
    const char* name;
    size_t params_bytes;
    unsigned threads;
    void (*run)(const void* params);
    Entry* next;
    Entry(const char* name, size_t params_bytes, unsigned threads, void (*run)(const void*));
};

constexpr unsigned first(unsigned threads, unsigned = 0, unsigned = 0) { return threads; }

unsigned char* shared_memory();
// Offset in it.
unsigned shared_address(const void* at);
void sync_block();
// Calls `together` once with the pointers of all lanes; every lane of the warp must call this.
void warp_operation(void (*together)(void** lanes), void* mine);
void copy_async(void* to, const void* from, unsigned bytes, bool there);
void commit_copies();
void wait_copies(int left);

float from_bits(uint32_t bits);
uint32_t to_bits(float value);
uint16_t round_bf16(float value);
uint16_t round_f16(float value);
float widen_f16(uint16_t bits);
uint64_t shuffle_xor(uint64_t value, unsigned lanes);
// mma.m16n8k16 with the fragment layout of the PTX ISA.
void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool is_bf16);
// wgmma.m64nNk16 of factors swizzled by 128 bytes: begins d = x * y, or d += x * y. x: in registers `a`, and then y is summed
// along its rows; or, if that is null, described by `x`.
void multiply_group(float* d, unsigned columns, const unsigned* a, uint64_t x, uint64_t y, bool add, bool is_bf16);
void commit_products();
void wait_products(int left);

}  // namespace emulate
