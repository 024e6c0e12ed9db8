"""Makes the quantized matrices beside this file: `python3 make.py`, or `python3 make.py NAME ..` for some.

Each file has one module, `linear`, as a published checkpoint in that form has it, the `quantization_config` in the file's
metadata, and `expected`, the float32 numbers that the form's own library makes of the codes. Scales are widened to float32
before the library multiplies, so that its numbers are exact.

Needs torch 2.15, transformers 5.24, compressed-tensors 0.20.1, safetensors and numpy.
"""

import json
import sys
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

SHAPE = (24, 96)
MODULES = {}


def module(make):
    MODULES[make.__name__.replace("_", "-")] = make
    return make


def weights(seed):
    """Weights with some outputs and inputs far larger than others."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(SHAPE, generator=generator) * 0.05
    outputs = torch.exp(torch.randn((SHAPE[0], 1), generator=generator))
    inputs = torch.exp(torch.randn((1, SHAPE[1]), generator=generator) / 2)
    return numbers * outputs * inputs


def blocks(numbers, block, reduce):
    """`reduce` of each block of outputs and inputs; the last ones may be smaller."""
    rows = numbers.split(block[0])
    return torch.stack([torch.stack([reduce(part) for part in row.split(block[1], dim=1)]) for row in rows])


def spread(scales, block):
    """A number per block as one per weight."""
    scales = scales.repeat_interleave(block[0], dim=0).repeat_interleave(block[1], dim=1)
    return scales[:SHAPE[0], :SHAPE[1]]


def float8(numbers, scales):
    return (numbers / scales).clamp(-448, 448).to(torch.float8_e4m3fn)


def scheme(args, format):
    return dict(quant_method="compressed-tensors", format=format, quantization_status="compressed", ignore=["lm_head"],
                kv_cache_scheme=None, global_compression_ratio=None,
                config_groups=dict(group_0=dict(targets=["Linear"], weights=json.loads(args.model_dump_json()),
                                                input_activations=None, output_activations=None)))


@module
def fp8_block():
    block = (16, 32)
    numbers = weights(1)
    scales = blocks(numbers, block, lambda part: part.abs().max() / 448)
    codes = float8(numbers, spread(scales, block))
    # transformers widens whole blocks only: of a matrix that is padded to them.
    padded = torch.zeros((32, 96)).to(torch.float8_e4m3fn)
    padded[:24] = codes
    expected = Fp8Dequantize(None)._dequantize_one(padded, scales, torch.float32)[:24]
    config = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=list(block))
    return config, dict(weight=codes, weight_scale_inv=scales), expected


@module
def fp8_block_exponents():
    """Scales that are powers of two, stored as such."""
    block = (8, 48)
    numbers = weights(2)
    scales = blocks(numbers, block, lambda part: torch.exp2(torch.ceil(torch.log2(part.abs().max() / 448))))
    codes = float8(numbers, spread(scales, block))
    expected = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
    config = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=list(block), scale_fmt="ue8m0",
                  modules_to_not_convert=["lm_head"])
    return config, dict(weight=codes, weight_scale_inv=scales.to(torch.float8_e8m0fnu)), expected


@module
def fp8_matrix():
    numbers = weights(3)
    scale = (numbers.abs().max() / 448).reshape(())
    codes = float8(numbers, scale)
    config = dict(quant_method="fp8", activation_scheme="static", ignored_layers=["lm_head"])
    args = QuantizationArgs(num_bits=8, type="float", strategy="tensor")
    expected = dequantize(codes, scale.reshape(1), args=args)
    return config, dict(weight=codes, weight_scale=scale, input_scale=torch.tensor(0.02)), expected


def main(names):
    here = Path(__file__).parent
    for name, make in MODULES.items():
        if names and name not in names:
            continue
        config, tensors, expected = make()
        assert expected.dtype == torch.float32 and expected.shape == SHAPE, name
        tensors = {f"linear.{part}": tensor.contiguous() for part, tensor in tensors.items()}
        save_file(dict(tensors, expected=expected.contiguous()), here / f"{name}.safetensors",
                  metadata=dict(quantization_config=json.dumps(config)))


if __name__ == "__main__":
    main(sys.argv[1:])
