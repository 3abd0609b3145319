"""A small ONNX model, written without a network."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SIZE = 8


def write_onnx(
    path: Path, *, kind: int = TensorProto.UINT8, shape: tuple = ("n", 3, SIZE, SIZE), scale: float = 1.0
) -> Path:
    """An ONNX model that averages each channel, times `scale`: three features."""
    axes = [1, 2] if shape[3] == 3 else [2, 3]
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["f", "axes"], ["m"], keepdims=0),
        helper.make_node("Mul", ["m", "scale"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(axes, np.int64), "axes"),
        numpy_helper.from_array(np.array(scale, np.float32), "scale"),
    ]
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (shape[0], 3))]
    graph = helper.make_graph(nodes, "mean", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path
