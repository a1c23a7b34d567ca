"""Serve a web page and an HTTP API that caption photographs."""

import sys
from importlib import import_module

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
    from showattendtell.extensions.serving.server import LOOPBACK, address, is_local, listen
    from showattendtell.extensions.serving.server import run as run_app
    from showattendtell.inference.captioning import load_captioners, model_note
    from showattendtell.runtime.memory import LARGE_BLOCK, keep_freed_memory

    keep_freed_memory(LARGE_BLOCK)
    listening, limits = listen(config.host, config.port), build(config.limits)
    models, url = ModelRegistry(load_captioners(config)), address(config.host, listening)
    local = is_local(listening)
    if not local:
        print(
            f"note: host={config.host} opens the server to everyone who can reach this machine; it has no password",
            file=sys.stderr,
        )
    hosts = config.allowed_hosts or ([*LOOPBACK, config.host] if local else ["*"])
    app = make_app(models, limits, hosts, model_note(config), url)
    print(f"{', '.join(models.names)} at {url} (Ctrl-C ends it)", flush=True)
    run_app(app, listening, limits)


if __name__ == "__main__":
    main()
    exit_process()
