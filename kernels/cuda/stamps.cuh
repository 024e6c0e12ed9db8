// When blocks of each launch begin, get their turn and end, for images compiled with -DINFER_STAMPS (README.md). A step that
// draws one token and whose number is in STEPS prints a line per launch; `stamps.py` makes a table of them. Noting costs
// each block some time, so small kernels look slower than they are.
#pragma once

#include <stdio.h>

namespace stamps {

typedef unsigned long long Time;

// Of a launch, over its blocks: the first and last begin, turn and end. The first ones are kept as complements, so that all
// are maxima and zero is nothing.
struct Stamp {
    Time first[3], last[3];
    unsigned blocks, grid;
    const char* kernel;
};

// `infer bench engine --quick --shape NAME` decodes without graphs (20), with graphs one by one (100, 105), overlapped (130),
// and at the longest context (160).
__device__ constexpr unsigned STEPS[] = {20, 100, 105, 130, 160};
// A kernel has a place for some sizes of grid, and each place has one for as many launches of a step.
constexpr unsigned KERNELS = 192, GRIDS = 7, LAUNCHES = 128;
__device__ Stamp noted[KERNELS * GRIDS * LAUNCHES];
__device__ unsigned ended[KERNELS * GRIDS];
__device__ unsigned steps;

DEVICE Time now() {
    Time ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

DEVICE Time& turn() {
    __shared__ Time ns;
    return ns;
}

// Blocks of a launch end after all of the one before, so their count tells the launch.
DEVICE void note(unsigned kernel, const char* name, Time begin) {
    const Time times[3] = {begin, turn(), now()};
    const unsigned grid = gridDim.x * gridDim.y * gridDim.z, place = kernel * GRIDS + grid % GRIDS;
    const unsigned before = atomicAdd(&ended[place], 1u);
    Stamp& stamp = noted[place * LAUNCHES + before / grid % LAUNCHES];
    for (unsigned i = 0; i < 3; i++) {
        atomicMax(&stamp.first[i], ~times[i]);
        atomicMax(&stamp.last[i], times[i]);
    }
    if (before % grid == 0) {
        stamp.kernel = name;
        stamp.grid = grid;
    }
    atomicAdd(&stamp.blocks, 1u);
}

DEVICE void end_step() {
    if (threadIdx.x == 0) {
        const unsigned step = ++steps;
        for (unsigned wanted : STEPS)
            for (unsigned i = 0; step == wanted && i < KERNELS * GRIDS * LAUNCHES; i++) {
                const Stamp& s = noted[i];
                if (s.blocks == 0) continue;
                printf("STAMP %u %s %u %llu %llu %llu %llu %llu %llu\n", step, s.kernel, s.grid, ~s.first[0], s.last[0],
                       ~s.first[1], s.last[1], ~s.first[2], s.last[2]);
            }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < KERNELS * GRIDS * LAUNCHES; i += blockDim.x)
        if (noted[i].blocks != 0) noted[i] = Stamp{};
    for (unsigned i = threadIdx.x; i < KERNELS * GRIDS; i += blockDim.x) ended[i] = 0;
}

}  // namespace stamps

#define NOTE_TURN() (threadIdx.x == 0 ? void(stamps::turn() = stamps::now()) : void())
// The only kernel whose name begins with s ends a step: it samples.
#define STAMPED(NAME, ...)                                                  \
    const stamps::Time begin = stamps::now();                               \
    __VA_ARGS__;                                                            \
    if (threadIdx.x == 0) stamps::note(__COUNTER__, #NAME, begin);          \
    if ((#NAME)[0] == 's' && gridDim.x == 1) stamps::end_step()
