"""Image captioning with visual attention after Xu et al., "Show, Attend and Tell" (ICML 2015)."""

import atexit
import gc
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from showattendtell.runtime.process import limit_threads, paused_collection

limit_threads()

if TYPE_CHECKING:
    from showattendtell.datamodules.datamodule import (
        CocoDataModule,
        CustomDataModule,
        Flickr8kDataModule,
        Flickr30kDataModule,
        ReaderDataModule,
        ShapesDataModule,
    )
    from showattendtell.inference.pipeline import CaptioningPipeline, load
    from showattendtell.training.module import CaptioningModule
    from showattendtell.types import CaptionOutput
    from showattendtell.visualization.pages import ImageCaptions

__version__ = version("showattendtell")
__path__ += map(str, Path(__file__).parent.glob("extensions/*/commands"))  # showattendtell.NAME is a command
__all__ = ["CaptionOutput", "CaptioningModule", "CaptioningPipeline", "CocoDataModule", "CustomDataModule"]
__all__ += [
    "Flickr8kDataModule",
    "Flickr30kDataModule",
    "ImageCaptions",
    "ReaderDataModule",
    "ShapesDataModule",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch and Lightning take seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = "training.module" if name == "CaptioningModule" else "inference.pipeline"
    if name.endswith("DataModule"):
        module = "datamodules.datamodule"
    path = f"showattendtell.{module}"
    is_new = path not in sys.modules
    with paused_collection():
        imported = import_module(path)
        if is_new:
            gc.freeze()  # the next collection would scan half a million objects that stay, which takes 0.4 s
            atexit.register(gc.unfreeze)  # nanobind reports objects that the collection at the end does not find
    return getattr(imported, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
