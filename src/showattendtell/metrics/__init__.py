"""Caption and attention metrics: torchmetrics classes, imported at first use, on top of plain functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from showattendtell.metrics.modular import (
        METEOR,
        ROUGEL,
        AttentionCorrectness,
        CaptionScore,
        CIDErD,
        CLIPScore,
        CorpusBLEU,
        Diversity,
        Endings,
        Means,
        PointingGame,
    )

__all__ = [
    "METEOR",
    "ROUGEL",
    "AttentionCorrectness",
    "CIDErD",
    "CLIPScore",
    "CaptionScore",
    "CorpusBLEU",
    "Diversity",
    "Endings",
    "Means",
    "PointingGame",
]


def __getattr__(name: str) -> Any:
    """Import a metric class by name at first use; torchmetrics takes seconds to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module("showattendtell.metrics.modular"), name)
