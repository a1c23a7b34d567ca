from pathlib import Path

import pytest

from showattendtell.data.parsing import read_list, read_text
from showattendtell.errors import UserError


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding, newline="")
    return path


def test_a_split_list_is_a_name_a_line(tmp_path: Path):
    assert read_list(write(tmp_path / "list.txt", "a.jpg\r\n\r\n b.jpg\nc d.jpg")) == ["a.jpg", "b.jpg", "c d.jpg"]


def test_a_text_file_that_is_missing_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"nowhere.txt does not exist"):
        read_list(tmp_path / "nowhere.txt")


def test_a_folder_in_a_text_file_s_place_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"is a folder, a file was expected"):
        read_list(tmp_path)


def test_text_that_is_not_utf_8_is_reported_with_the_byte(tmp_path: Path):
    path = write(tmp_path / "tokens.txt", "a.jpg#0\tA caf\u00e9 .\n", encoding="latin-1")
    with pytest.raises(UserError, match=r"tokens.txt is not UTF-8 text \(byte 13\); convert it to UTF-8"):
        read_text(path)
