import pytest
import torch

from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.kernels import parallel as loops
from showattendtell.models.kernels.parallel import compilable, plain_torch


def test_in_plain_torch_no_loop_is_compiled_and_the_captioner_says_the_same(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    captioner = Captioner(SoftAttention(5, 4), LSTMDecoder(9, 5, embedding_dim=3, hidden_dim=4)).eval()
    batch = torch.randn(2, 6, 5), torch.tensor([0, 1, 1]), torch.randint(4, 9, (3, 4))
    expected = captioner(*batch)
    monkeypatch.setattr(loops, "compiled", None)
    with plain_torch():
        trace = captioner(*batch)
    torch.testing.assert_close(trace.logits, expected.logits)
    torch.testing.assert_close(trace.weights, expected.weights)


def fail_in_plain_torch() -> None:
    with plain_torch(), plain_torch():
        raise KeyError


def test_loops_are_taken_again_behind_it():
    with plain_torch():
        with plain_torch():
            assert not compilable(torch.zeros(2))
        assert not compilable(torch.zeros(2))
    with pytest.raises(KeyError):
        fail_in_plain_torch()
    assert compilable(torch.zeros(2))
    assert not compilable(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
