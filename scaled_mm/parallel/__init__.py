"""Tensor parallelism: quantised layers over several processes, by torch.distributed.

    mesh = init_device_mesh("cuda", (world,))
    parallelize_module(model, mesh, {"*.up": ColwiseQuantizedParallel(),
                                     "*.down": RowwiseQuantizedParallel()})

or, without a whole layer in any process's memory, `load_quantized_sharded`.

    styles.py    the two styles: cut a layer in place, bring its input and output where they belong
    shares.py    which features a rank has, and which part of each tensor belongs to them
    layers.py    the layers that share out their input features: they exchange sums;
                 weight_only.py the same of weight-only layers
    experts.py   experts of a mixture: each rank has some of them; cut_experts.py a part of each
    layouts.py   what the ranks exchange
    sums.py      the epilogue on sums of all ranks
    loading.py   a checkpoint, of which each rank reads its part
"""

from .cut_experts import ExpertTensorParallel as ExpertTensorParallel
from .experts import ExpertParallel as ExpertParallel
from .loading import load_quantized_sharded
from .styles import ColwiseQuantizedParallel, RowwiseQuantizedParallel

__all__ = ["ColwiseQuantizedParallel", "RowwiseQuantizedParallel", "load_quantized_sharded"]
