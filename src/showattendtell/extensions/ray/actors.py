"""Actors of Ray Data, on one machine or on a cluster."""

import logging
import sys
from typing import Any

from showattendtell.errors import UserError


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


def actor_options(ray: Any, workers: int, on_gpu: bool = True) -> dict[str, Any]:
    """Return the arguments of `map_batches` for as many actors that share the processors and, if any, the GPUs.

    It uses the cluster of the environment variable RAY_ADDRESS or of `ray start`; without one it starts Ray on this
    machine.
    """
    ray.init(logging_level=logging.WARNING, log_to_driver=False, ignore_reinit_error=True)
    ray.data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    cpus, gpus = (ray.cluster_resources().get(kind, 0) for kind in ("CPU", "GPU"))
    return {
        "compute": ray.data.ActorPoolStrategy(size=workers),
        "num_cpus": min(1.0, cpus / 2 / (workers + 1)),  # Ray Data reserves half of the processors for what writes
        "num_gpus": min(1.0, gpus / workers) if on_gpu else 0,
    }
