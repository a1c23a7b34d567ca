from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from showattendtell.data.custom import read_custom
from showattendtell.data.flickr import read_flickr8k
from showattendtell.data.languages import in_language, languages_of, tokenized, train_tokenizer
from showattendtell.data.tokenizers import (
    CharacterTokenizer,
    PlainTokenizer,
    SubwordTokenizer,
    Tokenizer,
    WhitespaceTokenizer,
    WordTokenizer,
)
from showattendtell.data.vocabulary import EOS, SPECIAL, UNK, Vocabulary
from showattendtell.errors import UserError
from showattendtell.types import Box, Caption, Dataset, Example, Phrase, fingerprint

ENGLISH = {"a.jpg": "A dog runs.", "b.jpg": "A girl on the left.", "c.jpg": "A man.", "d.jpg": "A cat."}
GERMAN = {"a.jpg": "Ein Hund läuft.", "b.jpg": "Ein Mädchen links.", "d.jpg": "Eine Katze."}
CHINESE = {"a.jpg": "一只狗在跑。", "b.jpg": "左边有一个女孩。", "c.jpg": "一个男人。", "d.jpg": "一只猫。"}

Read = Callable[..., Dataset]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Flickr8k with four photographs, and its captions in three languages; some in the layouts of their publishers."""
    root, others = tmp_path / "flickr8k", tmp_path / "others"
    (root / "images").mkdir(parents=True)
    others.mkdir()
    for name in ENGLISH:
        Image.new("RGB", (8, 8)).save(root / "images" / name)
    for split, names in {"train": "a.jpg\nb.jpg", "dev": "c.jpg", "test": "d.jpg"}.items():
        (root / f"Flickr_8k.{split}Images.txt").write_text(names)
    (root / "Flickr8k.token.txt").write_text("".join(f"{name}#0\t{said}\n" for name, said in ENGLISH.items()))
    german = "".join(f"{name}#0\t{said}\n" for name, said in GERMAN.items())
    (root / "german.txt").write_text(german, encoding="utf-8")
    chinese = "".join(f"{Path(name).stem}#zhc#0 {said}\n" for name, said in CHINESE.items())
    (others / "flickr8kzhc.caption.txt").write_text(chinese, encoding="utf-8")
    files = {"en": "Flickr8k.token.txt", "de": "german.txt", "zh": str(others / "flickr8kzhc.caption.txt")}

    def read(*languages: str, **settings: bool) -> Dataset:
        return read_flickr8k(str(root), {language: files[language] for language in languages}, **settings)

    return read


def written(dataset: Dataset, split: str) -> dict[str, list[tuple[str, str]]]:
    return {e.image: [(one.language, one.written) for one in e.captions] for e in dataset.splits[split]}


def test_a_caption_file_of_another_language_has_the_splits_of_english(read: Read):
    dataset = read("zh")
    assert {split: list(written(dataset, split)) for split in dataset.splits} == {
        "train": ["a.jpg", "b.jpg"],
        "val": ["c.jpg"],
        "test": ["d.jpg"],
    }
    assert written(dataset, "test") == {"d.jpg": [("zh", "一只猫。")]}
    assert languages_of(dataset.split("test")) == ("zh",)


def test_several_languages_share_their_images(read: Read):
    dataset = read("en", "de", "zh", skip_missing=True)
    assert written(dataset, "train")["a.jpg"] == [
        ("en", "A dog runs."),
        ("de", "Ein Hund läuft."),
        ("zh", "一只狗在跑。"),
    ]
    assert written(dataset, "val") == {"c.jpg": [("en", "A man."), ("zh", "一个男人。")]}
    assert "de: images with captions in other languages only: 1" in dataset.notes
    assert languages_of(dataset.examples()) == ("en", "de", "zh")
    german = in_language(dataset, "de")
    assert (list(written(german, "train")), german.splits["val"]) == (["a.jpg", "b.jpg"], ())


def test_an_image_in_different_splits_of_two_languages_is_refused(tmp_path: Path):
    for image in "abc":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{image}.png")
    for language, splits in {"en": ("train", "test", "val"), "de": ("train", "train", "val")}.items():
        rows = [f"{image}.png,some words,{split}" for image, split in zip("abc", splits, strict=True)]
        (tmp_path / f"{language}.csv").write_text("\n".join(["image,caption,split", *rows]))
    files = {"en": "en.csv", "de": "de.csv"}
    with pytest.raises(UserError, match=r"image b\.png is in test, and in de in train; give it one"):
        read_custom(str(tmp_path), files)


def test_another_tokenizer_changes_the_words_and_not_the_fingerprint(read: Read):
    plain = read("zh")
    split = tokenized(plain, WordTokenizer())
    assert split.split("test")[0].captions[0].words == ("一", "只", "猫")
    assert fingerprint(split.examples()) == fingerprint(plain.examples())
    assert tokenized(plain, PlainTokenizer()) is plain


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


def vocabulary_of(dataset: Dataset) -> Vocabulary:
    tokenizer = WordTokenizer()
    captions, languages = train_tokenizer(tokenizer, dataset, 100)
    return Vocabulary.build(captions, 100, tokenizer, languages)


def test_a_caption_begins_with_its_language_if_there_are_several(read: Read):
    vocabulary = vocabulary_of(read("en", "zh"))
    assert vocabulary.words[:6] == (*SPECIAL, "<en>", "<zh>")
    tokens = vocabulary.encode(["dog", "狗", "zebra"], "zh")
    assert tokens == [5, vocabulary.ids["dog"], vocabulary.ids["狗"], UNK, EOS]
    assert vocabulary.decode(tokens) == ["dog", "狗", "<unk>"]
    assert vocabulary.text([5, vocabulary.ids["一"], vocabulary.ids["狗"], EOS]) == "一狗"
    with pytest.raises(UserError, match="does not write 'de'; available: en, zh"):
        vocabulary.encode(["dog"], "de")


def test_a_tokenizer_that_decides_on_its_tokens_gives_the_vocabulary():
    tokenizer = SubwordTokenizer()
    tokenizer.train(["a dog"], 20)
    assert tokenizer.tokens is not None
    assert Vocabulary.build([], 30, tokenizer).words == (*SPECIAL, *tokenizer.tokens)
