"""Random models of six words, and what their captions are worth by every other way of counting."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from showattendtell.decode.search import BeamSearch
from showattendtell.decode.speaker import Speaker
from showattendtell.model.attention import SoftAttention
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import LSTMDecoder
from showattendtell.model.scores import AdditiveScore
from showattendtell.model.steps import Memory, State
from showattendtell.records import Generated
from showattendtell.text.vocabulary import EOS, PAD, SPECIAL, START, Vocabulary

VOCABULARY = Vocabulary([*SPECIAL, "dog", "cat"])
DOG, CAT = 4, 5
SAYABLE = [word for word in range(len(VOCABULARY)) if word not in (PAD, START)]


def random_captioner(seed: int, vocabulary_size: int = len(VOCABULARY)) -> Captioner:
    torch.manual_seed(seed)
    attention = SoftAttention(5, 4, partial(AdditiveScore, width=3))
    captioner = Captioner(attention, LSTMDecoder(vocabulary_size, 5, embedding_dim=3, hidden_dim=4))
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    return captioner.double().eval()


def random_regions(seed: int, images: int) -> Tensor:
    return torch.randn(images, 6, 5, generator=torch.Generator().manual_seed(seed)).double()


def best(
    captioner: Captioner, regions: Tensor, vocabulary: Vocabulary = VOCABULARY, **settings: object
) -> list[Generated]:
    """The best caption of each image by beam search."""
    decoding = BeamSearch(**settings)  # type: ignore[arg-type]
    return [captions[0] for captions in decoding.write(Speaker([captioner]), [regions], vocabulary)]


def log_probability(captioner: Captioner, regions: Tensor, tokens: Sequence[int]) -> float:
    batch = torch.tensor([list(tokens)])
    log_p = captioner(regions.unsqueeze(0), torch.tensor([0]), batch).logits.log_softmax(dim=-1)
    return log_p.gather(1, batch.T).sum().item()


def say(captioner: Captioner, memory: Memory, state: State, word: int) -> tuple[Tensor, State]:
    """log p of the word behind `word` (V,) and the state then, from the parts of the model."""
    attention, decoder = captioner.attention, captioner.decoder
    glimpse, embedded = attention(memory, state), decoder.embed(torch.tensor([word]))
    state = decoder.advance(decoder.word_gates(embedded), glimpse.context, state)
    return decoder.score_words(embedded, state.hidden, glimpse.context)[0].log_softmax(dim=0), state


def ended_captions(max_length: int) -> list[list[int]]:
    """Every caption that ends within so many words."""
    words = [word for word in SAYABLE if word != EOS]
    return [[*said, EOS] for length in range(max_length) for said in itertools.product(words, repeat=length)]


def probabilities(
    captioner: Captioner, regions: Tensor, captions: Sequence[Sequence[int]]
) -> dict[tuple[int, ...], float]:
    """p of captions of an image (1, L, D) where `<pad>` and `<start>` cannot be said: every step's p divided by what
    they leave."""
    found = {}
    with torch.no_grad():
        for caption in captions:
            logits = captioner(regions, torch.tensor([0]), torch.tensor([list(caption)])).logits.clone()
            logits[:, [PAD, START]] = -torch.inf
            log_p = logits.log_softmax(dim=1).gather(1, torch.tensor(caption).unsqueeze(1)).sum()
            found[tuple(caption)] = log_p.exp().item()
    return found


Merit = Callable[[float, int], float]


def ranked(captioner: Captioner, regions: Tensor, captions: Sequence[Sequence[int]], merit: Merit) -> list[list[int]]:
    """The captions by the merit of log p and length, best first, each counted on its own."""
    worth = [merit(log_probability(captioner, regions, tokens), len(tokens)) for tokens in captions]
    return [list(captions[place]) for place in sorted(range(len(captions)), key=lambda place: -worth[place])]
