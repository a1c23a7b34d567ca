"""Scores of Chinese and German captions on the tokens of a tokenizer, compared with pycocoevalcap."""

import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.caption_scores import measure
from showattendtell.metrics.tokenizers import split_sentences

CAPTIONS = {
    "zh": [
        ["一个女人躺在海水里。", "海里有一个女人。"],
        ["两只狗在草地上玩耍。", "草地上有两只狗"],
        ["一男人在水上划船。", "划船的男人"],
    ],
    "de": [
        ["Ein Mädchen läuft.", "Das Mädchen läuft schnell."],
        ["Zwei Hunde spielen.", "Hunde im Gras."],
        ["Ein Boot.", "Boot!"],
    ],
}


@pytest.mark.parametrize("language", CAPTIONS)
@pytest.mark.parametrize("tokenizer", ["words", "characters"])
def test_scores_on_the_same_tokens_are_those_of_pycocoevalcap(language: str, tokenizer: str):
    """The first caption of each image against the others."""
    said = [split_sentences(own, tokenizer) for own in CAPTIONS[language]]
    hypotheses, references = [own[0] for own in said], [own[1:] for own in said]
    panel = measure(hypotheses, references, ["bleu", "rouge_l", "cider"])
    figures = corpus_scores(panel.measured.values())
    ours = {n: [" ".join(words)] for n, words in enumerate(hypotheses)}
    theirs = {n: [" ".join(words) for words in own] for n, own in enumerate(references)}
    bleu, _ = Bleu(4).compute_score(theirs, ours, verbose=0)
    assert [figures[f"bleu{n}_with_penalty"] for n in range(1, 5)] == pytest.approx([100 * each for each in bleu])
    assert figures["rouge_l"] == pytest.approx(100 * Rouge().compute_score(theirs, ours)[0])
    assert figures["cider"] == pytest.approx(100 * Cider().compute_score(theirs, ours)[0])


def test_meteor_is_missing_for_a_script_without_spaces():
    [words] = split_sentences(CAPTIONS["zh"][0][:1], "words")
    panel = measure([words], [[words]], ["bleu", "meteor"])
    assert panel.measured.keys() == {"bleu"}
    assert "English only; these captions are in a script without spaces" in panel.missing["meteor"]


@pytest.mark.parametrize(
    ("tokenizer", "words"), [("words", "一 个 女 人 t 恤 red ball"), ("characters", "一 个 女 人 t 恤 r e d b a l l")]
)
def test_tokens_worked_by_hand(tokenizer: str, words: str):
    assert split_sentences(["一个女人。 T恤, Red ball!"], tokenizer) == [words.split()]
