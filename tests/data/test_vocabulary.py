import pytest

from showattendtell.data.vocabulary import EOS, PAD, SPECIAL, UNK, Vocabulary
from showattendtell.errors import UserError

CAPTIONS = [["dog", "runs", "fast"], ["dog", "runs"], ["cat", "sits"], ["dog", "eats"]]
"""dog 3, runs 2, then cat, eats, fast and sits once each: 9 running words."""


def test_common_words_come_first_and_ties_in_alphabetical_order():
    assert Vocabulary.build(CAPTIONS, size=8).words == (*SPECIAL, "dog", "runs", "cat", "eats")


@pytest.mark.parametrize(("size", "expected"), [(5, 5), (9, 9), (10, 10), (10_000, 10)])
def test_size_counts_the_special_words_and_is_an_upper_bound(size: int, expected: int):
    assert len(Vocabulary.build(CAPTIONS, size)) == expected


def test_encoding_worked_by_hand():
    vocabulary = Vocabulary.build(CAPTIONS, size=7)
    assert vocabulary.encode(["dog", "eats", "cat"]) == [4, UNK, 6, EOS]
    assert vocabulary.encode([]) == [EOS]


def test_decoding_stops_at_the_first_eos():
    vocabulary = Vocabulary.build(CAPTIONS, size=7)
    assert vocabulary.decode([4, UNK, 6, EOS, 5, EOS, PAD]) == ["dog", "<unk>", "cat"]
    assert vocabulary.decode([4, 5]) == ["dog", "runs"]


def test_known_captions_survive_the_round_trip():
    vocabulary = Vocabulary.build(CAPTIONS, size=10)
    assert [vocabulary.decode(vocabulary.encode(caption)) for caption in CAPTIONS] == CAPTIONS


def test_coverage_is_the_share_of_running_words():
    assert Vocabulary.build(CAPTIONS, size=6).coverage(CAPTIONS) == pytest.approx(5 / 9)
    assert Vocabulary.build(CAPTIONS, size=10).coverage(CAPTIONS) == 1
    assert Vocabulary.build(CAPTIONS, size=10).coverage([["zebra"]]) == 0


@pytest.mark.parametrize("size", [4, 0, -1])
def test_a_size_without_room_for_words_is_reported(size: int):
    with pytest.raises(UserError, match=f"above 4, got {size}"):
        Vocabulary.build(CAPTIONS, size)


def test_a_vocabulary_begins_with_the_special_words():
    with pytest.raises(ValueError, match=r"begins with .*, got \('dog', 'cat'\)"):
        Vocabulary(["dog", "cat"])


def test_a_vocabulary_holds_each_word_once():
    with pytest.raises(ValueError, match="each word once"):
        Vocabulary([*SPECIAL, "dog", "dog"])
