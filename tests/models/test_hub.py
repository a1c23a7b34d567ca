"""Weights from timm's hub, fetched for real: from a mirror on this machine."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
from photo_server import OTHER_HUB, serve_hub
from safetensors.torch import save_file

from showattendtell.errors import UserError
from showattendtell.models.pretrained import reach_hub, state_hash

NETWORK = "lcnet_050"
PRINT_HASH = f"""
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import state_hash
print(state_hash(Encoder({NETWORK!r}, stride=16, size=64).network.state_dict()))
"""


@pytest.fixture
def weights_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(timm.create_model(NETWORK).state_dict(), path)
    return path


@pytest.fixture
def mirror(weights_file: Path) -> Iterator[str]:
    with serve_hub({"/resolve/main/model.safetensors": weights_file}) as mirror:
        yield mirror


@pytest.fixture
def print_hash(run_code: Callable[..., Any], tmp_path: Path) -> Callable[[str], Any]:
    """Runs `PRINT_HASH` with a hub at an address; the cache is that of the test."""
    return lambda endpoint: run_code(
        OTHER_HUB + PRINT_HASH,
        folder=tmp_path,
        HF_HOME=str(tmp_path / "home"),
        HF_ENDPOINT=endpoint,
        HF_HUB_DISABLE_XET="1",
    )


@pytest.mark.slow
def test_weights_come_from_a_mirror_and_later_from_the_cache(
    print_hash: Callable[[str], Any], weights_file: Path, mirror: str
):
    network = timm.create_model(NETWORK, num_classes=0)
    timm.models.load_checkpoint(network, str(weights_file), strict=False)
    [index] = [level for level, info in enumerate(network.feature_info) if info["reduction"] == 16][-1:]
    network.prune_intermediate_layers([index], prune_head=True)
    fetched = print_hash(mirror)
    assert fetched.out.strip() == state_hash(network.state_dict()), fetched.err
    offline = print_hash("http://127.0.0.1:9")
    assert offline.out == fetched.out, offline.err


def test_without_a_network_one_sentence_names_the_way_out(print_hash: Callable[[str], Any]):
    failed = print_hash("http://127.0.0.1:9")
    last = failed.err.strip().splitlines()[-1]
    assert f"the weights of {NETWORK} could not be downloaded" in last
    assert "encoder=efficientnet_lite0" in last


@pytest.fixture
def garbage() -> Iterator[str]:
    """The address of a server that answers in no protocol of the web."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"SSH-2.0-none\r\n")

    threading.Thread(target=answer, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.close()


def test_a_hub_is_requested_anew_and_a_server_that_is_none_is_as_good_as_no_network(
    mirror: str, garbage: str, monkeypatch: pytest.MonkeyPatch
):
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for endpoint, is_offline in (("http://127.0.0.1:9", True), (mirror, False), (garbage, True)):
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
