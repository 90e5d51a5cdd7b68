"""int4 weights in groups, and their packings; `scaled_mm.awq` has the public names of all this.

    words.py    eight values to an int32 word, in AWQ's and GPTQ's orders
    int4.py     Int4, the weight with a byte to a value, and both packings of it

The products by it are in `ops/lowbit.py`, their definition in `reference/lowbit.py`, the layer in
`nn/awq_linear.py`, the checkpoints in `checkpoint/layers_int4.py`. docs/lowbit.md draws layouts.
"""
