"""Writes what bench/gpt2.sh's programs start from: the same first parameters, and a shard of random tokens.

    gpt2_inputs.py weights FILE layers embed context
    gpt2_inputs.py tokens FILE number

The parameters are GPT-2's initial ones, rounded to bfloat16, so that a program with bfloat16 parameters begins
with the same numbers as one with float32 parameters. The logarithms of the tokens are uniform, so that a model
soon learns which tokens are frequent.
"""
import json
import struct
import sys

import numpy

numbers = numpy.random.Generator(numpy.random.PCG64(1))


def weights(path, layers, embed, context):
    last = 0.02 / (2 * layers) ** 0.5
    tensors = {"transformer.wte.weight": ((50304, embed), 0.02), "transformer.wpe.weight": ((context, embed), 0.02)}
    for i in range(layers):
        for name, out, inputs, std in (
            ("attn.c_attn", 3 * embed, embed, 0.02), ("attn.c_proj", embed, embed, last),
            ("mlp.c_fc", 4 * embed, embed, 0.02), ("mlp.c_proj", embed, 4 * embed, last),
        ):
            tensors[f"transformer.h.{i}.{name}.weight"] = ((out, inputs), std)
            tensors[f"transformer.h.{i}.{name}.bias"] = ((out,), 0)
    norms = [f"transformer.h.{i}.ln_{k}" for i in range(layers) for k in (1, 2)] + ["transformer.ln_f"]
    for name in norms:
        tensors[name + ".weight"], tensors[name + ".bias"] = ((embed,), None), ((embed,), 0)
    header, at = {}, 0
    for name, (shape, _) in tensors.items():
        end = at + 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape, std in tensors.values():
            if std is None:  # the scale of a norm
                values = numpy.ones(shape, numpy.float32)
            elif std == 0:
                values = numpy.zeros(shape, numpy.float32)
            else:
                values = numbers.standard_normal(shape, numpy.float32) * numpy.float32(std)
            bits = values.view(numpy.uint32)
            bits = (bits + numpy.uint32(0x7FFF) + ((bits >> numpy.uint32(16)) & numpy.uint32(1))) & numpy.uint32(0xFFFF0000)
            f.write(bits.tobytes())


def tokens(path, number):
    values = (50257 ** numbers.random(number)).astype(numpy.uint16)
    header = numpy.zeros(256, numpy.int32)
    header[:3] = 20240520, 1, number
    with open(path, "wb") as f:
        f.write(header.tobytes() + values.tobytes())


{"weights": weights, "tokens": tokens}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
