import json
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from repository import SHARED

from showattendtell.errors import UserError
from showattendtell.metrics.tokenizers import PTBTokenizer
from showattendtell.readers.flickr import read_flickr8k
from showattendtell.text.tokenizers import (
    CharacterTokenizer,
    PlainTokenizer,
    SubwordTokenizer,
    Tokenizer,
    WhitespaceTokenizer,
    WordTokenizer,
    describe_unspaced,
    tokenize,
)
from showattendtell.text.vocabulary import EOS, SPECIAL, UNK, Vocabulary, tokenized, train_tokenizer
from showattendtell.types import Box, Caption, Dataset, Example, Phrase, fingerprint


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("A child in a pink dress .", "a child in a pink dress"),
        ("A dog 's T-shirt , torn .", "a dog s tshirt torn"),
        ("Don't \u201clook\u201d \u2018now\u2019\u2026", "dont look now"),
        ("2 dogs & 10 cats (all wet!)", "2 dogs 10 cats all wet"),
        ("  a\tman\u00a0runs \n", "a man runs"),
        ("Ein CAFÉ für Zoë", "ein café für zoë"),
        ("mother/daughter under_score", "motherdaughter underscore"),
    ],
)
def test_sentences_split_by_hand(sentence: str, words: str):
    assert tokenize(sentence) == tuple(words.split())


WORDS = {
    "Ein kleines Mädchen, dog's T-shirt; 3,000 U.S.": "ein kleines mädchen dog's t shirt 3,000 u.s",
    "一个女人躺在海水里。T恤 30个": "一 个 女 人 躺 在 海 水 里 t 恤 30 个",
    "ילד רץ בפארק.": "ילד רץ בפארק",
    "ولد يركض في الحديقة!": "ولد يركض في الحديقة",
    "犬がボールで遊ぶ": "犬 が ボール で 遊 ぶ",
    "e\u0301te\u0301 \u0007 ok": "été ok",
    "... 😀 —": "",
}


@pytest.mark.parametrize(("sentence", "words"), WORDS.items())
def test_unicode_words_split_by_hand(sentence: str, words: str):
    assert WordTokenizer().tokenize(sentence) == tuple(words.split())


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (["ein", "mädchen", "im", "kleid"], "ein mädchen im kleid"),
        (["一", "个", "女", "人"], "一个女人"),
        (["t", "恤", "30", "个", "red", "ball"], "t恤30个red ball"),
        ([], ""),
    ],
)
def test_words_are_joined_without_spaces_where_the_script_has_none(tokens: list[str], sentence: str):
    assert WordTokenizer().detokenize(tokens) == sentence


def test_a_character_is_a_letter_with_its_accents():
    tokens = CharacterTokenizer().tokenize("Ha\u030a नि!")
    assert tokens == ("H", "å", "▁", "नि", "!")
    assert CharacterTokenizer().detokenize(tokens) == "Hå नि!"


MERGES = ["low low low low low lower lower newest newest newest newest newest newest widest widest widest"]
"""The example of Sennrich et al. 2016."""


def subword(sentences: list[str], size: int) -> SubwordTokenizer:
    tokenizer = SubwordTokenizer()
    tokenizer.train(sentences, size)
    return tokenizer


def test_the_state_is_what_hugging_faces_package_reads():
    tokenizer = subword(MERGES, 40)
    other = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.state()))
    for sentence in ("lowest newer widest", "low"):
        encoded = other.encode(sentence)
        assert tuple(encoded.tokens) == tokenizer.tokenize(sentence)
        assert other.decode(encoded.ids) == sentence
    restored = SubwordTokenizer()
    restored.load_state(tokenizer.state())
    assert restored.tokenize("lowest newer") == tokenizer.tokenize("lowest newer")
    assert restored.state() == tokenizer.state()


@pytest.mark.parametrize("tokenizer", [WordTokenizer(), CharacterTokenizer(), subword([*WORDS], 80)])
@pytest.mark.parametrize("sentence", WORDS)
def test_the_parts_of_a_sentence_join_to_it(tokenizer: Tokenizer, sentence: str):
    tokens = tokenizer.tokenize(sentence)
    assert len(tokenizer.parts(tokens)) == len(tokens)
    assert "".join(tokenizer.parts(tokens)) == tokenizer.detokenize(tokens)


def test_what_else_a_state_holds_is_ignored():
    """A regular expression that takes exponential time."""
    state = subword(MERGES, 30).state()
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = SubwordTokenizer()
    tokenizer.load_state({**state, "pre_tokenizer": pattern, "normalizer": pattern, "decoder": None})
    assert tokenizer.state() == state


def captions_of(language: str) -> list[str]:
    file = SHARED / f"languages/flickr8k-{language}.token.txt"
    if not file.exists():
        pytest.skip(f"needs {file}")
    return [line.partition("\t")[2] for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("language", ["zh", "de"])
def test_real_captions_survive_the_round_trip(language: str):
    sentences = captions_of(language)[::20]
    plain = [" ".join(unicodedata.normalize("NFC", sentence).split()) for sentence in sentences]
    for tokenizer in (CharacterTokenizer(), subword(sentences, 5000)):
        assert [tokenizer.detokenize(tokenizer.tokenize(sentence)) for sentence in sentences] == plain


def test_the_words_of_chinese_captions_are_their_characters():
    """Han characters by their names in Unicode."""
    for sentence in captions_of("zh")[:1000]:
        han = [one for one in sentence if unicodedata.name(one, "").startswith("CJK UNIFIED")]
        words = WordTokenizer().tokenize(sentence)
        assert [word for word in words if unicodedata.name(word[0], "").startswith("CJK UNIFIED")] == han


CAPTIONS = [["dog", "runs", "fast"], ["dog", "runs"], ["cat", "sits"], ["dog", "eats"]]
"""dog 3, runs 2, then cat, eats, fast and sits once each: 9 running words."""


def test_common_words_come_first_and_ties_in_alphabetical_order():
    assert Vocabulary.build(CAPTIONS, size=8).words == (*SPECIAL, "dog", "runs", "cat", "eats")


def test_encoding_worked_by_hand():
    vocabulary = Vocabulary.build(CAPTIONS, size=7)
    assert vocabulary.encode(["dog", "eats", "cat"]) == [4, UNK, 6, EOS]
    assert vocabulary.encode([]) == [EOS]


@pytest.mark.parametrize("word", SPECIAL)
def test_special_words_in_a_caption_are_unknown(word: str):
    """A `<pad>` would hide the words behind it, and an `<eos>` or `<start>` is no word that a caption has."""
    assert Vocabulary([*SPECIAL, "dog"]).encode(["dog", word, "dog"]) == [4, UNK, 4, EOS]


def test_coverage_is_the_share_of_running_words():
    assert Vocabulary.build(CAPTIONS, size=6).coverage(CAPTIONS) == pytest.approx(5 / 9)
    assert Vocabulary.build(CAPTIONS, size=10).coverage(CAPTIONS) == 1
    assert Vocabulary.build(CAPTIONS, size=10).coverage([["zebra"]]) == 0


@pytest.mark.parametrize("size", [4, 0, -1])
def test_a_size_without_room_for_words_is_reported(size: int):
    with pytest.raises(UserError, match=f"above 4, got {size}"):
        Vocabulary.build(CAPTIONS, size)


UNSPACED = {
    "Chinese": (["一只狗在跑。", "两只狗 在玩。"], True),
    "Japanese": (["犬が走っている。", "a dog", "猫です。"], True),
    "Thai": (["ผู้ชายกำลังวิ่ง บนชายหาด"], True),
    "segmented": (["一 只 狗 在 跑", "两 只 狗"], False),
    "Korean": (["개가 달린다"], False),
    "English": (["A dog", "狗"], False),
    "none": ([], False),
}


@pytest.mark.parametrize("script", UNSPACED)
def test_captions_without_spaces_are_noticed_by_tokenizers_that_need_them(script: str):
    sentences, expected = UNSPACED[script]
    note = ["captions in a script without spaces are one word each; set tokenizer=words"]
    for tokenizer in (PlainTokenizer(), WhitespaceTokenizer, PTBTokenizer):
        assert describe_unspaced(sentences, tokenizer) == (note if expected else [])
    for tokenizer in (WordTokenizer(), CharacterTokenizer, SubwordTokenizer()):
        assert describe_unspaced(sentences, tokenizer) == []


SENTENCES = {"a.jpg": "一只狗在跑。", "b.jpg": "左边有一个女孩。", "c.jpg": "一个男人。", "d.jpg": "一只猫。"}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Flickr8k with four photographs and Chinese captions, in the layout of Flickr8k-CN, that are in another folder."""
    root, others = tmp_path / "flickr8k", tmp_path / "others"
    (root / "images").mkdir(parents=True)
    others.mkdir()
    for name in SENTENCES:
        (root / "images" / name).touch()
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


ODD = 'A merry-go-round -- "adults" in T-shirts'


@pytest.mark.parametrize(
    "tokenizer", [WordTokenizer(), CharacterTokenizer(), WhitespaceTokenizer(), subword([ODD], 40)], ids=type
)
def test_phrases_behind_a_word_of_several_tokens_keep_their_nouns(tokenizer: Tokenizer):
    nouns = [Phrase(noun, (Box(0, 0, 1, 1),)) for noun in (1, 2, 4)]
    caption = Caption(("a", "merrygoround", "adults", "in", "tshirts"), tuple(nouns), ODD)
    [example] = tokenized(Dataset("", {"train": (Example("", "", (caption,)),)}), tokenizer).split("train")
    [changed] = example.captions
    for phrase, word in zip(changed.phrases, ("merry", "adults", "t"), strict=True):
        rest = tokenizer.detokenize(changed.words[phrase.noun :])
        assert rest.lower().lstrip('"').startswith(word)


def test_captions_that_were_not_written_down_are_their_words():
    dataset = Dataset("dogs", {"train": (Example("a.jpg", "a.jpg", (Caption(("a", "dog")),) * 9),)})
    tokenizer = SubwordTokenizer()
    assert train_tokenizer(tokenizer, dataset, 20)[0] == tokenizer.tokenize("a dog") != ()
