"""Writes onnx_node_tests.json from the node tests inside the installed `onnx` package.

Only from onnx 1.22.0: 1.16 to 1.21 ship wrong outputs for int8 QLinearMatMul, 1.23 ships none.

    pip install onnx==1.22.0 && python tests/vectors/extract_onnx.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

NOTICE = (
    "Inputs and outputs of node tests of ONNX 1.22.0 (https://github.com/onnx/onnx). "
    "Copyright (c) ONNX Project Contributors. Licensed under the Apache License, Version 2.0 "
    "(SPDX-License-Identifier: Apache-2.0). Changed: only the format, from protobuf to JSON."
)
TESTS = [
    "matmulinteger",
    *(
        f"qlinearmatmul_{rank}_{integer}_{real}"
        for rank in ("2D", "3D")
        for integer in ("int8", "uint8")
        for real in ("float16", "float32")
    ),
    "quantizelinear",
    "quantizelinear_axis",
    "quantizelinear_blocked_asymmetric",
    "dequantizelinear",
    "dequantizelinear_axis",
    "dequantizelinear_blocked",
    "dynamicquantizelinear",
    "dynamicquantizelinear_max_adjusted",
    "dynamicquantizelinear_min_adjusted",
]
NODES = Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"


def tensor(path: Path) -> dict[str, Any]:
    proto = onnx.TensorProto()
    proto.ParseFromString(path.read_bytes())
    array = numpy_helper.to_array(proto)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.ravel().tolist()}


def vector(test: str) -> dict[str, Any]:
    folder = NODES / f"test_{test}"
    graph = onnx.load(str(folder / "model.onnx")).graph
    data = folder / "test_data_set_0"
    return {
        "op": graph.node[0].op_type,
        "inputs": [tensor(data / f"input_{i}.pb") for i in range(len(graph.input))],
        "outputs": [tensor(data / f"output_{i}.pb") for i in range(len(graph.output))],
    }


def main() -> None:
    if onnx.__version__ != "1.22.0":
        raise SystemExit(f"onnx must be version 1.22.0, got {onnx.__version__}")
    lines = [f"{json.dumps(test)}: {json.dumps(vector(test))}" for test in TESTS]
    text = f'{{"notice": {json.dumps(NOTICE)},\n"vectors": {{\n' + ",\n".join(lines) + "\n}}\n"
    Path(__file__).with_name("onnx_node_tests.json").write_text(text)


if __name__ == "__main__":
    main()
