"""Conversion of modules to ONNX, and sessions of onnxruntime."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from showattendtell.errors import first_line


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress the log messages and warnings of exporters."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def to_onnx(module: nn.Module, example: Mapping[str, Tensor], axes: Sequence[str], outputs: Sequence[str]) -> Any:
    """Convert a module to an ONNX model (`onnx.ModelProto`).

    Args:
        example: the module's input tensors by name.
        axes: for each input the name of its first dimension. It is dynamic; dimensions of one name are equal.
        outputs: names of the outputs.
    """
    sizes = {name: Dim(name) for name in axes}
    shapes = tuple({0: sizes[name]} for name in axes)
    with torch.no_grad(), quietly():
        program = torch.export.export(module, tuple(example.values()), dynamic_shapes=shapes, strict=True)
        converted: Any = torch.onnx.export(
            program, dynamo=True, input_names=[*example], output_names=outputs, verbose=False
        )
    return converted.model_proto


def lacks_onnx() -> str:
    """Return which package ONNX lacks, and the command that installs it; an empty text if none is missing."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    return f"the package {missing[0]}; run pip install 'showattendtell[onnx]'" if missing else ""


def open_session(model: bytes | Path) -> Any:
    """Return a session of onnxruntime on the CPU with torch's number of threads, for a file or its content."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3  # errors only
    content = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def reason_of(error: Exception) -> str:
    """Return the type and the first line of an error, for exporters and runtimes, which raise many types."""
    return f"{type(error).__name__}: {first_line(error)}"
