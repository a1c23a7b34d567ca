"""The table of finished runs, from result files made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from results import result, write

from showattendtell.extensions.reproduction import outcome
from showattendtell.extensions.reproduction.outcome import average
from showattendtell.extensions.reproduction.tables import PaperTableConfig, RecipeConfig, TableRun
from showattendtell.metrics.bootstrap import ImageMeans, compare, draw_copies, resample
from showattendtell.visualization.comparison import paper_rows
from showattendtell.visualization.tables import ResultsTable, TableInterval, TableValue

TABLE = PaperTableConfig(
    name="flickr8k",
    folder="flickr8k",
    recipes={
        "nic": RecipeConfig(["decoder=nic"]),
        "soft": RecipeConfig(["attention=soft"]),
        "dot": RecipeConfig(["attention=dot"]),
    },
    base="soft",
    pages=["soft"],
    seeds=[1, 2],
    decodings=[1, 3],
    ensembles={"soft_ensemble": "soft"},
)
REFERENCES = {
    "1.jpg": ["a dog runs over the green grass", "the dog runs on grass"],
    "2.jpg": ["two men play football on a field", "men in red play a game"],
    "3.jpg": ["a child climbs up the old stairs", "a child on the stairs"],
}
GOOD = {image: said[0] for image, said in REFERENCES.items()}
POOR = dict.fromkeys(REFERENCES, "a man on the grass")


@pytest.fixture(autouse=True)
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "METRICS", ("bleu", "rouge_l"))


@pytest.fixture
def results_table(tmp_path: Path) -> Any:
    """The overview of runs, given by recipe and seed with the BLEU-4 and the captions of beam 3."""

    def build(finished: dict[tuple[str, int], tuple[float, dict[str, str]]], *more: TableRun) -> ResultsTable | None:
        runs = []
        for (recipe, seed), (bleu4, captions) in finished.items():
            run = TableRun(recipe, seed, tmp_path / f"{recipe}/{seed}", (1, 3), False, config=OmegaConf.create())
            for beam, lost in ((1, 2.0), (3, 0.0)):
                decoding = {"method": "BeamSearch", "beam_size": beam}
                changes = {"decoding": decoding, "bleu4": bleu4 - lost, "captions": captions, "references": REFERENCES}
                changes |= {"checkpoint": str(run.best), "training_minutes": 12.0}
                write(result(seed=seed, **changes), run.result_file(beam))
            runs.append(run)
        return outcome.make_table(TABLE, [*runs, *more], ["a note"])

    return build


def rows(overview: ResultsTable, block: int = 0) -> list[str]:
    return [row.label for row in overview.blocks[block].rows]


def test_recipes_are_rows_below_the_papers_rows(results_table: Any):
    assert results_table({}) is None
    overview = results_table({("nic", 1): (10, POOR), ("soft", 1): (20, GOOD), ("dot", 1): (15, POOR)})
    published = paper_rows("flickr8k")
    assert overview.blocks[0].rows[: len(published)] == tuple(published)
    shown = [f"{name}, beam {beam}" for name in ("nic", "soft", "dot") for beam in (1, 3)]
    assert rows(overview)[len(published) :] == shown


def test_seeds_become_a_mean_with_its_deviation_and_all_columns_that_there_are(results_table: Any):
    overview = results_table({("soft", 1): (20, GOOD), ("soft", 2): (22, GOOD)})
    [row] = [row for row in overview.blocks[0].rows if row.label == "soft, beam 3"]
    assert row.figures["bleu4"] == TableValue(21.0, pytest.approx(2**0.5))
    assert overview.columns == ("bleu1", "bleu2", "bleu3", "bleu4", "training_minutes")


def test_others_are_held_against_the_base_and_the_base_against_its_own_other_widths(results_table: Any):
    overview = results_table({("soft", 1): (20, GOOD), ("soft", 2): (20, GOOD), ("dot", 1): (15, POOR)})
    assert overview.blocks[1].title == "differences to soft, beam 3"
    assert rows(overview, 1) == ["soft, beam 1", "dot, beam 3"]
    narrow, dot = (row.figures for row in overview.blocks[1].rows)
    assert narrow["bleu4"] == TableInterval(0, 0, 0)
    assert dot["bleu1"].difference < dot["bleu1"].high < 0
    assert dot["bleu4"] == TableInterval(pytest.approx(-100), pytest.approx(-100), pytest.approx(-100))
    assert any(note.startswith("differences: ") for note in overview.notes)


def test_an_ensemble_is_a_row_without_deviations_below_the_recipes(results_table: Any, tmp_path: Path):
    part = TableRun("soft", 1, tmp_path / "deleted", (1, 3), False)
    ensemble = TableRun("soft_ensemble", None, tmp_path / "soft_ensemble/1", (1, 3), False, [part])
    for beam in ensemble.decodings:
        changes = {"decoding": {"method": "BeamSearch", "beam_size": beam}, "captions": GOOD, "references": REFERENCES}
        write(result(checkpoint=str(part.best), bleu4=23.0, **changes), ensemble.result_file(beam))
    finished = {("soft", 1): (20, GOOD), ("soft", 2): (21, GOOD), ("dot", 1): (15, POOR)}
    overview = results_table(finished, ensemble)
    assert rows(overview)[-2:] == ["soft_ensemble, beam 1", "soft_ensemble, beam 3"]
    assert overview.blocks[0].rows[-1].figures["bleu4"] == TableValue(23.0)
    assert rows(overview, 1)[-1] == "soft_ensemble, beam 3"


def test_the_interval_of_a_mean_over_seeds_is_that_of_the_images_mean_scores():
    """Of a metric that is a mean over images: the mean of two systems is the system of their mean scores."""
    generator = np.random.default_rng(0)
    first, second, other = (ImageMeans("score", scores) for scores in generator.normal(50, 10, (3, 20)))
    together = ImageMeans("score", (first.by_image + second.by_image) / 2)
    copies = draw_copies(20, 200, seed=1)
    one, two, base, mean = (resample({"score": system}, copies) for system in (first, second, other, together))
    assert compare(base, average([one, two]))["score"] == pytest.approx(compare(base, mean)["score"])


def test_a_mean_over_seeds_has_the_figures_that_all_have():
    copies = draw_copies(2, 10, seed=1)
    whole = resample({"a": ImageMeans("a", np.ones(2)), "b": ImageMeans("b", np.ones(2))}, copies)
    part = resample({"a": ImageMeans("a", np.zeros(2))}, copies)
    together = average([whole, part])
    assert together.keys() == {"a"}
    assert (together["a"] == 0.5).all()
