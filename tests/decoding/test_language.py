"""The language of generated captions, and constraints in the tokens of other tokenizers."""

import pytest
import torch
from small_models import small_model

from showattendtell.data.tokenizers import SubwordTokenizer, WordTokenizer
from showattendtell.data.vocabulary import PAD, SPECIAL, START, UNK, Vocabulary
from showattendtell.datamodules.datasets import TargetMaker
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.types import Box, Caption, Phrase

JOINT = Vocabulary([*SPECIAL, "<en>", "<zh>", "dog", "狗", "跑"], WordTokenizer(), ["en", "zh"])


def subwords() -> Vocabulary:
    tokenizer = SubwordTokenizer()
    tokenizer.train(["Ein Hund", "Ein Hund", "Ein Mann"], 20)
    return Vocabulary.build([], 30, tokenizer)


def test_the_first_token_is_the_language_and_no_other_one_is():
    constraints = BeamSearch(language="zh", prefix="狗", min_length=2, allow_unk=False).in_tokens(JOINT)
    assert constraints.prefix == (5, JOINT.ids["狗"])
    assert set(constraints.suppressed) == {PAD, START, UNK, 4, 5}
    assert constraints.min_length == 3


def test_a_model_of_several_languages_writes_the_first_by_default():
    model = small_model()
    languages = Vocabulary([*SPECIAL, "<en>", "<zh>", "dog", "狗", "跑", "a"], WordTokenizer(), ["en", "zh"])
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    def captions(language: str | None) -> list[list[int]]:
        decoding = BeamSearch(language=language, max_length=6)
        generated = ImageCaptioner(model.encoder, model.captioner, languages, decoding).generate(pixels)
        return [best.tokens for [best] in generated]

    assert captions(None) == captions("en") != captions("zh")


def test_a_prefix_may_have_several_tokens_a_word():
    vocabulary = subwords()
    tokens = BeamSearch(prefix="Ein Mund").in_tokens(vocabulary).prefix
    assert vocabulary.text(tokens) == "Ein Mund"
    assert len(tokens) > 2


def test_a_forbidden_word_is_one_token():
    vocabulary = subwords()
    assert vocabulary.ids["▁Hund"] in BeamSearch(forbidden=["Hund"]).in_tokens(vocabulary).suppressed
    with pytest.raises(UserError, match="forbidden: 'Hand' is . tokens of the model, and only one can be forbidden"):
        BeamSearch(forbidden=["Hand"]).in_tokens(vocabulary)
    with pytest.raises(UserError, match="prefix: the model does not know the word '<unk>'"):
        BeamSearch(prefix="Ein Tor").in_tokens(vocabulary)


def test_boxes_are_at_the_tokens_of_their_words():
    caption = Caption(("a", "dog"), (Phrase(1, (Box(0, 0, 1, 1),)),), language="en")
    targets = TargetMaker([caption], lambda positions, draw: [], (1, 1), JOINT.offset)
    [place] = targets.words[0]
    assert JOINT.encode(caption.words, "en")[place] == JOINT.ids["dog"]
    assert targets.boxes[0].tolist() == [0, 0, 1, 1]
