"""What computes the grids of a frozen encoder: torch, or onnxruntime, which needs fewer passes over the memory."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.tracing import lacks_onnx, open_session, reason_of, to_onnx, traced

Engine = Callable[[Tensor], Tensor]
"""Pixels (I, 3, S, S), uint8, to grids (I, L, D), float32, both in the processor's memory."""

EngineName = Literal["torch", "onnxruntime"]
Computed = Literal["float32", "bfloat16", "float16"]

TOGETHER = 4
"""Images that the processor computes at once: what a layer gives is then still in its cache when the next one reads it.
For EfficientNet-lite0 this takes half the time of 32 at once."""

DIFFERENCE = 1e-3
"""|a - b| / |b| up to which two engines give the same grids."""


def start_engine(encoder: Encoder, name: EngineName, precision: Computed) -> Engine:
    """Raises `UserError` where the engine is not installed, or cannot run the encoder."""
    if name == "torch":
        return _run_by_torch(encoder, precision)
    if precision != "float32":
        raise UserError(f"features.engine={name} computes in float32; leave features.precision={precision} out")
    return _run_by_onnxruntime(encoder)


def _run_by_torch(encoder: Encoder, precision: Computed) -> Engine:
    """Where the encoder is, be it a GPU."""
    device, dtype = next(encoder.parameters()).device, getattr(torch, precision)

    def run(pixels: Tensor) -> Tensor:
        seen = pixels.to(device, non_blocking=True)
        parts = seen.split(TOGETHER) if device.type == "cpu" else [seen]
        lower = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
        with torch.inference_mode(), lower:
            return torch.cat([encoder(part).float() for part in parts]).cpu()

    return run


def _run_by_onnxruntime(encoder: Encoder) -> Engine:
    if missing := lacks_onnx():
        raise UserError(f"features.engine=onnxruntime needs {missing}")
    side = encoder.preprocessing.crop
    example = torch.randint(256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    try:
        session = _open_session(encoder, example)
    except Exception as fault:
        raise _unable(encoder, reason_of(fault)) from None
    [entry] = [entry.name for entry in session.get_inputs()]

    def run(pixels: Tensor) -> Tensor:
        parts = [session.run(None, {entry: part.numpy()})[0] for part in pixels.split(TOGETHER)]
        return torch.cat([torch.from_numpy(part) for part in parts])

    expected = _run_by_torch(encoder, "float32")(example)
    error = ((run(example) - expected).norm() / expected.norm()).item()
    if not error <= DIFFERENCE:
        raise _unable(encoder, f"its grids differ from torch's by {100 * error:.1f} %")
    return run


def _open_session(encoder: Encoder, example: Tensor) -> Any:
    graph = to_onnx(traced(encoder, (example,), ("images",)), ("pixels",), ("grids",))
    return open_session(graph.model_proto.SerializeToString())


def _unable(encoder: Encoder, reason: str) -> UserError:
    return UserError(f"onnxruntime cannot run {encoder.network_name} ({reason}); leave features.engine at torch")
