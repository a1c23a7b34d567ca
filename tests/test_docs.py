"""What the documentation shows works: the example of docs/attention.md, and every command."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml

from showattendtell.config.command_line import check_command
from showattendtell.config.entry import name_positional
from showattendtell.model import scores
from showattendtell.model.attention import SoftAttention
from showattendtell.model.steps import State

PAGE = (Path(__file__).parents[1] / "docs" / "attention.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_example_score_is_its_equation_and_works_in_an_attention():
    namespace = {**vars(scores), "Tensor": torch.Tensor}
    for block in blocks("python"):
        exec(block, namespace)
    torch.manual_seed(0)
    attention = SoftAttention(6, 4, score=namespace["BilinearTanhScore"])
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    regions, hidden = torch.randn(2, 5, 6), torch.randn(2, 4)
    weights = attention(attention.remember(regions), State(hidden, hidden)).weights
    for image in range(2):
        by_hand = torch.stack([namespace["bilinear_tanh"](attention.score, a, hidden[image]) for a in regions[image]])
        torch.testing.assert_close(weights[image], by_hand.softmax(dim=0))


def test_the_example_is_short_and_its_yaml_names_its_class():
    example = blocks("python") + blocks("yaml")
    assert sum(len(block.splitlines()) for block in example) < 40
    [settings] = [yaml.safe_load(block) for block in blocks("yaml")]
    assert settings == {"_target_": "showattendtell.model.scores.BilinearTanhScore", "_partial_": True}


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
POSITIONAL = {"caption": "images", "table": "runs", "sweep_report": "study"}


def commands() -> list[str]:
    """The command lines of this package in fenced blocks, comments behind two spaces cut off."""
    fenced = [re.findall(r"```\n(.*?)```", page.read_text(), flags=re.DOTALL) for page in PAGES]
    text = "\n".join(block for page in fenced for block in page)
    lines = (line.partition("  #")[0].strip() for line in text.splitlines())
    return sorted({line for line in lines if "-m showattendtell." in line})


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_documentation_is_one(line: str):
    module, *arguments = shlex.split(line.partition("-m showattendtell.")[2])
    settings = [argument for argument in arguments if argument != "..."]
    if module in POSITIONAL:
        settings = name_positional(settings, POSITIONAL[module])
    assert check_command(module, settings, complete=False)
