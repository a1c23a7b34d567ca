"""requirements.lock has every requirement of pyproject.toml, in a version that it allows, with hashes."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_every_requirement_is_locked_in_an_allowed_version():
    extras = PROJECT["optional-dependencies"].values()
    required = [Requirement(line) for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]]
    locked: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.+!-]+)", LOCK, re.MULTILINE):
        locked.setdefault(canonicalize_name(name), []).append(Version(version))
    for one in required:
        if one.name != PROJECT["name"]:
            assert locked.get(canonicalize_name(one.name)), f"{one.name} is not in requirements.lock: run make lock"
            versions = locked[canonicalize_name(one.name)]
            assert all(one.specifier.contains(version, prereleases=True) for version in versions), one


def test_every_locked_package_has_hashes_and_no_address():
    entries = re.split(r"\n(?=\S)", LOCK)
    assert all("--hash=sha256:" in entry for entry in entries if "==" in entry.partition("\n")[0])
    assert "://" not in LOCK
