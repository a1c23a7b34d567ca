"""ONNX graphs with smaller weights: in half precision, or in 8 bits.

Inputs and outputs remain those of the graph in float32. S is the side of an image in pixels.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from showattendtell.runtime.tracing import quietly

Precision = Literal["float32", "float16", "int8"]

SMALLEST = 1024
"""Weights with fewer elements stay in float32."""

CONVOLUTIONAL = ("Conv", "Add", "Clip", "Relu")
"""Operators of an encoder whose inputs and outputs are quantized as well."""


def reduce_precision(content: bytes, graph: str, precision: Precision, pixels: Sequence[ndarray]) -> bytes:
    """Return an ONNX graph with weights in `precision`.

    Args:
        graph: its name. With int8, the activations of `encode` are quantized too, in the ranges that they have on
            `pixels` (static quantization); the other graphs quantize theirs at each call (dynamic quantization).
        pixels: inputs of `encode`, each (1, 3, S, S).
    """
    if precision == "float16":
        return _halve(content)
    if precision == "int8":
        with TemporaryDirectory() as folder, quietly():
            return _quantize(content, graph, pixels, Path(folder))
    return content


def _halve(content: bytes) -> bytes:
    """Store large weights in float16. The graph converts them when it is loaded, and computes in float32."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(content)
    for weight in list(model.graph.initializer):
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size >= SMALLEST:
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
            cast = onnx.helper.make_node("Cast", [weight.name], [name], to=onnx.TensorProto.FLOAT)
            model.graph.node.insert(0, cast)
    return bytes(model.SerializeToString())


def _quantize(content: bytes, graph: str, pixels: Sequence[ndarray], folder: Path) -> bytes:
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    before, prepared, after = (folder / f"{name}.onnx" for name in ("before", "prepared", "after"))
    before.write_bytes(content)
    quant_pre_process(before, prepared, skip_symbolic_shape=True)
    if graph == "encode":
        # a channel's weights have a scale of their own; inputs are unsigned, as fast kernels need them
        quantize_static(
            prepared,
            after,
            _reader(pixels),
            op_types_to_quantize=list(CONVOLUTIONAL),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
    else:
        # weights have 7 bits: with 8, processors without VNNI add two products in 16 bits, which overflow
        quantize_dynamic(prepared, after, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    return after.read_bytes()


def _reader(pixels: Sequence[ndarray]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._rest: Iterator[ndarray] = iter(pixels)

        def get_next(self) -> dict[str, ndarray] | None:
            return next(({"pixels": image} for image in self._rest), None)

    return Reader()
