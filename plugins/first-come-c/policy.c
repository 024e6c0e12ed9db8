// `first-come-c`: running sequences continue, then the queue starts in order of arrival.
//
// A scheduler in plain C. It keeps no state, because each step's view has everything it needs. Blocks are
// counted, so that its plans fit; if memory is short for the running sequences, the latest to start are
// preempted. Waiting for shared prefixes, a watermark and fair shares of long prompts are deliberately left
// to the policies written with the SDK.

#include <stdlib.h>

#include "scheduler_policy.h"

typedef exports_infer_policy_scheduler_step_t step_t;
typedef exports_infer_policy_scheduler_plan_t plan_t;
typedef exports_infer_policy_scheduler_sequences_t rows_t;

#define NEVER UINT64_MAX

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t minus(uint32_t a, uint32_t b) { return a > b ? a - b : 0; }

static uint32_t plus(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

static uint32_t blocks_for(uint32_t tokens, uint32_t block_size) {
  return tokens / block_size + (tokens % block_size != 0);
}

// Tokens whose keys and values are still to be computed: 1 while it decodes.
static uint32_t remaining(const rows_t *rows, size_t at) {
  return minus(plus(rows->prompt_tokens.ptr[at], rows->generated_tokens.ptr[at]), rows->computed_tokens.ptr[at]);
}

static bool is_decoding(const rows_t *rows, size_t at) {
  return rows->generated_tokens.ptr[at] > 0 && remaining(rows, at) <= 1;
}

// Blocks that a running sequence must be given to compute `tokens` more.
static uint32_t blocks_to_run(const rows_t *rows, size_t at, uint32_t tokens, uint32_t block_size) {
  return minus(blocks_for(plus(rows->computed_tokens.ptr[at], tokens), block_size), rows->blocks.ptr[at]);
}

// Blocks that a waiting sequence takes: new ones, and cached ones that no sequence uses now. A cached prefix
// that ends inside a block is copied, so its last block is a new one.
static uint32_t blocks_to_start(const rows_t *rows, size_t at, uint32_t tokens, uint32_t block_size) {
  uint32_t computed = rows->computed_tokens.ptr[at];
  uint32_t fresh = minus(blocks_for(plus(computed, tokens), block_size), computed / block_size);
  return plus(fresh, rows->idle_blocks.ptr[at]);
}

// What is left of the step, and the plan so far.
typedef struct {
  const step_t *step;
  plan_t *plan;
  uint32_t block_size, blocks, tokens, prefill_tokens, prefills;
} budget_t;

static void run(budget_t *left, uint64_t id, uint32_t tokens, bool decodes, uint32_t blocks) {
  left->plan->run.ptr[left->plan->run.len++] = id;
  left->plan->tokens.ptr[left->plan->tokens.len++] = tokens;
  left->tokens -= tokens;
  left->blocks = minus(left->blocks, blocks);
  if (!decodes && tokens > 0) {
    left->prefill_tokens -= tokens;
    left->prefills -= 1;
  }
}

// As much of a prompt as the step's limits leave.
static uint32_t chunk(const budget_t *left, uint32_t wanted) {
  if (left->prefills == 0) return 0;
  uint32_t most = min_u32(left->step->limits.prefill_chunk, left->prefill_tokens);
  return min_u32(min_u32(wanted, most), left->tokens);
}

// Returns how many of the running sequences stay: the others, the latest to start, are preempted until each
// that stays can compute one token.
static size_t who_stays(budget_t *left) {
  const rows_t *rows = &left->step->running;
  uint64_t needed = 0;
  for (size_t at = 0; at < rows->id.len; at++) needed += blocks_to_run(rows, at, 1, left->block_size);
  size_t stay = rows->id.len;
  while (stay > 1 && needed > left->blocks) {
    stay -= 1;
    needed -= blocks_to_run(rows, stay, 1, left->block_size);
    left->blocks = plus(left->blocks, rows->freeable_blocks.ptr[stay]);
    left->plan->preempt.ptr[left->plan->preempt.len++] = rows->id.ptr[stay];
  }
  return stay;
}

static void go_on(budget_t *left, size_t stay) {
  const rows_t *rows = &left->step->running;
  // Decodes first, so that no prompt holds up a stream.
  for (int prompts = 0; prompts < 2; prompts++) {
    for (size_t at = 0; at < stay && left->tokens > 0; at++) {
      bool decodes = is_decoding(rows, at);
      if (decodes == (prompts == 1)) continue;
      uint32_t tokens = decodes ? min_u32(remaining(rows, at), left->tokens) : chunk(left, remaining(rows, at));
      uint32_t room = minus(plus(rows->blocks.ptr[at], left->blocks) > UINT32_MAX / left->block_size
                                ? UINT32_MAX
                                : plus(rows->blocks.ptr[at], left->blocks) * left->block_size,
                            rows->computed_tokens.ptr[at]);
      // The host knows its memory best: a lone sequence is listed even if it seems not to fit.
      if (stay > 1) tokens = min_u32(tokens, room);
      if (tokens > 0) run(left, rows->id.ptr[at], tokens, decodes, blocks_to_run(rows, at, tokens, left->block_size));
    }
  }
}

static void start_waiting(budget_t *left) {
  const rows_t *running = &left->step->running, *waiting = &left->step->waiting;
  uint32_t most = min_u32(left->step->limits.max_running, left->step->limits.max_batch_tokens);
  uint32_t slots = minus(most, (uint32_t)min_u32(running->id.len, UINT32_MAX));
  for (size_t at = 0; at < waiting->id.len && slots > 0; at++, slots--) {
    uint32_t whole = remaining(waiting, at);
    uint32_t tokens = chunk(left, whole);
    if (tokens == 0 && whole > 0) return;
    // Room for the whole prompt and a first token, unless it has the pool to itself.
    uint32_t needed = blocks_to_start(waiting, at, plus(whole, 1), left->block_size);
    uint32_t taken = blocks_to_start(waiting, at, tokens, left->block_size);
    bool alone = left->plan->run.len == 0;
    if (alone ? taken > left->blocks : needed > left->blocks) return;
    run(left, waiting->id.ptr[at], tokens, false, alone ? taken : needed);
  }
}

void exports_infer_policy_scheduler_schedule(step_t *step, plan_t *plan) {
  size_t rows = step->running.id.len + step->waiting.id.len;
  plan->run.ptr = malloc(rows * sizeof *plan->run.ptr);
  plan->tokens.ptr = malloc(rows * sizeof *plan->tokens.ptr);
  plan->preempt.ptr = malloc(step->running.id.len * sizeof *plan->preempt.ptr);
  plan->run.len = plan->tokens.len = plan->preempt.len = 0;
  plan->wake = NEVER;
  budget_t left = {
      .step = step,
      .plan = plan,
      .block_size = step->memory.block_size ? step->memory.block_size : 1,
      .blocks = plus(step->memory.free_blocks, step->memory.cached_blocks),
      .tokens = step->limits.max_batch_tokens,
      .prefill_tokens = step->limits.max_prefill_tokens,
      .prefills = step->limits.max_prefill_sequences,
  };
  go_on(&left, who_stays(&left));
  // Memory of a sequence that was just preempted must not start another one.
  if (plan->preempt.len == 0) start_waiting(&left);
  // The caller hands us the view, and we have to free it.
  exports_infer_policy_scheduler_step_free(step);
}

void exports_infer_policy_lifecycle_describe(exports_infer_policy_lifecycle_info_t *info) {
  scheduler_policy_string_dup(&info->name, "first-come-c");
  scheduler_policy_string_dup(&info->version, "0.1.0");
  scheduler_policy_string_dup(&info->description, "First come, first served, written in C.");
  scheduler_policy_string_dup(&info->config_schema,
                              "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {}}");
}

// It takes no configuration: anything but an empty object is refused.
bool exports_infer_policy_lifecycle_configure(scheduler_policy_string_t *config, scheduler_policy_string_t *err) {
  size_t letters = 0;
  char seen[2] = {0};
  for (size_t at = 0; at < config->len; at++) {
    char letter = (char)config->ptr[at];
    if (letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r') continue;
    if (letters < 2) seen[letters] = letter;
    letters++;
  }
  scheduler_policy_string_free(config);
  if (letters == 0 || (letters == 2 && seen[0] == '{' && seen[1] == '}')) return true;
  scheduler_policy_string_dup(err, "this policy takes no configuration; give {} or nothing");
  return false;
}

void exports_infer_policy_lifecycle_export_state(scheduler_policy_list_u8_t *state) {
  state->ptr = NULL;
  state->len = 0;
}

bool exports_infer_policy_lifecycle_import_state(scheduler_policy_list_u8_t *state, scheduler_policy_string_t *err) {
  bool empty = state->len == 0;
  scheduler_policy_list_u8_free(state);
  if (!empty) scheduler_policy_string_dup(err, "this policy keeps no state");
  return empty;
}
