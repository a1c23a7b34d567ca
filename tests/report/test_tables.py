import pytest

from showattendtell.metrics.gaze import Gaze, Score
from showattendtell.records import Dataset
from showattendtell.report.results import gaze_figures
from showattendtell.report.tables import print_gaze, print_notes

GAZE = Gaze(
    model=Score(0.75, 0.5, 1200),
    uniform=Score(0.25, 0.125, 1200),
    centre=Score(0.5, 0.3, 1200),
    by_kind={"people": Score(0.8, 0.6, 1000), "animals": Score(0.5, 0.0, 200)},
)


def rows(printed: str) -> list[list[str]]:
    """The cells of a printed table, line by line."""
    lines = [line.strip("│ ").split("│") for line in printed.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line] for line in lines]


def test_the_gaze_table_puts_the_model_beside_the_baselines(capsys: pytest.CaptureFixture[str]):
    print_gaze(GAZE, "where it looks")
    assert rows(capsys.readouterr().out) == [
        ["model", "1,200", "75.0", "50.0"],
        ["uniform", "1,200", "25.0", "12.5"],
        ["centre prior", "1,200", "50.0", "30.0"],
    ]


def test_the_gaze_table_has_a_row_for_every_kind_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]):
    print_gaze(GAZE, "where it looks", with_kinds=True)
    assert rows(capsys.readouterr().out)[3:] == [
        ["model: people", "1,000", "80.0", "60.0"],
        ["model: animals", "200", "50.0", "0.0"],
    ]


def test_result_files_have_the_gaze_in_percent():
    assert gaze_figures(GAZE) == {
        "pointing_game": 75,
        "attention_correctness": 50,
        "pointing_game_words": 1200,
        "attention_baselines": {
            "uniform": {"pointing_game": 25, "attention_correctness": 12.5},
            "centre": {"pointing_game": 50, "attention_correctness": 30},
        },
        "attention_by_kind": {
            "people": {"pointing_game": 80, "attention_correctness": 60, "pointing_game_words": 1000},
            "animals": {"pointing_game": 50, "attention_correctness": 0, "pointing_game_words": 200},
        },
    }


def test_notes_are_printed_a_line_each(capsys: pytest.CaptureFixture[str]):
    print_notes(Dataset("photographs", {}, ("one was left out", "two were not")))
    assert capsys.readouterr().out.splitlines() == ["note: one was left out", "note: two were not"]
