"""The diagram of the package shows the layers that tests/test_layers.py enforces."""

import re
from importlib import import_module
from typing import Any

import pytest
from repository import ROOT


@pytest.fixture
def diagram(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return import_module("package_diagram")


def test_the_stored_diagram_is_the_one_of_todays_layers(diagram: Any):
    assert diagram.FIGURE.read_text(encoding="utf-8") == diagram.package_svg(), "run python docs/package_diagram.py"


def test_the_diagram_names_every_layer(diagram: Any):
    names = re.findall(r'font-weight="bold">(\w+)<', diagram.package_svg())
    assert sorted(names) == sorted({"commands"}.union(*diagram.layers()[:-1]))
