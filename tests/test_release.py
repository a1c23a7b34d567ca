"""What a release publishes: its version is the same everywhere, and its workflows run what the repository has."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import ROOT

import showattendtell

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
