"""Which runs a table has, how far each is, and what is refused before any begins."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from slow_cases import slow_after
from small_table import TABLE, begin, configured, finish, hash_of, write_results, written

from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build
from showattendtell.errors import UserError
from showattendtell.extensions.reproduction.runs import (
    BEGINNING,
    expected_seconds,
    finished_runs,
    make_ensembles,
    make_runs,
    note_beginning,
)
from showattendtell.extensions.reproduction.tables import RecipeConfig, quote_settings
from showattendtell.runtime.files import write_times


def test_each_recipe_is_run_with_each_seed_in_a_folder_of_its_own(made: Any, tmp_path: Path):
    runs = made(
        "recipes=[soft,hard]", "dataset.root=a folder", "settings=[decoder.hidden_dim=32,attention.score.width=8]"
    )
    assert [run.title for run in runs] == ["soft, seed 1", "soft, seed 2", "hard, seed 1", "hard, seed 2"]
    assert len({run.folder for run in runs}) == 4
    assert runs[3].folder == tmp_path / "hard/2"
    assert runs[3].arguments == (
        *("dataset=shapes", "attention=hard", "decoder.hidden_dim=32", "attention.score.width=8"),
        *('dataset.root="a folder"', "seed=2"),
    )
    assert (runs[3].config.seed, runs[3].config.decoder.hidden_dim, runs[3].config.attention.score.width) == (2, 32, 8)


def test_a_second_stage_begins_with_the_best_weights_of_its_seed(made: Any, tmp_path: Path):
    runs = made("recipes=soft_cider", "seeds=[7,8]")
    assert [run.title for run in runs] == ["soft, seed 7", "soft, seed 8", "soft_cider, seed 7", "soft_cider, seed 8"]
    weights = str(tmp_path / "soft/8/best.ckpt")
    assert runs[3].arguments[-2:] == ("seed=8", f"init_from={weights}")
    assert runs[3].config.init_from == weights
    assert runs[1].config.init_from is None


def test_a_student_learns_from_the_best_models_of_its_seed(made: Any, tmp_path: Path):
    table = TABLE._replace(
        recipes={**TABLE.recipes, "student": RecipeConfig(["dataset=shapes"], teachers=["soft", "hard"])}
    )
    runs = make_runs(table, configured("recipes=student", "seeds=[7,8]"), tmp_path)
    assert [run.recipe for run in runs] == ["soft", "soft", "hard", "hard", "student", "student"]
    teachers = [str(tmp_path / name / "8/best.ckpt") for name in ("soft", "hard")]
    assert runs[5].config.distillation.teacher == teachers
    assert runs[5].arguments[-1] == f"distillation.teacher=[{','.join(teachers)}]"
    assert not runs[5].can_begin
    assert "teacher" not in runs[0].config.distillation


CAPTIONED = TABLE._replace(
    recipes={
        **TABLE.recipes,
        "captioned": RecipeConfig(["dataset=shapes"], init_from="soft", captions_of=["soft", "soft_cider"]),
        "captioned_average": RecipeConfig(average_of=["captioned", "soft_cider"]),
    }
)


def test_captions_are_of_all_seeds_of_the_table_whatever_seeds_are_run(tmp_path: Path):
    runs = make_runs(CAPTIONED, configured("recipes=captioned", "seeds=[2]"), tmp_path)
    titles = ["soft, seed 2", "soft, seed 1", "soft_cider, seed 1", "soft_cider, seed 2", "captioned, seed 2"]
    assert [run.title for run in runs] == titles
    file = str(tmp_path / "captioned/captions-train.json")
    assert runs[-1].arguments[-1] == f"distillation.captions={file}"
    assert runs[-1].config.distillation.captions == file
    models = ["soft/1", "soft/2", "soft_cider/1", "soft_cider/2"]
    assert runs[-1].writers
    assert runs[-1].writers.models == tuple(tmp_path / model / "best.ckpt" for model in models)
    assert [run.title for run in runs[-1].dependencies] == titles[:-1]
    assert not runs[-1].can_begin
    assert [run.writers for run in runs[:-1]] == [None] * 4


def test_an_ensemble_has_the_models_of_all_seeds_of_its_recipe(made: Any, tmp_path: Path):
    ensembles = make_ensembles(TABLE, made("seeds=[4,2]"), tmp_path)
    assert list(ensembles) == ["soft_ensemble"]
    assert ensembles["soft_ensemble"].models == (tmp_path / "soft/4/best.ckpt", tmp_path / "soft/2/best.ckpt")
    assert ensembles["soft_ensemble"].result_file(3) == tmp_path / "soft_ensemble/4-2/results-test-beam3.json"
    assert not make_ensembles(TABLE, made("seeds=[4]"), tmp_path)
    assert not make_ensembles(TABLE, made("recipes=hard"), tmp_path)


def test_an_ensemble_of_several_recipes_needs_all_of_them(made: Any, tmp_path: Path):
    table = TABLE._replace(ensembles={"both": ["soft", "hard"]})
    both = make_ensembles(table, made("seeds=[4,2]"), tmp_path)["both"]
    assert both.models == tuple(tmp_path / f"{name}/best.ckpt" for name in ("soft/4", "soft/2", "hard/4", "hard/2"))
    assert both.result_file(3) == tmp_path / "both/4-2_4-2/results-test-beam3.json"
    assert len(make_ensembles(table, made("seeds=[4]"), tmp_path)["both"].models) == 2
    assert not make_ensembles(table, made("recipes=soft"), tmp_path)


def test_a_run_is_finished_when_it_was_scored_with_every_width(made: Any):
    run = made()[0]
    assert (run.is_begun, run.is_finished) == (False, False)
    finish(run)
    assert (run.is_begun, run.is_finished) == (True, True)
    run.scoring.result_file(3).unlink()
    assert (run.scoring.is_scored(1), run.scoring.is_scored(3), run.is_finished) == (True, False, False)


def test_a_result_counts_for_the_weights_that_it_was_made_with(made: Any, tmp_path: Path):
    first, second = runs = made("recipes=soft")
    for run in runs:
        finish(run)
    [ensemble] = make_ensembles(TABLE, runs, tmp_path).values()
    for beam in ensemble.decodings:
        ensemble.result_file(beam).parent.mkdir(parents=True, exist_ok=True)
        content = {**written(beam), "checkpoint_sha256": [hash_of(first), hash_of(second)]}
        ensemble.result_file(beam).write_text(json.dumps(content))
    assert (first.is_finished, second.is_finished, ensemble.is_finished) == (True, True, True)
    (second.folder / "best.ckpt").write_text("trained again")
    assert (first.is_finished, second.is_finished, ensemble.is_finished) == (True, False, False)
    (first.folder / "best.ckpt").unlink()
    assert first.is_finished


def test_a_second_stage_of_other_weights_than_there_are_now_is_reported(made: Any):
    first, second = made("recipes=soft_cider", "seeds=[1]")
    finish(first)
    note_beginning(second)
    finish(second)
    os.utime(first.folder / "best.ckpt", (time.time() + 60, time.time() + 60))  # as after a copy
    assert made("recipes=soft_cider", "seeds=[1]")
    (first.folder / "best.ckpt").write_text("trained again")
    with pytest.raises(UserError, match="soft_cider/1 was trained from an earlier soft, seed 1"):
        made("recipes=soft_cider", "seeds=[1]")
    (first.folder / "best.ckpt").unlink()
    assert made("recipes=soft_cider", "seeds=[1]")


def test_a_mean_waits_for_its_parts_and_counts_what_they_trained_once(made: Any):
    runs = made("recipes=soft_average", "seeds=[7]")
    assert [run.title for run in runs] == ["soft, seed 7", "soft_cider, seed 7", "soft_average, seed 7"]
    soft, cider, mean = runs
    assert mean.dependencies == (soft, cider)
    assert mean.config == soft.config
    for run, minutes in ((soft, 8), (cider, 5)):
        assert not mean.can_begin
        finish(run)
        write_times([60.0 * minutes], run.folder)
    assert mean.can_begin
    assert mean.minutes_before == 8 + 5
    assert expected_seconds(mean, runs, None) == 0


def test_a_mean_of_other_weights_than_there_are_now_is_reported(made: Any):
    soft, cider, mean = made("recipes=soft_average", "seeds=[1]")
    finish(soft)
    finish(cider)
    note_beginning(mean)
    (cider.folder / "best.ckpt").write_text("trained again")
    assert made("recipes=soft_average", "seeds=[1]"), "nothing is scored yet that could be of other weights"
    write_results(cider)
    write_results(mean)
    assert made("recipes=soft_average", "seeds=[1]")
    (cider.folder / "best.ckpt").write_text("trained again")
    with pytest.raises(UserError, match="soft_average/1 was trained from an earlier soft_cider, seed 1"):
        made("recipes=soft_average", "seeds=[1]")
    (mean.folder / BEGINNING).write_text(f"{hash_of(soft)}\n")
    with pytest.raises(UserError, match="soft_average/1 was trained from an earlier soft"):
        made("recipes=soft_average", "seeds=[1]")


def test_what_is_built_from_weights_that_are_gone_is_reported(made: Any):
    soft, cider, mean = made("recipes=soft_average", "seeds=[1]")
    for run in (soft, cider):
        finish(run)
    (soft.folder / "best.ckpt").unlink()
    for run in (cider, mean):
        with pytest.raises(UserError, match=r"soft/1 has no best.ckpt any more, but .*, seed 1 needs it"):
            note_beginning(run)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (RecipeConfig(), "odd needs settings of train, or average_of"),
        (RecipeConfig(["dataset=shapes"], average_of=["soft", "hard"]), "odd needs settings of train, or average_of"),
        (RecipeConfig(average_of=["soft"]), "average_of with two recipes or more"),
        (
            RecipeConfig(average_of=["soft", "hard"], init_from="soft"),
            "odd is a weight average, and is not trained; leave init_from, teachers and captions_of out",
        ),
        (
            RecipeConfig(average_of=["soft", "hard"], captions_of=["soft"]),
            "odd is a weight average, and is not trained; leave init_from, teachers and captions_of out",
        ),
        (
            RecipeConfig(["dataset=shapes"], captions_of=["odd"]),
            "recipes depend on each other in a cycle: odd needs odd",
        ),
        (RecipeConfig(average_of=["soft", "odd"]), "recipes depend on each other in a cycle: odd needs odd"),
        (RecipeConfig(average_of=["soft", "sift"]), "has no recipe sift; did you mean 'soft'"),
    ],
)
def test_a_recipe_is_a_training_or_a_mean_of_others(tmp_path: Path, recipe: RecipeConfig, message: str):
    table = TABLE._replace(recipes={**TABLE.recipes, "odd": recipe})
    with pytest.raises(UserError, match=message):
        make_runs(table, configured(), tmp_path)


def test_a_result_of_another_way_of_writing_does_not_count_and_proves_the_training(made: Any):
    run = made("recipes=soft")[0]
    finish(run)
    (run.folder / "last.ckpt").unlink()
    file = run.scoring.result_file(3)
    for change in ({"tokenizer": "ptb"}, {"decoding": {"beam_size": 3, "max_length": 7}}):
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **written(3), **change}))
        assert (run.is_finished, run.is_trained, run.scoring.was_scored) == (False, True, True)
    assert expected_seconds(run, [run], 8) == 0
    (run.folder / "best.ckpt").write_text("trained again")
    assert not run.scoring.was_scored


def test_the_table_has_what_is_finished_whatever_is_run(made: Any, tmp_path: Path):
    soft, hard = made("recipes=[soft,hard]", "seeds=[1]")
    finish(soft)
    finish(hard)
    assert made("recipes=[]") == []
    shown = finished_runs(TABLE, configured("recipes=[]"), tmp_path)
    assert [run.title for run in shown] == ["soft, seed 1", "hard, seed 1"]
    other = configured("recipes=[]", "settings=[trainer.max_epochs=3]")
    assert finished_runs(TABLE, other, tmp_path) == []


def test_a_setting_that_no_recipe_has_is_reported_where_nothing_is_run(tmp_path: Path):
    with pytest.raises(UserError, match="there is no setting trainer.max_epoch; did you mean 'max_epochs'"):
        finished_runs(TABLE, configured("settings=[trainer.max_epoch=1]"), tmp_path)


def test_where_boxes_are_given_a_result_without_their_figures_does_not_count(made: Any):
    finish(made()[0])
    boxed = made("dataset.entities=entities.zip")[0]
    assert not boxed.is_finished
    boxed.scoring.result_file(1).write_text(
        json.dumps({**written(1), "pointing_game": 50.0, "checkpoint_sha256": hash_of(boxed)})
    )
    assert [boxed.scoring.is_scored(beam) for beam in boxed.scoring.decodings] == [True, False]


@pytest.mark.parametrize(
    "settings", slow_after(1, [["settings=[trainer.max_epochs=1]"], ["settings=[optimizer.lr=0.5]"]])
)
def test_a_run_of_another_budget_is_reported_and_not_mixed_in(made: Any, settings: list[str]):
    begin(made()[1])
    with pytest.raises(UserError, match="soft/2 has other settings: .* instead of .* output=DIR"):
        made(*settings)
    assert made(*settings, "seeds=[1]")
    assert made("settings=[cache=elsewhere,data.num_workers=3]")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["recipes=[sof]"], "no recipe sof; did you mean 'soft'"),
        (["settings=[trainer.max_epoch=1]"], "no setting trainer.max_epoch; did you mean 'max_epochs'"),
        (["settings=[decoder.dropout=2]"], "decoder.dropout=2"),
        (["settings=[seed=7]"], r"seed is set by the table; leave it out, and choose seeds by seeds=\[1\]"),
        (["settings=[init_from=a.ckpt]"], "init_from is set by the table; leave it out"),
        (["settings=[distillation.captions=a.json]"], "distillation.captions is set by the table; leave it out"),
        (["settings=[hydra.run.dir=a]"], r"hydra\.run\.dir is set by the table"),
    ],
)
def test_a_fault_is_reported_before_anything_runs(made: Any, settings: list[str], words: str):
    with pytest.raises(UserError, match=words):
        made(*settings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": "sofd"}, "table=small has no recipe sofd; did you mean 'soft'"),
        ({"pages": ["hart"]}, "no recipe hart"),
        ({"ensembles": {"together": "solft"}}, "no recipe solft"),
        ({"recipes": {"soft": RecipeConfig(["dataset=shapes"], init_from="sft")}, "pages": []}, "no recipe sft"),
        ({"decoding": 5}, r"table.decoding=5, .* is not among table.decodings=\[1,3\]"),
        ({"decodings": [3, "consensu"]}, "decoding=consensu; did you mean 'consensus'"),
    ],
)
def test_a_table_that_names_what_there_is_not_is_reported(changes: Any, words: str, tmp_path: Path):
    with pytest.raises(UserError, match=words):
        make_runs(TABLE._replace(**changes), configured(), tmp_path)


def test_what_is_left_is_reported_by_the_runs_epochs_then_by_other_seeds_then_by_the_table(made: Any):
    first, second, *hard = runs = made("recipes=[soft,hard]")
    assert [expected_seconds(run, runs, 8) for run in (first, second)] == [480, 480]
    assert expected_seconds(hard[0], runs, None) is None
    finish(first)
    write_times([30, 40, 20], first.folder)
    assert [expected_seconds(run, runs, 8) for run in (first, second)] == [0, 90]
    begin(second)
    write_times([10], second.folder)
    assert expected_seconds(second, runs, 8) == 10 * 3
    assert not second.is_trained
    write_times([10, 10, 10, 10], second.folder)
    assert second.is_trained
    assert expected_seconds(second, runs, 8) == 0


@pytest.mark.parametrize(
    ("argument", "settings"),
    [
        ("settings=[trainer.max_epochs=1]", ["trainer.max_epochs=1"]),
        ("settings=trainer.max_epochs=1", ["trainer.max_epochs=1"]),
        (
            "settings=[a=1, attention/score=dot,decoder.dropout_places=[start,hidden],cache=~/x y]",
            ["a=1", "attention/score=dot", "decoder.dropout_places=[start,hidden]", "cache=~/x y"],
        ),
        ("settings=['a=1','b=2']", ["a=1", "b=2"]),
        ("settings=[a=1,'b=2']", ["a=1", "b=2"]),
        ("settings=['a=1',b={x:1,y:2}]", ["a=1", "b={x:1,y:2}"]),
        ('settings=["cache=a,b","c=1"]', ["cache=a,b", "c=1"]),
        ("settings=[]", []),
    ],
)
def test_settings_are_given_as_for_training(argument: str, settings: list[str]):
    [quoted] = quote_settings([argument])
    value = OverridesParser.create().parse_override(quoted).value()
    assert [str(getattr(setting, "text", setting)) for setting in value] == settings


def test_the_documented_table_of_ones_own_has_runs(tmp_path: Path):
    page = (Path(__file__).parents[3] / "docs/extensions/reproduction.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\n(# my-options/table/mine\.yaml\n.*?)```", page, re.DOTALL)
    (tmp_path / "table").mkdir()
    (tmp_path / "table/mine.yaml").write_text(example)
    config = compose("reproduce", [f"hydra.searchpath=[file://{tmp_path}]", "table=mine", "seeds=[1]"])
    table = build(config.table)
    assert [run.title for run in make_runs(table, config, tmp_path)] == [
        "soft, seed 1",
        "dot, seed 1",
        "soft_cider, seed 1",
    ]
