"""Command lines: what is taken, what is refused, and how it is reported."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from slow_cases import slow_after

import showattendtell
from showattendtell.config.command_line import EXTRAS, SUPPLIED, check_command
from showattendtell.config.compose import compose
from showattendtell.config.signatures import read_signature
from showattendtell.errors import UserError


def test_a_setting_given_by_the_user_wins_over_every_recipe():
    config, _ = compose("train", ["experiment=flickr8k_lite0", "trainer.max_epochs=77", "optimizer=rmsprop"])
    assert config.trainer.max_epochs == 77
    assert config.optimizer._target_ == "torch.optim.RMSprop"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("decoder.tie_embeddings=true", True),
        ("trainer.limit_train_batches=2", 2),
        ("trainer.precision=bf16-mixed", "bf16-mixed"),
        ("optimizer.betas=[0.9,0.98]", [0.9, 0.98]),
        ("encoder.mean=[0.5,0.5,0.5]", [0.5, 0.5, 0.5]),
        ("dataset.root='my photos'", "my photos"),
        ("dataset.root=my photos", "my photos"),
        ("dataset.root='a=b'", "a=b"),
    ],
)
def test_a_setting_that_only_the_signature_has_is_taken(setting: str, value: Any):
    config, _ = compose("train", check_command("train", [setting]))
    assert OmegaConf.select(config, setting.split("=")[0]) == value


def test_the_last_of_two_values_for_a_setting_counts():
    config, _ = compose(
        "train", check_command("train", ["decoder.tie_embeddings=true", "decoder.tie_embeddings=false"])
    )
    assert config.decoder.tie_embeddings is False


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("attention=sofd", "^there is no attention=sofd; did you mean 'soft'"),
        ("attention/score=cosin", "^there is no attention/score=cosin; did you mean 'cosine'"),
        ("experiment=paper/coco_sof", "^there is no experiment=paper/coco_sof; did you mean 'paper/coco_soft'"),
        ("schedule=zzz", "^there is no schedule=zzz; available: constant, cosine$"),
        ("schedule=null", "^there is no schedule=null; available: constant, cosine$"),
        ("decoder.dropot=0.3", "^there is no setting decoder.dropot; did you mean 'dropout'"),
        ("trainer.limit_train_batchs=2", "did you mean 'limit_train_batches'"),
        ("decodr.dropout=0.3", "^there is no setting decodr.dropout; did you mean 'decoder'"),
        ("sed=3", "^there is no setting sed; did you mean 'seed'"),
        ("decoder.dropout.rate=0.3", "there is no setting decoder.dropout.rate"),
        ("+sed=3", "there is no setting sed"),
        ("decoder.dropout=1.5", "^decoder.dropout=1.5 should be less than 1$"),
        ("decoder.dropout=0.1,0.2", "decoder.dropout=0.1,0.2.* -m"),
        ("seed=-1", "seed=-1 should be greater than or equal to 0"),
        ("seed=null", "seed=null should be a valid integer"),
        ("cache=null", "cache=null should be a string$"),
        ("cache=", "^cache= has no value; give cache=VALUE$"),
        ("cache=''", "^cache= should not be empty$"),
        ("optimizer.lr=", "^optimizer.lr= has no value"),
        ("trainer.max_time=", "^trainer.max_time= has no value"),
        ("trainer.devices=", "^trainer.devices= has no value"),
        ("optimizer.lr=''", "^optimizer.lr= should be a valid number$"),
        ("optimizer.lr=fast", "^optimizer.lr=fast should be a valid number$"),
        ("optimizer.lr=null", "^optimizer.lr=null should be a valid number$"),
        ("optimizer.betas=[0.9,x]", r"^optimizer.betas=\[0.9,x\] should be a valid number$"),
        ("~decoder", "decoder"),
        ("dropout", "^'dropout' is not a setting; settings are given as name=value$"),
        ("dataset.root=a=b", "dataset.root=a=b.*quote"),
        ("hydra.nosuch=3", "hydra.nosuch"),
        ("decoder.vocabulary_size=9", "^decoder.vocabulary_size is set by the code; leave it out$"),
        ("attention.score.region_dim=9", "^attention.score.region_dim is set by the code; leave it out$"),
        ("trainer.logger=false", "^trainer.logger is set by the code; leave it out$"),
        ("attention.score=cosine", "^attention.score has settings of its own.*choose it as attention/score=NAME$"),
        ("attention.score._partial_=false", "^there is no setting attention.score._partial_;"),
        ("attention._args_=[1]", "^there is no setting attention._args_;"),
        ("_target_=os.system", "^there is no setting _target_;"),
        ("attention._target_=nosuch.Thing", "^attention._target_=nosuch.Thing: there is no package nosuch$"),
        ("seed=1,", "seed=1,"),
        ("hydra/launcher=joblip", "^there is no hydra/launcher=joblip; did you mean 'joblib'"),
        ("sweep=shapes", "^sweep=shapes is for several runs; put -m before it$"),
        ("hydra/sweeper/sampler=gp", "hydra/sweeper=basic has no hydra/sweeper/sampler; leave .* out"),
        ("hydra/launcher=joblib", "^hydra/launcher=joblib is for several runs; put -m before it$"),
        ("hydra.run.dri=here", "^there is no setting hydra.run.dri; did you mean 'dir'"),
        ("hydr.run.dir=here", "^there is no setting hydr.run.dir; did you mean 'hydra'"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_reported_in_a_sentence(line: str, sentence: str):
    with pytest.raises(UserError, match=sentence) as error:
        check_command("train", [line])
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "line", "sentence"),
    slow_after(
        10,
        [
            ("evaluate", [], "checkpoint is not set; give it as checkpoint="),
            ("evaluate", ["checkpoint=null"], "checkpoint=null"),
            ("evaluate", ["checkpoint=best.ckpt", "split=null"], "split=null"),
            ("evaluate", ["checkpoint=best.ckpt", "device=null"], "device=null"),
            ("evaluate", ["checkpoint=best.ckpt", "decoding=null"], "decoding"),
            (
                "evaluate",
                ["checkpoint=best.ckpt", "decoding.beam_size=0"],
                "decoding.beam_size=0 should be greater than 0",
            ),
            ("evaluate", ["checkpoint=best.ckpt", "dataset.rot=x"], "dataset.rot; did you mean 'root'"),
            ("evaluate", ["checkpoint=best.ckpt", "dataset=custom"], "that of the checkpoint; .* use caption and then"),
            ("evaluate", ["checkpoint=best.ckpt", "dataset.skip_unreadable=maybe"], "dataset.skip_unreadable=maybe"),
            ("average", ["checkpoint=[a.ckpt,b.ckpt]", "output=null"], "output=null should be a string$"),
            (
                "average",
                ["checkpoint=[a.ckpt]", "output=c.ckpt"],
                r"checkpoint=\[a.ckpt\] should have at least 2 values$",
            ),
            ("export", ["checkpoint=[a.ckpt,b.ckpt]"], r"^checkpoint=\[a.ckpt, ?b.ckpt\] should be a string$"),
            ("train", ["init_from=[a.ckpt,b.ckpt]"], "init_from=.* should be a string"),
            ("caption", ["checkpoint=best.ckpt", "images=a.jpg", "names=[1,2]"], "names=.* should be a string"),
            ("caption", ["checkpoint=best.ckpt", "images=[]"], r"images=\[\] should not be empty$"),
            ("caption", ["checkpoint=best.ckpt", "images=3"], "images=3 should be a string or a list$"),
            ("caption", ["checkpoint=best.ckpt", "images=a.jpg", "output=3"], "output=3"),
            ("caption", ["checkpoint=best.ckpt", "images=a.jpg", "formats=[]"], r"formats=\[\]"),
            (
                "caption",
                ["checkpoint=best.ckpt", "images=a.jpg", "formats=[jpg]"],
                r"formats=\[jpg\] should be 'jsonl', 'csv'",
            ),
            ("caption", ["checkpoint=best.ckpt", "images=a.jpg", "compare=3"], "compare=3"),
            ("caption", ["checkpoint=best.ckpt", "number=0"], "number=0 should be greater than 0"),
            ("caption", ["checkpoint=best.ckpt", "split=tst"], "split=tst should be 'train', 'val' or 'test'"),
            ("prepare", ["attention=hrad"], "there is no attention=hrad"),
        ],
    ),
)
def test_a_wrong_setting_of_another_command_is_reported_before_anything_runs(
    command: str, line: list[str], sentence: str
):
    with pytest.raises(UserError, match=sentence):
        check_command(command, line)


def test_the_settings_of_an_option_that_there_is_not_are_not_judged():
    with pytest.raises(UserError, match="^there is no dataset=coc; did you mean 'coco'\\?$"):
        check_command("download", ["dataset=coc", "dataset.root=DIR", "parts=[captions]"])


def test_faults_of_one_kind_are_reported_at_once():
    with pytest.raises(UserError) as error:
        check_command("train", ["attention=hrad", "dataset=flickr9k"])
    assert "attention=hrad" in str(error.value)
    assert "dataset=flickr9k" in str(error.value)


def test_faults_of_every_kind_are_reported_at_once():
    line = ["nonsense", "attention=hrad", "decoder.dropot=0.3", "decoder.hidden_dim=-1", "encoder.size=0"]
    with pytest.raises(UserError) as error:
        check_command("train", line)
    for fault in ("nonsense", "attention=hrad", "decoder.dropot", "decoder.hidden_dim=-1", "encoder.size=0"):
        assert fault in str(error.value)


def test_a_misspelt_name_does_not_hide_that_a_value_is_missing():
    with pytest.raises(UserError) as error:
        check_command("evaluate", ["checkpont=a.ckpt"])
    for fault in ("checkpont; did you mean 'checkpoint'", "checkpoint is not set"):
        assert fault in str(error.value)


@pytest.mark.parametrize(
    ("line", "sentence"),
    slow_after(
        6,
        [
            (["attention=soft,hrad"], "there is no attention=hrad"),
            (["decoder.dropout=0.1,0.2", "optimizer=adam,sgd"], "there is no optimizer=sgd"),
            (["decoder.dropot=0.1,0.2"], "did you mean 'dropout'"),
            (["decoder.dropout=0.1,1.5"], "decoder.dropout=1.5 should be less than 1"),
            (["decoder.hidden_dim=choice(-3,64)"], "decoder.hidden_dim=-3 should be greater than 0"),
            (["decoder.hidden_dim=range(0,64,32)"], "decoder.hidden_dim=0 should be greater than 0"),
            (["decoder.hidden_dim=range(64,-1,-32)"], "decoder.hidden_dim=0 should be greater than 0"),
            (["decoder.dropout=interval(0.5,1.5)"], "decoder.dropout=1.5 should be less than 1"),
            (["seed=range(3,1)"], r"seed=range\(3,1\) gives no value"),
            (["optimizer=glob(zzz*)"], r"optimizer=glob\(zzz\*\) gives no value"),
            (["seed=1,2", "--cfg", "job"], "-m runs several values and --cfg shows"),
            (["optimizer=adam,rmsprop", "encoder.size=0"], "encoder.size=0 should be greater than 0"),
        ],
    ),
)
def test_a_sweep_with_a_wrong_value_is_refused_before_its_first_run(line: list[str], sentence: str):
    with pytest.raises(UserError, match=sentence):
        check_command("train", ["-m", *line])


@pytest.mark.parametrize(
    ("line", "sentence"),
    slow_after(
        3,
        [
            (["sweep=shape"], "there is no sweep=shape; did you mean 'shapes'"),
            (["sweep=shapes,seeds"], "sweep=shapes,seeds gives several search spaces; give one of them"),
            (["sweep=shapes", "optimizer=adm"], "there is no optimizer=adm"),
            (
                ["sweep=shapes", "hydra/sweeper/pruner=medan"],
                "there is no hydra/sweeper/pruner=medan; did you mean 'median'",
            ),
            (["sweep=shapes", "hydra.sweeper.n_trial=3"], "there is no setting hydra.sweeper.n_trial; did you mean"),
            (["sweep=own", "decoder.dropout=interval(0.0, 1.5)"], "decoder.dropout=1.5 should be less than 1"),
            (["sweep=own", "optimizer.lrr=tag(log, interval(1e-4, 1e-2))"], "optimizer.lrr"),
        ],
    ),
)
def test_a_search_with_a_fault_is_refused_before_its_first_trial(line: list[str], sentence: str):
    with pytest.raises(UserError, match=sentence):
        check_command("train", ["-m", *line])


def test_a_search_is_spelled_with_its_space_less_what_is_given():
    line = ["-m", "sweep=shapes", "decoder.dropout=0.3", "dataset.train=50"]
    assert check_command("train", line) == [
        *(
            "-m",
            "sweep=shapes",
            "decoder.dropout=0.3",
            "++dataset.train=50",
            "dataset=shapes",
            "optimizer=adam,rmsprop",
        ),
        *("optimizer.lr=tag(log, interval(2e-4, 2e-2))", "decoder.hidden_dim=range(32, 129, step=32)"),
    ]


def test_a_search_space_may_be_in_a_folder_of_the_user_s_own(tmp_path: Path):
    (tmp_path / "sweep").mkdir()
    space = "# @package _global_\ndefaults: [own]\nhydra: {sweeper: {params: {seed: '1,2'}}}\n"
    (tmp_path / "sweep/mine.yaml").write_text(space)
    line = [f'hydra.searchpath=["file://{tmp_path}"]', "-m", "sweep=mine"]
    assert check_command("train", line) == [*line, "seed=1,2"]


def test_a_search_whose_package_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("showattendtell.config.command_line.find_spec", lambda module: None)
    with pytest.raises(
        UserError, match=r"needs the package hydra-optuna-sweeper; run pip install 'showattendtell\[sweeps\]'"
    ):
        check_command("train", ["-m", "sweep=shapes"])


def test_a_sweep_with_good_values_is_let_through():
    line = [
        "-m",
        "loss.doubly_stochastic_weight=0,0.5,1",
        "optimizer=adam,rmsprop",
        "decoder.tie_embeddings=true,false",
    ]
    assert check_command("train", line) == [*line[:-1], "++decoder.tie_embeddings=true,false"]


@pytest.mark.parametrize("launcher", slow_after(1, EXTRAS))
def test_a_launcher_with_its_settings_is_let_through(launcher: str):
    settings = {"joblib": "n_jobs=4", "ray": "ray.remote.num_gpus=1"}
    line = [
        "-m",
        f"hydra/launcher={launcher}",
        f"hydra.launcher.{settings.get(launcher, 'gpus_per_node=2')}",
        "seed=1,2",
    ]
    assert check_command("train", line) == line


def test_a_setting_of_a_launcher_that_the_yaml_leaves_to_its_default_is_let_through():
    line = ["-m", "hydra/launcher=joblib", "hydra.launcher.verbose=1", "seed=1,2"]
    assert check_command("train", line) == [*line[:2], "++hydra.launcher.verbose=1", "seed=1,2"]


@pytest.mark.parametrize(("launcher", "extra"), slow_after(1, EXTRAS.items()))
def test_a_launcher_that_is_not_installed_is_reported_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, launcher: str, extra: str
):
    monkeypatch.setitem(sys.modules, f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher", None)
    sentence = rf"={launcher} needs the package hydra-\w+-launcher; run pip install 'showattendtell\[{extra}\]'$"
    with pytest.raises(UserError, match=sentence):
        check_command("train", ["-m", f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=2", "seed=1,2"])
    assert check_command("train", ["-m", "hydra/launcher=basic", "seed=1,2"])


def test_a_sweep_over_the_required_setting_is_let_through():
    line = ["-m", "checkpoint=a.ckpt,b.ckpt"]
    assert "checkpoint=a.ckpt,b.ckpt" in " ".join(check_command("evaluate", line))


@pytest.mark.parametrize("line", [["optimizer=glob(*)"], ["decoder.dropout=interval(0,0.5)"], ["seed=range(1,5)"]])
def test_sweeps_of_every_form_are_let_through(line: list[str]):
    assert check_command("train", ["-m", *line]) == ["-m", *line]


def fault_of(*line: str) -> str:
    """What is said of a wrong line to the command of the small conf/."""
    with pytest.raises(UserError) as error:
        check_command("train", list(line))
    return str(error.value)


def test_a_nested_group_that_the_present_choice_lacks_is_reported_with_that_choice(small_conf: Path):
    output = "attention=none has no attention/score; leave attention/score=cosine out"
    assert fault_of("attention=none", "attention/score=cosine") == output
    assert fault_of("experiment=attentions/none", "attention/score=cosine") == output


def test_settings_of_a_nested_partial_node_are_held_against_its_signature(small_conf: Path):
    assert check_command("train", ["attention.score.width=64"]) == ["++attention.score.width=64"]
    cosine = ["attention/score=cosine", "attention.score.width=64"]
    assert check_command("train", cosine) == cosine
    assert fault_of("attention.score.width=2.5").startswith("attention.score.width=2.5 should be a valid integer")
    assert fault_of("attention.score.wdth=64") == "there is no setting attention.score.wdth; did you mean 'width'?"


def test_a_setting_that_some_values_of_a_swept_group_lack_is_reported_with_those_values(small_conf: Path):
    every = ["-m", "attention=soft,hard,none", "attention.samples=2"]
    assert (
        fault_of(*every)
        == "attention=soft or attention=none: there is no setting attention.samples; available: gate, score"
    )
    recipes = fault_of("-m", "experiment=attentions/hard,attentions/none,plain", "attention.samples=2")
    assert recipes.startswith("experiment=attentions/none or experiment=plain: there is no setting attention.samples")
    score = fault_of("-m", "attention=hard,none", "attention/score=additive,cosine")
    assert score.startswith("attention=none: attention=none has no attention/score")


def test_a_setting_that_no_value_of_a_swept_group_has_is_reported_once(small_conf: Path):
    output = fault_of("-m", "attention=soft,hard", "seed=1,2", "attention.smples=2")
    assert output == "there is no setting attention.smples; available: gate, score"


def test_a_setting_that_every_value_of_a_swept_group_has_is_let_through(small_conf: Path):
    line = ["-m", "attention=soft,hard", "attention/score=additive,cosine", "attention.score.width=4,8"]
    assert check_command("train", line) == [*line[:-1], "++attention.score.width=4,8"]


def test_every_value_of_a_swept_group_is_checked_with_the_settings_next_to_it(small_conf: Path):
    (small_conf / "attention/hard.yaml").write_text("{_target_: parts.Hard, score: null, samples: 2.5}")
    assert fault_of("-m", "attention=soft,hard") == "attention.samples=2.5 should be a valid integer"


def test_a_class_of_your_own_is_taken_with_the_settings_of_its_signature(small_conf: Path):
    line = ["attention=none", "attention.samples=3", "attention._target_=parts.Hard"]
    assert check_command("train", line) == [line[0], "++attention.samples=3", line[2]]
    assert fault_of("attention._target_=parts.Hrad").startswith("attention._target_=parts.Hrad: parts has no Hrad")
    swept = fault_of("-m", "attention._target_=parts.Hard,parts.Soft", "attention.samples=3")
    assert swept.startswith("attention._target_=parts.Soft: there is no setting attention.samples")


def test_a_fault_of_one_setting_hides_no_fault_of_another_whose_name_is_part_of_it(small_conf: Path):
    output = fault_of("attention.gate=maybe", "attention.gat=3", "see=3", "seed=1,2")
    assert [line.split()[0] for line in output.splitlines()[1:]] == [
        "seed=1,2",
        "there",
        "there",
        "attention.gate=maybe",
    ]


def supplied() -> dict[str, set[str]]:
    """The arguments next to the node in every `build(config.NODE, ...)` and `build(settings["NODE"], ...)`."""
    found: dict[str, set[str]] = {}
    for file in Path(showattendtell.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "build" and call.keywords:
                node = re.sub(r"\['(\w+)'\]", r".\1", ast.unparse(call.args[0])).partition(".")[2]
                found.setdefault(node, set()).update(str(keyword.arg) for keyword in call.keywords)
    return found


def test_what_the_code_supplies_is_what_it_gives_when_it_builds():
    given = {node: set(names) for node, names in SUPPLIED.items() if node != "attention.score"}
    assert given == supplied()


@pytest.mark.parametrize("score", compose("train", [])[1]["attention/score"])
def test_what_the_code_supplies_to_a_score_is_what_the_score_lacks(score: str):
    config, _ = compose("train", [f"attention/score={score}"])
    parameters = read_signature(config.attention.score._target_).parameters
    required = {name for name, parameter in parameters.items() if parameter.default is None}
    assert required - set(config.attention.score) == set(SUPPLIED["attention.score"])
