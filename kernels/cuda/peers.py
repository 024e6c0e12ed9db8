"""Peers on the same GPU, in the same run as `infer bench`: PyTorch's attention, and transformers with a static cache
under torch.compile, in the shapes of `infer bench engine` with random weights. Needs torch; transformers for the models.

    python3 peers.py [--quick]
"""

import statistics
import sys
import time

import torch

QUICK = "--quick" in sys.argv
SHAPES = {
    "Llama 3.2 1B": dict(kind="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256,
                         tie_word_embeddings=True),
    "Qwen3 1.7B": dict(kind="qwen3", hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
                       num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936,
                       tie_word_embeddings=True),
    "Gemma 3 1B": dict(kind="gemma3_text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
                       num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=262144,
                       sliding_window=512, query_pre_attn_scalar=256, tie_word_embeddings=True),
    "Llama 3.1 8B": dict(kind="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128256,
                         tie_word_embeddings=False),
}


def median_ms(work, repeats=9):
    """Median of device times after a warm-up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def attention():
    print("attention (scaled_dot_product_attention, bf16): model, what, batch, context, us")
    for name, shape in SHAPES.items():
        heads, kv, width = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
        for batch in [1, 32] if QUICK else [1, 8, 32, 128, 256]:
            for context in [256, 4096] if QUICK else [256, 1024, 4096, 16384]:
                if batch * context * kv * width * 2 > 8 << 30:
                    continue
                q = torch.randn(batch, heads, 1, width, device="cuda", dtype=torch.bfloat16)
                k, v = (torch.randn(batch, kv, context, width, device="cuda", dtype=torch.bfloat16) for _ in "kv")
                ms = median_ms(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))
                print(f"{name}\tdecode\t{batch}\t{context}\t{ms * 1e3:.1f}", flush=True)
        for tokens in [2048] if QUICK else [512, 2048, 8192, 16384]:
            q = torch.randn(1, heads, tokens, width, device="cuda", dtype=torch.bfloat16)
            k, v = (torch.randn(1, kv, tokens, width, device="cuda", dtype=torch.bfloat16) for _ in "kv")
            ms = median_ms(lambda: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True))
            print(f"{name}\tprefill\t1\t{tokens}\t{ms * 1e3:.1f}", flush=True)


def model(shape):
    import transformers
    kinds = {"llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
             "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM")}
    fields = {key: value for key, value in shape.items() if key != "kind"}
    config_name, model_name = kinds[shape["kind"]]
    config = getattr(transformers, config_name)(max_position_embeddings=32768, **fields)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        made = getattr(transformers, model_name)(config)
    torch.set_default_dtype(torch.float32)
    return made.eval()


@torch.inference_mode()
def decode(made, batch, context, steps=24):
    """Milliseconds of a decode step at about this context, compiled, with a static cache."""
    from transformers import StaticCache
    cache = StaticCache(config=made.config, max_batch_size=batch, max_cache_len=context + steps + 8, device="cuda",
                        dtype=torch.bfloat16)
    step = torch.compile(made.forward, mode="reduce-overhead", fullgraph=True)
    token = torch.ones(batch, 1, dtype=torch.long, device="cuda")
    times = []
    for i in range(steps + 8):
        torch.compiler.cudagraph_mark_step_begin()
        position = torch.tensor([context + i], device="cuda")
        torch.cuda.synchronize()
        begun = time.perf_counter()
        logits = step(input_ids=token, past_key_values=cache, cache_position=position, use_cache=True).logits
        token = logits[:, -1:].argmax(-1).clone()
        torch.cuda.synchronize()
        if i >= 8:
            times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


@torch.inference_mode()
def prefill(made, tokens):
    ids = torch.randint(0, 1000, (1, tokens), device="cuda")
    return median_ms(lambda: made(ids, use_cache=False, logits_to_keep=1), repeats=3)


def main():
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
    attention()
    print("transformers: model, what, batch, context, ms, tokens/s")
    for name, shape in SHAPES.items():
        try:
            made = model(shape)
        except ImportError as error:
            print(f"no models: {error}")
            return
        for tokens in [2048] if QUICK else [512, 2048, 16384]:
            ms = prefill(made, tokens)
            print(f"{name}\tprefill\t1\t{tokens}\t{ms:.2f}\t{tokens / ms * 1e3:.0f}", flush=True)
        for batch, context in [(1, 256)] if QUICK else [(1, 256), (1, 4096), (32, 1024), (128, 1024)]:
            try:
                ms = decode(made, batch, context)
                print(f"{name}\tdecode\t{batch}\t{context}\t{ms:.3f}\t{batch / ms * 1e3:.0f}", flush=True)
            except Exception as error:  # A version that can't compile it: say so and go on.
                print(f"{name}\tdecode\t{batch}\t{context}\tfailed: {str(error)[:200]}", flush=True)
            torch.compiler.reset()
        del made
        torch.cuda.empty_cache()


main()
