"""Write the feature cache in actors of Ray."""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from numpy.typing import NDArray

from showattendtell.errors import UserError
from showattendtell.extensions.ray.actors import actor_options, require_ray
from showattendtell.features.encoding import ImageEncoding
from showattendtell.features.extract import READERS, Extraction
from showattendtell.features.writer import Encode, StorePlan, write_shards


class ShardActor:
    """Writes shards of a store.

    Args:
        folder: working directory, from which relative paths start.
    """

    def __init__(self, folder: str, path: Path, plan: StorePlan, encode: Encode):
        os.chdir(folder)
        self._write = partial(write_shards, path, plan, encode)

    def __call__(self, batch: dict[str, NDArray]) -> dict[str, list[str]]:
        """Write the shards with the numbers in the column `id`. Return the error of images that cannot be read."""
        try:
            self._write(numbers=batch["id"].tolist())
        except UserError as error:
            return {"error": [str(error)]}
        return {"error": [""]}


@dataclass(frozen=True)
class RayExtraction(Extraction):
    """Compute grids in `workers` actors of a Ray cluster, that of RAY_ADDRESS if it is set, each with a thread or a
    part of a GPU. Paths have to be valid on every machine of the cluster. The work of an actor that is killed is done
    by another. The other settings are those of `Extraction`."""

    def write(self, path: Path, plan: StorePlan, encode: ImageEncoding) -> None:
        ray = require_ray()
        options = actor_options(ray, self.workers, on_gpu=self.engine == "torch")
        encode = replace(encode, readers=READERS if options["num_gpus"] else 0)
        numbers = ray.data.range(len(plan.shards), override_num_blocks=len(plan.shards))
        arguments = (os.getcwd(), path, plan, encode)
        for row in numbers.map_batches(ShardActor, fn_constructor_args=arguments, batch_size=1, **options).iter_rows():
            if row["error"]:
                raise UserError(row["error"])
