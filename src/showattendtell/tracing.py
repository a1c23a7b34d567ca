"""A module's computation as one graph that no Python runs: torch.export's program, and ONNX made of it."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram


@contextmanager
def quietly() -> Iterator[None]:
    """Without what torch says of its own inside."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def traced(module: nn.Module, example: Sequence[Tensor], axes: Sequence[str]) -> ExportedProgram:
    """What the module computes of tensors like those of the example, without gradients.

    Args:
        axes: names what each tensor's rows are; there may be any number of them, the same in all tensors of one name.
    """
    sizes = {name: Dim(name) for name in axes}
    shapes = tuple({0: sizes[name]} for name in axes)
    with torch.no_grad(), quietly():
        return torch.export.export(module, tuple(example), dynamic_shapes=shapes, strict=True)


def to_onnx(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """torch's ONNXProgram, which has the model and can save it."""
    with quietly():
        return torch.onnx.export(program, dynamo=True, input_names=inputs, output_names=outputs, verbose=False)


def lacks_onnx() -> str:
    """The first package that is missing for ONNX, and the command that installs it; empty where none is."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    return f"the package {missing[0]}; run pip install 'showattendtell[onnx]'" if missing else ""


def open_session(model: bytes | Path) -> Any:
    """onnxruntime's session on the processor, with torch's number of threads."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3  # errors alone
    content = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def reason_of(fault: Exception) -> str:
    """A foreign error in a line: exporters and runtimes have no one error for what they do not know."""
    return f"{type(fault).__name__}: {(str(fault).strip().splitlines() or [''])[0]}"
