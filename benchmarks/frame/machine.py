"""What figures were measured on, and of which code."""

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
    """Figures of equal machines can be compared.

    Args:
        processor: its model.
        cores: those that this process may use.
        threads: those that torch computes with.
        graphics: the graphics card's model, "" where there is none.
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
    """The commit ("" outside a repository), whether files differ from it, and the releases of Python and the packages
    that matter."""

    commit: str
    changed: bool
    versions: dict[str, str]

    def __str__(self) -> str:
        commit = f"commit {self.commit}{' and changes' * self.changed}" if self.commit else "no commit"
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
    return Code(commit, changed, {"Python": platform.python_version(), **releases()})


def git(*command: str) -> str:
    """What git answers about the checkout, "" where there is no git or no repository."""
    try:
        answered = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return answered.stdout.strip()


def releases() -> dict[str, str]:
    """The release of each package that is installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
