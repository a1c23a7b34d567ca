"""torchvision and timm, imported without torch's compiler (`torch._dynamo`) and without wandb.

Both packages import them, which takes longer than everything else that a caption needs.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

DYNAMO = "torch._dynamo.utils"


class _Deferred(ModuleType):
    """Takes the place of `torch._dynamo.utils`; what it has is imported when it is called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: getattr(import_module(DYNAMO), name)(*arguments)


def _disable(function: Any = None, *_: Any, **__: Any) -> Any:
    """Replaces the decorator `torch.compiler.disable`, which imports the compiler."""
    return function or (lambda decorated: decorated)


@contextmanager
def _without_compiler() -> Iterator[None]:
    absent: dict[str, Any] = {"wandb": None, DYNAMO: _Deferred(DYNAMO)}
    absent = {name: module for name, module in absent.items() if name not in sys.modules}
    disable = torch.compiler.disable
    sys.modules.update(absent)
    torch.compiler.disable = _disable  # type: ignore[assignment]  # a decorator in timm.models.naflexvit and torchvision.tv_tensors
    try:
        yield
    finally:
        torch.compiler.disable = disable
        for name in absent:
            sys.modules.pop(name, None)


with _without_compiler():
    import timm
    from timm.models import VGG, checkpoint_seq
    from torchvision import io
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as transforms

__all__ = ["VGG", "InterpolationMode", "checkpoint_seq", "io", "timm", "transforms"]
