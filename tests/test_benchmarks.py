"""The yardstick of the benchmarks is the same model."""

import torch
from benchmarks.textbook import textbook_trace

from showattendtell.model.attention import SoftAttention
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import LSTMDecoder


def test_the_textbook_form_says_and_sees_the_same():
    torch.manual_seed(0)
    captioner = Captioner(SoftAttention(5, 4), LSTMDecoder(9, 5, embedding_dim=3, hidden_dim=4)).eval()
    batch = torch.randn(2, 6, 5), torch.tensor([0, 1, 1]), torch.randint(4, 9, (3, 4))
    for ours, theirs in zip(captioner(*batch)[:3], textbook_trace(captioner, *batch)[:3], strict=True):
        torch.testing.assert_close(ours, theirs)
