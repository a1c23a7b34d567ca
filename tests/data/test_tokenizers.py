import pytest

from showattendtell.data.tokenizers import tokenize


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


@pytest.mark.parametrize("sentence", ["", "   ", "... !?", "\u2026 \u201c\u201d"])
def test_a_sentence_of_punctuation_has_no_words(sentence: str):
    assert tokenize(sentence) == ()


def test_no_caption_can_contain_the_name_of_a_special_word():
    assert tokenize("<eos> <pad> <unk>") == ("eos", "pad", "unk")
