from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_captioner, random_regions

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Decoding, Ensemble
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.text.tokenizers import SubwordTokenizer
from showattendtell.text.vocabulary import EOS, PAD, SPECIAL, START, UNK, Vocabulary

WORDS = ["dog", "cat", "ball", "runs"]
VOCABULARY = Vocabulary([*SPECIAL, *WORDS])


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """Any rules that do not contradict each other."""
    forbidden = draw(st.lists(st.sampled_from(WORDS), unique=True))
    sayable = [word for word in WORDS if word not in forbidden]
    prefix = draw(st.lists(st.sampled_from(sayable), unique=True, max_size=2)) if sayable else []
    max_length = draw(st.integers(max(1, len(prefix)), 8))
    return {
        "forbidden": forbidden,
        "prefix": " ".join(prefix),
        "max_length": max_length,
        "min_length": draw(st.integers(0, max_length)),
        "no_repeat_ngram_size": draw(st.integers(0, 3)),
        "allow_unk": draw(st.booleans()),
    }


BEAMS = {
    "beam_size": st.sampled_from([1, 2, 5, 12]),
    "length_normalization": st.sampled_from(["none", "length", "gnmt"]),
}
DRAWS = {
    "temperature": st.floats(0.01, 5, allow_subnormal=False),
    "top_k": st.integers(0, 10),
    "top_p": st.floats(0.01, 1, allow_subnormal=False),
}


def assert_keeps(tokens: list[int], decoding: Decoding) -> None:
    """The caption keeps every rule, counted on the words themselves."""
    assert 0 < len(tokens) <= decoding.max_length
    words, ended = (tokens[:-1], True) if tokens[-1] == EOS else (tokens, False)
    assert not {PAD, START, EOS} & set(words)
    said = [VOCABULARY.words[token] for token in words]
    assert ended or len(tokens) == decoding.max_length
    assert not set(decoding.forbidden) & set(said)
    assert decoding.allow_unk or UNK not in words
    assert said[: len(decoding.prefix.split())] == decoding.prefix.split()
    if decoding.no_repeat_ngram_size:
        runs = [tuple(words[start : start + decoding.no_repeat_ngram_size]) for start in range(len(words))]
        whole = [run for run in runs if len(run) == decoding.no_repeat_ngram_size]
        assert len(set(whole)) == len(whole)
    if not decoding.no_repeat_ngram_size and (decoding.allow_unk or len(decoding.forbidden) < len(WORDS)):
        assert len(words) >= decoding.min_length


@settings(derandomize=True)
@given(seed=st.integers(0, 10_000), kept=rules(), shape=st.fixed_dictionaries(BEAMS))
def test_every_caption_of_every_search_keeps_the_rules(seed: int, kept: dict[str, Any], shape: dict[str, Any]):
    decoding = BeamSearch(**kept, **shape)
    ensemble = Ensemble([random_captioner(seed, len(VOCABULARY))])
    written = decoding.generate(ensemble, [random_regions(seed, images=3)], VOCABULARY)
    assert [len(captions) >= 1 for captions in written] == [True] * 3
    for captions in written:
        merits = [decoding.rank_score(caption.log_prob, len(caption.tokens)) for caption in captions]
        assert all(better >= worse for better, worse in pairwise(merits))
        for caption in captions:
            assert_keeps(caption.tokens, decoding)


@settings(derandomize=True)
@given(seed=st.integers(0, 10_000), kept=rules(), drawn=st.fixed_dictionaries(DRAWS))
def test_every_drawn_caption_keeps_the_rules(seed: int, kept: dict[str, Any], drawn: dict[str, Any]):
    torch.manual_seed(seed)
    decoding = Sampling(**kept, **drawn, num_captions=3)
    ensemble = Ensemble([random_captioner(seed, len(VOCABULARY))])
    for captions in decoding.generate(ensemble, [random_regions(seed, images=2)], VOCABULARY):
        assert len(captions) == 3
        for caption in captions:
            assert_keeps(caption.tokens, decoding)


def test_a_caption_that_no_word_may_continue_ends_before_its_least_length():
    decoding = BeamSearch(no_repeat_ngram_size=1, min_length=20, allow_unk=False)
    [[caption]] = decoding.generate(Ensemble([random_captioner(0, 8)]), [random_regions(0, images=1)], VOCABULARY)
    assert (sorted(caption.tokens[:-1]), caption.tokens[-1]) == ([4, 5, 6, 7], EOS)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"prefix": "dog dgo"}, "prefix: the model does not know the word 'dgo'; did you mean 'dog'?"),
        ({"forbidden": ["zebra"]}, "forbidden: the model does not know the word 'zebra'; it knows 8 words"),
        (
            {"forbidden": ["dog ball"]},
            r"forbidden: 'dog ball' is 2 tokens, and must be one; give words as \[dog,ball\]",
        ),
        ({"prefix": "dog", "forbidden": ["Dog"]}, "'dog' is forbidden, but prefix contains it"),
        ({"prefix": "dog cat", "max_length": 1}, "at most 1 words have no room .* 2 words of prefix"),
        ({"min_length": 9, "max_length": 5}, "at most 5 words have no room for min_length=9"),
    ],
)
def test_rules_that_cannot_be_kept_are_reported(rules: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        BeamSearch(**rules).in_tokens(VOCABULARY)


def subwords() -> Vocabulary:
    tokenizer = SubwordTokenizer()
    tokenizer.train(["Ein Hund", "Ein Hund", "Ein Mann"], 20)
    return Vocabulary.build([], 30, tokenizer)


def test_a_prefix_may_have_several_tokens_a_word():
    vocabulary = subwords()
    tokens = BeamSearch(prefix="Ein Mund").in_tokens(vocabulary).prefix
    assert vocabulary.text(tokens) == "Ein Mund"
    assert len(tokens) > 2


def test_a_forbidden_word_is_one_token():
    vocabulary = subwords()
    assert vocabulary.ids["▁Hund"] in BeamSearch(forbidden=["Hund"]).in_tokens(vocabulary).suppressed
    with pytest.raises(UserError, match="forbidden: 'Hand' is . tokens, and must be one"):
        BeamSearch(forbidden=["Hand"]).in_tokens(vocabulary)
    with pytest.raises(UserError, match="prefix: the model does not know the word '<unk>'"):
        BeamSearch(prefix="Ein Tor").in_tokens(vocabulary)
