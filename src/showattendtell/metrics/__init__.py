"""Metrics of captions and attention maps: torchmetrics classes, imported at first use, on top of plain functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from showattendtell.metrics.classes import (
        METEOR,
        ROUGEL,
        AttentionCorrectness,
        CaptionScore,
        CIDErD,
        CorpusBLEU,
        Diversity,
        Endings,
        PointingGame,
    )

__all__ = [
    "METEOR",
    "ROUGEL",
    "AttentionCorrectness",
    "CIDErD",
    "CaptionScore",
    "CorpusBLEU",
    "Diversity",
    "Endings",
    "PointingGame",
]


def __getattr__(name: str) -> Any:
    """Import a metric class by name at first use; torchmetrics takes seconds to import."""
    if name in __all__:
        return getattr(import_module("showattendtell.metrics.classes"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
