"""Graphs in half precision and in 8 bits, against the graph in float32."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from showattendtell.extensions.export.formats import reduce_precision  # noqa: E402

RANDOM = np.random.default_rng(0)


def graph(nodes: list[Any], weights: dict[str, np.ndarray], name: str, shape: list[Any], rank: int) -> bytes:
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None] * rank)],
            [numpy_helper.from_array(value, key) for key, value in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return bytes(model.SerializeToString())


def run(content: bytes, **inputs: np.ndarray) -> np.ndarray:
    [out] = onnxruntime.InferenceSession(content).run(None, inputs)
    return np.asarray(out)


def product() -> tuple[bytes, np.ndarray]:
    """x W + b, with columns of W of very different sizes."""
    weight = (RANDOM.standard_normal((64, 48)) * np.geomspace(0.01, 10, 48)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["out"])]
    return graph(nodes, {"w": weight, "b": weight[0].copy()}, "x", ["n", 64], 2), weight


def test_half_precision_rounds_large_weights_only():
    content, weight = product()
    halved = reduce_precision(content, "step", "float16", [])
    x = RANDOM.standard_normal((5, 64)).astype(np.float32)
    np.testing.assert_allclose(
        run(halved, x=x), x @ weight.astype(np.float16).astype(np.float32) + weight[0], rtol=1e-5
    )
    kinds = {value.name: value.data_type for value in onnx.load_from_string(halved).graph.initializer}
    assert kinds == {"w_half": TensorProto.FLOAT16, "b": TensorProto.FLOAT}
    assert len(halved) < 0.6 * len(content)


def test_a_product_in_8_bits_has_a_scale_for_each_column():
    content, _ = product()
    x = RANDOM.standard_normal((5, 64)).astype(np.float32)
    expected, quantized = run(content, x=x), run(reduce_precision(content, "step", "int8", []), x=x)
    errors = np.abs(quantized - expected).mean(axis=0) / np.abs(expected).mean(axis=0)
    assert 0 < errors.max() < 0.05  # one scale for the matrix would lose the small columns


def test_a_convolution_in_8_bits_is_quantized_on_the_photographs():
    weight = RANDOM.standard_normal((16, 3, 5, 5)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["pixels", "w"], ["c"]), helper.make_node("Relu", ["c"], ["out"])]
    content = graph(nodes, {"w": weight}, "pixels", ["n", 3, 16, 16], 4)
    pixels = [RANDOM.uniform(0, 1, (1, 3, 16, 16)).astype(np.float32) for _ in range(8)]
    quantized = reduce_precision(content, "encode", "int8", pixels)
    for image in pixels:
        expected = run(content, pixels=image)
        assert np.abs(run(quantized, pixels=image) - expected).max() < 0.05 * expected.max()
    # ranges are those of the photographs: brighter images are cut off
    bright = 10 * pixels[0]
    assert np.abs(run(quantized, pixels=bright)).max() < 0.5 * np.abs(run(content, pixels=bright)).max()
    assert len(quantized) < 0.5 * len(content) + 6000


def test_float32_is_left_alone():
    content, _ = product()
    assert reduce_precision(content, "step", "float32", []) is content
