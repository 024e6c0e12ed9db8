"""Makes the golden checkpoints whose heads are as wide as real models', those with experts, those of further families, the one
that embeds, and the adapters: `python3 make.py` beside this file, or `python3 make.py NAME ..` for some.

Needs torch 2.15.0, transformers 5.23.0, numpy and safetensors; for adapters peft 0.21.2, for GGUF gguf 0.19. Another machine's sums may differ in
the last places, so new files replace all of a checkpoint, never some.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# Prompts on both sides of the kernels' tiles of 64 keys, and the last past blocks of 192 rows; the first three are short enough
# for the emulated device.
LENGTHS = [1, 7, 12, 65, 131, 263]
GREEDY_STEPS = 32
# Every head prefers keys this far back: one distance a head, in turn.
DISTANCES = [0, 1, 2, 5, 17, 64, 3, 100]
VOCAB = 320
# Large enough for attention to find its distance, and small enough for bf16 to stay within 2 %.
STRENGTH = 0.7
GEMMA_BRANCH = 0.35
# Of heads in turn, where they have one norm.
HEAD_SIZES = [0.6, 1.5, 1.0, 0.8]
# Standard deviation of logits, over that of a hidden state.
LOGITS = 0.35
# Every token prefers the experts in an order of its own, in equal steps from this number down to its negative, which nothing
# later changes; the router adds what depends on the context. So no rounding makes another choice.
PREFERENCE = 1.5
ROUTER = 2.0
CONTEXT = 0.1

LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=48)
COMMON = dict(vocab_size=VOCAB, hidden_size=64, max_position_embeddings=1024, bos_token_id=2, dtype="bfloat16",
              tie_word_embeddings=True)
# Of the 24 pairs of dimensions that are rotated, from near to far.
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                short_factor=[round(1 + pair / 40, 3) for pair in range(24)],
                long_factor=[round(1 + pair * pair / 60, 3) for pair in range(24)])
CHECKPOINTS = {
    # Llama 3.2 1B's heads, four to a pair of keys and values.
    "llama-wide-bf16": dict(
        COMMON, model_type="llama", num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
        intermediate_size=128, rms_norm_eps=1e-5, rope_parameters=LLAMA3_ROPE,
    ),
    # Those of Qwen 3 and of Llama 3.1 8B.
    "qwen3-wide-bf16": dict(
        COMMON, model_type="qwen3", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
        intermediate_size=128, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
    ),
    # Gemma 3 1B's, with one pair for all; the window ends within a tile.
    "gemma3-wide-bf16": dict(
        COMMON, model_type="gemma3_text", num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
        intermediate_size=96, rms_norm_eps=1e-6, query_pre_attn_scalar=256, sliding_window=72,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="default", rope_theta=1000000.0),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
    # Qwen3 30B A3B's layers, of which one is dense. The number of experts has the name that transformers 5 writes.
    "qwen3moe-bf16": dict(
        COMMON, model_type="qwen3_moe", vocab_size=520, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, intermediate_size=96, moe_intermediate_size=32, num_local_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
    ),
    # Every second layer has no position embedding, and a window.
    "smollm3-bf16": dict(
        COMMON, model_type="smollm3", hidden_size=128, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=96, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=5000000.0),
        no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, sliding_window=72, pad_token_id=0,
    ),
    # As Phi-4 mini with other sizes, and a window as Phi-3 mini has it.
    "phi3-bf16": dict(
        COMMON, model_type="phi3", hidden_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=96, rms_norm_eps=1e-5, rope_parameters=LONGROPE, original_max_position_embeddings=64,
        sliding_window=72, tie_word_embeddings=False, pad_token_id=0,
    ),
    "granite-bf16": dict(
        COMMON, model_type="granite", hidden_size=128, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=96, rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        embedding_multiplier=5.3, attention_multiplier=0.23, residual_multiplier=0.31, logits_scaling=2.7, pad_token_id=0,
    ),
    "olmo2-bf16": dict(
        COMMON, model_type="olmo2", hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=500000.0),
        tie_word_embeddings=False, pad_token_id=0,
    ),
    # The sliding layers' base differs, too, so that either alone would show.
    "olmo3-bf16": dict(
        COMMON, model_type="olmo3", hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, rms_norm_eps=1e-6, sliding_window=72, tie_word_embeddings=False, pad_token_id=0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=8.0, original_max_position_embeddings=128,
                                attention_factor=1.1),
            sliding_attention=dict(rope_type="default", rope_theta=50000.0),
        ),
    ),
    # Every layer consists of experts, as in Mixtral 8x7B, and has a window, as other models of this family do.
    "mixtral-bf16": dict(
        COMMON, model_type="mixtral", hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5, sliding_window=72,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0), tie_word_embeddings=False,
    ),
    # The weights of a token's experts don't add up to 1.
    "olmoe-bf16": dict(
        COMMON, model_type="olmoe", hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0), tie_word_embeddings=False, pad_token_id=0,
    ),
}

# gpt-oss's layers, with a window that ends within a tile and a lower limit, which many numbers exceed. Once with experts in
# bf16, once in MXFP4 as published. Each with the seed of its weights.
OSS_SETTINGS = dict(
    COMMON, model_type="gpt_oss", vocab_size=520, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
    head_dim=32, intermediate_size=64, num_local_experts=8, num_experts_per_tok=3, swiglu_limit=1.5, sliding_window=24,
    layer_types=["sliding_attention", "full_attention"] * 2, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True,
    rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                         original_max_position_embeddings=64),
)
OSS = {"gptoss-bf16": (8, OSS_SETTINGS), "gptoss-mxfp4": (17, OSS_SETTINGS)}
MXFP4 = dict(quant_method="mxfp4", modules_to_not_convert=[
    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])
# The second as llama.cpp's converter writes it, by gguf-py 0.19. The limit of the activation is 7 in such files.
OSS_GGUF = "gptoss-gguf"
OSS_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
OSS_PARTS = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.sinks": "attn_sinks.weight", "mlp.router.weight": "ffn_gate_inp.weight", "mlp.router.bias": "ffn_gate_inp.bias",
    **{f"self_attn.{part}_proj.{kind}": f"attn_{name}.{kind}" for kind in ("weight", "bias")
       for part, name in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))},
}
# Root mean square of the numbers that the sixteen codes stand for.
CODES = 2.93

# Laid out as Qwen3-Embedding is: a bare decoder, whose tensors have no prefix, and sentence-transformers' files.
EMBEDDING = "qwen3-embedding-bf16"
EMBEDDING_SEED = 4
EMBEDDING_SETTINGS = dict(
    COMMON, model_type="qwen3", vocab_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    intermediate_size=96, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
)
MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
POOLING_FLAGS = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
END_OF_TEXT = "<|endoftext|>"
# The last is longer than a step's chunks; the first two are short enough for the emulated device.
TEXTS = [
    "a",
    "paged KV",
    "What is a prefix cache?",
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:What is paged attention?",
    "Blöcke, 块 and 🧱",
    " ".join(f"Line {number} of a text about schedulers, queues and blocks." for number in range(9)),
]

# Adapters of a checkpoint: what PEFT is told, and how they are stored.
ADAPTERS = "qwen3-lora"
ADAPTER_SEED = 5
ADAPTED = "qwen3-bf16"
ALL_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER_SETTINGS = {
    "all": (dict(r=4, lora_alpha=8, target_modules=ALL_TARGETS), torch.float32),
    "some": (dict(r=8, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"],
                  layers_to_transform=[1, 3], rank_pattern={"down_proj": 5}, alpha_pattern={"layers.3.self_attn.v_proj": 9}),
             torch.bfloat16),
}
# Standard deviation of what both matrices together add, over that of a projection's inputs.
ADDED = 0.12
# Prompts of the checkpoint that adapters compute, too.
ADAPTED_PROMPTS = ["p00", "p01", "p04", "p08", "p11", "p13"]


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def lengthen(model):
    """Gives sequences of any length the factors of long ones, as the host does if sequences may be longer than the original
    positions; transformers chooses by the sequence."""
    config = model.config
    if config.rope_parameters.get("rope_type") == "longrope":
        rope = model.model.rotary_emb
        long, _ = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=config.original_max_position_embeddings + 1)
        rope.inv_freq.copy_(long)
        rope.original_inv_freq.copy_(long)


def weights(model, config, random):
    """Random weights, of which 1/16 of the hidden channels are constants from which heads make their preferred distances."""
    hidden, width = config.hidden_size, head_dim(config)
    constants = hidden // 16
    gemma = config.model_type == "gemma3_text"
    olmo = config.model_type in ("olmo2", "olmo3")
    experts = getattr(config, "num_experts", None) or 0
    preferences = slice(constants, constants + experts)
    state = {}
    for name, like in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = torch.randn(like.shape, generator=random)
        if "norm" in name:
            values = values * 0.2 + 1.0
            place = name.split(".")[-2]
            if place == "norm":
                # Without constants, which say nothing about tokens; so large that logits are usual ones.
                signs = torch.randint(0, 2, like.shape, generator=random) * 2 - 1
                values *= signs * LOGITS * (math.sqrt(hidden) if gemma else 1.0)
                # The head is the embedding.
                values *= getattr(config, "logits_scaling", 1.0) * getattr(config, "embedding_multiplier", 1.0)
                values[:constants] = 0.0
            elif (gemma or olmo) and place in ("post_attention_layernorm", "post_feedforward_layernorm"):
                # Behind projections, as nothing may be added to the constants.
                values *= GEMMA_BRANCH
                values[:constants] = 0.0
            elif place.endswith("layernorm"):
                values[:constants] = 1.0
                values[preferences] = 1.0
            # Gemma adds 1 to the weights.
            values -= 1.0 if gemma else 0.0
        elif "embed" in name:
            values[:, :constants] = 1.0
            if experts:
                order = torch.argsort(torch.rand(len(values), experts, generator=random), dim=1)
                values[:, preferences] = torch.linspace(PREFERENCE, -PREFERENCE, experts)[order]
            values *= 1.0 / math.sqrt(hidden) if gemma else 1.0 / getattr(config, "embedding_multiplier", 1.0)
        elif name.endswith("sinks"):
            values += 3.0
        elif name.endswith("bias"):
            values *= 0.1 if "router" in name else 0.2
            if "o_proj" in name or "down_proj" in name:
                values[..., :constants] = 0.0
                values[..., preferences] = 0.0
        elif config.model_type == "gpt_oss" and name.endswith(("gate_up_proj", "down_proj")):
            # Inputs come before outputs.
            values /= math.sqrt(like.shape[-2])
            if name.endswith("gate_up_proj"):
                values[:, :constants] = 0.0
            else:
                values[..., :constants] = 0.0
                values[..., preferences] = 0.0
        elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):
            # The last chosen and the next are closer among more chosen ones.
            values *= (1.0 if config.model_type == "qwen3_moe" else 0.3) * CONTEXT / math.sqrt(hidden)
            values[:, :constants] = 0.0
            channels = constants + torch.randperm(experts, generator=random)
            # Weights that aren't divided by their sum have a smaller one if they are less different.
            values[torch.arange(experts), channels] = ROUTER / (2.0 if config.model_type == "olmoe" else 1.0)
        elif name != "lm_head.weight":
            values /= math.sqrt(like.shape[-1])
            if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                values[..., :constants, :] = 0.0
                values[..., preferences, :] = 0.0
            else:
                values[..., :constants] = 0.0
        state[name] = values
    bare = getattr(model, "model", model)
    rope = bare.rotary_emb
    for layer in range(config.num_hidden_layers):
        kind = config.layer_types[layer] if gemma or config.model_type == "olmo3" else None
        turns = getattr(rope, f"{kind}_inv_freq") if kind else rope.inv_freq
        prefix = f"{'' if bare is model else 'model.'}layers.{layer}.self_attn"
        if config.model_type == "phi3":
            heads = [config.num_attention_heads * width, config.num_key_value_heads * width]
            queries, keys, _ = state[f"{prefix}.qkv_proj.weight"].split([*heads, heads[1]])
        else:
            queries, keys = state[f"{prefix}.q_proj.weight"], state[f"{prefix}.k_proj.weight"]
        group = config.num_attention_heads // config.num_key_value_heads
        # As many as are rotated; what scales them would make attention sharper.
        pairs, strength = len(turns), STRENGTH
        if config.model_type == "phi3":
            strength /= rope.attention_scaling
        for kv in range(config.num_key_value_heads):
            # Equal in all frequencies, so that the score peaks where all of them agree.
            direction = torch.randn(pairs, 2, generator=random)
            direction /= direction.norm(dim=1, keepdim=True)
            x, y = (strength * direction).unbind(1)
            keys[kv * width:kv * width + 2 * pairs, :constants] = torch.cat([x, y])[:, None] / constants
            for head in range(kv * group, (kv + 1) * group):
                far = DISTANCES[(3 * layer + head) % len(DISTANCES)]
                cos, sin = torch.cos(-far * turns), torch.sin(-far * turns)
                turned = torch.cat([x * cos - y * sin, y * cos + x * sin])
                queries[head * width:head * width + 2 * pairs, :constants] = turned[:, None] / constants
        if olmo or config.model_type == "olmoe":
            # Of unequal sizes, as heads have one norm together.
            for rows, sizes in ((queries, HEAD_SIZES), (keys, reversed(HEAD_SIZES))):
                for head, size in zip(rows.split(width), sizes):
                    head *= size
    return {name: values.to(torch.bfloat16).contiguous() for name, values in state.items()}


def separate(state):
    """Each expert's matrices by themselves, as transformers writes them and real checkpoints have them."""
    separated = {}
    for name, values in state.items():
        place, _, part = name.rpartition(".")
        if not place.endswith(".experts"):
            separated[name] = values
            continue
        for expert, matrix in enumerate(values):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if part == "gate_up_proj" else [(part, matrix)]
            separated.update({f"{place}.{expert}.{part}.weight": rows.contiguous() for part, rows in parts})
    return separated


def as_mixtral(state):
    """The same under Mixtral's own names, which transformers writes, too."""
    names = dict(gate_proj="w1", down_proj="w2", up_proj="w3")
    own = {}
    for name, values in state.items():
        if ".experts." in name:
            place, part, suffix = name.rsplit(".", 2)
            name = f"{place}.{names[part]}.{suffix}"
        own[name.replace(".mlp.", ".block_sparse_moe.")] = values
    return own


def in_blocks(state, random):
    """Random MXFP4 in place of the experts' matrices, with zeros where these have some: what transformers widens it to, and
    the tensors of a file."""
    wide, stored = dict(state), dict(state)
    for name, values in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        # Outputs before inputs, two codes a byte, the first in the low half.
        zero = values.transpose(1, 2) == 0.0
        codes = torch.randint(0, 16, zero.shape, generator=random)
        codes[zero] = 0
        spread = round(math.log2(1 / (CODES * math.sqrt(zero.shape[-1]))))
        blocks = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
        blocks = blocks.reshape(*zero.shape[:-1], zero.shape[-1] // 32, 16).contiguous()
        scales = (127 + spread + torch.randint(-2, 2, blocks.shape[:-1], generator=random)).to(torch.uint8)
        wide[name] = convert_moe_packed_tensors(blocks, scales)
        assert wide[name].shape == values.shape
        del stored[name]
        stored.update({f"{name}_blocks": blocks, f"{name}_scales": scales})
    return wide, stored


def ignored(config, state, prompts, runs):
    """How far the last logits of the longest prompt are off if something of gpt-oss is ignored, and how far apart the logits
    of the last chosen expert and the next one are at least."""
    def off(state=state, **settings):
        other = AutoConfig.for_model(**dict(OSS_SETTINGS, eos_token_id=[1], **settings))
        other._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(other, dtype=torch.float32).eval()
        model.load_state_dict({key: values.float() for key, values in state.items()})
        return float((logits(model, prompts[-1])[-1] - runs[-1][0][-1]).norm() / runs[-1][0][-1].norm())

    without = lambda part, value: {key: torch.full_like(x, value) if part in key else x for key, x in state.items()}
    rope = OSS_SETTINGS["rope_parameters"]
    gaps = []
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict({key: values.float() for key, values in state.items()})
    for ids in prompts:
        with torch.no_grad():
            found = model(torch.tensor([ids]), use_cache=False, output_router_logits=True).router_logits
        for rows in found:
            best = rows.topk(config.num_experts_per_tok + 1).values
            gaps.append(float(((best[:, -2] - best[:, -1]) / rows.std(dim=1)).min()))
    return dict(
        sinks=off(without("sinks", -1e4)), limit=off(swiglu_limit=1e4), alpha=off(swiglu_alpha=1.0),
        **{part: off(without(f"{part}.bias", 0.0)) for part in ("q_proj", "k_proj", "v_proj", "o_proj", "router")},
        gate_up=off(without("gate_up_proj_bias", 0.0)), down=off(without("down_proj_bias", 0.0)),
        yarn=off(rope_parameters=dict(rope_type="default", rope_theta=150000.0)),
        truncate=off(rope_parameters=dict(rope, truncate=True)), window=off(sliding_window=1024), wider=off(sliding_window=25),
        gap=min(gaps),
    )


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, ids, steps):
    """Tokens, margins and logits of each step, by one whole forward per token."""
    ids, tokens, margins, rows = list(ids), [], [], []
    for _ in range(steps):
        row = logits(model, ids)[-1]
        (first, second), (token, _) = (list(part) for part in row.topk(2))
        tokens.append(int(token))
        margins.append(float(first - second))
        rows.append(row)
        ids.append(int(token))
    return tokens, margins, torch.stack(rows)


def make(name, settings, seed):
    folder = Path(__file__).parent / name
    folder.mkdir(exist_ok=True)
    settings = dict(settings, eos_token_id=[1])
    config = AutoConfig.for_model(**settings)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    lengthen(model)
    random = torch.Generator().manual_seed(seed)
    state = stored = weights(model, config, random)
    if "mxfp4" in name:
        state, stored = in_blocks(state, random)
    wide = {key: values.float() for key, values in state.items()}
    missing, unexpected = model.load_state_dict(wide, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()

    prompts = [torch.randint(3, config.vocab_size, (length,), generator=random).tolist() for length in LENGTHS]
    arrays, described, runs = {}, [], []
    for number, ids in enumerate(prompts):
        at = sorted({0, len(ids) // 3, len(ids) // 2, len(ids) - 2, len(ids) - 1} & set(range(len(ids))))
        all_rows = logits(model, ids)
        rows = all_rows[at]
        best = rows.topk(2).values
        tokens, margins, steps = greedy(model, ids, GREEDY_STEPS)
        arrays[f"p{number:02}.logits"] = rows.contiguous()
        if number == 2:
            arrays[f"p{number:02}.greedy_logits"] = steps
        described.append(dict(name=f"p{number:02}", ids=ids, positions=at, margins=(best[:, 0] - best[:, 1]).tolist(),
                              greedy=dict(ids=tokens, margins=margins)))
        runs.append((all_rows, tokens, margins))

    # The end tokens: two that greedy decoding arrives at.
    ends = sorted({runs[0][1][9], runs[3][1][20]})
    cases = []
    for number, (_, tokens, margins) in enumerate(runs):
        stop = next((step for step, token in enumerate(tokens) if token in ends), None)
        steps = len(tokens) if stop is None else stop + 1
        cases.append(dict(prompt=f"p{number:02}", max_new_tokens=GREEDY_STEPS, generated_ids=tokens[:steps],
                          finish_reason="length" if stop is None else "stop", min_margin=min(margins[:steps])))

    # How far honest rounding goes, and how much attention depends on what is far back.
    half = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    half.load_state_dict(state, strict=False)
    half.tie_weights()
    lengthen(half)
    off = relative = 0.0
    for ids, (rows, *_) in zip(prompts, runs):
        differ = logits(half, ids).float() - rows
        off = max(off, float(differ.abs().max()))
        relative = max(relative, float((differ.norm(dim=1) / rows.norm(dim=1)).max()))
    longest, (rows, *_) = prompts[-1], runs[-1]
    recent = longest[-64:]
    near = logits(model, recent)[-1]
    print(f"{name}: logits {rows.std():.2f}, bf16 off by {relative:.1e} ({off:.2f}); of the last 64 tokens alone "
          f"{float((near - rows[-1]).norm() / rows[-1].norm()):.2f}; ends {ends}: {[case['finish_reason'] for case in cases]}")

    golden = dict(prompts=described, eos=dict(cases=cases),
                  safe_margin=dict(float32_compute=1e-3, bfloat16_compute=2 * off))
    written = {key: value for key, value in config.to_dict().items() if key in settings or key == "architectures"}
    written.update(architectures=[type(model).__name__], model_type=settings["model_type"], eos_token_id=ends,
                   dtype="bfloat16", **(dict(quantization_config=MXFP4) if "mxfp4" in name else {}))
    if name in OSS:
        print({key: f"{value:.1e}" for key, value in ignored(config, state, prompts, runs).items()})
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(dict(bos_token_id=2, eos_token_id=ends)) + "\n")
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    if name not in OSS:
        stored = separate(state)
    if settings["model_type"] == "mixtral":
        stored = as_mixtral(stored)
    save_file(stored, folder / "model.safetensors", metadata=dict(format="pt"))
    save_file(arrays, folder / "golden.safetensors")


def make_oss_gguf():
    import gguf
    from safetensors.torch import load_file

    base, folder = Path(__file__).parent / "gptoss-mxfp4", Path(__file__).parent / OSS_GGUF
    folder.mkdir(exist_ok=True)
    config = AutoConfig.for_model(**dict(OSS_SETTINGS, eos_token_id=[1], swiglu_limit=7.0))
    config._attn_implementation = "eager"
    writer = gguf.GGUFWriter(folder / "model.gguf", "gpt-oss")
    rope = OSS_SETTINGS["rope_parameters"]
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list(["x"])

    def floats(name, values):
        exact = values.dim() == 1 or "ffn_gate_inp" in name or name.endswith("bias")
        kind = gguf.GGMLQuantizationType.F32 if exact else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(values.float().numpy(), kind), raw_dtype=kind)

    stored, wide = load_file(base / "model.safetensors"), {}
    for name, values in stored.items():
        layer, _, part = name.removeprefix("model.layers.").partition(".")
        if name in OSS_NAMES or part in OSS_PARTS:
            floats(OSS_NAMES.get(name) or f"blk.{layer}.{OSS_PARTS[part]}", values)
            wide[name] = values.float()
        elif part.endswith("_bias"):
            wide[name] = values.float()
            turns = [("gate", values[:, ::2]), ("up", values[:, 1::2])] if "gate_up" in part else [("down", values)]
            for kind, rows in turns:
                floats(f"blk.{layer}.ffn_{kind}_exps.bias", rows)
        elif part.endswith("_blocks"):
            place = name.removesuffix("_blocks")
            codes = torch.stack([values & 15, values >> 4], dim=-1).flatten(-2)
            blocks = torch.cat([stored[f"{place}_scales"][..., None], codes[..., :16] | codes[..., 16:] << 4], dim=-1)
            rows = blocks.flatten(-2)
            mxfp4 = gguf.GGMLQuantizationType.MXFP4
            wide[place] = torch.from_numpy(gguf.quants.dequantize(rows.numpy(), mxfp4)).transpose(1, 2)
            assert torch.equal(wide[place], convert_moe_packed_tensors(values, stored[f"{place}_scales"]).float())
            turns = [("gate", rows[:, ::2]), ("up", rows[:, 1::2])] if "gate_up" in part else [("down", rows)]
            for kind, rows in turns:
                writer.add_tensor(f"blk.{layer}.ffn_{kind}_exps.weight", rows.contiguous().numpy(), raw_dtype=mxfp4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict({key: values.contiguous() for key, values in wide.items()})
    ids = torch.randint(3, config.vocab_size, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    positions = [0, 23, 24, 89]
    rows = [[round(x, 6) for x in row] for row in logits(model, ids)[positions].tolist()]
    (folder / "golden.json").write_text(json.dumps(dict(ids=ids, positions=positions, logits=rows)) + "\n")


def embed(model, ids):
    """The last token's hidden state, scaled to a length of 1."""
    with torch.no_grad():
        return torch.nn.functional.normalize(model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1].float(), dim=0)


def make_embedding(seed):
    folder = Path(__file__).parent / EMBEDDING
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    beside = folder.parent / "qwen3-bf16"
    shutil.copy(beside / "tokenizer_config.json", folder)
    tokenizer = json.loads((beside / "tokenizer.json").read_text())
    end = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == END_OF_TEXT)
    only, special = dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id=END_OF_TEXT, type_id=0))
    other = dict(Sequence=dict(id="B", type_id=1))
    ending = dict(type="TemplateProcessing", single=[only, special], pair=[only, special, other, special],
                  special_tokens={END_OF_TEXT: dict(id=END_OF_TEXT, ids=[end], tokens=[END_OF_TEXT])})
    tokenizer["post_processor"] = dict(type="Sequence", processors=[tokenizer["post_processor"], ending])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")

    config = AutoConfig.for_model(**dict(EMBEDDING_SETTINGS, bos_token_id=None, eos_token_id=end))
    config._attn_implementation = "eager"
    model = AutoModel.from_config(config, dtype=torch.float32).eval()
    state = weights(model, config, torch.Generator().manual_seed(seed))
    model.load_state_dict({key: values.float() for key, values in state.items()})
    half = AutoModel.from_config(config, dtype=torch.bfloat16).eval()
    half.load_state_dict(state)

    names = {*EMBEDDING_SETTINGS, "eos_token_id"} - {"bos_token_id"}
    written = {key: value for key, value in config.to_dict().items() if key in names}
    # As in the checkpoints of this kind, whatever class made it.
    written.update(architectures=["Qwen3ForCausalLM"], model_type="qwen3", dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[end])) + "\n")
    modules = [dict(idx=number, name=str(number), path=path, type=f"sentence_transformers.models.{kind}")
               for number, (path, kind) in enumerate(MODULES)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    pooling = dict(word_embedding_dimension=config.hidden_size, include_prompt=True)
    pooling.update({f"pooling_mode_{flag}": flag == "lasttoken" for flag in POOLING_FLAGS})
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=1) + "\n")
    save_file(state, folder / "model.safetensors", metadata=dict(format="pt"))

    encode = AutoTokenizer.from_pretrained(folder)
    prompts, worst = [], 0.0
    for text in TEXTS:
        ids = encode(text).input_ids
        assert ids[-1] == end and end not in ids[:-1], ids
        vector = embed(model, ids)
        worst = max(worst, float((embed(half, ids) - vector).norm()))
        prompts.append(dict(text=text, ids=ids, vector=[float(f"{x:.8e}") for x in vector.tolist()]))
    lengths = [len(prompt["ids"]) for prompt in prompts]
    vectors = torch.tensor([prompt["vector"] for prompt in prompts])
    nearest = float((vectors @ vectors.T - 2 * torch.eye(len(vectors))).max())
    print(f"{EMBEDDING}: {lengths} tokens, bf16 off by {worst:.1e}, cosines up to {nearest:.2f}")
    (folder / "embeddings.json").write_text(json.dumps(dict(prompts=prompts), ensure_ascii=False) + "\n")


def make_adapters(seed):
    """For each adapter what PEFT saves, and the logits of the checkpoint with it."""
    from peft import LoraConfig, PeftModel, get_peft_model

    base = Path(__file__).parent / ADAPTED
    known = {prompt["name"]: prompt for prompt in json.loads((base / "golden.json").read_text())["prompts"]}
    random = torch.Generator().manual_seed(seed)
    load = lambda dtype: AutoModelForCausalLM.from_pretrained(base, dtype=dtype, attn_implementation="eager").eval()
    for name, (settings, stored) in ADAPTER_SETTINGS.items():
        folder = Path(__file__).parent / ADAPTERS / name
        # Saved once as PEFT makes it, then with other numbers: B begins as zeros.
        adapted = get_peft_model(load(torch.float32), LoraConfig(task_type="CAUSAL_LM", **settings))
        scales = {place: module.scaling["default"] for place, module in adapted.named_modules() if hasattr(module, "lora_A")}
        for place, values in adapted.named_parameters():
            if "lora_" not in place:
                continue
            outputs, inputs = values.shape
            spread = 1 / math.sqrt(inputs)
            if "lora_B" in place:
                spread *= ADDED / scales[place.split(".lora_B")[0]]
            values.data = (torch.randn(values.shape, generator=random) * spread).to(stored)
        adapted.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink()
        config = json.loads((folder / "adapter_config.json").read_text())
        # A path of the machine that made it.
        config["base_model_name_or_path"] = ADAPTED
        # Sets have no order.
        config["target_modules"].sort()
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")

        model = PeftModel.from_pretrained(load(torch.float32), folder).eval()
        half = PeftModel.from_pretrained(load(torch.bfloat16), folder, autocast_adapter_dtype=False).to(torch.bfloat16).eval()
        bare = load(torch.float32)
        arrays, described, off, relative, changed = {}, [], 0.0, 0.0, []
        for prompt in (known[name] for name in ADAPTED_PROMPTS):
            rows, rounded, plain = (logits(each, prompt["ids"]).float() for each in (model, half, bare))
            differ = rounded - rows
            off = max(off, float(differ.abs().max()))
            relative = max(relative, float((differ.norm(dim=1) / rows.norm(dim=1)).max()))
            changed.append(float((rows[-1] - plain[-1]).norm() / plain[-1].norm()))
            rows = rows[prompt["positions"]]
            best = rows.topk(2).values
            arrays[f"{prompt['name']}.logits"] = rows.contiguous()
            described.append(dict(name=prompt["name"], ids=prompt["ids"], positions=prompt["positions"],
                                  margins=(best[:, 0] - best[:, 1]).tolist()))
        print(f"{ADAPTERS}/{name}: logits change by {min(changed):.2f} to {max(changed):.2f}, bf16 off by {relative:.1e} "
              f"({off:.2f})")
        golden = dict(prompts=described, safe_margin=dict(float32_compute=1e-3, bfloat16_compute=2 * off))
        (folder / "expected.json").write_text(json.dumps(golden) + "\n")
        save_file(arrays, folder / "expected.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or [*CHECKPOINTS, *OSS, OSS_GGUF, EMBEDDING, ADAPTERS]
    for seed, (name, settings) in enumerate(CHECKPOINTS.items(), 1):
        if name in wanted:
            make(name, settings, seed)
    for name, (seed, settings) in OSS.items():
        if name in wanted:
            make(name, settings, seed)
    if OSS_GGUF in wanted:
        make_oss_gguf()
    if EMBEDDING in wanted:
        make_embedding(EMBEDDING_SEED)
    if ADAPTERS in wanted:
        make_adapters(ADAPTER_SEED)
