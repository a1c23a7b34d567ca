"""The metrics file."""

from pathlib import Path

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
