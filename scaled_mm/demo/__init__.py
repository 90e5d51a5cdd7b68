"""The library's main job on a real model.

MiniLM-L6-v2 (a sentence encoder of 22 million weights) runs with the 36 Linears of its layers in
int8, under four schemes of quantising activations, beside itself in torch float32 and bfloat16; on
a GPU when there is one that the library serves.
How near are the embeddings, where does the noise come from, are all bits those of
`scaled_mm.reference`, and how much time is saved? No network: the model is a Python package.
"""
