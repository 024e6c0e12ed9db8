"""Peers on the same GPU, in the same run as `infer bench`: PyTorch's attention, and transformers (4.57 to 5.x) with a
static cache under torch.compile, in the shapes of `infer bench engine` with random weights. Needs torch; transformers
for the models.

    python3 peers.py [--quick] [--seconds N]        # skips, by name, what would start after N seconds
    python3 peers.py --dry                          # tiny shapes on the CPU: does it work with the versions here?
    python3 peers.py --write DIR --tokenizer DIR    # a checkpoint of the first shape, to be served
"""

import argparse
import copy
import gc
import inspect
import pathlib
import shutil
import statistics
import sys
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

parser = argparse.ArgumentParser(description="PyTorch and transformers beside `infer bench`.")
parser.add_argument("--quick", action="store_true")
parser.add_argument("--dry", action="store_true")
parser.add_argument("--seconds", type=float, default=float("inf"))
parser.add_argument("--write", type=pathlib.Path)
parser.add_argument("--tokenizer", type=pathlib.Path)
ARGS = parser.parse_args()
DEVICE = "cpu" if ARGS.dry else "cuda"
UNTIL = time.monotonic() + ARGS.seconds
FEW = ARGS.quick or ARGS.dry
if ARGS.dry:  # One of each kind. Gemma's sixth layer is its first without a window.
    SHAPES = {name: dict(shape, **TINY) for name, shape in list(SHAPES.items())[:3]}
    SHAPES["gemma3-1b"].update(num_hidden_layers=6, sliding_window=16)


def say(*columns):
    print(*columns, sep="\t", flush=True)


def in_time(*what):
    """Whether there is time left; prints what is skipped if not."""
    if time.monotonic() < UNTIL:
        return True
    say(*what, "left out: no time")
    return False


def timed_ms(work, runs):
    synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
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


def attention():
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
        for batch, context in decodes:
            if batch * context * kv * width * 2 > 8 << 30 or not in_time(name, "decode", batch, context):
                continue
            try:
                q, k, v = random(batch, heads, 1, width), *(random(batch, kv, context, width) for _ in "kv")
                ms = median_ms(lambda: attend(q, k, v, enable_gqa=True))
                say(name, "decode", batch, context, f"{ms * 1e3:.1f}")
            except torch.OutOfMemoryError:
                say(name, "decode", batch, context, "out of memory")
        for tokens in prefills:
            if in_time(name, "prefill", 1, tokens):
                q, k, v = random(1, heads, tokens, width), *(random(1, kv, tokens, width) for _ in "kv")
                ms = median_ms(lambda: attend(q, k, v, is_causal=True, enable_gqa=True))
                say(name, "prefill", 1, tokens, f"{ms * 1e3:.1f}")


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
    """Milliseconds of a compiled decode step after `context` tokens in a static cache, and the distance of its logits from
    those of the whole text at once.

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
    step = torch.compile(made.forward, fullgraph=True, **how)
    outputs = {}

    def work():
        outputs["logits"] = step(**inputs).logits[:, -1]
        outputs["token"] = outputs["logits"].argmax(-1)

    times = []
    for i in range(WARM_UP + STEPS):
        for layer, name, value in counters:
            if torch.is_tensor(value):
                getattr(layer, name).copy_(value)
            else:
                setattr(layer, name, value)
        torch.compiler.cudagraph_mark_step_begin()
        times.append(timed_ms(work, 1))
        if i == 0:
            first = outputs["logits"].float()
    length = int(cache.get_seq_length())
    assert length == context + 1, f"{length} tokens are cached after a step behind {context}"
    assert torch.isfinite(outputs["logits"]).all(), "logits are not finite"
    wanted = made(ids, use_cache=False, logits_to_keep=1).logits[:, -1].float()
    return statistics.median(times[WARM_UP:]), float((first - wanted).norm() / wanted.norm())


@torch.no_grad()
def prefill(made, batch, tokens, how):
    """Milliseconds of a prompt, and the distance of its last logits from those without compilation."""
    ids = torch.randint(0, 200, (batch, tokens), device=DEVICE)
    forward = torch.compile(made.forward, **how) if how else made.forward
    logits = lambda run: run(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    ms = median_ms(lambda: logits(forward), rounds=3)
    got, wanted = logits(forward).float(), logits(made.forward).float()
    assert torch.isfinite(got).all(), "logits are not finite"
    return ms, float((got - wanted).norm() / wanted.norm())


# How each is measured, and the ways of compiling it. Of a decode the first that works counts. Of a prompt all do:
# compiled, transformers passes a mask, which excludes flash attention.
WAYS = {"decode": (decode, [{"mode": "reduce-overhead"}, {"mode": "default"}]),
        "prefill": (prefill, [{}, {"mode": "default"}])}


def line(name, made, what, batch, context):
    """Measures and prints a line for each way that counts. Returns whether one worked."""
    from torch._dynamo.utils import counters
    measure, ways = WAYS[what]
    worked = False
    for how in [{"backend": "aot_eager"}] if ARGS.dry else ways:
        counters.clear()
        compiled = "torch.compile " + "".join(how.values()) if how else "not compiled"
        try:
            ms, off = measure(made, batch, context, how)
            if counters["inductor"]["cudagraph_skips"]:
                compiled += ", CUDA graphs skipped"
            tokens = batch if what == "decode" else batch * context
            say(name, what, batch, context, f"{ms:.3f}", f"{tokens / ms * 1e3:.0f}", f"{compiled}, logits within {off:.0e}")
            worked = True
            if what == "decode":
                return True
        except torch.OutOfMemoryError:  # Other ways need as much.
            say(name, what, batch, context, "out of memory")
            return True
        except Exception as error:  # This version can't compile it this way: report it and continue.
            why = " ".join(f"{type(error).__name__} {error}".split())
            say(name, what, batch, context, f"failed, {compiled}: {why[:300]}")
        finally:
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()
    return worked


def points():
    """What to measure of each model: what, batch, and context or tokens. The most important come first."""
    if ARGS.dry:  # Before and after the end of a window.
        return [("decode", 2, 12), ("decode", 2, 20), ("prefill", 1, 40)]
    if ARGS.quick:
        return [("decode", 1, 256), ("prefill", 1, 2048)]
    first = [("decode", 1, 256), ("decode", 32, 1024), ("prefill", 1, 2048), ("decode", 1, 4096), ("decode", 128, 1024),
             ("prefill", 1, 512), ("prefill", 1, 16384), ("prefill", 1, 8192)]
    grid = [("decode", batch, context) for context in [256, 1024, 4096, 16384] for batch in [1, 8, 32, 128, 256]]
    return first + [point for point in grid if point not in first]


def models():
    """Returns whether all could be measured. Models are recreated for each point, which takes seconds."""
    import transformers
    say(f"transformers {transformers.__version__}: model", "what", "batch", "context", "ms", "tokens/s", "how")
    whole = True
    for what, batch, context in points():
        for name, shape in SHAPES.items():
            if not in_time(name, what, batch, context):
                continue
            made = model(shape)
            whole &= line(name, made, what, batch, context)
            del made
            gc.collect()
            torch.cuda.empty_cache()
    return whole


def main():
    if ARGS.write:
        model(next(iter(SHAPES.values()))).save_pretrained(ARGS.write)
        for file in ["tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(ARGS.tokenizer / file, ARGS.write / file)
        return 0
    say(f"torch {torch.__version__} on {'the CPU' if ARGS.dry else torch.cuda.get_device_name()}")
    attention()
    try:
        return 0 if models() else 1
    except ImportError as error:
        say(f"no models: {error}")
        return 1


sys.exit(main())
