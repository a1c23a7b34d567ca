"""Actors of Ray Data, on one machine or on a cluster: they caption photographs, and write the feature cache."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from showattendtell.config.schemas import CaptionSettings
from showattendtell.errors import UserError
from showattendtell.features.extract import READERS, Extraction, ImageEncoding
from showattendtell.features.store import Encode, StorePlan, write_shards
from showattendtell.inference.captioning import Captioned, RowCaptioner, load_captioners
from showattendtell.results.rows import CaptionRow

BATCH_SIZE = 64
"""Photographs that a worker gets at a time. It captions fewer together, see `caption_all`."""


def require_ray() -> Any:
    """Return the package `ray`, with `ray.data`.

    Raises:
        UserError: it or a package that it needs is not installed.
    """
    try:
        import ray.data
    except ImportError:
        raise UserError(
            "workers=N of caption and features=ray need the packages of Ray Data; run pip install 'showattendtell[ray]'"
        ) from None
    return ray


def start_ray(workers: int, on_gpu: bool = True) -> tuple[Any, dict[str, Any]]:
    """Return the package `ray`, and the arguments of `map_batches` for as many actors that share the processors and, if
    any, the GPUs.

    It uses the cluster of the environment variable RAY_ADDRESS or of `ray start`; without one it starts Ray on this
    machine.
    """
    ray = require_ray()
    ray.init(logging_level=logging.WARNING, log_to_driver=False, ignore_reinit_error=True)
    ray.data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    cpus, gpus = (ray.cluster_resources().get(kind, 0) for kind in ("CPU", "GPU"))
    return ray, {
        "compute": ray.data.ActorPoolStrategy(size=workers),
        "num_cpus": min(1.0, cpus / 2 / (workers + 1)),  # Ray Data reserves half of the processors for what writes
        "num_gpus": min(1.0, gpus / workers) if on_gpu else 0,
    }


class CaptionWorker:
    """Captions batches of photographs in an actor of Ray.

    Args:
        settings: of `caption`.
        folder: working directory, from which relative paths start.
    """

    def __init__(self, settings: CaptionSettings, folder: str):
        os.chdir(folder)
        self._captioner = RowCaptioner(settings)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Return the column `index`, and the `rows` of a photograph, or its `error` if it cannot be read. Texts are
        JSON, since names of files may be no text."""
        errors = list[str]()
        rows = {i: json.dumps(own) for i, own, _ in self._captioner(list(map(json.loads, batch["file"])), errors)}
        failed = [i for i in range(len(batch["file"])) if i not in rows]
        return {
            "index": [int(batch["index"][i]) for i in (*rows, *failed)],
            "rows": [*rows.values(), *("" for _ in failed)],
            "error": [*("" for _ in rows), *map(json.dumps, errors)],
        }


class RayCaptioner:
    """Captions files and URLs with `settings.workers` actors of Ray.

    Paths have to be valid on every machine of the cluster; see `start_ray`. The work of an actor that is killed is done
    by another.

    Raises:
        UserError: Ray Data is not installed, or a setting is wrong.
    """

    def __init__(self, settings: CaptionSettings):
        require_ray()
        load_captioners(replace(settings, device="cpu"))  # raises for errors in the settings
        self._settings = settings

    def __call__(self, sources: Sequence[str], errors: list[str]) -> Iterator[Captioned]:
        """Yield the rows of each photograph, in any order.

        Args:
            errors: gets the errors of photographs that cannot be read.
        """
        ray, options = start_ray(self._settings.workers or 1, on_gpu=self._settings.device != "cpu")
        photographs = [{"index": i, "file": json.dumps(source)} for i, source in enumerate(sources)]
        batches = ray.data.from_items(photographs, override_num_blocks=-(-len(sources) // BATCH_SIZE))
        arguments = (replace(self._settings, images=None), os.getcwd())
        mapped = batches.map_batches(CaptionWorker, fn_constructor_args=arguments, batch_size=BATCH_SIZE, **options)
        for found in mapped.iter_rows():
            if found["error"]:
                errors.append(json.loads(found["error"]))
            else:
                rows = [[CaptionRow(*row) for row in own] for own in json.loads(found["rows"])]
                yield found["index"], rows, []


class ShardActor:
    """Writes shards of a store.

    Args:
        folder: working directory, from which relative paths start.
    """

    def __init__(self, folder: str, path: Path, plan: StorePlan, encode: Encode):
        os.chdir(folder)
        self._write = partial(write_shards, path, plan, encode)

    def __call__(self, batch: dict[str, NDArray]) -> dict[str, Any]:
        """Write the shards with the numbers in the column `id`. Add the error of images that cannot be read."""
        try:
            for _ in self._write(batch["id"].tolist()):
                pass
        except UserError as error:
            return {**batch, "error": [str(error)]}
        return {**batch, "error": [""]}


@dataclass(frozen=True)
class RayExtraction(Extraction):
    """Compute grids in `workers` actors of a Ray cluster, that of RAY_ADDRESS if it is set, each with a thread or a
    part of a GPU. Paths have to be valid on every machine of the cluster. The work of an actor that is killed is done
    by another. The other settings are those of `Extraction`."""

    def write(self, path: Path, plan: StorePlan, encode: ImageEncoding, numbers: Sequence[int]) -> Iterator[int]:
        ray, options = start_ray(self.workers, on_gpu=self.engine == "torch")
        encode = replace(encode, readers=READERS if options["num_gpus"] else 0)
        shards = ray.data.from_items([{"id": number} for number in numbers], override_num_blocks=len(numbers))
        arguments = (os.getcwd(), path, plan, encode)
        for row in shards.map_batches(ShardActor, fn_constructor_args=arguments, batch_size=1, **options).iter_rows():
            if row["error"]:
                raise UserError(row["error"])
            yield row["id"]
