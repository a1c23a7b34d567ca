"""Which results are one row, what their rows are called, and what their figures are."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repository import SHARED
from small_results import ensemble, result, write

from showattendtell.results.comparison import COLUMNS, DATASETS, compare, paper_rows
from showattendtell.results.files import find_results
from showattendtell.results.tables import ResultsTable, TableValue

MODEL_PAGE = SHARED / "spec" / "model.md"


@pytest.fixture
def compared(tmp_path: Path) -> Any:
    """Results as contents, compared in their order."""

    def run(*contents: dict[str, Any], columns: tuple[str, ...] = COLUMNS, with_paper: bool = False) -> ResultsTable:
        files = [write(content, tmp_path / f"{n:02}/results-test.json") for n, content in enumerate(contents)]
        return compare(find_results(list(map(str, files)), "test"), columns, with_paper)

    return run


def labels(overview: ResultsTable) -> list[str]:
    return [row.label for block in overview.blocks for row in block.rows]


def test_seeds_are_one_row_with_their_mean_and_deviation(compared: Any):
    bleu4 = [18.5, 18.2, 18.9]
    [block] = compared(*(result(seed=seed, bleu4=figure) for seed, figure in enumerate(bleu4))).blocks
    [row] = block.rows
    assert len(row.results) == 3
    assert row.figures["bleu4"].mean == pytest.approx(np.mean(bleu4))
    assert row.figures["bleu4"].deviation == pytest.approx(np.std(bleu4, ddof=1))
    assert str(row.figures["bleu4"]) == "18.5 ± 0.4"


def test_runs_that_differ_in_places_are_one_row(compared: Any, tmp_path: Path):
    settings = {"cache": "elsewhere", "dataset.root": "/disk/flickr8k", "dataset.entities": "boxes.zip"}
    settings |= {"logger": {"project": "captions"}, "data": {"num_workers": 4}, "trainer": {"accelerator": "gpu"}}
    overview = compared(result(seed=1), result(seed=2, settings=settings))
    assert labels(overview) == [tmp_path.name]
    assert not overview.notes


HARD = {"choices": {"attention": "hard"}, "settings": {"attention._target_": "Hard"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"optimizer.lr": 0.01}},
        {"settings": {"encoder.mean": [0]}},
        {"settings": {"attention.gate": None}},
        {"settings": {"decoding.beam_size": 5}},
        {"checkpoint": "runs/last.ckpt"},
        {"tokenizer": "ptb"},
        {"choices": {"average_of": "2"}},
        {"split_sha256": "cd" * 32},
        HARD,
    ],
)
def test_results_that_differ_in_more_than_the_seed_are_two_rows(compared: Any, changes: dict[str, Any]):
    assert len(set(labels(compared(result(seed=1), result(seed=2, **changes))))) == 2


def test_an_ensemble_is_a_row_of_its_own(compared: Any):
    together = [result(), ensemble(result(), result(seed=2)), ensemble(result(), result(**HARD))]
    assert labels(compared(*together)) == ["00", "01", "02"]


def test_seeds_of_a_second_stage_are_one_row_though_each_began_with_a_folder_of_its_own(tmp_path: Path):
    for name in ("soft", "distilled"):
        for seed in (1, 2):
            started = result(seed=seed, settings={"init_from": f"runs/{name}/{seed}/best.ckpt"})
            write(started, tmp_path / f"{name}_cider/{seed}/results-test.json")
    write(result(settings={"init_from": 5}), tmp_path / "altered/1/results-test.json")
    overview = compare(find_results([str(tmp_path)], "test"), COLUMNS, with_paper=False)
    assert labels(overview) == ["altered/1", "distilled_cider", "soft_cider"]


def test_rows_are_named_by_their_folders_and_by_decoding_and_tokenizer(tmp_path: Path):
    for seed in (1, 2):
        write(result(seed=seed), tmp_path / f"runs/mine/{seed}/results-a.json")
        write(result(seed=seed, tokenizer="ptb"), tmp_path / f"runs/mine/{seed}/results-b.json")
        changed = result(seed=seed, tokenizer="ptb", settings={"optimizer.lr": seed})
        write(changed, tmp_path / f"rates/{seed}/results-c.json")
    mine, rates = str(tmp_path / "runs/mine"), str(tmp_path / "rates")
    assert sorted(labels(compare(find_results([mine, rates], "test"), COLUMNS, with_paper=False))) == [
        *(f"rates/{seed}, tokenizer=ptb" for seed in (1, 2)),
        *("runs/mine, tokenizer=plain", "runs/mine, tokenizer=ptb"),
    ]


def test_rows_whose_files_are_in_one_folder_are_named_by_the_files(tmp_path: Path):
    files = [write(result(seed=1, settings={"optimizer.lr": n}), tmp_path / f"{n}.json") for n in (1, 2)]
    overview = compare(find_results(list(map(str, files)), "test"), COLUMNS, with_paper=False)
    assert labels(overview) == ["1.json", "2.json"]


def test_a_checkpoint_that_was_scored_twice_counts_once(compared: Any):
    same = result(checkpoint_sha256="weights", bleu4=20.0)
    copied = {**same, "checkpoint": "copies/best.ckpt"}
    [[row]] = [block.rows for block in compared(same, copied).blocks]
    assert row.figures["bleu4"] == TableValue(20.0)
    assert len(row.results) == 1


def test_a_seed_that_was_trained_twice_is_noted(compared: Any):
    runs = [result(seed=1, checkpoint_sha256=weights) for weights in ("first", "again")]
    [note] = compared(*runs).notes
    assert note.endswith(": 2 runs share 1 seeds")


def test_a_figure_that_one_of_the_runs_lacks_is_left_out_and_noted(compared: Any):
    overview = compared(result(seed=1, meteor=19.0), result(seed=2))
    [[row]] = [block.rows for block in overview.blocks]
    assert row.figures.keys() == {"bleu1", "bleu2", "bleu3", "bleu4"}
    [note] = overview.notes
    assert re.fullmatch(r"Flickr8k: .*: METEOR is missing in .*01/results-test.json; evaluate it again", note)


def test_what_cannot_be_compared_is_noted_for_its_data_set(compared: Any, tmp_path: Path):
    shapes = [result(dataset="shapes-1a", split_sha256=sha * 32) for sha in ("ab", "cd")]
    overview = compared(result(), result(tokenizer="ptb"), *shapes)
    assert [note.partition(";")[0] for note in overview.notes] == [
        "Flickr8k: words were split in different ways (tokenizer is plain, ptb)",
        f"shapes-1a: the images or captions are not the same (in {tmp_path.name}/02, {tmp_path.name}/03)",
    ]


def test_scores_on_another_split_than_the_papers_are_noted(compared: Any):
    overview = compared(result(), result(images=809, seed=2, split_sha256="cd" * 32), with_paper=True)
    label = overview.blocks[0].rows[-1].label
    assert f"Flickr8k: {label}: 809 images, not the 1,000 of the paper's split; do not compare them" in overview.notes
    assert sum("paper's split" in note for note in overview.notes) == 1


def test_the_papers_rows_come_first_for_the_data_sets_at_hand(compared: Any):
    overview = compared(result(dataset="shapes-1a"), result(dataset="birds"), result(), with_paper=True)
    assert [block.title for block in overview.blocks] == ["birds", "Flickr8k", "shapes-1a"]
    assert labels(overview) == [
        "01",
        "paper: Google NIC (other split, ensemble)",
        "paper: Log Bilinear",
        "paper: Soft-Attention",
        "paper: Hard-Attention",
        "02",
        "00",
    ]
    google, _, soft, *_ = overview.blocks[1].rows
    assert {name: str(figure) for name, figure in soft.figures.items()} == dict(
        zip(COLUMNS, ["67", "44.8", "29.9", "19.5", "18.93"], strict=True)
    )
    assert google.figures.keys() == {"bleu1", "bleu2", "bleu3"}
    assert overview.notes[0].startswith("paper: Table 1 of Xu et al. 2015")


@pytest.mark.skipif(not MODEL_PAGE.is_file(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_papers_rows_are_those_of_the_specification():
    lines = MODEL_PAGE.read_text().partition("Table 1")[2].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    printed = []
    for dataset in DATASETS:
        for row in paper_rows(dataset):
            figures = [str(row.figures.get(column, "-")) for column in COLUMNS]
            printed.append([row.label.removeprefix("paper: "), *figures])
    assert printed == [cells for _, *cells in table]
