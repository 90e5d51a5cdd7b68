"""The azp terms of a checkpoint, added to it: `scaled-mm precompute` as a function.

    static asymmetric     azp_with_adj = input_zero_point * 1 B     int32 [1, N]
    dynamic asymmetric    azp_adj      =                    1 B     int32 [1, N]

for every layer with an int8 weight B.T [N, K]; all other tensors are copied byte for byte. A run
that was interrupted is taken up where it stopped.
"""

from .checkpoint.precompute import precompute

__all__ = ["precompute"]
