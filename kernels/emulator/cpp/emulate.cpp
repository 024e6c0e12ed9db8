// The fibers behind emulate.h, and the C interface to Rust. No C++ library is linked.
#include "emulate.h"

#include <stdlib.h>
#include <string.h>

#if !(defined(__x86_64__) && defined(__linux__))
#include <ucontext.h>
#endif

thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {
namespace {

Entry* entries = nullptr;

constexpr size_t STACK = 48 << 10;
constexpr size_t MAX_THREADS = 1024;
constexpr size_t MAX_COPIES = 256;
constexpr size_t MAX_PRODUCTS = 32;
constexpr size_t GUARD = 256;
constexpr unsigned char GUARD_BYTE = 0xa5;

struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
    bool there;
    unsigned group;
};

// A lane's part of a product of its warpgroup, whose factors the tensor cores read when they please.
struct GroupProduct {
    float* d;
    unsigned columns;
    // Two rows of x, unless it is in shared memory.
    bool is_given, add, is_bf16;
    float given[2][16];
    uint64_t x, y;
    unsigned group;
};

enum class State { Ready, AtWarp, AtBlock, Done };

struct Fiber {
#if defined(__x86_64__) && defined(__linux__)
    void* stack_pointer;
#else
    ucontext_t context;
#endif
    unsigned char* stack;
    unsigned index;
    State state;
    void* given;
    unsigned copy_count;
    unsigned group;
    Copy copies[MAX_COPIES];
    unsigned product_count;
    unsigned product_group;
    GroupProduct products[MAX_PRODUCTS];
};

// One host thread's device.
struct Machine {
    Fiber* fibers;
    Fiber scheduler;
    Fiber* current;
    unsigned threads;
    unsigned ready[MAX_THREADS];
    unsigned ready_count;
    unsigned at_block;
    unsigned at_warp[MAX_THREADS / 32];
    void (*together[MAX_THREADS / 32])(void**);
    unsigned done;
    unsigned char* shared;
    size_t shared_bytes;
    size_t shared_room;
    const Entry* entry;
    const void* params;
    uint64_t random;
    const char* fault;
};

thread_local Machine machine;

uint64_t next_random() {
    uint64_t z = machine.random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

#if defined(__x86_64__) && defined(__linux__)
extern "C" void infer_emulate_switch(void** save, void* load);
asm(R"(
.text
.globl infer_emulate_switch
.type infer_emulate_switch, @function
infer_emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size infer_emulate_switch, .-infer_emulate_switch
)");

void change(Fiber& from, Fiber& to) { infer_emulate_switch(&from.stack_pointer, to.stack_pointer); }

void prepare(Fiber& fiber, void (*begin)()) {
    // The switch pops six registers and returns into `begin`, which finds its stack as after a call.
    uint64_t* top = reinterpret_cast<uint64_t*>(fiber.stack + STACK);
    *--top = 0;
    *--top = reinterpret_cast<uint64_t>(begin);
    for (int i = 0; i < 6; i++) *--top = 0;
    fiber.stack_pointer = top;
}
#else
void change(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

void prepare(Fiber& fiber, void (*begin)()) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, begin, 0);
}
#endif

void leave() { change(*machine.current, machine.scheduler); }

void set_ready(unsigned index) {
    machine.fibers[index].state = State::Ready;
    machine.ready[machine.ready_count++] = index;
}

void fiber_main() {
    machine.entry->run(machine.params);
    Fiber& self = *machine.current;
    if (self.copy_count > 0) machine.fault = "a thread ended with copies under way";
    if (self.product_count > 0) machine.fault = "a thread ended with products under way";
    self.state = State::Done;
    machine.done++;
    leave();
}

void run_block() {
    Machine& m = machine;
    m.ready_count = m.at_block = m.done = 0;
    memset(m.at_warp, 0, sizeof m.at_warp);
    for (unsigned i = 0; i < m.threads; i++) {
        Fiber& fiber = m.fibers[i];
        fiber.index = i;
        fiber.copy_count = fiber.group = fiber.product_count = fiber.product_group = 0;
        prepare(fiber, fiber_main);
        set_ready(i);
    }
    while (m.ready_count > 0 && m.fault == nullptr) {
        // A number below the count, without a division.
        const unsigned pick = static_cast<unsigned>((next_random() >> 32) * m.ready_count >> 32);
        const unsigned index = m.ready[pick];
        m.ready[pick] = m.ready[--m.ready_count];
        m.current = &m.fibers[index];
        threadIdx = Index3{index, 0, 0};
        change(m.scheduler, *m.current);
        if (m.fibers[index].state == State::AtWarp && m.at_warp[index / 32] == 32) {
            void* lanes[32];
            const unsigned first = index / 32 * 32;
            for (unsigned lane = 0; lane < 32; lane++) lanes[lane] = m.fibers[first + lane].given;
            m.together[index / 32](lanes);
            m.at_warp[index / 32] = 0;
            for (unsigned lane = 0; lane < 32; lane++) set_ready(first + lane);
        }
        if (m.at_block == m.threads) {
            m.at_block = 0;
            for (unsigned i = 0; i < m.threads; i++) set_ready(i);
        }
    }
    if (m.fault == nullptr && m.done != m.threads) m.fault = "some threads wait for others that never come";
}

Entry* find(const char* name) {
    Entry* entry = entries;
    while (entry != nullptr && strcmp(entry->name, name) != 0) entry = entry->next;
    return entry;
}

const char* launch(const char* name, const void* params, size_t params_bytes, Index3 grid, unsigned threads,
                   size_t shared_bytes, uint64_t seed) {
    Machine& m = machine;
    Entry* entry = find(name);
    if (entry == nullptr) return "no kernel has this name";
    if (entry->params_bytes != params_bytes) return "the parameters have another size than the kernel's";
    if (threads != entry->threads || threads % 32 != 0) return "the kernel has another number of threads";
    if (m.fibers == nullptr) {
        m.fibers = static_cast<Fiber*>(calloc(MAX_THREADS, sizeof(Fiber)));
        for (size_t i = 0; i < MAX_THREADS; i++) m.fibers[i].stack = static_cast<unsigned char*>(malloc(STACK));
    }
    if (m.shared_room < shared_bytes + GUARD) {
        free(m.shared);
        m.shared_room = shared_bytes + GUARD;
        m.shared = static_cast<unsigned char*>(aligned_alloc(256, (m.shared_room + 255) / 256 * 256));
    }
    m.shared_bytes = shared_bytes;
    m.entry = entry;
    m.params = params;
    m.threads = threads;
    m.random = seed;
    m.fault = nullptr;
    gridDim = grid;
    blockDim = Index3{threads, 1, 1};
    const unsigned long long blocks = 1ull * grid.x * grid.y * grid.z;
    // Blocks are independent, so any order is valid: the seed chooses the end to start from.
    for (unsigned long long i = 0; i < blocks && m.fault == nullptr; i++) {
        const unsigned long long at = seed & 1 ? blocks - 1 - i : i;
        blockIdx = Index3{static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                          static_cast<unsigned>(at / grid.x / grid.y)};
        memset(m.shared, 0xff, shared_bytes);
        memset(m.shared + shared_bytes, GUARD_BYTE, GUARD);
        run_block();
        for (size_t g = 0; g < GUARD; g++)
            if (m.shared[shared_bytes + g] != GUARD_BYTE) m.fault = "a write beyond shared memory";
    }
    return m.fault;
}

struct Multiplication {
    float* d;
    const unsigned* a;
    unsigned b[2];
    bool is_bf16;
};

float widen(uint16_t bits, bool is_bf16) {
    return is_bf16 ? from_bits(static_cast<uint32_t>(bits) << 16) : widen_f16(bits);
}

void multiply_together(void** lanes) {
    float a[16][16], b[16][8];
    const bool is_bf16 = static_cast<Multiplication*>(lanes[0])->is_bf16;
    for (unsigned lane = 0; lane < 32; lane++) {
        const Multiplication& given = *static_cast<Multiplication*>(lanes[lane]);
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned half = 0; half < 2; half++) {
            const unsigned shift = 16 * half;
            a[g][2 * t + half] = widen(static_cast<uint16_t>(given.a[0] >> shift), is_bf16);
            a[g + 8][2 * t + half] = widen(static_cast<uint16_t>(given.a[1] >> shift), is_bf16);
            a[g][2 * t + 8 + half] = widen(static_cast<uint16_t>(given.a[2] >> shift), is_bf16);
            a[g + 8][2 * t + 8 + half] = widen(static_cast<uint16_t>(given.a[3] >> shift), is_bf16);
            b[2 * t + half][g] = widen(static_cast<uint16_t>(given.b[0] >> shift), is_bf16);
            b[2 * t + 8 + half][g] = widen(static_cast<uint16_t>(given.b[1] >> shift), is_bf16);
        }
    }
    float d[16][8] = {};
    for (unsigned k = 0; k < 16; k++)
        for (unsigned i = 0; i < 16; i++)
            for (unsigned j = 0; j < 8; j++) d[i][j] += a[i][k] * b[k][j];
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        float* own = static_cast<Multiplication*>(lanes[lane])->d;
        own[0] += d[g][2 * t];
        own[1] += d[g][2 * t + 1];
        own[2] += d[g + 8][2 * t];
        own[3] += d[g + 8][2 * t + 1];
    }
}

struct GroupFragment {
    const unsigned* a;
    GroupProduct* product;
};

void give_rows(void** lanes) {
    for (unsigned lane = 0; lane < 32; lane++) {
        GroupProduct& product = *static_cast<GroupFragment*>(lanes[lane])->product;
        for (unsigned k = 0; k < 16; k++)
            for (unsigned half = 0; half < 2; half++) {
                const unsigned* a = static_cast<GroupFragment*>(lanes[lane / 4 * 4 + k % 8 / 2])->a;
                const unsigned word = a[k / 8 * 2 + half];
                product.given[half][k] = widen(static_cast<uint16_t>(word >> 16 * (k % 2)), product.is_bf16);
            }
    }
}

// The number at an offset of bytes from where a descriptor of a matrix swizzled by 128 bytes starts.
float described(uint64_t descriptor, unsigned offset, bool is_bf16) {
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) machine.fault = "a descriptor of another layout";
    const unsigned at = static_cast<unsigned>(descriptor & 0x3fff) * 16 + offset;
    // The part of 16 bytes depends on the row of 128.
    const unsigned swizzled = at ^ (at >> 7 & 7) << 4;
    if (swizzled + 2 > machine.shared_bytes) {
        machine.fault = "a product reads beyond shared memory";
        return 0.0f;
    }
    uint16_t bits;
    memcpy(&bits, machine.shared + swizzled, 2);
    return widen(bits, is_bf16);
}

void perform(const GroupProduct& product) {
    const unsigned lane = machine.current->index % 32, row_of_group = machine.current->index / 32 % 4 * 16 + lane / 4;
    const auto bytes_at = [](uint64_t descriptor, unsigned bit) {
        return static_cast<unsigned>(descriptor >> bit & 0x3fff) * 16;
    };
    float x[2][16];
    for (unsigned half = 0; half < 2; half++)
        for (unsigned k = 0; k < 16; k++) {
            const unsigned row = row_of_group + 8 * half;
            const unsigned at = row / 8 * bytes_at(product.x, 32) + row % 8 * 128 + 2 * k;
            x[half][k] = product.is_given ? product.given[half][k] : described(product.x, at, product.is_bf16);
        }
    for (unsigned i = 0; i < product.columns / 8; i++)
        for (unsigned j = 0; j < 2; j++) {
            const unsigned column = 8 * i + lane % 4 * 2 + j;
            float sums[2] = {0.0f, 0.0f};
            for (unsigned k = 0; k < 16; k++) {
                const unsigned at = product.is_given
                    ? column / 64 * bytes_at(product.y, 16) + column % 64 * 2 + k / 8 * bytes_at(product.y, 32) + k % 8 * 128
                    : column / 8 * bytes_at(product.y, 32) + column % 8 * 128 + 2 * k;
                const float y = described(product.y, at, product.is_bf16);
                for (unsigned half = 0; half < 2; half++) sums[half] += x[half][k] * y;
            }
            for (unsigned half = 0; half < 2; half++) {
                float& d = product.d[4 * i + 2 * half + j];
                d = product.add ? d + sums[half] : sums[half];
            }
        }
}

struct Shuffle {
    uint64_t value;
    unsigned lanes;
    uint64_t answer;
};

void shuffle_together(void** lanes) {
    for (unsigned lane = 0; lane < 32; lane++) {
        Shuffle& own = *static_cast<Shuffle*>(lanes[lane]);
        own.answer = static_cast<Shuffle*>(lanes[lane ^ own.lanes])->value;
    }
}

}  // namespace

Entry::Entry(const char* name, size_t params_bytes, unsigned threads, void (*run)(const void*))
    : name(name), params_bytes(params_bytes), threads(threads), run(run), next(entries) {
    entries = this;
}

unsigned char* shared_memory() { return machine.shared; }
unsigned shared_address(const void* at) {
    return static_cast<unsigned>(static_cast<const unsigned char*>(at) - machine.shared);
}

void sync_block() {
    machine.current->state = State::AtBlock;
    machine.at_block++;
    leave();
}

void warp_operation(void (*together)(void**), void* mine) {
    Machine& m = machine;
    Fiber& self = *m.current;
    const unsigned warp = self.index / 32;
    if (m.at_warp[warp] > 0 && m.together[warp] != together) m.fault = "lanes of a warp meet in different operations";
    self.given = mine;
    self.state = State::AtWarp;
    m.together[warp] = together;
    m.at_warp[warp]++;
    leave();
}

void copy_async(void* to, const void* from, unsigned bytes, bool there) {
    Fiber& self = *machine.current;
    if (self.copy_count == MAX_COPIES) {
        machine.fault = "more asynchronous copies than a fiber remembers";
        leave();
    }
    // 4, 8 or 16 bytes: a mask instead of a division.
    const uintptr_t unaligned = reinterpret_cast<uintptr_t>(to) | (there ? reinterpret_cast<uintptr_t>(from) : 0);
    if ((unaligned & (bytes - 1)) != 0) {
        machine.fault = "an asynchronous copy is not aligned";
        leave();
    }
    // Field by field: gcc assembles a whole struct elsewhere, and copies it before its parts are stored.
    Copy& copy = self.copies[self.copy_count++];
    copy.to = to;
    copy.from = from;
    copy.bytes = bytes;
    copy.there = there;
    copy.group = self.group;
}

void commit_copies() { machine.current->group++; }

void wait_copies(int left) {
    Fiber& self = *machine.current;
    unsigned kept = 0;
    for (unsigned i = 0; i < self.copy_count; i++) {
        const Copy& copy = self.copies[i];
        if (copy.group + static_cast<unsigned>(left) >= self.group) {
            self.copies[kept++] = copy;
        } else if (copy.there) {
            memcpy(copy.to, copy.from, copy.bytes);
        } else {
            memset(copy.to, 0, copy.bytes);
        }
    }
    self.copy_count = kept;
}

float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

uint16_t round_bf16(float value) {
    const uint32_t bits = to_bits(value);
    if (value != value) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t round_f16(float value) {
    const uint32_t bits = to_bits(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    if (value != value) return 0x7fff;
    const float size = fabsf(value);
    if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
    // Units in the last place: 2^-24 for subnormal numbers.
    int exponent = size < 6.103515625e-05f ? -14 : static_cast<int>(to_bits(size) >> 23) - 127;
    const float places = nearbyintf(ldexpf(size, 10 - exponent));
    uint32_t mantissa = static_cast<uint32_t>(places);
    if (size < 6.103515625e-05f) return static_cast<uint16_t>(sign | mantissa);
    if (mantissa == 2048) {
        mantissa = 1024;
        exponent++;
    }
    return static_cast<uint16_t>(sign | (exponent + 15) << 10 | (mantissa - 1024));
}

float widen_f16(uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    const float size = exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                       : exponent == 0 ? ldexpf(static_cast<float>(mantissa), -24)
                                       : ldexpf(static_cast<float>(1024 + mantissa), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

uint64_t shuffle_xor(uint64_t value, unsigned lanes) {
    Shuffle mine = {value, lanes, 0};
    warp_operation(shuffle_together, &mine);
    return mine.answer;
}

void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool is_bf16) {
    Multiplication mine = {d, a, {b0, b1}, is_bf16};
    warp_operation(multiply_together, &mine);
}

void multiply_group(float* d, unsigned columns, const unsigned* a, uint64_t x, uint64_t y, bool add, bool is_bf16) {
    Fiber& self = *machine.current;
    if (self.product_count == MAX_PRODUCTS) {
        machine.fault = "more products than a fiber remembers";
        leave();
    }
    GroupProduct& product = self.products[self.product_count++];
    product.d = d;
    product.columns = columns;
    product.is_given = a != nullptr;
    product.add = add;
    product.is_bf16 = is_bf16;
    product.x = x;
    product.y = y;
    product.group = self.product_group;
    if (a != nullptr) {
        GroupFragment mine = {a, &product};
        warp_operation(give_rows, &mine);
    }
}

void commit_products() { machine.current->product_group++; }

void wait_products(int left) {
    Fiber& self = *machine.current;
    unsigned kept = 0;
    for (unsigned i = 0; i < self.product_count; i++) {
        const GroupProduct& product = self.products[i];
        if (product.group + static_cast<unsigned>(left) >= self.product_group)
            self.products[kept++] = product;
        else
            perform(product);
    }
    self.product_count = kept;
}

}  // namespace emulate

// Runs a kernel. Returns null, or an error message.
extern "C" const char* infer_emulate_launch(const char* name, const void* params, size_t params_bytes,
                                            const unsigned* grid, unsigned threads, size_t shared_bytes,
                                            uint64_t seed) {
    return emulate::launch(name, params, params_bytes, Index3{grid[0], grid[1], grid[2]}, threads, shared_bytes, seed);
}

// A kernel's parameter bytes and threads per block. Returns its name, which lives as long as the program, or null.
extern "C" const char* infer_emulate_find(const char* name, size_t* params_bytes, unsigned* threads) {
    const emulate::Entry* entry = emulate::find(name);
    if (entry == nullptr) return nullptr;
    *params_bytes = entry->params_bytes;
    *threads = entry->threads;
    return entry->name;
}
