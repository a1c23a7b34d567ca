"""Training with teachers against training without them, and a killed training that is resumed."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_training import WORDS, Grids, small_config, small_run
from test_exact_resume import assert_resumes_from_every_checkpoint, read

from showattendtell.config.instantiate import build_captioner
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.runtime.files import LAST, sha256

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting of two teachers of random weights, in place of two checkpoints."""
    monkeypatch.setattr("showattendtell.training.callbacks.draw_curves", lambda *_: None)
    vocabulary = Vocabulary.build([tuple(WORDS)], size=100)

    def load(paths: Sequence[str], *_: object) -> list[SimpleNamespace]:
        torch.rand(7)  # as the initial weights of a model do
        captioners = [build_captioner(small_config("decoder.hidden_dim=6"), 3, len(vocabulary)) for _ in paths]
        for seed, captioner in enumerate(captioners):
            numbers = torch.Generator().manual_seed(seed)
            for parameter in captioner.parameters():
                torch.nn.init.normal_(parameter, generator=numbers)
        models = [ImageCaptioner(Grids(), each, vocabulary, BeamSearch()) for each in captioners]  # type: ignore[arg-type]
        return [SimpleNamespace(module=model) for model in models]

    monkeypatch.setattr("showattendtell.extensions.distillation.loss.load_models", load)
    (tmp_path / "teacher").write_text("its weights")
    return f"distillation.teacher=[{tmp_path}/teacher,{tmp_path}/teacher]"


def test_weight_0_changes_nothing_that_is_learned(tmp_path: Path, teachers: str):
    """Neither weights nor random numbers; the teachers are not stored, and only a hash of their files is."""
    small_run(small_config(), tmp_path / "alone")
    small_run(small_config(teachers, "distillation.weight=0"), tmp_path / "taught")
    alone, taught = (read(tmp_path / name / LAST) for name in ("alone", "taught"))
    assert alone["state_dict"].keys() == taught["state_dict"].keys()
    assert [name for name, own in alone["state_dict"].items() if not torch.equal(own, taught["state_dict"][name])] == []
    assert repr(alone["optimizer_states"]) == repr(taught["optimizer_states"])
    assert taught["showattendtell"]["extras"]["distillation.teachers"] == [sha256(tmp_path / "teacher")] * 2
    assert "extras" not in alone["showattendtell"]
    header, *_ = (tmp_path / "taught/metrics.csv").read_text().splitlines()
    assert "train/distillation" in header


def test_teachers_stay_in_evaluation_mode_and_as_they_are(tmp_path: Path, teachers: str):
    module = small_run(small_config(teachers), tmp_path / "run")
    [term] = module.terms
    module.train()
    for seed, teacher in enumerate(term.teachers):
        assert not any(part.training for part in teacher.modules())
        assert not any(parameter.requires_grad for parameter in teacher.parameters())
        first = next(teacher.captioner.parameters())
        assert torch.equal(first, torch.empty_like(first).normal_(generator=torch.Generator().manual_seed(seed)))


def test_a_student_continues_from_every_checkpoint(tmp_path: Path, teachers: str):
    assert_resumes_from_every_checkpoint(tmp_path, [teachers, "distillation.temperature=2"], every=4)


def test_rewards_alone_leave_no_place_for_teachers(tmp_path: Path, teachers: str):
    with pytest.raises(UserError, match=r"reward\.likelihood=0 leaves out; set it above 0"):
        small_run(small_config("reward=cider", teachers), tmp_path / "run")
    small_run(small_config("reward=cider", "reward.likelihood=0.5", teachers, "trainer.max_epochs=1"), tmp_path / "run")
