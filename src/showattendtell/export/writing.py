"""The folder of an export: graphs in each format, what they mean, and the script that runs them."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from showattendtell.errors import UserError
from showattendtell.export import run_onnx
from showattendtell.export.card import CARD, describe_files, describe_graph
from showattendtell.export.formats import FormatName, graph_file, trace_graphs, write_graph
from showattendtell.export.graphs import Graph
from showattendtell.files import UNFINISHED


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that has its name when all is in it, and is gone where something fails.

    Raises `UserError` where there is one that is not empty.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"output={path} is there already; remove it, or give another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_formats(
    folder: Path, graphs: Mapping[str, Graph], formats: Sequence[FormatName], card: Mapping[str, Any]
) -> dict[str, Any]:
    """The graphs in each format and, beside ONNX, the script that runs it; gives the card with what they are."""
    with Console(stderr=True).status("following the model") as status:
        programs = trace_graphs(graphs)
        for name in formats:
            (folder / name).mkdir()
            for part, graph in graphs.items():
                status.update(f"writing {part} as {name}")
                write_graph(programs[part], graph, name, graph_file(folder, name, part))
    if "onnx" in formats:
        shutil.copy(run_onnx.__file__, folder)
    described = {name: describe_graph(graphs[name], program) for name, program in programs.items()}
    return {**card, "graphs": described, "files": describe_files(folder)}


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
