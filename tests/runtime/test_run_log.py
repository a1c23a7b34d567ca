import contextlib
import io
import sys
from pathlib import Path

import pytest
from disks import limited_files

from showattendtell.errors import UserError
from showattendtell.runtime.files import logged

BAR = "epoch 1 of 2 ━━━━╸━━━ 9/60 0:00:02 • 0:00:08 loss: 3.674 images/s: 22"


def test_a_log_has_the_lines_of_both_streams_without_colors_and_progress_bars(tmp_path: Path):
    terminal, file = io.StringIO(), tmp_path / "train.log"
    with contextlib.redirect_stdout(terminal), logged(file, str):
        print("┏━━━┓\n\x1b[33mwarning\x1b[0m")
        sys.stdout.write(f"\r\x1b[2K{BAR}")
        sys.stdout.write(f"\r\x1b[2Kepoch 1: val/bleu4 20.0\n{BAR}")
        print("stopped", file=sys.stderr)
    assert file.read_text(encoding="utf-8") == "┏━━━┓\nwarning\nepoch 1: val/bleu4 20.0\nstopped\n"
    assert BAR in terminal.getvalue()


def test_a_log_goes_on_and_ends_with_the_error(tmp_path: Path):
    file = tmp_path / "train.log"
    file.write_text("before\n")
    with pytest.raises(UserError), logged(file, lambda error: f"error: {error}\n"):
        raise UserError("no")
    assert file.read_text() == "before\nerror: no\n"


def test_a_full_disk_does_not_end_what_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with limited_files(0), logged(tmp_path / "train.log", str):
        print("printed")
    assert capsys.readouterr().out == "printed\n"
    assert (tmp_path / "train.log").read_text() == ""


def test_a_log_is_not_written_through_a_link(tmp_path: Path):
    (tmp_path / "profile").write_text("mine")
    (tmp_path / "train.log").symlink_to(tmp_path / "profile")
    with pytest.raises(OSError, match="it is a symbolic link; remove it"), logged(tmp_path / "train.log", str):
        pass
    assert (tmp_path / "profile").read_text() == "mine"
