"""A PostgreSQL server of a test's own: an ordinary user's, in a folder and on a port of its own."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

INSTALL = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "postgresql"]
ORDINARY = 65534
"""The user `nobody`, for the server refuses to be the superuser's."""


@contextmanager
def server() -> Iterator[str]:
    """The address of a database of its own; the server is stopped at the end."""
    commands = _commands()
    owner = ORDINARY if os.getuid() == 0 else os.getuid()
    with tempfile.TemporaryDirectory(prefix="postgres") as name:
        folder, port = Path(name), _free_port()
        os.chown(folder, owner, -1)

        def run(command: str, *arguments: str) -> None:
            line = [commands / command, "-D", folder / "data", *arguments]
            subprocess.run(line, user=owner, check=True, cwd=folder, stdout=subprocess.DEVNULL)

        run("initdb", "--username=tester", "--auth=trust", "--no-sync")
        listening = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "--wait", f"--log={folder / 'log'}", f"--options={listening}", "start")
        try:
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "--wait", "--mode=fast", "stop")


def _commands() -> Path:
    """The folder with the server's commands, which are installed where they are missing and that is allowed."""
    if not _installed() and os.getuid() == 0 and shutil.which("apt-get"):
        subprocess.run(
            INSTALL, check=False, capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
    if not _installed():
        pytest.skip("there is no PostgreSQL server, and it cannot be installed")
    return _installed()[-1].parent


def _installed() -> list[Path]:
    found = shutil.which("initdb")
    return sorted([*Path("/usr/lib/postgresql").glob("*/bin/initdb"), *([Path(found)] if found else [])], key=str)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
