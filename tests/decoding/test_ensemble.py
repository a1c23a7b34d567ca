import pytest
import torch
from random_models import VOCABULARY, ended_captions, random_captioner, random_regions
from torch import Tensor

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.models.captioner import Captioner


def word_probabilities(captioner: Captioner, regions: Tensor, tokens: list[int]) -> Tensor:
    """p of each of the caption's words, (T,)."""
    batch = torch.tensor([tokens])
    p = captioner(regions.unsqueeze(0), torch.tensor([0]), batch).logits.softmax(dim=1)
    return p.gather(1, batch.T).flatten()


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_several_models_find_the_caption_that_the_mean_of_their_p_makes_likeliest(seed: int):
    captioners = [random_captioner(seed), random_captioner(seed + 100), random_captioner(seed + 200)]
    seen = [
        random_regions(seed, images=2),
        random_regions(seed + 1, images=2)[:, :4],
        random_regions(seed + 2, images=2),
    ]
    found = BeamSearch(beam_size=128, max_length=3).generate(Ensemble(captioners), seen, VOCABULARY)
    for image, [caption] in enumerate(found):
        worth = {}
        for tokens in ended_captions(3):
            pairs = zip(captioners, seen, strict=True)
            together = [word_probabilities(captioner, regions[image], tokens) for captioner, regions in pairs]
            worth[tuple(tokens)] = torch.stack(together).mean(dim=0).log().sum().item()
        expected = max(worth, key=worth.__getitem__)
        assert tuple(caption.tokens) == expected
        assert caption.log_prob == pytest.approx(worth[expected])
        assert caption.attention.shape == (len(expected), seen[0].shape[1])
