// Samples one token per row on the device: soft cap, biases, forbidden tokens, penalties, then greedy, or temperature
// with min-p, top-k and top-p. Logits stay on the device; only a token id leaves. The host computes the row's random
// number from (seed, index of the token), by the same rule as for the CPU's sampler.
//
// Instead of sorting, it searches: candidates are ordered by a 64-bit key (logit, then lower token first, so no two are
// equal). Counts of candidates in 1,024 ranges of logits, with the largest and smallest weight that a range allows, give
// the few ranges that may contain the wanted position. Their candidates are listed in shared memory while the weights
// above them are summed; keys divide them further, and the last few are ranked. Weights are integers (exp(x) * 2^44), so
// sums are exact in any order and the result is the same on every run.
//
// Versions. 1: a block of 1,024 threads per row; eight digits of the key, each of which read the row again from L2, with
// compare-and-swap on a few 64-bit words. 2: 256 ranges of the logits that count, then digits of the key, each a
// histogram of counts and weights. 3: fewer and coalesced passes for temperature alone. 4 (this one): no histogram of
// weights; counts of one pass serve all searches; if the candidates that can matter are up to 8,192, they are listed in
// that pass, and the row is read no more; threads sum up bins instead of one of them; a thread reads 64 bytes at once,
// not 32. Same tokens.
//
// Counted for a vocabulary of 128,256 at 1.9 GHz: an instruction for every logit takes a multiprocessor 0.5 us, one of a
// unit of 64 lanes 1 us, one of 16 lanes (exponentials, conversions to 64 bits) 4 us. A row comes from L2 in 4 us at 64
// bytes a clock; with 64 KB in flight in 8 round trips of 0.7 us. A sum over the block takes 0.5 us, where one thread
// that summed 256 bins took 3.
//
// | passes over the row | version 3 | this one |
// |---|---|---|
// | greedy | 1, of 30 instructions per logit | 1, of 5 |
// | temperature | 2, the second in 16 round trips | 2, the second of 20 instructions |
// | top-p, up to 8,192 candidates | 9 to 11 | 2, the second of 25 instructions |
// | top-p, flat logits | 11, 6 of which with 3 to 4 atomics per logit, 2 or 3 lanes in conflict | 4, of which one has one atomic |
//
// Measurements (H200, 128,256 flat logits, one row): greedy 7 us, temperature 22, top-p 0.9 113 (version 3: 24, 47, 347); 256
// rows 37, 74, 270 (57, 119, 869). Estimated, not measured: top-p 0.9 of peaked logits 40 us.
// Limit: instructions and L2 bandwidth of one multiprocessor per row; small batches of large vocabularies leave the device
// idle (a cluster per row would not).
#include "sample.cuh"

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

// The token of the largest logit, the lowest of equal ones, to all threads; NONE if a logit is NaN or +infinity, or all
// are -infinity. Sets `row.largest`.
DEVICE u32 likeliest(Row& row, Shared& s) {
    if (threadIdx.x == 0) s.broken = 0;
    float best = negative_infinity();
    u32 at = 0;
    bool broken = false;
    row.each_group([&](const Group& group, u32) {
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++) {
            const float(&x)[4] = group.logits[v];
#pragma unroll
            for (u32 j = 0; j < 4; j++) broken |= !(x[j] < -negative_infinity());
            // A thread gets its tokens in order, so the first of equal ones stays.
            const float most = larger(larger(x[0], x[1]), larger(x[2], x[3]));
            at = most > best ? group.token(v) : at;
            best = larger(most, best);
        }
    });
    const auto largest_key = [](u64 key) {
        for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) {
            const u64 other = shuffle_xor(key, lanes);
            key = other > key ? other : key;
        }
        return key;
    };
    u64 key = largest_key(best > negative_infinity() ? key_of(best, at) : 0);
    sync_block();
    if (broken) atomic_or(&s.broken, 1u);
    if (lane_of(threadIdx.x) == 0) s.sums[0][warp_of(threadIdx.x)] = key;
    sync_block();
    key = largest_key(s.sums[0][lane_of(threadIdx.x)]);
    if (s.broken != 0 || key == 0) return NONE;
    // It is one of the four from `at` on.
    row.largest = logit_of(key);
    at = token_of(key);
    u32 token = at;
    for (u32 j = 4; j-- > 0;)
        if (at + j < row.vocab && row.logits[at + j] == row.largest) token = at + j;
    return token;
}

// A share of a weight, less than the weight.
DEVICE u64 share(u64 total, float part) {
    const u64 at = static_cast<u64>(static_cast<double>(total) * part);
    return at < total ? at : total - 1;
}

// Without limits, tokens are taken in order of their ids, as on the CPU: the one whose share of the total contains the
// number.
DEVICE u32 draw_by_token(const Row& row, float uniform, Shared& s) {
    const u32 thread = threadIdx.x;
    row.each_group([&](const Group& group, u32 index) {
        u64 weight = 0;
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) weight += row.weight(group.logits[v][j]);
        weight = warp_sum(weight);
        if (lane_of(thread) == 0) s.list[index] = weight;
    });
    sync_block();
    const auto weight_of_group = [&](u32 index) { return index * GROUP < row.vocab ? s.list[index] : 0; };
    // The group that contains the target, of two groups of a thread: fewer than 2^20 tokens have up to 2,048.
    const u64 first = weight_of_group(2 * thread), second = weight_of_group(2 * thread + 1);
    u64 before[1] = {first + second};
    sum_before(before, s);
    const u64 target = share(warp_sum(s.sums[0][lane_of(thread)]), uniform);
    if (before[0] <= target && target - before[0] < first + second) {
        const bool in_first = target - before[0] < first;
        s.first = 2 * thread + (in_first ? 0 : 1);
        s.through = before[0] + (in_first ? 0 : first);
    }
    sync_block();
    const u32 token = s.first * GROUP + thread;
    const u64 weight = thread < GROUP && token < row.vocab ? row.weight(row.logits[token]) : 0;
    const u64 rest = target - s.through;
    before[0] = weight;
    sum_before(before, s);
    if (before[0] <= rest && rest - before[0] < weight) s.last = token;
    sync_block();
    return s.last;
}

// Counts the candidates in bins and lists them. Sets `listed`: the list has all candidates of lower places; and
// `s.through`: the weight of those that count. Returns how many of them are in bins, which have some more, but none before.
DEVICE u32 survey(const Row& row, float& listed, Shared& s) {
    s.counts[threadIdx.x] = 0;
    if (threadIdx.x == 0) s.listed = 0;
    sync_block();
    const u64 least = s.limits.least;
    const float depth = s.limits.depth;
    u64 total = 0;
    u32 candidates = 0;
    bool listing = true;
    row.each([&](float logit, u32 token) {
        if (!(row.largest - logit <= depth)) return;
        const u64 weight = row.weight(logit);
        const bool counts = weight >= least;
        total += counts ? weight : 0;
        const float place = row.place(logit);
        if (!(place < BINS)) return;
        candidates += counts ? 1 : 0;
        atomic_add(&s.counts[static_cast<u32>(place)], 1u);
        // After its first candidate without room a thread no longer asks.
        if (!listing) return;
        const u32 at = atomic_add(&s.listed, 1u);
        listing = at < LIST;
        if (listing) s.list[at] = key_of(logit, token);
    });
    total = sum_of_all(total, s);
    if (threadIdx.x == 0) s.through = total;
    candidates = static_cast<u32>(sum_of_all(candidates, s));
    listed = s.listed <= LIST ? BINS : 0.0f;
    return candidates;
}

// Places of candidates, from one to below another.
struct Places {
    float from, to;
};

// Calls inside(key, logit) for the candidates at these places, of which only those of `s.keys` are left if `keyed`, and
// returns the weight of all above them to all threads.
template <class Source, class Visit>
DEVICE u64 within(const Source& source, const Row& row, Places places, bool keyed, Shared& s, Visit inside) {
    u64 above = 0;
    source.each([&](float logit, auto candidate) {
        const float place = row.place(logit);
        if (!(place < places.to)) return;
        bool over = place < places.from;
        if (keyed && !over) {
            const u64 key = key_of(logit, candidate);
            over = key >= s.keys.top;
            if (key < s.keys.bottom) return;
        }
        if (over)
            above += row.weight(logit);
        else
            inside(key_of(logit, candidate), logit);
    });
    return sum_of_all(above, s);
}

// Keys of candidates at these places, with some room for rounding.
DEVICE Keys keys_at(const Row& row, Places places) {
    const float size = row.largest < 0.0f ? -row.largest : row.largest;
    const float room = (size + places.to / row.bins) * 1e-6f + 0.01f / row.bins;
    const float high = row.largest - places.from / row.bins + room, low = row.largest - places.to / row.bins - room;
    return {key_of(low, (1u << TOKEN_BITS) - 1), key_of(high < row.largest ? high : row.largest, 0u) + 1, 0};
}

// Finds the first and the last bin that may contain the position `s.target`, by weight or by count, if weight of `above`
// lies before all bins. Those of keys have exact sums. Those of logits may be as heavy or as light as their limits: the
// first one is where the sum exceeds the target if all are as heavy as that, the last one if all are as light.
DEVICE void narrow(bool by_weight, bool keyed, u64 above, Shared& s) {
    const u32 bin = threadIdx.x, count = keyed ? s.finer[bin] : s.counts[bin], passed = keyed ? s.before : 0;
    u64 lower = count, upper = count;
    if (by_weight && keyed) {
        lower = upper = s.weights[bin];
    } else if (by_weight) {
        u64 most = weight_of(exp2_fast(-s.limits.step * static_cast<float>(bin)));
        u64 least = weight_of(exp2_fast(-s.limits.step * static_cast<float>(bin + 1)));
        // Exponentials, places and fractions are rounded. No weight exceeds ONE.
        most += (most >> 16) + 1;
        least -= least > 0 ? (least >> 16) + 1 : 0;
        upper *= most < 1ull << WEIGHT_BITS ? most : 1ull << WEIGHT_BITS;
        lower *= least;
    }
    u64 before[3] = {lower, upper, count};
    sum_before(before, s);
    before[0] += by_weight ? above : passed;
    before[1] += by_weight ? above : passed;
    // If no sum exceeds the target, it is the last bin with a candidate.
    const u64 all = warp_sum(s.sums[2][lane_of(bin)]);
    const bool last = count > 0 && before[2] + count == all;
    const u32 until = passed + static_cast<u32>(before[2]) + count;
    if (before[1] <= s.target && (s.target - before[1] < upper || last)) {
        s.first = bin;
        s.before = until - count;
    }
    if (before[0] <= s.target && (s.target - before[0] < lower || last)) {
        s.last = bin;
        s.until = until;
    }
    sync_block();
}

// Finds the candidate at position `s.target`, counted from the likeliest, by weight or by count, which must be below the
// total: `s.found` and `s.through`. The bins are those of `survey`. It may list other candidates, and sets `listed`.
DEVICE void search(const Row& row, bool by_weight, float& listed, Shared& s) {
    const u32 thread = threadIdx.x;
    if (thread == 0) {
        s.unlisted = 0;
        s.few = 0;
    }
    Places places = {0.0f, BINS};
    u64 above = 0;
    bool in_list = false, keyed = false;
    // Keys have 56 bits, of which a turn determines ten, or few candidates are left before.
    for (u32 turn = 0; turn < 10; turn++) {
        narrow(by_weight, keyed, above, s);
        const u32 left = s.until - s.before;
        if (!keyed)
            places = {static_cast<float>(s.first), static_cast<float>(s.last + 1)};
        else if (thread == 0)
            s.keys.narrow(s.first, s.last);
        if (!in_list && !keyed && places.to <= listed) {
            in_list = true;
        } else if (!in_list && left <= LIST) {
            // With all that lies above them if there is room: the next search may need it.
            const bool all = !keyed && s.until <= LIST;
            if (thread == 0) s.listed = 0;
            sync_block();
            const Places wanted = {all ? 0.0f : places.from, places.to};
            const u64 unlisted = within(row, row, wanted, keyed, s, [&](u64 key, float) {
                const u32 at = atomic_add(&s.listed, 1u);
                if (at < LIST) s.list[at] = key;
            });
            if (thread == 0) s.unlisted = unlisted;
            in_list = true;
            listed = all ? places.to : 0.0f;
        }
        const Listed list = {s.list, in_list ? s.listed : 0};
        if (in_list && left <= RANKED) {
            sync_block();
            above = within(list, row, places, keyed, s, [&](u64 key, float logit) {
                const u32 at = atomic_add(&s.few, 1u);
                if (at < RANKED) s.ranked[at] = {key, row.weight(logit)};
            });
            break;
        }
        if (thread == 0) {
            if (!keyed) s.keys = keys_at(row, places);
            s.keys.fit();
        }
        keyed = true;
        s.finer[thread] = 0;
        s.weights[thread] = 0;
        sync_block();
        const auto count = [&](u64 key, float logit) {
            const u32 bin = s.keys.bin(key) < BINS ? s.keys.bin(key) : BINS - 1;
            atomic_add(&s.finer[bin], 1u);
            if (by_weight) add_weight(&s.weights[bin], row.weight(logit));
        };
        above = in_list ? within(list, row, places, true, s, count) : within(row, row, places, true, s, count);
        above += s.unlisted;
    }
    const u32 few = s.few < RANKED ? s.few : RANKED;
    if (thread < few) {
        const Candidate own = s.ranked[thread];
        u64 weight = above + s.unlisted;
        u32 rank = s.before;
#pragma unroll 4
        for (u32 i = 0; i < few; i++) {
            const bool first = s.ranked[i].key > own.key;
            weight += first ? s.ranked[i].weight : 0;
            rank += first ? 1 : 0;
        }
        if (by_weight ? weight <= s.target && s.target - weight < own.weight : rank == s.target) {
            s.found = own.key;
            s.through = weight + own.weight;
        }
    }
    sync_block();
}

// Draws by temperature and at least one of top-k, top-p and min-p.
DEVICE u32 draw_limited(Row& row, const SampleRow& wish, u64 least, bool limited, u32 best, Shared& s) {
    // The result for numbers that overflow: a temperature below 1e-38.
    if (threadIdx.x == 0) s.found = key_of(row.largest, best);

    // A weight of n bits is at least 2^(n - 1). Hundredths cover rounding; whatever has a bin must be in the depth.
    const auto reach = [](u64 weight) {
        u32 bits = 0;
        while (weight >> bits != 0) bits++;
        return WEIGHT_BITS + 1.01f - bits;
    };
    // Top-p: the wanted candidate is the first one at which the cumulative weight, its own included, reaches a goal. Tokens
    // lighter than an equal share of what may be left out can't be it: together they are too light. The total is ONE or
    // more. Top-k has to count all others.
    const double left_out = static_cast<double>(ONE) * (1.0 - wish.top_p) / row.vocab;
    const u64 lighter = wish.top_p < 1.0f && !limited ? static_cast<u64>(left_out) : 0;
    const float step = reach(lighter > least ? lighter : least) / BINS;
    row.bins = row.rate / step;
    if (threadIdx.x == 0) s.limits = {least, (reach(least) + 0.01f) / row.rate, step};

    float listed;
    const bool counted = survey(row, listed, s) > wish.top_k && limited;
#pragma unroll 1
    for (u32 step = 0; step < 3; step++) {
        // If there are fewer than `top_k` in bins, those without one have no weight.
        if (step == 0 && !counted) continue;
        if (step == 1 && !(wish.top_p < 1.0f)) continue;
        if (threadIdx.x == 0) {
            const u64 goal = static_cast<u64>(static_cast<double>(s.through) * wish.top_p);
            s.target = step == 0 ? wish.top_k - 1 : step == 1 ? (goal > 0 ? goal - 1 : 0) : share(s.through, wish.uniform);
        }
        search(row, step > 0, listed, s);
    }
    return token_of(s.found);
}

DEVICE void draw(const SampleParams& p, unsigned char* shared) {
    Shared& s = *reinterpret_cast<Shared*>(shared);
    const SampleRow& wish = p.rows[blockIdx.x];
    const u32 thread = threadIdx.x;
    if (wish.row == NONE) return;
    float* logits = p.logits + static_cast<u64>(wish.row) * p.vocab;
    u32* seen = p.seen + static_cast<u64>(blockIdx.x) * ((p.vocab + 31) / 32);
    const bool wide = p.vocab % 4 == 0 && reinterpret_cast<u64>(logits) % 16 == 0;
    Row row = {logits, p.vocab, wide, 0.0f, LOG2_E / wish.temperature, 0.0f};

    if (p.soft_cap > 0.0f) {
        const auto cap = [&](float x) { return p.soft_cap * tanhf(x / p.soft_cap); };
        Words4* vectors = reinterpret_cast<Words4*>(logits);
        const u32 whole = wide ? p.vocab / 4 : 0;
        for (u32 i = thread; i < whole; i += THREADS) {
            Words4 four = vectors[i];
#pragma unroll
            for (u32 j = 0; j < 4; j++) four.w[j] = float_to_bits(cap(bits_to_float(four.w[j])));
            vectors[i] = four;
        }
        for (u32 i = 4 * whole + thread; i < p.vocab; i += THREADS) logits[i] = cap(logits[i]);
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

    u32 token = likeliest(row, s);
    if (token != NONE && wish.temperature > 0.0f && wish.top_k != 1) {
        const u64 least = wish.min_p > 0.0f ? static_cast<u64>(wish.min_p * ONE) : 0;
        const bool limited = wish.top_k != 0 && wish.top_k < p.vocab;
        if (limited || wish.top_p < 1.0f || least > 0)
            token = draw_limited(row, wish, least, limited, token, s);
        else
            token = draw_by_token(row, wish.uniform, s);
    }
    if (thread == 0) p.out[blockIdx.x] = token;
}

}  // namespace sample

KERNEL(sample_token, SampleParams, sample::THREADS) {
    SHARED_MEMORY(shared);
    sample::draw(p, shared);
}
