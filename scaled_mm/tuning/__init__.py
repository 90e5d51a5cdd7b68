"""`scaled-mm tune`: the two numbers of every kernel, measured on the user's own GPU.

The tables (csrc/cuda/smXX/*.table) hold what was measured on the developers' GPU. The choice of a
kernel is a comparison of predictions made from these numbers, so on another kind of GPU it may take
a kernel that is not the fastest. `tune` times the kernels (`measure`), fits the numbers (`fit`) and
keeps them in a file (`cache`), which is read when the package is imported.

What is in force changes which kernel computes, never what is computed: the bits of int8 products
are the same for all kernels.
"""
