"""Command lines: what is taken, what is refused, and how it is told."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from showattendtell.config.entry import check_command, compose
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
        ("attention=hard", "^attention=hard is not built yet; built are soft$"),
        ("decoder=nic", "^decoder=nic is not built yet; built are lstm$"),
        ("attention=sofd", "^there is no attention=sofd; did you mean 'soft'"),
        ("optimizer=sgd", "^there is no optimizer=sgd; known are adam, rmsprop$"),
        ("decoder=null", "^there is no decoder=null; known are lstm$"),
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
        ("cache=null", "cache=null"),
        ("cache=", "cache="),
        ("~decoder", "decoder"),
        ("dropout", "^'dropout' is no setting; settings are given as name=value$"),
        ("dataset.root=a=b", "dataset.root=a=b.*quote"),
        ("hydra.nosuch=3", "hydra.nosuch"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_told_in_a_sentence(line: str, sentence: str):
    with pytest.raises(UserError, match=sentence) as told:
        check_command("train", [line])
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "line", "sentence"),
    [
        ("evaluate", [], "checkpoint is not set; give it as checkpoint="),
        ("evaluate", ["checkpoint=null"], "checkpoint=null"),
        ("evaluate", ["checkpoint=best.ckpt", "split=null"], "split=null"),
        ("evaluate", ["checkpoint=best.ckpt", "device=null"], "device=null"),
        ("evaluate", ["checkpoint=best.ckpt", "decoding=null"], "decoding"),
        ("evaluate", ["checkpoint=best.ckpt", "decoding.beam_size=0"], "decoding.beam_size=0 should be greater than 0"),
        ("evaluate", ["checkpoint=best.ckpt", "dataset.rot=x"], "dataset.rot; did you mean 'root'"),
        ("evaluate", ["checkpoint=best.ckpt", "dataset.skip_unreadable=maybe"], "dataset.skip_unreadable=maybe"),
        ("caption", ["checkpoint=best.ckpt", "images=null"], "images=null"),
        ("caption", ["checkpoint=best.ckpt", "images=[]"], r"images=\[\]"),
        ("caption", ["checkpoint=best.ckpt", "images=3"], "images=3"),
        ("caption", ["checkpoint=best.ckpt", "images=a.jpg", "output=null"], "output=null"),
        ("prepare", ["attention=hard"], "attention=hard is not built yet"),
    ],
)
def test_a_wrong_setting_of_another_command_is_told_before_anything_runs(command: str, line: list[str], sentence: str):
    with pytest.raises(UserError, match=sentence):
        check_command(command, line)


def test_faults_of_one_kind_are_told_at_once():
    with pytest.raises(UserError) as told:
        check_command("train", ["attention=hard", "dataset=flickr30k"])
    assert "attention=hard" in str(told.value)
    assert "dataset=flickr30k" in str(told.value)


def test_faults_of_every_kind_are_told_at_once():
    line = ["nonsense", "attention=hrad", "decoder.dropot=0.3", "decoder.hidden_dim=-1", "encoder.size=0"]
    with pytest.raises(UserError) as told:
        check_command("train", line)
    for fault in ("nonsense", "attention=hrad", "decoder.dropot", "decoder.hidden_dim=-1", "encoder.size=0"):
        assert fault in str(told.value)


def test_a_misspelt_name_does_not_hide_that_a_value_is_missing():
    with pytest.raises(UserError) as told:
        check_command("caption", ["checkpint=best.ckpt"])
    for fault in ("checkpint; did you mean 'checkpoint'", "images is not set"):
        assert fault in str(told.value)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["attention=soft,hard"], "attention=hard is not built yet"),
        (["decoder.dropout=0.1,0.2", "optimizer=adam,sgd"], "there is no optimizer=sgd"),
        (["decoder.dropot=0.1,0.2"], "did you mean 'dropout'"),
        (["decoder.dropout=0.1,1.5"], "decoder.dropout=1.5 should be less than 1"),
        (["decoder.hidden_dim=choice(-3,64)"], "decoder.hidden_dim=-3 should be greater than 0"),
        (["decoder.hidden_dim=range(0,64,32)"], "decoder.hidden_dim=0 should be greater than 0"),
        (["optimizer=adam,rmsprop", "encoder.size=0"], "encoder.size=0 should be greater than 0"),
    ],
)
def test_a_sweep_with_a_wrong_value_is_refused_before_its_first_run(line: list[str], sentence: str):
    with pytest.raises(UserError, match=sentence):
        check_command("train", ["-m", *line])


def test_a_sweep_with_good_values_is_let_through():
    line = ["-m", "loss.attention_weight=0,0.5,1", "optimizer=adam,rmsprop", "decoder.tie_embeddings=true,false"]
    assert check_command("train", line) == [*line[:-1], "++decoder.tie_embeddings=true,false"]


def test_a_sweep_over_the_required_setting_is_let_through():
    line = ["-m", "checkpoint=a.ckpt,b.ckpt"]
    assert "checkpoint=a.ckpt,b.ckpt" in " ".join(check_command("evaluate", line))
