"""`scaled-mm bench`: the kernels, and what torch offers in their place, in one interleaved run.

A round times every contender once, forwards and backwards in turn, so that what slows the machine
slows them all; a ratio is the median of the ratios within the rounds. Between calls the weights
rotate through copies that together exceed the last-level cache, because in a model every layer has
weights of its own (`--warm`: one copy). Outputs are judged too: a fast route with wrong numbers
(int8 through oneDNN on a CPU without VNNI) is shown, but does not count as best right route.

On a GPU a round is one replay of a CUDA graph, and every time is set against the HBM floor: the
operands and the output once, at the bandwidth of a copy measured in the same run.

`--awq` does the same for `awq_gemm`, `--awq-dequantize` for `awq_dequantize`, `--layer` for a
transformer's layer, `--model` for a whole language model.
"""
