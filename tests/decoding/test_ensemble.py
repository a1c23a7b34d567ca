import pytest
import torch
from extension_cases import cases
from random_models import SAYABLE, VOCABULARY, ended_captions, random_captioner, random_regions
from torch import Tensor

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble, LanguageModel
from showattendtell.decoding.sampling import Sampling
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner


def word_probabilities(captioner: Captioner, regions: Tensor, tokens: list[int]) -> Tensor:
    """p of each of the caption's words, (T,)."""
    batch = torch.tensor([tokens])
    p = captioner(regions.unsqueeze(0), torch.tensor([0]), batch).logits.softmax(dim=1)
    return p.gather(1, batch.T).flatten()


@pytest.mark.parametrize(("seed", "kind"), [*((seed, SoftAttention) for seed in range(4)), *cases("ENSEMBLES")])
@torch.no_grad()
def test_several_models_find_the_caption_that_the_mean_of_their_p_makes_likeliest(seed: int, kind: type[SoftAttention]):
    captioners = [random_captioner(seed), random_captioner(seed + 100, kind=kind), random_captioner(seed + 200)]
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


BLANK = torch.zeros(1, 1, dtype=torch.double)


def fused(captioners: list[Captioner], seen: list[Tensor], language_model: LanguageModel, tokens: list[int]) -> Tensor:
    """log of the mean p of each word, plus the weighted log p of the language model, (T,)."""
    pairs = zip(captioners, seen, strict=True)
    p = torch.stack([word_probabilities(captioner, regions, tokens) for captioner, regions in pairs]).mean(dim=0)
    return p.log() + language_model.weight * word_probabilities(language_model.captioner, BLANK, tokens).log()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(("seed", "weight"), [(0, 0.3), (1, 0.0), (2, 1.5)])
@torch.no_grad()
def test_shallow_fusion_finds_the_caption_with_the_largest_sum_of_weighted_log_p(number: int, seed: int, weight: float):
    captioners = [random_captioner(seed + 100 * k) for k in range(number)]
    seen = [random_regions(seed + k, images=3) for k in range(number)]
    language_model = LanguageModel(random_captioner(seed + 300, region_dim=1), weight)
    ensemble = Ensemble(captioners, language_models=[language_model])
    for image, [caption] in enumerate(BeamSearch(beam_size=128, max_length=3).generate(ensemble, seen, VOCABULARY)):
        of_image = [regions[image] for regions in seen]
        worth = {tuple(tokens): fused(captioners, of_image, language_model, tokens) for tokens in ended_captions(3)}
        expected = max(worth, key=lambda tokens: worth[tokens].sum().item())
        assert tuple(caption.tokens) == expected
        torch.testing.assert_close(caption.log_probs, worth[expected])
        assert caption.attention.shape == (len(expected), seen[0].shape[1])


@torch.no_grad()
def test_samples_of_shallow_fusion_have_its_normalized_probabilities():
    captioner, regions = random_captioner(4), random_regions(4, images=1)
    language_model = LanguageModel(random_captioner(5, region_dim=1), 0.7)
    ensemble = Ensemble([captioner], language_models=[language_model])
    torch.manual_seed(0)
    [samples] = Sampling(num_captions=10_000, max_length=1).generate(ensemble, [regions], VOCABULARY)
    worth = torch.stack([fused([captioner], [regions[0]], language_model, [word])[0] for word in SAYABLE])
    drawn = [sum(sample.tokens == [word] for sample in samples) / len(samples) for word in SAYABLE]
    torch.testing.assert_close(torch.tensor(drawn).double(), worth.softmax(dim=0), atol=0.015, rtol=0)
    assert samples[0].log_prob == pytest.approx(worth[SAYABLE.index(samples[0].tokens[0])].item())
