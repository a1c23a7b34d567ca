"""The machine and the code of a run."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "numba", "numpy", "showattendtell")


@dataclass(frozen=True)
class Machine:
    """The machine of a run. Figures of equal machines are comparable.

    Args:
        processor: model of the CPU.
        cores: number of cores that this process may use.
        threads: number of threads of torch.
        graphics: model of the GPU, "" if there is none.
    """

    processor: str
    cores: int
    threads: int
    graphics: str = ""

    def __str__(self) -> str:
        counted = f"{count(self.cores, 'core')}, {count(self.threads, 'thread')}"
        return ", ".join(filter(None, [self.processor, counted, self.graphics]))


@dataclass(frozen=True)
class Code:
    """The git commit ("" outside a repository), whether there are uncommitted changes, and versions of packages."""

    commit: str
    changed: bool
    versions: dict[str, str]

    def __str__(self) -> str:
        commit = f"commit {self.commit}{' with changes' * self.changed}" if self.commit else "no commit"
        return ", ".join([commit, *(f"{name} {number}" for name, number in self.versions.items())])


def count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def this_machine() -> Machine:
    import torch

    from showattendtell.models.kernels.products import processor_model

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    graphics = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return Machine(processor_model(), cores, torch.get_num_threads(), graphics)


def this_code() -> Code:
    commit = git("rev-parse", "--short", "HEAD")
    changed = bool(commit and git("status", "--porcelain"))
    return Code(commit, changed, {"Python": platform.python_version(), **package_versions()})


def git(*command: str) -> str:
    """Return the output of a git command in the repository; "" without git or repository."""
    try:
        finished = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return finished.stdout.strip()


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages among `PACKAGES`."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
