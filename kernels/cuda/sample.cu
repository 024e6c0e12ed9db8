// Samples one token per row on the device: soft cap, biases, forbidden tokens, penalties, then greedy, or temperature
// with min-p, top-k and top-p. Logits stay on the device; only a token id leaves. The host computes the row's random
// number from (seed, index of the token), by the same rule as for the CPU's sampler.
//
// Instead of sorting, it searches: candidates are ordered by a 64-bit key (logit, then lower token first, so no two are
// equal). A histogram of counts and weights gives the range of logits that contains the wanted position, further
// histograms the digits of the key, and the last few candidates are ranked directly. Weights are integers (exp(x) *
// 2^44), so sums are exact in any order and the result is the same on every run.
//
// Versions. 1: a block of 1,024 threads per row; eight digits of the key, each of which read the row again from L2. The
// first was the float's exponent, so nearly all of a row fell into three to eight 64-bit words, to which the device
// adds by compare-and-swap. 2: the first digit is one of 256 equal ranges of the logits that count; top-p first leaves
// out tokens too light for it; sums are pairs of 32-bit additions; up to 256 candidates are ranked directly; a thread
// reads 8 logits at once. Temperature alone took three passes, of which one had each lane of a warp in another line.
// 3 (this one): two, coalesced; the largest logit is found within warps first. Same tokens.
// Estimated, not measured, for a vocabulary of 128,256: some 10 us a pass; greedy takes one, top-p eight or nine
// (version 1 took 17, and 1.5 ms of contention).
// Measurements (H200, 128,256 tokens, one row): greedy 24 us, temperature 47, top-p 0.9 347; 256 rows 57, 119, 869.
// Limit: L2 bandwidth of one multiprocessor per row; small batches of large vocabularies leave the device idle (a cluster
// per row would not).
#include "device.cuh"

struct SampleRow {
    u32 row;               // Row of `logits`; NONE samples nothing.
    u32 history_start;     // Tokens seen so far, in `tokens`; penalized once each.
    u32 history_len;
    u32 forbidden_start;   // In `tokens`.
    u32 forbidden_len;
    u32 bias_start;        // Pairs of token and bias of its logit, in `tokens`; no token twice.
    u32 bias_len;
    u32 less_start;        // Pairs of token and the amount subtracted from its logit, after the repetition penalty.
    u32 less_len;
    u32 top_k;             // 0: no limit.
    float temperature;     // 0: greedy.
    float top_p;           // 1: no limit.
    float min_p;           // 0: no limit.
    float penalty;         // For repetition; 1: none.
    float uniform;         // In [0, 1).
};

struct SampleParams {
    float* logits;             // [row][vocab]; overwritten.
    const SampleRow* rows;     // One per block.
    const u32* tokens;
    u32* seen;                 // [block][(vocab + 31) / 32], all zero before and after.
    u32* out;                  // A token per block; NONE if none can be sampled.
    u32 vocab;
    float soft_cap;            // 0: none.
};

namespace sample {

constexpr u32 THREADS = 1024;
constexpr u32 BINS = 256;
// Tokens fit into this many bits of a key.
constexpr u32 TOKEN_BITS = 24;
constexpr u32 KEY_BITS = 32 + TOKEN_BITS;

// Candidates that are ranked directly.
constexpr u32 LIST = BINS;

struct Shared {
    u64 keys[LIST];
    u64 weights[BINS];
    u32 counts[BINS];
    u64 best;
    u64 prefix;        // Digits found so far.
    u64 before;        // What lies before them: a count or a weight.
    u64 total;
    u32 range;         // Range of logits found; NONE: not yet.
    u32 left;          // Candidates that agree with all of that.
    u32 broken;        // A logit was NaN or +infinity.
};

// Larger keys are likelier; among equal logits the lower token has the larger key.
DEVICE u64 key_of(float logit, u32 token) {
    const u32 bits = float_to_bits(logit + 0.0f);
    const u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<u64>(ordered) << TOKEN_BITS | ((1u << TOKEN_BITS) - 1 - token);
}

DEVICE u32 token_of(u64 key) { return (1u << TOKEN_BITS) - 1 - static_cast<u32>(key & ((1u << TOKEN_BITS) - 1)); }

DEVICE float logit_of(u64 key) {
    const u32 ordered = static_cast<u32>(key >> TOKEN_BITS);
    return bits_to_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// Adds to a shared weight. The device adds 32 bits atomically in shared memory, but 64 bits only by compare-and-swap;
// with the carry the sum is exact in any order.
DEVICE void add_weight(u64* at, u64 weight) {
    u32* words = reinterpret_cast<u32*>(at);
    const u32 low = static_cast<u32>(weight), before = atomic_add(&words[0], low);
    atomic_add(&words[1], static_cast<u32>(weight >> 32) + (before + low < before ? 1u : 0u));
}

// Calls visit(logit, token) for every STEP-th token from `first` to `end`. It reads several at once.
template <u32 STEP, class Visit>
DEVICE void each_logit(const float* logits, u32 first, u32 end, Visit visit) {
    constexpr u32 TOGETHER = 8;
    for (; first < end; first += TOGETHER * STEP) {
        float read[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            const u32 token = first + i * STEP;
            read[i] = load_now(logits + (token < end ? token : end - 1));
        }
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++)
            if (first + i * STEP < end) visit(read[i], first + i * STEP);
    }
}

struct Row {
    float* logits;
    u32 vocab;
    float largest;
    float rate;        // log2(e) / temperature
    u64 least;         // Tokens of less weight don't count.
    float ranges;      // Of logits, for each of their units.

    DEVICE void count_from(u64 weight) {
        least = weight;
        u32 bits = 0;
        while (bits < 44 && least >> bits != 0) bits++;
        ranges = rate * BINS / (45.0f - bits);
    }

    // Weight of a token relative to the likeliest, in units of 2^-44: sums of fewer than 2^20 tokens fit.
    DEVICE u64 weight(float logit) const {
        return static_cast<u64>(exp2_fast((logit - largest) * rate) * 17592186044416.0f);
    }

    // Index among BINS equal ranges of the logits whose weight counts, the last one for the likeliest. A float's own
    // digits would put nearly all of a row into the same few bins.
    DEVICE u32 range(float logit) const {
        const float place = (largest - logit) * ranges;
        return place < BINS - 1 ? BINS - 1 - static_cast<u32>(place) : 0;
    }

    // Calls visit(key, logit) for candidates not below `floor`. `visit` decides whether their weight counts.
    template <class Visit>
    DEVICE void each(u64 floor, Visit visit) const {
        each_logit<THREADS>(logits, threadIdx.x, vocab, [&](float logit, u32 token) {
            const u64 key = key_of(logit, token);
            if (logit > negative_infinity() && key >= floor) visit(key, logit);
        });
    }
};

// Returns to all threads the key, among those not below `floor`, at position `target` counted from the largest: by
// count, or by weight. `target` must be below the total.
template <bool BY_WEIGHT>
DEVICE u64 descend(const Row& row, u64 floor, u64 target, Shared& s) {
    const u32 thread = threadIdx.x;
    if (thread == 0) {
        s.prefix = 0;
        s.before = 0;
        s.range = NONE;
    }
    // Calls visit(key, weight) for the candidates that match the digits found so far, down to `shift`.
    const auto each = [&](int shift, auto visit) {
        const u64 prefix = s.prefix;
        const u32 range = s.range;
        row.each(floor, [&](u64 key, float logit) {
            if (range != NONE && (row.range(logit) != range || key >> shift != prefix)) return;
            const u64 weight = row.weight(logit);
            if (weight >= row.least) visit(key, logit, weight);
        });
    };
    // The first digit is the range of the logit, the others are digits of the key. After all of them one candidate is
    // left.
    int shift = KEY_BITS;
    for (bool ranged = false;; ranged = true) {
        for (u32 i = thread; i < BINS; i += THREADS) {
            s.counts[i] = 0;
            s.weights[i] = 0;
        }
        sync_block();
        const int digit = ranged ? shift - 8 : shift;
        each(shift, [&](u64 key, float logit, u64 weight) {
            const u32 bin = ranged ? static_cast<u32>(key >> digit) % BINS : row.range(logit);
            atomic_add(&s.counts[bin], 1u);
            if (BY_WEIGHT) add_weight(&s.weights[bin], weight);
        });
        sync_block();
        if (thread == 0) {
            u64 before = s.before;
            u32 chosen = BINS;
            for (u32 bin = BINS; bin-- > 0;) {
                if (s.counts[bin] == 0) continue;
                const u64 here = BY_WEIGHT ? s.weights[bin] : s.counts[bin];
                chosen = bin;
                if (before + here > target) break;
                before += here;
            }
            s.before = before;
            s.left = s.counts[chosen];
            if (ranged)
                s.prefix = s.prefix << 8 | chosen;
            else
                s.range = chosen;
        }
        sync_block();
        shift = digit;
        if (s.left <= LIST) break;
    }
    // Few are left: each thread ranks one candidate.
    sync_block();
    if (thread == 0) s.left = 0;
    sync_block();
    each(shift, [&](u64 key, float, u64) { s.keys[atomic_add(&s.left, 1u)] = key; });
    sync_block();
    const u32 left = s.left;
    const u64 own = thread < left ? s.keys[thread] : 0;
    const u64 weight = BY_WEIGHT && thread < left ? row.weight(logit_of(own)) : 1;
    if (thread < left) s.weights[thread] = weight;
    sync_block();
    if (thread < left) {
        u64 before = s.before;
        for (u32 i = 0; i < left; i++) before += s.keys[i] > own ? s.weights[i] : 0;
        if (before <= target && target < before + weight) s.best = own;
    }
    sync_block();
    const u64 found = s.best;
    sync_block();
    return found;
}

// Weight of everything not below `floor`.
DEVICE u64 total_weight(const Row& row, u64 floor, Shared& s) {
    if (threadIdx.x == 0) s.total = 0;
    sync_block();
    u64 mine = 0;
    row.each(floor, [&](u64, float logit) {
        const u64 weight = row.weight(logit);
        if (weight >= row.least) mine += weight;
    });
    mine = warp_sum(mine);
    if (lane_of(threadIdx.x) == 0) add_weight(&s.total, mine);
    sync_block();
    const u64 total = s.total;
    sync_block();
    return total;
}

// A share of a weight, less than the weight.
DEVICE u64 share(u64 total, float part) {
    const u64 at = static_cast<u64>(static_cast<double>(total) * part);
    return at < total ? at : total - 1;
}

// Without limits, tokens are taken in order of their ids, as on the CPU: the one whose share of the total contains the
// number.
DEVICE u32 draw_by_token(const Row& row, float uniform, Shared& s) {
    constexpr u32 BINS_OF_WARP = BINS * WARP / THREADS;
    const u32 thread = threadIdx.x, lane = lane_of(thread), first_bin = warp_of(thread) * BINS_OF_WARP;
    const auto weigh = [&](u32 token) {
        if (token >= row.vocab || !(row.logits[token] > negative_infinity())) return static_cast<u64>(0);
        return row.weight(row.logits[token]);
    };
    const auto clear = [&] {
        for (u32 i = thread; i < BINS; i += THREADS) s.weights[i] = 0;
        sync_block();
    };
    // The bin that contains the target: its first token, and the weight before it.
    const auto find = [&](u32 first, u64 target, u32 width) {
        sync_block();
        if (thread == 0) {
            u32 bin = 0;
            while (bin < BINS - 1 && s.before + s.weights[bin] <= target) s.before += s.weights[bin++];
            s.left = first + bin * width;
        }
        sync_block();
    };
    // A bin has consecutive tokens, which the lanes of a warp read side by side.
    const u32 span = (row.vocab + BINS - 1) / BINS;
    for (u32 bin = first_bin; bin < first_bin + BINS_OF_WARP; bin++) {
        const u32 end = (bin + 1) * span < row.vocab ? (bin + 1) * span : row.vocab;
        u64 mine = 0;
        each_logit<WARP>(row.logits, bin * span + lane, end, [&](float logit, u32) {
            if (logit > negative_infinity()) mine += row.weight(logit);
        });
        mine = warp_sum(mine);
        if (lane == 0) s.weights[bin] = mine;
    }
    if (thread == 0) s.before = 0;
    sync_block();
    u64 total = 0;
    for (u32 bin = lane; bin < BINS; bin += WARP) total += s.weights[bin];
    const u64 target = share(warp_sum(total), uniform);
    find(0, target, span);
    const u32 first = s.left, width = (span + BINS - 1) / BINS;
    clear();
    for (u32 i = thread; i < span; i += THREADS) add_weight(&s.weights[i / width], weigh(first + i));
    find(first, target, width);
    if (thread == 0)
        for (s.before += weigh(s.left); s.before <= target; s.before += weigh(s.left)) s.left++;
    sync_block();
    return s.left;
}

DEVICE void draw(const SampleParams& p, unsigned char* shared) {
    Shared& s = *reinterpret_cast<Shared*>(shared);
    const SampleRow& wish = p.rows[blockIdx.x];
    const u32 thread = threadIdx.x;
    if (wish.row == NONE) return;
    float* logits = p.logits + static_cast<u64>(wish.row) * p.vocab;
    u32* seen = p.seen + static_cast<u64>(blockIdx.x) * ((p.vocab + 31) / 32);

    if (p.soft_cap > 0.0f) {
        for (u32 i = thread; i < p.vocab; i += THREADS) logits[i] = p.soft_cap * tanhf(logits[i] / p.soft_cap);
        sync_block();
    }
    const auto adjust = [&](u32 start, u32 count, float sign) {
        for (u32 i = thread; i < count; i += THREADS) {
            const u32 token = p.tokens[start + 2 * i];
            if (token < p.vocab) logits[token] += sign * bits_to_float(p.tokens[start + 2 * i + 1]);
        }
        sync_block();
    };
    if (wish.bias_len > 0) adjust(wish.bias_start, wish.bias_len, 1.0f);
    for (u32 i = thread; i < wish.forbidden_len; i += THREADS) {
        const u32 token = p.tokens[wish.forbidden_start + i];
        if (token < p.vocab) logits[token] = negative_infinity();
    }
    sync_block();
    if (wish.penalty != 1.0f) {
        for (u32 i = thread; i < wish.history_len; i += THREADS) {
            const u32 token = p.tokens[wish.history_start + i];
            if (token >= p.vocab || atomic_or(&seen[token / 32], 1u << token % 32) >> token % 32 & 1u) continue;
            logits[token] = logits[token] > 0.0f ? logits[token] / wish.penalty : logits[token] * wish.penalty;
        }
        sync_block();
        for (u32 i = thread; i < wish.history_len; i += THREADS) {
            const u32 token = p.tokens[wish.history_start + i];
            if (token < p.vocab) seen[token / 32] = 0;
        }
    }
    if (wish.less_len > 0) adjust(wish.less_start, wish.less_len, -1.0f);

    if (thread == 0) {
        s.best = 0;
        s.broken = 0;
    }
    sync_block();
    u64 best = 0;
    each_logit<THREADS>(logits, thread, p.vocab, [&](float logit, u32 token) {
        if (!(logit < -negative_infinity())) {
            atomic_or(&s.broken, 1u);
        } else if (logit > negative_infinity()) {
            const u64 key = key_of(logit, token);
            best = key > best ? key : best;
        }
    });
    for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) {
        const u64 other = shuffle_xor(best, lanes);
        best = other > best ? other : best;
    }
    if (lane_of(thread) == 0) atomic_max(&s.best, best);
    sync_block();
    best = s.best;
    if (s.broken != 0 || best == 0) {
        if (thread == 0) p.out[blockIdx.x] = NONE;
        return;
    }
    if (!(wish.temperature > 0.0f) || wish.top_k == 1) {
        if (thread == 0) p.out[blockIdx.x] = token_of(best);
        return;
    }
    const u64 least = wish.min_p > 0.0f ? static_cast<u64>(wish.min_p * 17592186044416.0f) : 0;
    Row row = {logits, p.vocab, logits[token_of(best)], LOG2_E / wish.temperature, 0, 0.0f};
    row.count_from(least);
    u32 token;
    const bool limited = wish.top_k != 0 && wish.top_k < p.vocab;
    if (!limited && wish.top_p >= 1.0f && least == 0) {
        token = draw_by_token(row, wish.uniform, s);
    } else {
        u64 floor = 0;
        if (limited) {
            if (thread == 0) s.left = 0;
            sync_block();
            u32 mine = 0;
            row.each(0, [&](u64, float logit) { mine += row.weight(logit) >= least ? 1 : 0; });
            atomic_add(&s.left, mine);
            sync_block();
            const u32 candidates = s.left;
            sync_block();
            floor = descend<false>(row, 0, (wish.top_k < candidates ? wish.top_k : candidates) - 1, s);
        }
        u64 total = total_weight(row, floor, s);
        if (wish.top_p < 1.0f) {
            // The first candidate at which the cumulative weight, its own included, reaches the goal. Tokens lighter
            // than an equal share of what may be left out can't be it: together they are too light.
            const u64 goal = static_cast<u64>(static_cast<double>(total) * wish.top_p);
            const u64 lighter = static_cast<u64>(static_cast<double>(total) * (1.0 - wish.top_p) / p.vocab);
            row.count_from(lighter > least ? lighter : least);
            floor = descend<true>(row, floor, goal > 0 ? goal - 1 : 0, s);
            total = total_weight(row, floor, s);
        }
        token = token_of(descend<true>(row, floor, share(total, wish.uniform), s));
    }
    if (thread == 0) p.out[blockIdx.x] = token;
}

}  // namespace sample

KERNEL(sample_token, SampleParams, sample::THREADS) {
    SHARED_MEMORY(shared);
    sample::draw(p, shared);
}
