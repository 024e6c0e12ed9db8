"""Makes the quantized matrices beside this file: `python3 make.py`, or `python3 make.py NAME ..` for some.

Each file has one module, `linear`, as a published checkpoint in that form has it, the `quantization_config` in the file's
metadata, and `expected`, the float32 numbers that the form's own library makes of the codes. Scales are widened to float32
before the library multiplies, so that its numbers are exact.

Needs torch 2.15, transformers 5.24, compressed-tensors 0.20.1, gptqmodel 7.7, safetensors and numpy, and the file
`awq/utils/packing_utils.py` of autoawq 0.2.9 on the path: the whole library can't be imported without a GPU.
"""

import json
import sys
from pathlib import Path

import packing_utils
import torch
from torch import nn
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization.config import QuantizeConfig
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

SHAPE = (24, 96)
MODULES = {}


def module(make):
    MODULES[make.__name__.replace("_", "-")] = make
    return make


def weights(seed, shape=SHAPE):
    """Weights with some outputs and inputs far larger than others."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator) * 0.05
    outputs = torch.exp(torch.randn((shape[0], 1), generator=generator))
    inputs = torch.exp(torch.randn((1, shape[1]), generator=generator) / 2)
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


def units(numbers, bits, groups, count, sym):
    """Scales in float16 and zeros of groups of inputs, `[outputs, groups]`."""
    levels = 2**bits - 1
    scales, zeros = [], []
    for group in range(count):
        part = numbers[:, groups == group]
        low, high = part.amin(dim=1).clamp(max=0), part.amax(dim=1).clamp(min=0)
        if sym:
            high = torch.maximum(-low, high)
            low = -high
        scale = ((high - low) / levels).clamp(min=1e-5).half().float()
        scales.append(scale)
        # A zero of 0 has no representation in the first version of the form.
        zeros.append(torch.full_like(scale, (levels + 1) / 2) if sym else torch.round(-low / scale).clamp(1, levels))
    return torch.stack(scales, dim=1), torch.stack(zeros, dim=1)


def gptq(seed, bits=4, group_size=32, sym=True, desc_act=False, **keys):
    outputs, inputs = shape = (32, 96)
    numbers = weights(seed, shape)
    count = 1 if group_size == -1 else inputs // group_size
    groups = torch.arange(inputs) // (inputs // count)
    if desc_act:
        order = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))
        groups = groups[torch.argsort(order)]
    scales, zeros = units(numbers, bits, groups, count, sym)
    linear = nn.Linear(inputs, outputs, bias=False)
    linear.weight.data = numbers
    settings = dict(bits=bits, group_size=group_size, sym=sym, desc_act=desc_act)
    packed = TorchLinear(**settings, in_features=inputs, out_features=outputs)
    packed.pack_original(linear, scales, zeros.to(torch.int32), groups.to(torch.int32))
    convert_gptq_v2_to_v1_format_module(packed, QuantizeConfig(**settings))
    tensors = {name: getattr(packed, name).clone() for name in ["qweight", "qzeros", "scales", "g_idx"]}
    convert_gptq_v1_to_v2_format_module(packed, bits, torch.int32)
    packed.scales = packed.scales.float()
    expected = packed.dequantize_weight().T
    config = dict(settings, quant_method="gptq", damp_percent=0.01, static_groups=False, true_sequential=True, **keys)
    return config, tensors, expected


@module
def gptq_4():
    return gptq(4, checkpoint_format="gptq", pack_dtype="int32", meta=dict(quantizer=["gptqmodel:7.7.0"]))


@module
def gptq_4_zeros():
    return gptq(5, sym=False, group_size=16)


@module
def gptq_4_ordered():
    return gptq(6, desc_act=True, model_name_or_path=None, model_file_base_name="model")


@module
def gptq_8_outputs():
    return gptq(7, bits=8, group_size=-1)


@module
def awq():
    """Packed by the definition, since AutoAWQ packs on a GPU; widened by its own function."""
    outputs, inputs = shape = (32, 96)
    numbers = weights(8, shape)
    scales, zeros = units(numbers, 4, torch.arange(inputs) // 32, 3, sym=False)
    scales, zeros = scales.T.contiguous(), zeros.T.to(torch.int32).contiguous()
    codes = torch.round(numbers.T / scales.repeat_interleave(32, dim=0) + zeros.repeat_interleave(32, dim=0))
    codes = codes.clamp(0, 15).to(torch.int32).contiguous()
    pack = lambda rows: sum(rows[:, output::8] << (4 * place) for place, output in enumerate(packing_utils.AWQ_ORDER)).contiguous()
    tensors = dict(qweight=pack(codes).to(torch.int32), qzeros=pack(zeros).to(torch.int32), scales=scales.half())
    expected = packing_utils.dequantize_gemm(tensors["qweight"], tensors["qzeros"], scales, 4, 32).T
    config = dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True, modules_to_not_convert=None)
    return config, tensors, expected


def compressed(seed, format, shape=SHAPE, ordered=False, scale_dtype=torch.bfloat16, **args):
    """A module that the library's compressor writes, and its numbers. Scales have the values of `scale_dtype`."""
    numbers = weights(seed, shape)
    outputs, inputs = shape
    args = QuantizationArgs(**args)
    block = dict(tensor=(outputs, inputs), channel=(1, inputs), group=(1, args.group_size),
                 block=tuple(args.block_structure or ()))[args.strategy]
    # The library orders inputs by group before it divides them, and its numbers back.
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed)) if ordered else torch.arange(inputs)
    lowest = blocks(numbers[:, order], block, torch.amin).clamp(max=0)
    highest = blocks(numbers[:, order], block, torch.amax).clamp(min=0)
    scales, zeros = calculate_qparams(lowest, highest, args)
    if args.strategy == "tensor":
        scales, zeros = scales.reshape(1), zeros.reshape(1)
    scales = scales.to(scale_dtype).float()
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(format)
    state = dict(weight=numbers[:, order].contiguous(), weight_scale=scales, weight_zero_point=zeros)
    state = compressor.compress(state, scheme)
    expected = compressor.decompress(dict(state), scheme)["weight"]
    back = torch.argsort(order)
    if ordered:
        assert format == "pack-quantized" and args.num_bits == 4
        codes = state["weight_packed"].view(torch.uint8)
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).view(outputs, inputs)[:, back].reshape(outputs, -1, 2)
        state["weight_packed"] = (codes[..., 0] | codes[..., 1] << 4).contiguous().view(torch.int32)
        state["weight_g_idx"] = (back // args.group_size).to(torch.int32)
    state["weight_scale"] = state["weight_scale"].to(scale_dtype)
    config = dict(quant_method="compressed-tensors", format=format, quantization_status="compressed", ignore=["lm_head"],
                  kv_cache_scheme=None, global_compression_ratio=None, config_groups=dict(group_0=json.loads(
                      scheme.model_dump_json())))
    if ordered:
        config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    return config, state, expected[:, back].contiguous()


@module
def packed_4():
    return compressed(9, "pack-quantized", num_bits=4, strategy="group", group_size=32)


@module
def packed_4_zeros():
    return compressed(10, "pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False)


@module
def packed_4_ordered():
    return compressed(11, "pack-quantized", num_bits=4, strategy="group", group_size=32, ordered=True)


@module
def packed_8_outputs():
    return compressed(12, "pack-quantized", (24, 90), num_bits=8, strategy="channel", symmetric=False)


@module
def float8_outputs():
    return compressed(13, "float-quantized", num_bits=8, type="float", strategy="channel")


@module
def float8_blocks():
    return compressed(14, "float-quantized", (32, 96), num_bits=8, type="float", strategy="block", block_structure=[16, 32])


@module
def int8_outputs():
    return compressed(15, "int-quantized", num_bits=8, strategy="channel", scale_dtype=torch.float32)


@module
def int8_zeros():
    return compressed(16, "int-quantized", num_bits=8, strategy="channel", symmetric=False)


def main(names):
    here = Path(__file__).parent
    for name, make in MODULES.items():
        if names and name not in names:
            continue
        config, tensors, expected = make()
        assert expected.dtype == torch.float32, name
        tensors = {f"linear.{part}": tensor.contiguous() for part, tensor in tensors.items()}
        save_file(dict(tensors, expected=expected.contiguous()), here / f"{name}.safetensors",
                  metadata=dict(quantization_config=json.dumps(config)))


if __name__ == "__main__":
    main(sys.argv[1:])
