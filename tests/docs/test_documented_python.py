"""The Python of the documentation: excerpts are the source's, programs run, and parts of one's own do what they say."""

import ast
import json
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documentation import PAGES, ROOT, blocks
from example_folder import Run
from small_models import D, small_captioner

from showattendtell.config.compose import compose
from showattendtell.errors import UserError
from showattendtell.losses.caption import SoftLoss
from showattendtell.metrics import classes
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.models.attention import SoftAttention
from showattendtell.models.encoder import Encoder
from showattendtell.models.interfaces import DecoderState

DOCS = ROOT / "docs"
EXCERPTS = blocks(DOCS / "concepts.md", "python")


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda excerpt: excerpt.splitlines()[1].strip()[:40])
def test_an_excerpt_stands_in_the_source_line_by_line(excerpt: str):
    place, *lines = excerpt.splitlines()
    source = (ROOT / place.removeprefix("# ")).read_text(encoding="utf-8").splitlines()
    windows = ("\n".join(source[first : first + len(lines)]) for first in range(len(source)))
    assert "\n".join(lines) in {textwrap.dedent(window) for window in windows}


def test_every_other_block_of_python_can_be_compiled():
    for page in (page for page in PAGES if page.name != "concepts.md"):
        for block in blocks(page, "python"):
            assert ast.parse(block, page.name).body


@pytest.fixture
def mylab(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of docs/example_package can be imported."""
    monkeypatch.syspath_prepend(DOCS / "example_package/src")


def test_the_example_of_an_encoder_gives_regions_of_length_1_and_a_store_of_its_own(mylab: None):
    settings = {"network": "tf_efficientnet_lite0", "stride": 16, "weights": "random", "size": 64}
    ours, plain = import_module("mylab.encoder").UnitEncoder(**settings), Encoder(**settings)
    ours.load_state_dict(plain.state_dict())
    pixels = torch.rand(2, 3, 64, 64)
    regions = plain(pixels)
    torch.testing.assert_close(ours(pixels), regions / regions.norm(dim=2, keepdim=True))
    assert ours.describe() != plain.describe()


def test_the_example_of_a_data_set_reads_names_as_captions(mylab: None, tmp_path: Path):
    names = [f"two-{color}-dogs.jpg" for color in ("red", "green", "blue", "grey", "white", "black", "brown", "pink")]
    for name in names:
        (tmp_path / name).touch()
    choice = ["dataset=custom", "dataset._target_=mylab.data.read_named", f"dataset.root={tmp_path}"]
    assert compose("train", choice).dataset._target_ == "mylab.data.read_named"
    dataset = import_module("mylab.data").read_named(str(tmp_path), val=0.3, test=0.3)
    assert sorted(example.image for example in dataset.examples()) == sorted(names)
    assert {" ".join(example.captions[0].words) for example in dataset.examples()} == {
        name.removesuffix(".jpg").replace("-", " ") for name in names
    }


def test_the_example_of_a_score_is_its_equation_and_works_in_an_attention():
    names: dict[str, Any] = {"__name__": "mypackage"}
    for page in (DOCS / "attention.md", ROOT / "CONTRIBUTING.md"):
        for block in blocks(page, "python"):
            exec(block, names)
    torch.manual_seed(0)
    attention = SoftAttention(6, 4, score=names["BilinearTanhScore"])
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    regions, hidden = torch.randn(2, 5, 6), torch.randn(2, 4)
    weights = attention(attention.precompute(regions), DecoderState(hidden, hidden)).weights
    for image in range(2):
        by_hand = torch.stack([names["bilinear_tanh"](attention.score, a, hidden[image]) for a in regions[image]])
        torch.testing.assert_close(weights[image], by_hand.softmax(dim=0))


def test_the_example_of_a_loss_adds_its_term_to_those_of_soft_attention():
    names: dict[str, Any] = {"__name__": "sharp"}
    exec(blocks(DOCS / "extending.md", "python")[0], names)
    captioner, tokens = small_captioner(), torch.tensor([[5, 6, 2], [7, 2, 0]])
    batch = captioner, torch.rand(2, 4, D), torch.tensor([0, 1]), tokens
    output, plain = names["SharpLoss"](sharpness=0.5)(*batch), SoftLoss()(*batch)
    entropies = [-(row * row.log()).sum() for caption in plain.outputs.weights for row in caption if row.sum() > 0]
    assert output.terms.pop("sharpness").item() == pytest.approx(0.5 * float(sum(entropies).detach()) / 2, rel=1e-5)
    assert output.terms == plain.terms


def test_the_example_of_a_metric_works_next_to_the_others(mylab: None):
    name = "mylab.metric.Brevity"
    said = classes.measure([["a", "dog"], ["a"]], [[["a", "dog", "runs", "off"]], [["a"]]], ["bleu", name])
    assert said.missing == {}
    assert corpus_scores([said.measured[name]]) == {"brevity": 75.0}
    twice_the_first = said.measured[name].scores(np.array([[2.0, 0.0]]))
    assert twice_the_first["brevity"] == pytest.approx([50.0])
    faults = {"mylab.metric.Length": "cannot be imported", "mylab.encoder.UnitEncoder": "is not a metric"}
    for other, fault in faults.items():
        with pytest.raises(UserError, match=f"{other} {fault}"):
            classes.measure([], [], [other])


def test_the_programs_of_the_page_of_metrics_print_what_they_say(capsys: pytest.CaptureFixture[str]):
    loop, attention = blocks(DOCS / "metrics.md", "python")
    names: dict[str, Any] = {}
    exec(loop, names)
    lines = capsys.readouterr().out.splitlines()
    scores = {name: float(score) for name, score in map(str.split, lines)}
    captions = [caption for batch, _ in names["batches"] for caption in batch]
    references = [list(map(str.split, said)) for _, batch in names["batches"] for said in batch]
    expected = classes.measure([caption.split() for caption in captions], references, ["bleu", "cider", "rouge_l"])
    figures = corpus_scores(expected.measured.values())
    assert scores == {name: pytest.approx(figure, abs=0.06) for name, figure in figures.items()}
    exec(attention, names)
    found = {name: score.item() for name, score in names["pointing"].compute().items()}
    assert found == {"model": 100, "uniform": 25, "center": 25}


@pytest.mark.slow
def test_the_programs_of_the_interface_run_one_after_the_other(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "api.md", "python"):
        exec(block, names)
    assert (folder / "skater.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_result_file_has_the_fields_that_the_page_of_scores_names(folder: Path, run: Run):
    result = json.loads((folder / "runs/soft/results-test.json").read_text())
    page = (DOCS / "scores.md").read_text(encoding="utf-8").partition("## Content of a result file")[2]
    rows = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(rows))
    assert len(named) > 10
    assert [name for name in named if name not in result] == []
