"""The private parts of Hydra and OmegaConf still do what this package needs of them."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from showattendtell.config.compose import config_folder
from showattendtell.config.hydra_internals import (
    BasicSweeper,
    failure_of,
    full_key,
    has_resolver,
    is_flag,
    outside_of_command,
    parse_arguments,
    parse_search_space,
    raw_node,
)


def test_flags_are_parsed_apart_from_settings():
    parsed = parse_arguments(["seed=1", "-m", "--cfg", "job", "photo.jpg"])
    assert (parsed.overrides, parsed.multirun, parsed.cfg) == (["seed=1", "photo.jpg"], True, "job")


def test_the_names_of_flags_are_known():
    assert is_flag("--multirun")
    assert is_flag("--help")
    assert not is_flag("--seed")


def test_the_failure_of_a_run_is_returned():
    fault = ValueError("it failed")
    run = JobReturn()
    run.status, run.return_value = JobStatus.FAILED, fault
    assert failure_of(run) is fault
    with pytest.raises(ValueError, match="it failed"):
        _ = run.return_value


def test_a_grid_sweeper_has_the_parts_that_are_overridden():
    sweeper = BasicSweeper(max_batch_size=None)
    assert sweeper.launcher is None
    assert callable(sweeper.setup)
    assert callable(sweeper.sweep)


def test_a_node_is_returned_unresolved_with_its_full_key():
    config = OmegaConf.create({"decoder": {"width": "${oc.env:HOME}"}})
    node = raw_node(config, "decoder")
    assert raw_node(node, "width")._value() == "${oc.env:HOME}"
    assert (full_key(node), full_key(node, "width")) == ("decoder", "decoder.width")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", False),
        ("${cache}", False),
        ("${oc.env:HOME}", True),
        ("a ${cache} and ${oc.env:HOME}", True),
        ("${a.${oc.env:HOME}}", True),
        ("${", True),
    ],
)
def test_calls_of_resolvers_are_found(text: str, expected: bool):
    assert has_resolver(text) is expected


def test_the_state_of_a_command_is_set_aside_and_restored():
    with initialize_config_dir(config_folder()):
        with outside_of_command():
            assert not GlobalHydra.instance().is_initialized()
            with initialize_config_dir(config_folder()):
                compose("train")
        assert GlobalHydra.instance().is_initialized()
        assert compose("train").seed is not None


def test_a_search_space_is_parsed():
    searched, fixed = parse_search_space(["seed=1,2", "decoder.dropout=interval(0,0.5)", "cache=here"])
    assert searched["seed"].choices == (1, 2)
    assert (searched["decoder.dropout"].low, searched["decoder.dropout"].high) == (0, 0.5)
    assert fixed == {"cache": "here"}
