"""The ops: public signatures over `torch.ops.scaled_mm.*`.

    shapes.py      what every shape-only kernel asks
    int8.py        scaled_mm, int8_mm, interleave_gate_up, pack_weight_int8; PackedWeight is in
                   packed_weight.py, and the short way of eager calls in eager.py
    linear.py      scaled_linear, a layer's product, which has no public function
    experts.py     grouped_mm, moe_sort, moe_combine
    azp.py         azp_adj, azp_with_adj
    w4a8.py        w4a8_mm
    quantize.py    quantize_int8, quantize_weight_int8
    produce.py     rms_norm_quantize_int8 and its like: producers that write int8
    lowbit.py      awq_dequantize, awq_gemm
    gradients.py   what layers call where autograd follows x or their bias
    mixed.py       mixed_mm, grouped_mixed_mm; pack_weight and MixedWeight in mixed_weight.py, which
                   has the layout of packed_words.py; plain_weight.py what may be packed

All other checks, and the kernels, are in csrc. Beside each signature stands the shape-only kernel
that `torch.compile` and `torch.export` run.
"""
