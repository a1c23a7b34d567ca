"""Distillation against the plain formula, with captioners of several kinds."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import VOCABULARY, small_captioner, small_model
from small_training import WORDS, Grids, small_config, small_run
from test_exact_resume import assert_resumes_from_every_checkpoint
from torch import Tensor, nn

from showattendtell.config.instantiate import build_captioner
from showattendtell.data.assembly import assemble
from showattendtell.data.parsing import CaptionFile
from showattendtell.data.tokenizers import CharacterTokenizer, PlainTokenizer, WordTokenizer
from showattendtell.data.vocabulary import EOS, PAD, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.distillation.loss import DistillationLoss, with_generated
from showattendtell.losses.caption import LossOutput, SoftLoss, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.captioner import Captioner
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.interfaces import Packing
from showattendtell.models.scores import AdditiveScore
from showattendtell.types import Batch, Caption

TEACHERS = {
    "soft": ["soft"],
    "two": ["soft", "hard, expectation"],
    "of three kinds": ["cosine", "adaptive", "dot"],
}


class Student(nn.Module):
    """Stands in the place of a module that trains."""

    def __init__(self, captioner: Captioner, model: ImageCaptioner):
        super().__init__()
        self.captioner, self.encoder, self.vocabulary = captioner, model.encoder, model.vocabulary
        self.loss, self.self_critical = SoftLoss(), None


def batch_of(model: ImageCaptioner) -> Batch:
    """Four captions of three images, of different lengths, one longer than all others."""
    grids = torch.randn(3, 4, model.encoder.dim, generator=torch.Generator().manual_seed(1))
    tokens = [[4, 5, EOS, PAD], [5, 4, 6, EOS], [7, EOS, PAD, PAD], [4, 5, 6, EOS]]
    return Batch(grids, torch.tensor([0, 2, 1, 2]), torch.tensor(tokens), torch.arange(3))


def plain_divergence(student: Tensor, teachers: list[Tensor], temperature: float) -> Tensor:
    """KL(q_T || p_T) of a word from the scores (V,): powers of probabilities, word by word."""
    q, p = torch.stack([scores.double().softmax(dim=0) for scores in teachers]).mean(dim=0), student.double().softmax(0)
    q, p = (x ** (1 / temperature) / (x ** (1 / temperature)).sum() for x in (q, p))
    divergence = torch.stack([q[word] * (q[word] / p[word]).log() for word in range(len(q))]).sum()
    torch.testing.assert_close(divergence, F.kl_div(p.log(), q, reduction="sum"))
    return divergence.float()


def scores_at(model: ImageCaptioner, batch: Batch) -> Tensor:
    trace = model(batch.images, batch.image_index, batch.tokens)
    return trace.at_steps(trace.logits)


def losses(
    kinds: list[str], temperature: float = 1.0, weight: float = 0.3, **settings: Any
) -> tuple[LossOutput, LossOutput, Tensor, Captioner]:
    """The loss of soft attention without and with teachers, and the plain formula of the divergence."""
    teachers = [small_model(kind, seed=seed) for seed, kind in enumerate(kinds, start=1)]
    batch = batch_of(teachers[0])
    captioner = small_captioner("soft", region_dim=teachers[0].encoder.region_dim)
    before: LossOutput = SoftLoss(**settings)(
        captioner, teachers[0].regions(batch.images), batch.image_index, batch.tokens
    )
    after = DistillationLoss(teachers, weight, temperature)(before, batch)
    assert before.outputs
    ours = before.outputs.at_steps(before.outputs.logits)
    theirs = [scores_at(teacher, batch) for teacher in teachers]
    divergences = [
        plain_divergence(ours[row, step], [scores[row, step] for scores in theirs], temperature)
        for row, step in (batch.tokens != PAD).nonzero().tolist()
    ]
    return before, after, torch.stack(divergences).sum() / len(batch.tokens), captioner


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kinds", TEACHERS.values(), ids=TEACHERS)
def test_the_divergence_from_the_mean_probability_of_the_teachers(kinds: list[str], temperature: float):
    before, after, divergence, _ = losses(kinds, temperature, doubly_stochastic_weight=0.5)
    assert divergence > 0.1
    torch.testing.assert_close(after.metrics["distillation"], divergence.detach())
    torch.testing.assert_close(after.terms["distillation"], 0.3 * temperature**2 * divergence)
    torch.testing.assert_close(after.terms["likelihood"], 0.7 * before.terms["likelihood"])
    torch.testing.assert_close(after.terms["doubly_stochastic"], before.terms["doubly_stochastic"])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_gradient_is_that_of_the_plain_formula(temperature: float):
    before, after, divergence, captioner = losses(["soft", "soft"], temperature, label_smoothing=0.1)
    plain = 0.7 * before.terms["likelihood"] + before.terms["doubly_stochastic"] + 0.3 * temperature**2 * divergence
    ours, expected = (
        torch.autograd.grad(loss, list(captioner.parameters()), retain_graph=True)
        for loss in (total(after.terms), plain)
    )
    assert any(gradient.abs().max() > 0.1 for gradient in expected)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_weight_0_is_the_loss_without_teachers_and_weight_1_leaves_the_captions_out():
    before, nothing, _, _ = losses(["soft"], weight=0.0)
    assert torch.equal(total(nothing.terms), total(before.terms))
    _, only, _, _ = losses(["soft"], weight=1.0)
    assert only.terms["likelihood"] == 0


def test_a_student_of_hard_attention_learns_with_each_sample():
    """Each sample of a caption is a row of the trace, and has the divergence of that row."""
    teacher = small_model("soft", seed=1)
    batch, dim = batch_of(teacher), teacher.encoder.region_dim
    captioner = small_captioner("soft", region_dim=dim)
    captioner.attention = HardAttention(dim, 8, score=partial(AdditiveScore, width=5), num_samples=3)
    captioner.train()
    output = HardLoss()(captioner, teacher.regions(batch.images), batch.image_index, batch.tokens)
    assert output.outputs
    ours, theirs = output.outputs.at_steps(output.outputs.logits), scores_at(teacher, batch)
    places = (batch.tokens != PAD).nonzero().tolist()
    rows = [plain_divergence(ours[4 * n + row, t], [theirs[row, t]], 1.0) for n in range(3) for row, t in places]
    assert not torch.equal(ours[:4], ours[4:8])
    figure = DistillationLoss([teacher])(output, batch).metrics["distillation"]
    torch.testing.assert_close(figure, torch.stack(rows).sum().detach() / 12)


def test_padding_has_no_divergence(monkeypatch: pytest.MonkeyPatch):
    """On a GPU, captions are packed with their padding."""
    _, packed, _, _ = losses(["soft", "hard, expectation"])
    monkeypatch.setattr(Packing, "of", Packing.with_padding)
    _, padded, divergence, _ = losses(["soft", "hard, expectation"])
    torch.testing.assert_close(padded.metrics["distillation"], divergence.detach())
    torch.testing.assert_close(padded.metrics["distillation"], packed.metrics["distillation"])


def checked(teacher: ImageCaptioner, attention: str = "soft", **student: Any) -> None:
    own = Student(small_captioner(attention), small_model())
    for name, part in student.items():
        setattr(own, name, part)
    DistillationLoss([teacher]).check(own)


def test_other_words_another_tokenizer_and_other_features_are_refused():
    checked(small_model("dot"))
    words = VOCABULARY.words
    with pytest.raises(UserError, match=r"another vocabulary \(10 words\) than this model \(11\).*vocabulary\.size"):
        checked(small_model(), vocabulary=Vocabulary([*words, "red"]))
    with pytest.raises(UserError, match="another vocabulary"):
        checked(small_model(), vocabulary=Vocabulary(words, WordTokenizer()))
    other = small_model()
    other.encoder.preprocessing = other.encoder.preprocessing._replace(resize=99)
    with pytest.raises(UserError, match=r"different: preprocessing\); train both with the same encoder"):
        checked(other)


def test_a_student_that_trains_its_encoder_needs_the_same_pixels_only():
    student, tuned = small_model(), small_model()
    with torch.no_grad():
        next(tuned.encoder.network.parameters()).add_(1.0)
    with pytest.raises(UserError, match="different: weights_sha256"):
        checked(tuned)
    student.encoder.trainable = True
    checked(tuned, encoder=student.encoder)
    tuned.encoder.preprocessing = tuned.encoder.preprocessing._replace(resize=99)
    with pytest.raises(UserError, match="different: preprocessing"):
        checked(tuned, encoder=student.encoder)


def test_generated_captions_of_several_files_take_the_place_of_references_in_training(tmp_path: Path):
    (tmp_path / "1.json").write_text('{"captions": {"a.jpg": "A cat.", "b.jpg": "x"}, "references": {}}')
    (tmp_path / "2.csv").write_text("image,caption\na.jpg,It purrs\na.jpg,...\n")
    captions = {"a.jpg": ["A dog"], "b.jpg": ["A bird"]}
    file = CaptionFile("test", captions, split_of={"a.jpg": "train", "b.jpg": "val"})
    dataset = assemble("pets", file, Path(), 5)
    files = [str(tmp_path / "1.json"), str(tmp_path / "2.csv")]

    replaced = with_generated(dataset, PlainTokenizer(), files)
    assert replaced.split("val") == dataset.split("val")
    [example] = replaced.split("train")
    assert example.captions == (
        Caption(("a", "cat"), (), "A cat.", ("a", "cat")),
        Caption(("it", "purrs"), (), "It purrs", ("it", "purrs")),
    )
    [added] = with_generated(dataset, PlainTokenizer(), str(tmp_path / "*.json"), keep_references=True).split("train")
    assert added.captions == (*dataset.split("train")[0].captions, example.captions[0])
    [letters] = with_generated(dataset, CharacterTokenizer(), files[0]).split("train")
    assert letters.captions[0][:3] == (tuple("A▁cat."), (), "A cat.")


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting of two teachers of random weights, in place of two checkpoints."""
    monkeypatch.setattr("showattendtell.training.progress.draw_curves", lambda *_: None)
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
