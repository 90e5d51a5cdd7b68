"""Models in int8, or with weights in 8 or 4 bits: calibrated, smoothed, replaced, and looked at.

model.py         quantize_model, prepare_model; swap.py puts modules into places
fuse.py          fuse_model: which modules can be closed ones (`nn/fused.py`)
config.py        QuantConfig; schemes.py Scheme, WeightScheme
layers.py        which modules can be quantised, and what else holds matrices
compressed_tensors.py  what a checkpoint says of a layer; saving.py save_pretrained
report.py        what was quantised, and what was not
calibrate.py     ranges of activations
rotation.py      orthogonal matrices folded into weights
smoothquant.py   which layers are smoothed by what; feeds.py which norm feeds which Linears
observe.py       the inputs and outputs of layers on batches
inspect.py       a layer's own noise, and its bits against the reference
"""
