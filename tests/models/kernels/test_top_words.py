import pytest
import torch

from showattendtell.models.kernels.cross_entropy import top_words


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_words", [5, 127, 128, 129, 1000, 10_000])
@pytest.mark.parametrize("number", [1, 4, 200])
def test_the_likeliest_words_are_those_of_a_full_ranking(num_words: int, number: int, dtype: torch.dtype):
    number = min(number, num_words)
    scores = torch.randn(20, num_words, generator=torch.Generator().manual_seed(0), dtype=dtype)
    scores[0] = scores[0].sort(descending=True).values
    scores[1] = scores[1].sort().values
    best = scores.sort(dim=1, descending=True)
    found = top_words(scores, number)
    assert torch.equal(scores.gather(1, found), best.values[:, :number])
    assert torch.equal(found[:2], best.indices[:2, :number])


def test_every_word_is_named_once_where_many_are_as_likely_or_impossible():
    scores = torch.full((3, 300), -torch.inf)
    scores[1] = 2.0
    scores[2, 7] = 1.0
    found = top_words(scores, 12)
    assert [len(set(words)) for words in found.tolist()] == [12, 12, 12]
    assert found[2, 0] == 7
    assert 0 <= int(found.min()) <= int(found.max()) < 300
