"""The metrics file."""

from pathlib import Path

import pytest

from showattendtell.training.loggers import METRICS, MetricsFile


def test_the_log_has_a_row_for_each_time_and_a_column_for_each_figure(tmp_path: Path):
    log = MetricsFile(tmp_path)
    log.log_metrics({"loss": 2.5, "epoch": 0}, step=3)
    log.save()
    assert (tmp_path / METRICS).read_text() == "epoch,loss,step\n0,2.5,3\n"
    log.log_metrics({"bleu": 0.1, "epoch": 1}, step=6)
    log.save()
    assert (tmp_path / METRICS).read_text() == "bleu,epoch,loss,step\n,0,2.5,3\n0.1,1,,6\n"
    assert [file.name for file in tmp_path.iterdir()] == [METRICS]


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
