"""What a release publishes: one version everywhere, locked requirements with hashes, and workflows that can run."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from repository import ROOT

import showattendtell

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_changelog_and_citation_agree():
    newest = re.search(r"^## \[(.+?)\] - (unreleased|\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE)
    assert newest
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {PROJECT["version"]} == {newest[1], citation["version"], showattendtell.__version__}
    assert (citation["title"], citation["license"]) == (PROJECT["name"], PROJECT["license"])


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_targets_and_files_that_exist(workflow: Path):
    runs = "\n".join(step.get("run", "") for step in steps(workflow))
    targets = re.findall(r"\bmake ([a-z-]+)", runs)
    assert {target for target in targets if not re.search(rf"^{target}:", text("Makefile"), re.MULTILINE)} == set()
    assert {name for name in re.findall(r"docs/[\w/-]+\.jpg|\.ci/\w+", runs) if not (ROOT / name).is_file()} == set()


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
