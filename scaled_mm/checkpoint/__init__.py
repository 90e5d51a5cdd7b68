"""Checkpoints from files that nobody vouches for: read strictly, and put into a model.

    paths.py      which files are opened; fields.py JSON, read by the type of each field
    files.py      one safetensors file
    folder.py     a checkpoint: one file, or shards with an index, and its config.json
    config.py     quantization_config: which layer is quantised how; targets.py its lists of names
                  and patterns; config_awq_gptq.py AWQ's and GPTQ's form, config_blocks.py int8's
                  in blocks
    layer.py      what a quantised layer is; layers.py int8 and its azp term, layers_awq_gptq.py
                  AutoAWQ's and GPTQ's, layers_packed.py W4A16, W8A16 and W4A8 of
                  compressed-tensors, layers_blocks.py int8 in blocks
    loading.py    load_quantized; names.py the names that transformers changes
    saving.py     save_quantized; shards.py files whose tensors are made one at a time
    quantizing.py quantize_checkpoint, a float checkpoint in int8 file by file; quantize_plan.py
                  what it will do, calibrating.py what it learns from running the float model,
                  float_model.py that model, through transformers
    precompute.py the azp terms added to a checkpoint; writing.py a shard of the copy, and files
                  that are there whole or not at all; output.py the folder that they are written to

A refusal is a `ValueError` that names the file, and within it the tensor or the key.
"""

from .loading import load_quantized
from .quantizing import quantize_checkpoint
from .saving import save_quantized

__all__ = ["load_quantized", "quantize_checkpoint", "save_quantized"]
