"""Weights of 4 and 8 bits in groups, and their packings; `scaled_mm.awq` has the public names of
those of 4 bits.

    words.py     values of 4 bits, or 8, to int32 words, in AWQ's order and in the plain one
    grouped.py   GroupedWeight, a weight with a byte to a value, and its quantiser
    stored.py    its compressed-tensors tensors; gptq.py GPTQ's words
    int4.py      Int4, the same of 4 bits with a g_idx, and its AWQ and GPTQ tensors

The products by it are in `ops/lowbit.py` and `ops/mixed.py`, their definitions in `reference/`, the
layers in `nn/`, the checkpoints in `checkpoint/layers_awq_gptq.py` and `layers_packed.py`.
docs/lowbit.md draws the layouts.
"""
