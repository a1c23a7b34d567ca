"""A pip wheel that captions photographs with numpy, Pillow and onnxruntime only."""

import json
import keyword
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.formats import CARD
from showattendtell.runtime.tracing import quietly
from showattendtell.visualization.rendering import fill

TEMPLATES = Path(__file__).parent / "templates"
SCRIPT = "captioner.py"
SUMMARY = "Captions photographs with an exported model"
REQUIRES = ("numpy>=1.26", "onnxruntime>=1.22", "Pillow>=11")


def check_package(name: str | None) -> str:
    """Return the name of a package that can be written.

    Raises:
        UserError: there is no name, or it cannot be imported; or flit_core is missing.
    """
    if name is None:
        raise UserError("formats=[wheel] needs a name for the package; give it as package=my_captioner")
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,60}[A-Za-z0-9]", name) or _is_taken(name):
        raise UserError(
            f"package={name} cannot be imported or is taken; use letters, digits and underscores, as in my_captioner"
        )
    if find_spec("flit_core") is None:
        raise UserError("formats=[wheel] needs the package flit_core; run pip install 'showattendtell[onnx]'")
    return name


def _is_taken(name: str) -> bool:
    """Return whether Python or an installed package, other than an exported model, has a name."""
    with suppress(PackageNotFoundError):
        return distribution(name).metadata["Summary"] != SUMMARY
    specs = [find_spec(name), find_spec(name.lower())]  # some file systems ignore case
    return keyword.iskeyword(name) or keyword.issoftkeyword(name) or any(spec and spec.origin for spec in specs)


def write_wheel(folder: Path, package: str, metadata: Mapping[str, Any]) -> None:
    """Write a wheel of the ONNX graphs in an export folder to the same folder.

    Args:
        package: name of the package, and of its command.
        metadata: content of captioner.json.
    """
    from flit_core.wheel import make_wheel_in

    with TemporaryDirectory() as temporary:
        source = Path(temporary, package)
        source.mkdir()
        shutil.copytree(folder / "onnx", source / "onnx", ignore=lambda _, names: {"greedy.onnx"} & {*names})
        graphs = {name: graph for name, graph in metadata["graphs"].items() if name != "greedy"}
        (source / CARD).write_text(json.dumps({**metadata, "graphs": graphs}, ensure_ascii=False), encoding="utf-8")
        shutil.copy(run_onnx.__file__, source / SCRIPT)
        content = {"package": package, "summary": SUMMARY, "card": metadata, "requires": REQUIRES}
        (source / "__init__.py").write_text(fill(TEMPLATES / "wheel_init.jinja", **content), encoding="utf-8")
        for template, name in (("wheel.toml", "pyproject.toml"), ("wheel.md", "README.md")):
            Path(temporary, name).write_text(fill(TEMPLATES / template, **content), encoding="utf-8")
        with quietly():
            make_wheel_in(Path(temporary, "pyproject.toml"), folder)
