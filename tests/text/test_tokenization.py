from pathlib import Path

import pytest
from PIL import Image

from showattendtell.readers.flickr import read_flickr8k
from showattendtell.text.tokenizers import (
    CharacterTokenizer,
    PlainTokenizer,
    SubwordTokenizer,
    Tokenizer,
    WhitespaceTokenizer,
    WordTokenizer,
)
from showattendtell.text.vocabulary import EOS, SPECIAL, UNK, Vocabulary, tokenized, train_tokenizer
from showattendtell.types import Box, Caption, Dataset, Example, Phrase, fingerprint

SENTENCES = {"a.jpg": "一只狗在跑。", "b.jpg": "左边有一个女孩。", "c.jpg": "一个男人。", "d.jpg": "一只猫。"}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Flickr8k with four photographs and Chinese captions, in the layout of Flickr8k-CN, that are in another folder."""
    root, others = tmp_path / "flickr8k", tmp_path / "others"
    (root / "images").mkdir(parents=True)
    others.mkdir()
    for name in SENTENCES:
        Image.new("RGB", (8, 8)).save(root / "images" / name)
    for split, names in {"train": "a.jpg\nb.jpg", "dev": "c.jpg", "test": "d.jpg"}.items():
        (root / f"Flickr_8k.{split}Images.txt").write_text(names)
    chinese = "".join(f"{Path(name).stem}#zhc#0 {said}\n" for name, said in SENTENCES.items())
    (others / "flickr8kzhc.caption.txt").write_text(chinese, encoding="utf-8")
    return read_flickr8k(str(root), str(others / "flickr8kzhc.caption.txt"))


def test_another_tokenizer_changes_the_words_and_not_the_fingerprint(dataset: Dataset):
    assert {split: [example.image for example in part] for split, part in dataset.splits.items()} == {
        "train": ["a.jpg", "b.jpg"],
        "val": ["c.jpg"],
        "test": ["d.jpg"],
    }
    split = tokenized(dataset, WordTokenizer())
    assert split.split("test")[0].captions[0].words == ("一", "只", "猫")
    assert fingerprint(split.examples()) == fingerprint(dataset.examples())
    assert tokenized(dataset, PlainTokenizer()) is dataset


@pytest.mark.parametrize(("noun", "token"), [(1, "▁do"), (3, "▁b")])
def test_a_phrase_is_at_the_first_token_of_its_noun(noun: int, token: str):
    """Words of a plain caption: a, dog, , , red, ball."""
    tokenizer = SubwordTokenizer()
    tokenizer.train(["A do"] * 9 + ["b all"], 14)
    caption = Caption(("a", "dog", "red", "ball"), (Phrase(noun, (Box(0, 0, 1, 1),)),), "A dog, red ball")
    [example] = tokenized(Dataset("", {"train": (Example("", "", (caption,)),)}), tokenizer).split("train")
    [changed] = example.captions
    assert changed.words[changed.phrases[0].noun] == token


@pytest.mark.parametrize("tokenizer", [WordTokenizer(), CharacterTokenizer(), WhitespaceTokenizer()], ids=type)
def test_phrases_behind_a_word_of_several_tokens_keep_their_nouns(tokenizer: Tokenizer):
    written = 'A merry-go-round -- "adults" in T-shirts'
    nouns = [Phrase(noun, (Box(0, 0, 1, 1),)) for noun in (1, 2, 4)]
    caption = Caption(("a", "merrygoround", "adults", "in", "tshirts"), tuple(nouns), written)
    [example] = tokenized(Dataset("", {"train": (Example("", "", (caption,)),)}), tokenizer).split("train")
    [changed] = example.captions
    for phrase, word in zip(changed.phrases, ("merry", "adults", "t"), strict=True):
        rest = tokenizer.detokenize(changed.words[phrase.noun :])
        assert rest.lower().lstrip('"').startswith(word)


def test_a_vocabulary_has_the_tokens_of_the_training_captions(dataset: Dataset):
    tokenizer = WordTokenizer()
    vocabulary = Vocabulary.build(train_tokenizer(tokenizer, dataset, 100), 100, tokenizer)
    tokens = vocabulary.encode(["狗", "猫"])
    assert tokens == [vocabulary.ids["狗"], UNK, EOS]
    assert vocabulary.decode(tokens) == ["狗", "<unk>"]
    assert vocabulary.text([vocabulary.ids["一"], vocabulary.ids["狗"], EOS, vocabulary.ids["狗"]]) == "一狗"


def test_a_tokenizer_that_decides_on_its_tokens_gives_the_vocabulary():
    tokenizer = SubwordTokenizer()
    tokenizer.train(["a dog"], 20)
    assert tokenizer.tokens is not None
    assert Vocabulary.build([], 30, tokenizer).words == (*SPECIAL, *tokenizer.tokens)


def test_captions_that_were_not_written_down_are_their_words():
    dataset = Dataset("dogs", {"train": (Example("a.jpg", "a.jpg", (Caption(("a", "dog")),) * 9),)})
    tokenizer = SubwordTokenizer()
    assert train_tokenizer(tokenizer, dataset, 20)[0] == tokenizer.tokenize("a dog") != ()
