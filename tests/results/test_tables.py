"""Tables of results: their cells, and valid Markdown, LaTeX and HTML; scores on the screen."""

import re
from html import unescape
from pathlib import Path

import pytest

from showattendtell.errors import UserError
from showattendtell.results.files import ModelRecord, Result
from showattendtell.results.tables import (
    ONE_IMAGE,
    ResultsTable,
    TableBlock,
    TableRow,
    TableValue,
    check_format,
    describe_intervals,
    describe_small_splits,
    format_table,
    print_attention_scores,
    print_comparison,
    print_overview,
    print_scores,
)
from showattendtell.types import Dataset, Example

HOSTILE = r"soft, root=a|b_c & 50% #1 {x} ~^\[0.5, 0.5] *_target_*"


def found(path: str, seed: int) -> Result:
    return Result(path, "coco", "test", "ab", "plain", {}, (ModelRecord("best.ckpt", "cd", seed, {}, {}),), {})


RUNS = (found("runs/soft/seed 1/results-test.json", 1), found("runs/soft/2/results-test.json", 2))

OVERVIEW = ResultsTable(
    split="test",
    columns=("bleu4", "meteor"),
    blocks=(
        TableBlock(
            "Flickr8k",
            (
                TableRow("paper: Soft-Attention", {"bleu4": TableValue(19.5), "meteor": TableValue(18.93, digits=2)}),
                TableRow("soft", {"bleu4": TableValue(18.46, 0.31)}, RUNS),
            ),
        ),
        TableBlock("COCO", (TableRow(HOSTILE, {"meteor": TableValue(23.9, 0.5, 2)}, (found("3.json", 3),)),)),
    ),
    notes=("a_b & c",),
)


def formatted(overview: ResultsTable, name: str) -> str:
    return format_table(overview, Path(name))


ESCAPED = re.compile(r"\\.")
"""A character that a backslash has made literal, or a line's end."""


def cells(line: str, mark: str) -> list[str]:
    return [cell.strip() for cell in line.split(mark)]


def test_the_screen_has_a_section_for_each_data_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "120")
    print_overview(OVERVIEW)
    printed = capsys.readouterr().out
    assert [cells(line.strip("│"), "│") for line in printed.splitlines() if line.startswith("│")] == [
        ["Flickr8k", "", "", ""],
        ["paper: Soft-Attention", "19.5", "18.93", ""],
        ["soft", "18.5", "-", "2"],
        ["", "±0.3", "", ""],
        ["COCO", "", "", ""],
        [HOSTILE, "-", "23.90", "1"],
        ["", "", "±0.50", ""],
    ]
    assert printed.splitlines()[-1] == "note: a_b & c"


def test_markdown_is_one_table_with_the_notes_below():
    lines = formatted(OVERVIEW, "a.md").splitlines()
    rows = [cells(line, " | ") for line in lines if line.startswith("| ")]
    assert rows[0] == ["| data", "model", "B-4", "METEOR", "seeds |"]
    assert rows[1] == ["| Flickr8k", "paper: Soft-Attention", "19.5", "18.93", "|"]
    assert rows[2] == ["|", "soft", "18.5 ± 0.3", "-", "2 |"]
    assert lines[1].count("---:|") == 3
    assert lines[-2:] == ["", "- a_b & c"]
    [line] = [line for line in lines if "50%" in line]
    assert r"a\|b_c & 50% #1 {x} ~^\\[0.5, 0.5] \*\_target\_\*" in line
    assert len(re.findall(r"(?<!\\)\|", line)) == 6


def test_latex_is_balanced_and_every_row_has_every_cell():
    text = formatted(OVERVIEW, "a.tex")
    bare = ESCAPED.sub("", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert text.count(r"\begin{tabular}{llrrr}") == text.count(r"\end{tabular}") == 1
    assert re.findall(r"\\(?:top|mid|bottom)rule", text) == [r"\toprule", *2 * [r"\midrule"], r"\bottomrule"]
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 4
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 4
        assert row.count(r"\\") == 1
    assert r"a|b\_c \& 50\% \#1 \{x\} \textasciitilde{}\^{}\textbackslash{}[0.5, 0.5]" in text
    assert r"18.5 $\pm$ 0.3" in text
    assert r"a\_b \& c" in text
    assert text.isascii()


def rows_of(page: str) -> list[list[str]]:
    """The text of every cell of a page, row by row."""
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr.*?</tr>", page, re.DOTALL)]
    return [[unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in rows]


def test_html_has_the_cells_of_the_columns_that_a_block_has_and_takes_no_name_for_its_own_signs():
    page = formatted(OVERVIEW, "out/a.html")
    assert rows_of(page) == [
        ["model", "B-4", "METEOR", "seeds", "runs"],
        ["paper: Soft-Attention", "19.5", "18.93", "", ""],
        ["soft", "18.5 ± 0.3", "-", "2", "soft/seed 1, soft/2"],
        ["model", "METEOR", "seeds", "runs"],
        [HOSTILE, "23.90 ± 0.50", "1", "3.json"],
    ]
    links = re.findall('(?:href|src)="([^"]*)"', page)
    assert links == ["data:,", "../runs/soft/seed%201", "../runs/soft/2", ".."]
    assert "<script" not in formatted(OVERVIEW._replace(notes=("<script>x</script>",)), "a.html")


def test_a_file_of_another_suffix_is_refused():
    for suffix in (".md", ".tex", ".html"):
        check_format(Path(f"table{suffix}"))
    for file in ("table.csv", "table", ".md"):
        with pytest.raises(UserError, match=f"cannot be written as {file}; give output a file with the suffix .md"):
            check_format(Path(file))


def test_an_ensemble_has_the_seeds_of_its_models_and_several_the_number_that_the_deviation_is_of():
    models = tuple(ModelRecord("best.ckpt", "cd", seed, {}, {}) for seed in (1, 1, 2))
    together = found("1.json", 1)._replace(models=models)
    rows = (
        TableRow("one", {"bleu4": TableValue(20)}, (together,)),
        TableRow("three", {"bleu4": TableValue(20, 1.0)}, (together,) * 3),
    )
    table = formatted(ResultsTable("test", ("bleu4",), (TableBlock("Flickr8k", rows),), ()), "a.md")
    cells = [line.split("|") for line in table.splitlines() if line.startswith("|")]
    assert [line[-2].strip() for line in cells if "one" in line[2] or "three" in line[2]] == ["2", "3"]


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
