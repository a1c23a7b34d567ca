"""Small models that have learned nothing, and a server that answers."""

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

from showattendtell.captioning import ImageCaptioner
from showattendtell.checkpoint import write_card
from showattendtell.config.build import build, build_captioner
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import compose
from showattendtell.config.entry import Chosen
from showattendtell.decode.search import BeamSearch
from showattendtell.records import Dataset
from showattendtell.text.vocabulary import Vocabulary

WORDS = ["<b>a</b>", "<i>dog</i>", "<b>runs</b>", "over<br>", "&amp;", "<script>", "'grass'"]
"""All of them markup, if they are taken for it."""
SETTINGS = [
    *("encoder=efficientnet_lite0", "encoder.weights=random", "encoder.size=64", "attention.score.width=4"),
    *("decoder.embedding_dim=4", "decoder.hidden_dim=5"),
]


class Served(NamedTuple):
    """A server that answers at `address`."""

    address: str
    running: Any

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def interrupt(self) -> Any:
        """Ctrl-C; what the server printed, and its status."""
        os.kill(self.pid, signal.SIGINT)
        return self.running.finish()


def write_checkpoint(path: Path, *settings: str) -> None:
    config, _ = compose("train", check_command("train", [*SETTINGS, *settings]))
    OmegaConf.set_struct(config, False)
    config.pop("hydra")
    torch.manual_seed(1)
    vocabulary = Vocabulary.build([tuple(WORDS)], size=100)
    encoder = build(config.encoder)
    captioner = build_captioner(config, encoder.region_dim, len(vocabulary))
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter)
    module = ImageCaptioner(encoder, captioner, vocabulary, BeamSearch())
    card = write_card(config, Chosen({}, []), vocabulary, encoder, Dataset("small", {}))
    path.parent.mkdir(parents=True)
    torch.save({"state_dict": module.state_dict(), **card}, path)
