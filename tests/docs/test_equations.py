"""What docs/attention.md shows works: the example of a score."""

import re
from typing import Any

import torch
import yaml
from repository import ROOT

from showattendtell.models.attention import SoftAttention
from showattendtell.models.interfaces import DecoderState

PAGE = (ROOT / "docs" / "attention.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_example_score_is_its_equation_and_works_in_an_attention():
    namespace: dict[str, Any] = {"__name__": "mypackage"}
    for block in blocks("python"):
        exec(block, namespace)
    torch.manual_seed(0)
    attention = SoftAttention(6, 4, score=namespace["BilinearTanhScore"])
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    regions, hidden = torch.randn(2, 5, 6), torch.randn(2, 4)
    weights = attention(attention.precompute(regions), DecoderState(hidden, hidden)).weights
    for image in range(2):
        by_hand = torch.stack([namespace["bilinear_tanh"](attention.score, a, hidden[image]) for a in regions[image]])
        torch.testing.assert_close(weights[image], by_hand.softmax(dim=0))


def test_the_example_is_short_and_its_yaml_names_its_class():
    example = blocks("python") + blocks("yaml")
    assert sum(len(block.splitlines()) for block in example) < 40
    [settings] = [yaml.safe_load(block) for block in blocks("yaml")]
    assert settings == {"_target_": "showattendtell.models.scores.BilinearTanhScore", "_partial_": True}
