"""Constraints in the tokens of other tokenizers."""

import pytest

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.text.tokenizers import SubwordTokenizer
from showattendtell.text.vocabulary import Vocabulary


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
