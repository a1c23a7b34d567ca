"""The benchmark of a published port, with a decoder of the port's interface."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmarks.workload import Workload

from benchmarks import published
from showattendtell.data.vocabulary import PAD, START

TINY = Workload(2, 2, regions=4, region_dim=8, vocabulary=40, embedding=8, hidden=8, attention=8)

UNIFORM = """
import torch
from torch import nn


class DecoderWithAttention(nn.Module):
    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim, dropout):
        super().__init__()
        self.words = nn.Embedding(vocab_size, vocab_size)

    def forward(self, encoder_out, encoded_captions, caption_lengths):
        lengths, order = caption_lengths.squeeze(1).sort(descending=True)
        captions = encoded_captions[order]
        steps = (lengths - 1).tolist()
        alphas = torch.zeros(len(captions), steps[0], encoder_out.shape[1])
        return self.words(captions[:, : steps[0]]), captions, steps, alphas, order
"""


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(UNIFORM)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "models", raising=False)
    yield tmp_path
    sys.modules.pop("models", None)


def test_the_loss_is_the_cross_entropy_of_the_words_and_the_penalty(port: Path):
    decoder = published.published_decoder(port, TINY)
    regions, image_index, tokens = TINY.batch()
    loss = published.published_loss(decoder, regions, image_index, tokens)
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
    scores = decoder.words(inputs)
    expected = F.cross_entropy(scores[tokens != PAD], tokens[tokens != PAD]) + 1  # no attention: (1 - 0)^2
    torch.testing.assert_close(loss, expected)
