"""Which runs a table has, how far each is, and what is refused before any begins."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from results import ensemble as both
from results import write
from slow_cases import slow_after
from small_table import TABLE, begin, finish, scored, train_again

from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build
from showattendtell.errors import UserError
from showattendtell.extensions.reproduction.commands.reproduce import quote_settings
from showattendtell.extensions.reproduction.tables import RecipeConfig
from showattendtell.extensions.reproduction.work import CommandRunner, Reproduction
from showattendtell.runtime.files import write_times


def test_each_recipe_is_run_with_each_seed_in_a_folder_of_its_own(made: Any, tmp_path: Path):
    runs = made(
        "recipes=[soft,hard]", "dataset.root=a folder", "settings=[decoder.hidden_dim=32,attention.score.width=8]"
    )
    assert [run.title for run in runs] == ["soft, seed 1", "soft, seed 2", "hard, seed 1", "hard, seed 2"]
    assert runs[3].folder == tmp_path / "hard/2"
    assert runs[3].arguments == (
        *("dataset=shapes", "attention=hard", "decoder.hidden_dim=32", "attention.score.width=8"),
        *('dataset.root="a folder"', "seed=2"),
    )
    assert (runs[3].config.decoder.hidden_dim, runs[3].config.attention.score.width) == (32, 8)


def test_a_second_stage_begins_with_the_best_weights_of_its_seed(made: Any, tmp_path: Path):
    runs = made("recipes=soft_cider", "seeds=[7,8]")
    assert [run.title for run in runs] == ["soft, seed 7", "soft, seed 8", "soft_cider, seed 7", "soft_cider, seed 8"]
    assert runs[3].arguments[-2:] == ("seed=8", f"init_from={tmp_path}/soft/8/best.ckpt")


def test_a_student_learns_from_the_best_models_of_its_seed(made: Any, tmp_path: Path):
    student = RecipeConfig(["dataset=shapes"], teachers=["soft", "hard"])
    table = TABLE._replace(recipes={**TABLE.recipes, "student": student})
    runs = made("recipes=student", "seeds=[7,8]", table=table)
    assert [run.recipe for run in runs] == ["soft", "soft", "hard", "hard", "student", "student"]
    teachers = ",".join(str(tmp_path / name / "8/best.ckpt") for name in ("soft", "hard"))
    assert runs[5].arguments[-1] == f"distillation.teacher=[{teachers}]"
    assert not runs[5].dependencies[0].is_finished


def test_captions_are_of_all_seeds_of_the_table_whatever_seeds_are_run(made: Any, tmp_path: Path):
    captioned = RecipeConfig(["dataset=shapes"], init_from="soft", captions_of=["soft", "soft_cider"])
    runs = made(
        "recipes=captioned", "seeds=[2]", table=TABLE._replace(recipes={**TABLE.recipes, "captioned": captioned})
    )
    titles = ["soft, seed 1", "soft, seed 2", "soft_cider, seed 1", "soft_cider, seed 2", "captioned, seed 2"]
    assert [run.title for run in runs] == titles
    assert runs[-1].arguments[-1] == f"distillation.captions={tmp_path}/captioned/captions-train.json"
    models = ["soft/1", "soft/2", "soft_cider/1", "soft_cider/2"]
    assert runs[-1].writers == [tmp_path / model / "best.ckpt" for model in models]
    assert sorted(run.title for run in runs[-1].dependencies) == titles[:-1]
    assert not any(run.writers for run in runs[:-1])


def test_an_ensemble_has_the_models_of_all_seeds_of_its_recipe(work_of: Any, tmp_path: Path):
    work = work_of("recipes=[soft,hard]", "seeds=[1,2]")
    finish(work.runs[0])
    assert not work.ensembles()
    for run in work.runs[1:]:
        finish(run)
    [ensemble] = work.ensembles()
    assert ensemble.models == [tmp_path / "soft/1/best.ckpt", tmp_path / "soft/2/best.ckpt"]
    assert ensemble.result_file(3) == tmp_path / "soft_ensemble/1-2/results-test-beam3.json"


def test_an_ensemble_of_several_recipes_needs_all_of_them(work_of: Any, tmp_path: Path):
    work = work_of("recipes=[soft,hard]", table=TABLE._replace(ensembles={"both": ["soft", "hard"]}))
    for run in work.runs[:2]:
        finish(run)
    assert not work.ensembles()
    for run in work.runs[2:]:
        finish(run)
    [both] = work.ensembles()
    assert both.models == [tmp_path / f"{name}/best.ckpt" for name in ("soft/1", "soft/2", "hard/1", "hard/2")]
    assert both.result_file(3) == tmp_path / "both/1-2_1-2/results-test-beam3.json"


def test_a_run_is_finished_when_it_was_scored_with_every_width(made: Any):
    run = made()[0]
    assert (run.is_finished, run.was_scored) == (False, False)
    finish(run)
    assert (run.is_finished, run.was_scored) == (True, True)
    run.result_file(3).unlink()
    assert (run.is_finished, run.was_scored) == (False, True)


def test_a_result_counts_for_the_weights_that_it_was_made_with(work_of: Any):
    work = work_of("recipes=soft")
    first, second = runs = work.runs
    for run in runs:
        finish(run)
    [ensemble] = work.ensembles()
    for beam in ensemble.decodings:
        write(both(*(scored(run, beam) for run in runs)), ensemble.result_file(beam))
    assert (first.is_finished, second.is_finished, ensemble.is_finished) == (True, True, True)
    assert not replace(ensemble, dependencies=work_of("recipes=hard").runs).is_finished
    train_again(second)
    assert (first.is_finished, second.is_finished, ensemble.is_finished) == (True, False, False)
    (first.folder / "best.ckpt").unlink()
    assert first.is_finished


def test_an_average_waits_for_its_parts_and_counts_what_they_trained_once(made: Any):
    runs = made("recipes=soft_average", "seeds=[7]")
    assert [run.title for run in runs] == ["soft, seed 7", "soft_cider, seed 7", "soft_average, seed 7"]
    soft, cider, average = runs
    assert average.dependencies == [soft, cider]
    for run, minutes in ((soft, 8), (cider, 5)):
        finish(run)
        write_times([60.0 * minutes], run.folder)
    assert average.runs_before() == {soft, cider}


def test_a_setting_that_some_recipes_do_not_have_is_refused_for_those_alone(made: Any, tmp_path: Path):
    table = TABLE._replace(recipes={**TABLE.recipes, "other": RecipeConfig(["dataset=shapes", "attention=none"])})
    setting = "settings=[attention.score.width=8]"
    assert made(setting, "recipes=soft", table=table)
    with pytest.raises(UserError, match="width"):
        made(setting, "recipes=other", table=table)
    with pytest.raises(UserError, match="there is no setting trainer.max_epoch; did you mean 'trainer.max_epochs'"):
        made("settings=[trainer.max_epoch=1]", "recipes=[]")


def test_where_boxes_are_given_a_result_without_their_figures_does_not_count(made: Any):
    finish(made()[0])
    boxed = made("dataset.entities=entities.zip")[0]
    assert not boxed.is_finished
    write(scored(boxed, 1, pointing_game=50.0), boxed.result_file(1))
    assert [bool(boxed.result(beam)) for beam in boxed.decodings] == [True, False]


@pytest.mark.parametrize(
    "settings", slow_after(1, [["settings=[trainer.max_epochs=1]"], ["settings=[optimizer.lr=0.5]"]])
)
def test_a_run_of_another_budget_is_reported_and_not_mixed_in(made: Any, work_of: Any, settings: list[str]):
    begin(made()[1])
    with pytest.raises(UserError, match="soft/2 has other settings: .* instead of .* output=DIR"):
        made(*settings)
    assert made(*settings, "seeds=[1]")
    assert made("settings=[cache=elsewhere,data.num_workers=3]")
    other = [run.title for run in work_of(*settings, "recipes=[]").all_runs if run.find_other_settings()]
    assert other == ["soft, seed 2", "soft_average, seed 2"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["recipes=[sof]"], "no recipe sof; did you mean 'soft'"),
        (["settings=[trainer.max_epoch=1]"], "no setting trainer.max_epoch; did you mean 'trainer.max_epochs'"),
        (["settings=[decoder.dropout=2]"], "decoder.dropout=2"),
        (["settings=[seed=7]"], r"seed is set by the table; leave it out, and choose seeds by seeds=\[1\]"),
        (["settings=[distillation.captions=a.json]"], "distillation.captions is set by the table; leave it out"),
        (["settings=[hydra.run.dir=a]"], r"hydra\.run\.dir is set by the table"),
    ],
)
def test_a_fault_is_reported_before_anything_runs(made: Any, settings: list[str], words: str):
    with pytest.raises(UserError, match=words):
        made(*settings)


def odd(*settings: Any, **others: Any) -> dict[str, Any]:
    return {"recipes": {**TABLE.recipes, "odd": RecipeConfig(*settings, **others)}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": "sofd"}, "table=small has no recipe sofd; did you mean 'soft'"),
        ({"pages": ["hart"]}, "no recipe hart"),
        ({"ensembles": {"together": "solft"}}, "no recipe solft"),
        (odd(), "odd needs either settings of train, or average_of"),
        (odd(["dataset=shapes"], average_of=["soft", "hard"]), "odd needs either settings of train"),
        (odd(["dataset=shapes"], captions_of=["odd"]), "odd needs odd, which is no recipe above it"),
        (odd(average_of=["soft", "sift"]), "odd needs sift, which is no recipe above it; did you mean 'soft'"),
        (odd(["dataset=shapes"], init_from="sift"), "odd needs sift, which is no recipe above it"),
        ({"decoding": 5}, r"table.decoding=5, .* is not among table.decodings=\[1,3\]"),
        ({"decodings": [3, "consensu"]}, "decoding=consensu; did you mean 'consensus'"),
    ],
)
def test_a_table_that_names_what_there_is_not_is_reported(changes: Any, words: str, made: Any):
    with pytest.raises(UserError, match=words):
        made(table=TABLE._replace(**changes))


def test_what_is_left_is_the_time_of_the_table_without_that_of_finished_epochs(work_of: Any, capsys: Any):
    work = work_of("recipes=[soft,hard,soft_average]")
    first, second, *_ = work.runs
    finish(first)
    begin(second)
    write_times([10, 10], second.folder)
    work.print_plan()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "soft, seed 1: finished",
        "soft, seed 2: to do, 2 epochs done, training left: 8 min",
        "hard, seed 1: to do, 0 epochs done, training left: ?",
    ]
    assert lines[-2:] == [
        "soft_average, seed 2: to do",
        "training left: 8 min; storing grids and scoring come on top",
    ]


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
    runs = Reproduction(build(config.table), config, tmp_path, CommandRunner()).runs
    assert [run.title for run in runs] == ["soft, seed 1", "soft_cider, seed 1"]
