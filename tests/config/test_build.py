"""What a configuration may have built, and what only the code gives."""

import pytest
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.build import TRUST, build, foreign_targets
from showattendtell.config.check import find_targets
from showattendtell.errors import UserError


def attention(**settings: object) -> DictConfig:
    """The node `attention` of a configuration that names a class of the user's own."""
    return OmegaConf.create({"attention": {"_target_": "parts.Soft", **settings}}).attention


def test_a_target_that_nobody_trusts_is_not_built(parts: str):
    with pytest.raises(UserError, match=r"attention: .*parts\.Soft"):
        build(attention(score=1), region_dim=3)


def test_a_target_that_the_command_line_names_is_built(parts: str):
    with execution_whitelist(list(find_targets({"attention": {"_target_": "parts.Soft"}}))):
        assert build(attention(score=1), region_dim=3).score == 1


@pytest.mark.parametrize("trust", ["parts", "other, parts", "parts.Soft"])
def test_a_target_that_the_environment_trusts_is_built(parts: str, monkeypatch: pytest.MonkeyPatch, trust: str):
    monkeypatch.setenv(TRUST, trust)
    assert foreign_targets({"attention": {"_target_": "parts.Soft"}}) == []
    assert build(attention(score=1), region_dim=3).score == 1


@pytest.mark.parametrize("trust", ["", "part", "parts.Hard", "parts.Soft.made"])
def test_the_environment_trusts_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch, trust: str):
    monkeypatch.setenv(TRUST, trust)
    assert foreign_targets({"attention": {"_target_": "parts.Soft"}}) == ["parts.Soft"]


def test_what_the_command_line_names_makes_no_checkpoint_trusted():
    with execution_whitelist(["parts.Soft"]):
        assert foreign_targets({"attention": {"_target_": "parts.Soft"}}) == ["parts.Soft"]


def test_foreign_targets_are_found_in_nodes_and_lists_at_any_depth():
    own = {"_target_": "showattendtell.decode.search.BeamSearch"}
    node = {"decoding": own, "loss": {"parts": [own, {"_target_": "a.B", "inner": {"_target_": "c.D"}}]}}
    assert foreign_targets(node) == ["a.B", "c.D"]


def test_a_partial_node_waits_for_what_the_code_gives_it(parts: str):
    score = {"_target_": "parts.Score", "_partial_": True, "width": 64}
    with execution_whitelist(["parts.Soft", "parts.Score"]):
        made = build(attention(score=score), region_dim=3).score(region_dim=5)
    assert (made.region_dim, made.width) == (5, 64)


def test_a_setting_that_the_code_gives_is_told():
    with pytest.raises(UserError, match=r"attention\.region_dim is set by the code"):
        build(attention(region_dim=4), region_dim=3)
