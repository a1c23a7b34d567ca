"""Caption many photographs in several processes, on one machine or more, with Ray Data."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from showattendtell.config.schemas import CaptionSettings
from showattendtell.extensions.ray.extraction import require_ray, start_ray
from showattendtell.inference.captioning import Captioned, RowCaptioner, load_captioners
from showattendtell.results.rows import CaptionRow

BATCH_SIZE = 64
"""Photographs that a worker gets at a time. It captions fewer together, see `caption_all`."""


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
