"""Image captioning with visual attention after Xu et al., "Show, Attend and Tell" (ICML 2015)."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from showattendtell.describing import Description, PhotoCaptioner, Telling, load

__version__ = version("showattendtell")
__all__ = ["Description", "PhotoCaptioner", "Telling", "load"]


def __getattr__(name: str) -> Any:
    """What the package offers to programs; torch, which it needs, is imported when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module("showattendtell.describing"), name)
