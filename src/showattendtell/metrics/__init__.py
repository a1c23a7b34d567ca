"""Metrics of captions and attention maps: torchmetrics classes, imported at first use, on top of plain functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from showattendtell.metrics.attention_scores import AttentionCorrectness, PointingGame
    from showattendtell.metrics.caption_scores import (
        METEOR,
        ROUGEL,
        CaptionScore,
        CIDErD,
        CorpusBLEU,
        Diversity,
        Endings,
    )

MODULES = {
    "attention_scores": ("AttentionCorrectness", "PointingGame"),
    "caption_scores": ("METEOR", "ROUGEL", "CIDErD", "CaptionScore", "CorpusBLEU", "Diversity", "Endings"),
}
"""The modules of the classes."""

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
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"showattendtell.metrics.{module}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
