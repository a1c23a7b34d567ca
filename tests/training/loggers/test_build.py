from pathlib import Path

import pytest
from omegaconf import OmegaConf

from showattendtell.training.loggers.build import METRICS, MetricsFile, SweepOrigin, figures_in, read_origin


def test_the_log_has_a_row_for_each_time_and_a_column_for_each_figure(tmp_path: Path):
    log = MetricsFile(tmp_path)
    log.log_metrics({"loss": 2.5, "epoch": 0}, step=3)
    log.save()
    assert (tmp_path / METRICS).read_text() == "epoch,loss,step\n0,2.5,3\n"
    log.log_metrics({"bleu": 0.1, "epoch": 1}, step=6)
    log.save()
    assert (tmp_path / METRICS).read_text() == "bleu,epoch,loss,step\n,0,2.5,3\n0.1,1,,6\n"
    assert [file.name for file in tmp_path.iterdir()] == [METRICS]


def test_the_figures_of_a_log_are_known_by_step_and_name(tmp_path: Path):
    assert figures_in(tmp_path / METRICS) == set()
    (tmp_path / METRICS).write_text("bleu,epoch,loss,step\n,0,2.5,3\n0.1,1,,6\n")
    assert figures_in(tmp_path / METRICS) == {
        (3, "epoch"),
        (3, "loss"),
        (3, "step"),
        (6, "bleu"),
        (6, "epoch"),
        (6, "step"),
    }


@pytest.mark.parametrize(("mode", "group"), [("RUN", None), ("MULTIRUN", "compare")])
def test_a_run_of_a_sweep_is_grouped_by_the_sweep_s_folder(tmp_path: Path, mode: str, group: str | None):
    folder = tmp_path / "compare" / "3"
    assert read_origin(folder) == SweepOrigin(None, ())
    choices = {"dataset": "shapes", "attention": "hard", "decoder": "lstm", "variant": "paper", "encoder": None}
    (folder / "config").mkdir(parents=True)
    OmegaConf.save({"hydra": {"mode": mode, "runtime": {"choices": choices}}}, folder / "config/hydra.yaml")
    assert read_origin(folder) == SweepOrigin(group, ("shapes", "hard", "lstm"))


def test_a_log_that_cannot_be_written_ends_no_run_and_is_whole_when_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    log = MetricsFile(tmp_path / "gone")
    for step in (3, 6):
        log.log_metrics({"loss": 2.5}, step)
        log.save()
    assert capsys.readouterr().err.count("cannot be written (No such file or directory)") == 1
    (tmp_path / "gone").mkdir()
    log.save()
    assert log.path.read_text() == "loss,step\n2.5,3\n2.5,6\n"
