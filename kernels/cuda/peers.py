"""Peers on the same GPU, in the same run as `infer bench`: PyTorch's attention, and transformers (4.57 to 5.x) with a
static cache under torch.compile, in the shapes of `infer bench engine` with random weights. Needs torch; transformers
for the models.

    python3 peers.py [--quick] [--seconds N]            # skips, by name, what would start after N seconds
    python3 peers.py --models NAME,NAME --only models   # only these shapes, and only one of: attention, models
    python3 peers.py --start-when FILE                  # prepares beside other work on the GPU, measures once FILE exists
    python3 peers.py --dry                              # tiny shapes on the CPU: does it work with the versions here?
    python3 peers.py --write DIR --tokenizer DIR        # a checkpoint of the first shape, to be served

Each shape has a process. All prepare a point (a batch and a context) at the same time, which is mostly compilation; then
they measure it one after the other while the rest are idle, even if time is up by then. Attention comes first, but with
--start-when after the first point of the models. If FILE isn't there after N seconds, nothing is measured.
"""

import argparse
import contextlib
import copy
import gc
import importlib.metadata
import importlib.util
import inspect
import multiprocessing
import os
import pathlib
import shutil
import signal
import statistics
import sys
import threading
import time

import torch

SHAPES = {
    "llama-1b": dict(kind="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                     num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256,
                     tie_word_embeddings=True),
    "qwen3-1.7b": dict(kind="qwen3", hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
                       num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936,
                       tie_word_embeddings=True),
    "gemma3-1b": dict(kind="gemma3_text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
                      num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=262144,
                      sliding_window=512, query_pre_attn_scalar=256, tie_word_embeddings=True),
    "llama-8b": dict(kind="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                     num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128256,
                     tie_word_embeddings=False),
}
TINY = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, vocab_size=256)
# Attributes in which a cache of transformers counts its tokens. Up to 5.0 only sliding windows have them.
COUNTERS = ["cumulative_length", "cumulative_length_int"]
WARM_UP, STEPS = 8, 24
# Seconds that a point may take to be prepared, in all and after the end of --seconds, and to be measured.
PREPARE, AFTER, MEASURE = 300, 100, 60
WORKERS = {}  # By shape: the process and a pipe to it.

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true")
parser.add_argument("--dry", action="store_true")
parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N")
parser.add_argument("--models", type=lambda names: names.split(","), metavar="NAME[,NAME]")
parser.add_argument("--only", choices=["attention", "models"])
parser.add_argument("--start-when", type=pathlib.Path, metavar="FILE")
parser.add_argument("--write", type=pathlib.Path, metavar="DIR")
parser.add_argument("--tokenizer", type=pathlib.Path, metavar="DIR")
ARGS = parser.parse_args()
DEVICE = "cpu" if ARGS.dry else "cuda"
UNTIL = time.monotonic() + ARGS.seconds
FEW = ARGS.quick or ARGS.dry
synchronize = (lambda: None) if ARGS.dry else torch.cuda.synchronize
if ARGS.dry:  # One of each kind. Gemma's sixth layer is its first without a window.
    SHAPES = {name: dict(shape, **TINY) for name, shape in list(SHAPES.items())[:3]}
    SHAPES["gemma3-1b"].update(num_hidden_layers=6, sliding_window=16)
if ARGS.models:
    if not set(ARGS.models) <= set(SHAPES):
        parser.error(f"--models: choose from {', '.join(SHAPES)}")
    SHAPES = {name: SHAPES[name] for name in ARGS.models}


def say(*columns):
    print(*columns, sep="\t", flush=True)


def in_time(*what):
    """Whether there is time left; prints what is skipped if not."""
    if time.monotonic() < UNTIL:
        return True
    say(*what, "left out: no time")
    return False


def started():
    """Waits for the file of --start-when. Returns False if time is up before."""
    while ARGS.start_when and not ARGS.start_when.exists():
        if time.monotonic() >= UNTIL:
            return False
        time.sleep(0.05)
    return True


def timed_ms(work, runs):
    synchronize()
    begun = time.perf_counter()
    for _ in range(runs):
        work()
    synchronize()
    return (time.perf_counter() - begun) * 1e3 / runs


def median_ms(work, rounds=9):
    """Median of rounds of about 2 ms each, so that launches overlap with work, as in `infer bench kernels`."""
    timed_ms(work, 3)
    runs = min(200, max(1, int(2 / timed_ms(work, 1))))
    return statistics.median(timed_ms(work, runs) for _ in range(rounds))


def wake():
    """Works until clocks have risen, since the GPU idles while others compile."""
    size, until = 64 if ARGS.dry else 4096, time.monotonic() + 0.3
    square = torch.ones(size, size, device=DEVICE, dtype=torch.bfloat16)
    while time.monotonic() < until:
        timed_ms(lambda: square @ square, 10)


def attention():
    wake()
    say("attention (scaled_dot_product_attention, bf16): model", "what", "batch", "context", "us")
    attend = torch.nn.functional.scaled_dot_product_attention
    random = lambda *sizes: torch.randn(*sizes, device=DEVICE, dtype=torch.bfloat16)
    decodes = [(batch, context) for batch in ([1, 32] if FEW else [1, 8, 32, 128, 256])
               for context in ([256, 4096] if FEW else [256, 1024, 4096, 16384])]
    prefills = [2048] if FEW else [512, 2048, 8192, 16384]
    if ARGS.dry:
        decodes, prefills = [(2, 64)], [64]
    for name, shape in SHAPES.items():
        heads, kv, width = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
        points = [("decode", batch, context) for batch, context in decodes if batch * context * kv * width * 2 <= 8 << 30]
        for what, batch, context in points + [("prefill", 1, tokens) for tokens in prefills]:
            if not in_time(name, what, batch, context):
                continue
            try:
                q = random(batch, heads, 1 if what == "decode" else context, width)
                k, v = (random(batch, kv, context, width) for _ in "kv")
                ms = median_ms(lambda: attend(q, k, v, is_causal=what == "prefill", enable_gqa=True))
                say(name, what, batch, context, f"{ms * 1e3:.1f}")
            except torch.OutOfMemoryError:
                say(name, what, batch, context, "out of memory")


def model(shape):
    import transformers
    kinds = {"llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
             "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM")}
    fields = {key: value for key, value in shape.items() if key != "kind"}
    config_name, model_name = kinds[shape["kind"]]
    config = getattr(transformers, config_name)(max_position_embeddings=32768, **fields)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        made = getattr(transformers, model_name)(config)
    torch.set_default_dtype(torch.float32)
    assert made.dtype == torch.bfloat16, made.dtype
    return made.eval()


@torch.no_grad()
def decode(made, batch, context, how):
    """Yields once it is prepared, and when resumed the milliseconds of a compiled decode step after `context` tokens in a
    static cache, and the distance of its logits from those of the whole text at once.

    It repeats the same step, as in `infer bench engine`. Sliding windows are counted in Python integers, and each new value
    would record another CUDA graph.
    """
    from transformers import StaticCache
    cache = StaticCache(config=made.config, max_cache_len=context + 8)
    ids = torch.randint(0, 200, (batch, context + 1), device=DEVICE)
    # Not compiled: a cache allocates its tensors on first use, and marks their addresses as static only outside compiled
    # code. Without that there are no CUDA graphs.
    made(ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
    assert int(cache.get_seq_length()) == context, f"{cache.get_seq_length()} tokens are cached, not {context}"
    counters = [(layer, name, copy.deepcopy(getattr(layer, name)))
                for layer in cache.layers for name in COUNTERS if hasattr(layer, name)]
    position = torch.tensor([[context]], device=DEVICE)
    inputs = dict(input_ids=ids[:, -1:], position_ids=position, past_key_values=cache, use_cache=True)
    # Older versions need it to place keys; in newer ones the cache tracks positions and would ignore the argument.
    if "cache_position" in inspect.signature(made.forward).parameters:
        inputs["cache_position"] = position[0]
    step = torch.compile(made.forward, fullgraph=True, dynamic=False, **how)
    outputs = {}

    def work():
        outputs["logits"] = step(**inputs).logits[:, -1]
        outputs["token"] = outputs["logits"].argmax(-1)

    def repeat(count):
        times = []
        for _ in range(count):
            for layer, name, value in counters:
                if torch.is_tensor(value):
                    getattr(layer, name).copy_(value)
                else:
                    setattr(layer, name, value)
            torch.compiler.cudagraph_mark_step_begin()
            times.append(timed_ms(work, 1))
        length = int(cache.get_seq_length())
        assert length == context + 1, f"{length} tokens are cached after a step behind {context}"
        assert torch.isfinite(outputs["logits"]).all(), "logits are not finite"
        return times

    repeat(1)
    first = outputs["logits"].float()
    wanted = made(ids, use_cache=False, logits_to_keep=1).logits[:, -1].float()
    off = float((first - wanted).norm() / wanted.norm())
    repeat(WARM_UP)
    yield
    yield statistics.median(repeat(WARM_UP + STEPS)[WARM_UP:]), off


@torch.no_grad()
def prefill(made, batch, tokens, how):
    """Like `decode`: of a prompt, and the distance of its last logits from those without compilation."""
    ids = torch.randint(0, 200, (batch, tokens), device=DEVICE)
    forward = torch.compile(made.forward, dynamic=False, **how) if how else made.forward
    logits = lambda run: run(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    got, wanted = logits(forward).float(), logits(made.forward).float()
    assert torch.isfinite(got).all(), "logits are not finite"
    off = float((got - wanted).norm() / wanted.norm())
    yield
    yield median_ms(lambda: logits(forward), rounds=3), off


# How each is measured, and the ways of compiling it. Of a decode the first that works counts. Of a prompt all do:
# compiled, transformers passes a mask, which excludes flash attention.
WAYS = {"decode": (decode, [{"mode": "reduce-overhead"}, {"mode": "default"}]),
        "prefill": (prefill, [{}, {"mode": "default"}])}


def lines(name, what, batch, context):
    """Prepares a point and yields whether memory sufficed. When resumed, measures it and yields the lines to print, one for
    each way that counts, and whether one worked."""
    from torch._dynamo.utils import counters
    measure, ways = WAYS[what]
    made, ready, found, memory, worked = None, [], [], True, False

    def failed(compiled, error):
        why = " ".join(f"{type(error).__name__} {error}".split())
        found.append((name, what, batch, context, f"failed, {compiled}: {why[:300]}" if memory else "out of memory"))

    for how in [{"backend": "aot_eager"}] if ARGS.dry else ways:
        counters.clear()
        compiled = "torch.compile " + "".join(how.values()) if how else "not compiled"
        try:
            made = made or model(SHAPES[name])
            run = measure(made, batch, context, how)
            next(run)
            graphs = counters["inductor"]
            if graphs["cudagraph_skips"] or "reduce" in compiled and not graphs["cudagraph_recorded_non_static_inputs"]:
                compiled += ", CUDA graphs skipped"
            if graphs["cudagraph_partitions"]:
                compiled += f", in {graphs['cudagraph_partitions']} parts"
            ready.append((compiled, run))
        except Exception as error:  # This version can't compile it this way: report it and continue.
            memory = not isinstance(error, torch.OutOfMemoryError)
            failed(compiled, error)
        if not memory or what == "decode" and ready:  # Other ways need as much memory.
            break
        run = None
        if not ready:
            tidy()
    torch.cuda.empty_cache()  # The other processes need it.
    yield memory
    wake()
    for compiled, run in ready:
        try:
            ms, off = next(run)
            rate = f"{(batch if what == 'decode' else batch * context) / ms * 1e3:.0f}"
            found.append((name, what, batch, context, f"{ms:.3f}", rate, f"{compiled}, logits within {off:.0e}"))
            worked = True
        except Exception as error:
            failed(compiled, error)
    yield found, worked or not memory


def tidy():
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def serve(name, pipe):
    """A worker's process, which answers what `ask` sends. It keeps no model between points, so that another has memory."""
    os.setpgrp()  # Inductor's compilers are in its group, and end with it.
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os.killpg(0, signal.SIGKILL)), daemon=True).start()
    import transformers  # Takes seconds, so do it before the first point.
    while True:
        command, *point = pipe.recv()
        if command == "release":
            run = iter([None])
            tidy()
        elif command == "prepare":
            run = lines(name, *point)
        answer = next(run)
        synchronize()
        pipe.send(answer)


def start():
    """Starts the workers."""
    # The resource tracker would warn of what it cleans up after those that are stopped.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, len(os.sched_getaffinity(0)) // len(SHAPES))))
    spawn = multiprocessing.get_context("spawn")
    for name in SHAPES:
        pipe, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(name, theirs))
        process.start()
        theirs.close()  # So that its end is noticed.
        WORKERS[name] = process, pipe


def stop(process):
    process.kill()
    with contextlib.suppress(ProcessLookupError):  # It may not have come as far as making a group.
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def ask(names, limit, command, *point):
    """The answers of these workers, which work at the same time. Names and stops those that die or don't answer."""
    names = [name for name in names if name in WORKERS]
    answers, end = {}, time.monotonic() + limit
    for name in names:
        with contextlib.suppress(OSError):  # It died, which shows below.
            WORKERS[name][1].send((command, *point))
    for name in names:
        process, pipe = WORKERS[name]
        why = f"didn't {command} in {limit:.0f} s"
        try:
            if pipe.poll(max(0, end - time.monotonic())):
                answers[name] = pipe.recv()
                continue
        except (EOFError, OSError):
            process.join(5)
            why = f"ended with {process.exitcode}"
        say(name, *point, f"failed: its process {why}. No more of this shape")
        stop(process)
        del WORKERS[name]
    return answers


def measured(names, *point):
    """Measures a point and prints its lines. Returns whether all could be measured."""
    answers = ask(names, min(PREPARE, max(UNTIL - time.monotonic(), 0) + AFTER), "prepare", *point)
    may, alone, whole = started(), [], True
    for name, memory in answers.items():
        if not may:
            in_time(name, *point)
        elif not memory and len(names) > 1:  # It may suffice without the others.
            alone.append(name)
        else:
            found, worked = ask([name], MEASURE, "measure", *point).get(name, ([], False))
            whole &= worked
            for line in found:
                say(*line)
    ask(answers, MEASURE, "release", *point)
    for name in alone:
        whole &= not in_time(name, *point) or measured([name], *point)
    return whole


def points():
    """What to measure of each model: what, batch, and context or tokens. The most important come first."""
    if ARGS.dry:  # Before and after the end of a window.
        return [("decode", 2, 12), ("decode", 2, 20), ("prefill", 1, 40)]
    if ARGS.quick:
        return [("decode", 1, 256), ("decode", 32, 1024), ("prefill", 1, 2048)]
    first = [("decode", 1, 256), ("decode", 32, 1024), ("prefill", 1, 2048), ("decode", 1, 4096), ("decode", 128, 1024),
             ("prefill", 1, 512), ("prefill", 1, 16384), ("prefill", 1, 8192)]
    grid = [("decode", batch, context) for context in [256, 1024, 4096, 16384] for batch in [1, 8, 32, 128, 256]]
    return first + [point for point in grid if point not in first]


def models(todo):
    """Returns whether all could be measured."""
    version = importlib.metadata.version("transformers")
    say(f"transformers {version}: model", "what", "batch", "context", "ms", "tokens/s", "how")
    whole = True
    for point in todo:
        names = [name for name in WORKERS if in_time(name, *point)]
        whole &= not names or measured(names, *point)
    return whole and len(WORKERS) == len(SHAPES)


def compare():
    """Returns whether all could be measured."""
    say(f"torch {torch.__version__} on {'the CPU' if ARGS.dry else torch.cuda.get_device_name()}")
    todo, whole = points(), True
    if ARGS.only != "attention":
        if importlib.util.find_spec("transformers"):
            start()
        else:
            say("no models: transformers isn't installed")
            whole = False
    if ARGS.only != "models":
        if ARGS.start_when and WORKERS:
            whole &= models([todo.pop(0)])
        started()
        attention()
        torch.cuda.empty_cache()  # The workers need it.
    return (not WORKERS or models(todo)) and whole


def main():
    if ARGS.write:
        model(next(iter(SHAPES.values()))).save_pretrained(ARGS.write)
        for file in ["tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(ARGS.tokenizer / file, ARGS.write / file)
        return 0
    for number in [signal.SIGTERM, signal.SIGINT]:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return 0 if compare() else 1
    finally:
        for number in [signal.SIGTERM, signal.SIGINT]:
            signal.signal(number, signal.SIG_IGN)
        for process in multiprocessing.active_children():
            stop(process)


if __name__ == "__main__":
    sys.exit(main())
