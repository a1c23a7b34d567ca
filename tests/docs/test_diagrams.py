"""The diagram of the package shows the layers that tests/test_layers.py enforces."""

import json
import re
from importlib import import_module
from pathlib import Path
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


def test_the_diagram_of_reliability_is_drawn_from_a_result_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    drawing = import_module("trust_diagram")
    monkeypatch.setattr(drawing, "FIGURE", tmp_path / "trust.svg")
    row = {"counts": [5, 0, 9995], "confidence": [0.1, None, 0.9], "accuracy": [0.2, None, 0.8]}
    result = {"reliability": [row, row], "ece": 1.0, "ece_uncalibrated": 21.4}
    result["risk_coverage"] = [{"coverage": 0.5, "cider": 80.0}, {"coverage": 1.0, "cider": 60.0}]
    (tmp_path / "results.json").write_text(json.dumps(result))
    drawing.main(str(tmp_path / "results.json"))
    drawn = (tmp_path / "trust.svg").read_text()
    assert "error 21.4 %" in drawn
    assert (ROOT / "docs/figures/trust.svg").read_text().count("error") == drawn.count("error")
