import pytest
import torch

from showattendtell.models.kernels.cross_entropy import normalisers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_words", [1, 5, 64, 129, 10_000])
def test_normalisers_make_scores_probabilities(num_words: int, dtype: torch.dtype):
    scores = 4 * torch.randn(20, num_words, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[0] += 500
    scores[1] -= 500
    scores[2, num_words // 2 :] -= 1000
    scores[3] = 0
    bias = torch.linspace(-3, 2, num_words, dtype=torch.float64)
    given = scores.to(dtype, copy=True)
    sums = normalisers(given, bias.to(dtype))
    torch.testing.assert_close(given, (scores + bias).to(dtype))
    torch.testing.assert_close(sums, (scores + bias).logsumexp(dim=1).to(dtype))


def test_as_many_threads_as_torch_has_share_the_captions():
    scores, bias = torch.randn(7, 300), torch.randn(300)
    expected = (scores + bias).logsumexp(dim=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.testing.assert_close(normalisers(scores, bias), expected)
    finally:
        torch.set_num_threads(threads)
