#!/usr/bin/env python3
"""llama.cpp on random weights, for comparison with `infer bench engine`.

    python -m venv venv && venv/bin/pip install gguf numpy
    CMAKE_ARGS="-DGGML_NATIVE=ON" venv/bin/pip install --no-binary llama-cpp-python llama-cpp-python
    venv/bin/python against_llama.py make smollm-135m bf16 135m-bf16.gguf
    venv/bin/python against_llama.py run 135m-bf16.gguf --threads 2
    venv/bin/python against_llama.py compare target/release/infer ggufs --threads 2 --rounds 3

`make` writes a GGUF of a shape of `infer bench engine` (weights bf16, q8_0, or q4_0 with the embedding in q8_0, norms
f32, no tokenizer).
`run` measures a prefill of 512 tokens and decodes at batch 1 and 16, and prints JSON. `compare` makes missing
files and runs both engines in turn, llama.cpp with and without flash attention and with one cache for all
sequences or one for each, in huge pages. It prints the best of each engine and their ratio.
"""

import argparse
import ctypes
import itertools
import json
import os
import subprocess
import sys
import time

SHAPES = {
    # hidden, layers, heads, key heads, head width, feed-forward width, vocabulary, rope base
    "smollm-135m": (576, 30, 9, 3, 64, 1536, 49152, 10000.0),
    "llama-1b": (2048, 16, 32, 8, 64, 8192, 128256, 500000.0),
    "qwen3-moe-8b": (2048, 12, 32, 4, 128, 768, 151936, 1000000.0),
}
# Those with experts, of the feed-forward width: how many there are, and how many a token uses.
EXPERTS = {"qwen3-moe-8b": (128, 8)}
# infer's weights and llama.cpp's.
PAIRS = {"bf16": "bf16", "q8": "q8_0", "q4": "q4_0"}


def vocabulary(size):
    """Tokens and merges of a byte-level BPE: bytes, pairs and triples of letters, with and without a space."""
    byte = [chr(b) if chr(b).isprintable() and b not in (0x20, 0xA0, 0xAD) else None for b in range(256)]
    unseen = iter(range(256, 512))
    tokens = [c or chr(next(unseen)) for c in byte]
    letters, merges = [chr(c) for c in range(ord("a"), ord("z") + 1)], []
    starts = letters + [tokens[0x20] + c for c in letters]
    merges += [(tokens[0x20], c) for c in letters]
    for _ in range(2):
        merges += [(start, c) for start in starts for c in letters]
        starts = [start + c for start in starts for c in letters]
    tokens += [a + b for a, b in merges]
    assert len(tokens) < size
    filler = [f"<|unused_{i}|>" for i in range(size - len(tokens) - 1)]
    return tokens, filler + ["<|end|>"], [f"{a} {b}" for a, b in merges]


def make(shape, weights, path, with_tokenizer=False):
    import gguf
    import numpy as np

    hidden, layers, heads, kv_heads, width, inner, vocab, theta = SHAPES[shape]
    kinds = gguf.GGMLQuantizationType
    kind = {"bf16": kinds.BF16, "q8_0": kinds.Q8_0, "q4_0": kinds.Q4_0}[weights]
    random = np.random.default_rng(1)
    experts, used = EXPERTS.get(shape, (0, 0))
    # Weights that don't fit in memory come from a file until they are written.
    writer = gguf.GGUFWriter(path, "qwen3moe" if experts else "llama", use_temp_file=experts > 0)
    writer.add_context_length(8192)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(used)
        writer.add_expert_feed_forward_length(inner)
    if with_tokenizer:
        tokens, special, merges = vocabulary(vocab)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens + special)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(special))
        writer.add_token_merges(merges)
        writer.add_eos_token_id(vocab - 1)
    else:
        writer.add_tokenizer_model("none")
    types = gguf.LlamaFileType
    ftype = {"bf16": types.MOSTLY_BF16, "q8_0": types.MOSTLY_Q8_0, "q4_0": types.MOSTLY_Q4_0}
    writer.add_file_type(ftype[weights])

    def numbers(outputs, inputs):
        return (random.random((outputs, inputs), dtype=np.float32) - 0.5) * (12.0 / inputs) ** 0.5

    def matrix(name, outputs, inputs, kind=kind):
        writer.add_tensor(name, gguf.quants.quantize(numbers(outputs, inputs), kind), raw_dtype=kind)

    def norm(name, length=hidden):
        writer.add_tensor(name, np.ones(length, dtype=np.float32))

    def matrices(name, outputs, inputs):
        all = [gguf.quants.quantize(numbers(outputs, inputs), kind) for _ in range(experts)]
        writer.add_tensor(name, np.stack(all), raw_dtype=kind)

    matrix("token_embd.weight", vocab, hidden, kinds.Q8_0 if weights == "q4_0" else kind)
    norm("output_norm.weight")
    if experts:
        matrix("output.weight", vocab, hidden, kinds.Q8_0 if weights == "q4_0" else kind)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", heads * width, hidden)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * width, hidden)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * width, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, heads * width)
        if experts:
            norm(f"blk.{i}.attn_q_norm.weight", width)
            norm(f"blk.{i}.attn_k_norm.weight", width)
            matrix(f"blk.{i}.ffn_gate_inp.weight", experts, hidden, kinds.F32)
            matrices(f"blk.{i}.ffn_gate_exps.weight", inner, hidden)
            matrices(f"blk.{i}.ffn_up_exps.weight", inner, hidden)
            matrices(f"blk.{i}.ffn_down_exps.weight", hidden, inner)
            continue
        matrix(f"blk.{i}.ffn_gate.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_up.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """A model and a context through llama.cpp's C interface."""

    def __init__(self, path, threads, room, flash, unified, huge_pages):
        import llama_cpp.llama_cpp as c

        self.c = c
        quiet = c.ggml_log_callback(lambda level, text, data: None) if hasattr(c, "ggml_log_callback") else None
        self.quiet = quiet or c.llama_log_callback(lambda level, text, data: None)
        c.llama_log_set(self.quiet, ctypes.c_void_p(0))
        c.llama_backend_init()
        params = c.llama_model_default_params()
        # Without mmap, weights are in anonymous memory, which can have huge pages.
        params.use_mmap = not huge_pages
        self.model = c.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp does not load {path}")
        self.vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        params = c.llama_context_default_params()
        params.n_ctx = 16 * room
        params.n_batch = 512
        params.n_ubatch = 512
        params.n_seq_max = 16
        params.n_threads = threads
        params.n_threads_batch = threads
        params.kv_unified = unified
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = 1 if flash else 0
        else:
            params.flash_attn = flash
        self.context = c.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp makes no context")

    def clear(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def decode(self, rows):
        """Rows of (sequence, position, token, wants logits). Returns seconds."""
        batch = self.c.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        begin = time.perf_counter()
        if self.c.llama_decode(self.context, batch) != 0:
            sys.exit("llama.cpp fails to decode")
        self.c.llama_synchronize(self.context)
        seconds = time.perf_counter() - begin
        self.c.llama_batch_free(batch)
        return seconds

    def argmax(self, row):
        """As a greedy sampler would: the cost of reading the logits belongs to a step."""
        import numpy as np

        logits = np.ctypeslib.as_array(self.c.llama_get_logits_ith(self.context, row), shape=(self.vocab,))
        return int(logits.argmax())


def run(path, threads, context, steps, passes, flash, unified, huge_pages):
    # Without a unified cache each sequence gets a sixteenth, and the prefill is one sequence.
    room = context + steps + 1 + (600 + 15) // 16 if unified else max(context + steps + 1, 600)
    model = Llama(path, threads, room, flash, unified, huge_pages)
    token = lambda i: (i * 7919 + 13) % min(model.vocab, 32000)
    best = {"prefill_512": 0.0, "decode_1": 0.0, "decode_16": 0.0}
    for _ in range(passes):
        model.clear()
        seconds = model.decode([(0, i, token(i), i == 511) for i in range(512)])
        best["prefill_512"] = max(best["prefill_512"], 512 / seconds)
        for batch in (1, 16):
            model.clear()
            for sequence in range(batch):
                for first in range(0, context, 512):
                    last = min(first + 512, context)
                    model.decode([(sequence, i, token(i + sequence), i == last - 1) for i in range(first, last)])
            quickest = float("inf")
            for step in range(steps):
                begin = time.perf_counter()
                model.decode([(s, context + step, token(step * 31 + s), True) for s in range(batch)])
                for row in range(batch):
                    model.argmax(row)
                quickest = min(quickest, time.perf_counter() - begin)
            best[f"decode_{batch}"] = max(best[f"decode_{batch}"], batch / quickest)
    return best


def note_best(best, now):
    for key, value in now.items():
        best[key] = max(best.get(key, 0.0), value)


def compare(infer, directory, shapes, weights, threads, rounds, context, steps):
    os.makedirs(directory, exist_ok=True)
    # glibc requests huge pages only if configured before the process starts.
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    for shape in shapes:
        for ours, theirs in weights.items():
            path = os.path.join(directory, f"{shape}-{theirs}.gguf")
            if not os.path.exists(path):
                make(shape, theirs, path + ".new")
                os.rename(path + ".new", path)
            best = [{}, {}]
            for _ in range(rounds):
                common = ["--threads", str(threads), "--context", str(context), "--steps", str(steps), "--passes", "1"]
                command = [infer, "bench", "engine", "--shape", shape, "--weights", ours, "--format", "json"]
                report = json.loads(subprocess.check_output(command + common))
                note_best(best[0], {row["run"]: row["best_tokens_per_s"] for row in report["runs"]})
                for flash, cache in itertools.product(("on", "off"), ("unified", "split")):
                    command = [sys.executable, __file__, "run", path, "--huge-pages", "--flash", flash, "--cache", cache]
                    try:
                        note_best(best[1], json.loads(subprocess.check_output(command + common, env=environment)))
                    except subprocess.CalledProcessError as error:
                        # Some builds crash on some machines: compare the settings that work.
                        print(f"llama.cpp: {error}", file=sys.stderr)
            if not best[1]:
                continue
            for key in ("prefill_512", "decode_1", "decode_16"):
                a, b = best[0][key], best[1][key]
                print(f"{shape:12} {ours:5} {key:12} infer {a:8.1f}  llama.cpp {b:8.1f} tok/s  {a / b:5.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make")
    one.add_argument("shape", choices=SHAPES)
    one.add_argument("weights", choices=["bf16", "q8_0", "q4_0"])
    one.add_argument("path")
    two = commands.add_parser("run")
    two.add_argument("path")
    three = commands.add_parser("compare")
    three.add_argument("infer")
    three.add_argument("directory")
    three.add_argument("--shape", choices=SHAPES, action="append")
    three.add_argument("--weights", choices=PAIRS, action="append")
    three.add_argument("--rounds", type=int, default=3)
    for command in (two, three):
        command.add_argument("--threads", type=int, default=os.cpu_count())
        command.add_argument("--context", type=int, default=128)
        command.add_argument("--steps", type=int, default=16)
    two.add_argument("--passes", type=int, default=1)
    two.add_argument("--flash", choices=["on", "off"], default="on")
    two.add_argument("--cache", choices=["unified", "split"], default="unified", help="one for all sequences, or one for each")
    two.add_argument("--huge-pages", action="store_true", help="anonymous memory instead of a map; set GLIBC_TUNABLES=glibc.malloc.hugetlb=1 too")
    args = parser.parse_args()
    if args.command == "make":
        make(args.shape, args.weights, args.path)
    elif args.command == "run":
        flags = args.flash == "on", args.cache == "unified", args.huge_pages
        print(json.dumps(run(args.path, args.threads, args.context, args.steps, args.passes, *flags)))
    else:
        shapes = args.shape or list(SHAPES)
        weights = {ours: PAIRS[ours] for ours in args.weights or PAIRS}
        compare(args.infer, args.directory, shapes, weights, args.threads, args.rounds, args.context, args.steps)


if __name__ == "__main__":
    main()
