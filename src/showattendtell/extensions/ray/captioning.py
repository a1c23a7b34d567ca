"""Caption many photographs in several processes, on one machine or more, with Ray Data."""

import os
import sys
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from showattendtell.config.compose import to_plain, with_overrides
from showattendtell.config.instantiate import Config
from showattendtell.data.images import find_images
from showattendtell.errors import UserError, printable
from showattendtell.extensions.ray.extraction import require_ray, start_ray
from showattendtell.inference.captioning import caption_all, load_captioners, model_note, settings_checksum
from showattendtell.inference.finding import model_groups
from showattendtell.runtime.files import UNFINISHED, write_errors
from showattendtell.visualization.caption_rows import CaptionRow

BATCH_SIZE = 64
"""Photographs that a worker gets at a time. It captions fewer together, see `caption_all`."""

SHOWN = 3
"""Number of unreadable photographs that are named: there may be thousands."""

BLOCK = 1024
"""Largest number of photographs in a file of the output."""


class CaptionWorker:
    """Captions batches of photographs in an actor of Ray.

    Args:
        settings: the configuration of `caption` as plain data.
        checksum: the column `settings` of the rows.
        folder: working directory, from which relative paths start.
    """

    def __init__(self, settings: Mapping[str, Any], checksum: str, folder: str):
        os.chdir(folder)
        config = OmegaConf.create(dict(settings))
        self._captioners = load_captioners(config)
        self._groups = model_groups(config).values()
        self._checksum = checksum

    def __call__(self, batch: dict[str, Any]) -> Any:
        """Return the rows of the photographs in the column `file`, as a table of `schema()`: a row for each caption. A
        photograph that cannot be read has one row with its error and no caption."""
        import pyarrow

        sources, errors, rows = batch["file"], list[str](), list[dict[str, Any]]()
        unread = dict.fromkeys(range(len(sources)))
        for i, outputs in caption_all(self._captioners, sources, errors):
            del unread[i]
            for group, output in zip(self._groups, outputs, strict=True):
                rows += [CaptionRow.of(sources[i], each, group, self._checksum)._asdict() for each in output.captions]
        for i, error in zip(unread, errors, strict=True):
            rows.append({"file": sources[i], "settings": self._checksum, "error": error})
        return pyarrow.Table.from_pylist(rows, schema())


def schema() -> Any:
    """Return the columns of the Parquet files: those of `CaptionRow`, and `error`."""
    import pyarrow

    types = {str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    columns = {name: types[kind] for name, kind in get_type_hints(CaptionRow).items()}
    return pyarrow.schema({**columns, "error": pyarrow.string()})


def caption_in_processes(config: Config, images: Sequence[str], output: Path) -> None:
    """Caption photographs with `config.workers` actors of Ray, and write the rows as a folder of Parquet files.

    Paths have to be valid on every machine of the cluster; see `start_ray`. The work of a process that is killed is
    done by another. The rows are in the folder NAME.tmp until all photographs are captioned. With `config.resume`,
    photographs with captions in the folder are left out.

    Raises:
        UserError: Ray Data is not installed, the folder cannot be written or has captions with other settings, or at
            the end, about photographs that cannot be read.
    """
    require_ray()
    found = find_images(images)
    if unprintable := [source for source in found.sources if not source.isprintable()]:
        raise UserError(f"workers={config.workers} needs printable file names; rename {printable(unprintable[0])}")
    load_captioners(with_overrides(config, device="cpu"))  # raises for errors in the settings
    skipped = f"skipped files that are not images: {found.others:,}" if found.others else ""
    for note in filter(None, (model_note(config), skipped)):
        print(f"note: {printable(note)}", file=sys.stderr)
    checksum, unfinished = settings_checksum(config), output.with_name(output.name + UNFINISHED)
    with write_errors(output):
        if output.exists():
            output.rename(unfinished)
        unfinished.mkdir(exist_ok=True)
        finished = _finished(unfinished, checksum)
        remaining = [source for source in found.sources if source not in finished]
        if remaining:
            ray, options = start_ray(config.workers, on_gpu=config.device != "cpu")
            blocks = min(len(remaining), max(4 * config.workers, ceil(len(remaining) / BLOCK)))
            photographs = ray.data.from_items([{"file": source} for source in remaining], override_num_blocks=blocks)
            settings = {**to_plain(config), "images": None}
            rows = photographs.map_batches(
                CaptionWorker, fn_constructor_args=(settings, checksum, os.getcwd()), batch_size=BATCH_SIZE, **options
            )
            rows.write_parquet(str(unfinished.absolute()), ray_remote_args={"num_cpus": options["num_cpus"]})
        unfinished.rename(output)
    errors = read_errors(output)
    print(printable(f"written: {output}"), file=sys.stderr)
    if errors:
        more = f"; {len(errors):,} such photographs have an error in {output}" if len(errors) > SHOWN else ""
        raise UserError("; ".join(errors[:SHOWN]) + more)


def _finished(folder: Path, checksum: str) -> set[str]:
    """Return the photographs that have captions in the Parquet files of a folder. Files that are not complete, or have
    photographs that could not be read, are removed.

    Raises:
        UserError: there are rows of other settings.
    """
    import pyarrow
    from pyarrow import parquet

    finished = set[str]()
    for file in folder.glob("*.parquet"):
        try:
            rows = parquet.read_table(file)
        except (pyarrow.ArrowInvalid, OSError):
            file.unlink()
            continue
        if {*rows["settings"].to_pylist()} - {checksum}:
            raise UserError(
                f"{folder} has captions by another model or with other settings; set output to another folder"
            )
        if rows["error"].null_count < len(rows):
            file.unlink()
        else:
            finished.update(rows["file"].to_pylist())
    return finished


def read_errors(folder: Path) -> list[str]:
    """Return the errors in Parquet files about photographs that cannot be read."""
    from pyarrow import compute, dataset

    rows = dataset.dataset(folder, schema(), format="parquet")
    return sorted(rows.to_table(columns=["error"], filter=compute.field("error").is_valid())["error"].to_pylist())
