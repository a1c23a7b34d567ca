import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from archive_server import files_in, tarred, zipped
from existing_files import snapshot

from showattendtell.errors import UserError
from showattendtell.extensions.download.publication import unpack

MEMBERS = {"train2014/1.jpg": b"one", "train2014/2.jpg": b"second", "notes/a.txt": b"text", "__MACOSX/._1.jpg": b"junk"}
CHOSEN = {"train2014/1.jpg": b"one", "train2014/2.jpg": b"second"}

forms = pytest.mark.parametrize("packed", [zipped, tarred])


def unpacked(content: bytes, folder: Path, *patterns: str) -> dict[str, bytes]:
    archive, root = folder / "archive", folder / "root"
    archive.write_bytes(content)
    root.mkdir(exist_ok=True)
    names = unpack(archive, root, patterns or ("train2014/*.jpg",))
    assert set(names) <= set(files_in(root))
    return files_in(root)


@forms
def test_the_members_that_fit_a_pattern_are_unpacked(packed: Callable[..., bytes], tmp_path: Path):
    assert unpacked(packed(MEMBERS), tmp_path) == CHOSEN


@forms
def test_what_is_there_is_not_written_again_and_refused_where_its_size_differs(
    packed: Callable[..., bytes], tmp_path: Path
):
    folder = tmp_path / "root" / "train2014"
    folder.mkdir(parents=True)
    (folder / "1.jpg").write_bytes(b"own")
    assert unpacked(packed(MEMBERS), tmp_path) == {**CHOSEN, "train2014/1.jpg": b"own"}
    (folder / "2.jpg").write_bytes(b"another")
    before = snapshot(tmp_path / "root")
    with pytest.raises(UserError, match=r"train2014/2.jpg exists, and differs"):
        unpacked(packed(MEMBERS), tmp_path)
    assert snapshot(tmp_path / "root") == before


@forms
def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(packed: Callable[..., bytes], tmp_path: Path):
    (tmp_path / "root/train2014").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"own")
    (tmp_path / "root/train2014/1.jpg.part").symlink_to(tmp_path / "outside")
    assert unpacked(packed(MEMBERS), tmp_path) == CHOSEN
    assert (tmp_path / "outside").read_bytes() == b"own"


@forms
@pytest.mark.parametrize("name", ["../evil.jpg", "train2014/../../evil.jpg", "/tmp/evil.jpg", "a/.."])
def test_an_archive_with_a_member_outside_the_root_is_refused_whole(
    packed: Callable[..., bytes], name: str, tmp_path: Path
):
    with pytest.raises(UserError, match=f"has the member {name}, which lies outside of .*root; nothing was unpacked"):
        unpacked(packed({**MEMBERS, name: b"evil"}), tmp_path)
    assert files_in(tmp_path / "root") == {}
    assert not (tmp_path / "evil.jpg").exists()


def test_a_link_in_a_zip_leads_nowhere(tmp_path: Path):
    link = zipfile.ZipInfo("train2014/out")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(link, str(tmp_path / "elsewhere"))
    unpack(tmp_path / "a.zip", tmp_path, ["train2014/*"])
    assert not (tmp_path / "train2014" / "out").is_symlink()


def broken_member(packed: bytes) -> bytes:
    return packed.replace(b"second", b"sEcond")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", r"cannot be unpacked \(.*\); get it again"),
        (b"<html>please log in</html>", r"cannot be unpacked \(.*\); get it again"),
        (zipped(MEMBERS)[:-30], r"cannot be unpacked \(.*\); get it again"),
        (broken_member(zipped(MEMBERS)), r"cannot be unpacked \(Bad CRC-32 for file 'train2014/2.jpg'\)"),
        (tarred({"train2014/1.jpg": os.urandom(20_000)})[:9000], r"cannot be unpacked \(.+\)"),
        (zipped({"notes/a.txt": b"text"}), r"has no train2014/\*.jpg"),
        (tarred({"notes/a.txt": b"text"}), r"has no train2014/\*.jpg"),
    ],
)
def test_a_damaged_archive_is_reported(content: bytes, complaint: str, tmp_path: Path):
    with pytest.raises(UserError, match=complaint):
        unpacked(content, tmp_path)
    assert set(files_in(tmp_path / "root")) <= {"train2014/1.jpg", "train2014/1.jpg.part", "train2014/2.jpg.part"}
