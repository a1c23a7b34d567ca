"""Serve a web page and an HTTP API that caption photographs."""

import sys
from importlib import import_module
from itertools import chain

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.errors import UserError


@entry_point("serve")
def main(config: DictConfig) -> None:
    for package in ("fastapi", "uvicorn", "python_multipart"):
        try:
            import_module(package)
        except ImportError:
            name = package.replace("_", "-")
            raise UserError(f"serve needs the package {name}; run pip install 'showattendtell[serve]'") from None
    from showattendtell.config.instantiate import build
    from showattendtell.extensions.serving.app import make_app
    from showattendtell.extensions.serving.models import ModelRegistry
    from showattendtell.extensions.serving.server import LOOPBACK, address, is_loopback, listen
    from showattendtell.extensions.serving.server import run as run_app
    from showattendtell.inference.captioning import checkpoint_groups, load_captioners
    from showattendtell.inference.loading import note_about
    from showattendtell.runtime.memory import LARGE_BLOCK, keep_freed_memory

    keep_freed_memory(LARGE_BLOCK)
    listening, local = listen(config.host, config.port), is_loopback(config.host)
    limits, models = build(config.limits), ModelRegistry(load_captioners(config))
    if not local:
        print(
            f"note: host={config.host} opens the server to everyone who can reach this machine; it has no password",
            file=sys.stderr,
        )
    print(f"{', '.join(models.names)} at {address(config.host, listening)} (Ctrl-C ends it)", flush=True)
    hosts = config.allowed_hosts or ([*LOOPBACK, config.host] if local else ["*"])
    note = note_about(chain.from_iterable(checkpoint_groups(config)))
    run_app(make_app(models, limits, hosts, note), listening, limits)


if __name__ == "__main__":
    main()
    exit_process()
