"""Serve a web page and an HTTP API that caption photographs."""

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
    from showattendtell.extensions.serving.server import serve

    serve(config)


if __name__ == "__main__":
    main()
    exit_process()
