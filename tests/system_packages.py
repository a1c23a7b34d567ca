"""Programs of the operating system that a test needs and brings itself, where it may."""

import os
import shutil
import subprocess
from collections.abc import Callable


def installed(find: Callable[[], str | None], package: str) -> str | None:
    """What `find` finds, once the package is installed by apt-get, if it was missing and where that is allowed."""
    if not find() and os.getuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
            subprocess.run(["apt-get", "--quiet", *command], check=False, capture_output=True, env=environment)
    return find()
