import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from disks import limited_files
from existing_files import EXISTING, IRREGULAR, snapshot

from showattendtell.errors import UserError
from showattendtell.images.names import dataset_folder
from showattendtell.loading.hub import find_model
from showattendtell.readers.formats import find_caption_files
from showattendtell.runtime.files import (
    atomic_write,
    cache_folder,
    check_regular,
    lock_file,
    new_file,
    new_folder,
    new_path,
    open_regular,
    read_regular,
)

UMASK = os.umask(0)
os.umask(UMASK)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_takes_its_place_when_it_is_written(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_text("before")
    with atomic_write(file) as stream:
        stream.write(b"behind")
        assert file.read_text() == "before"
    assert file.read_text() == "behind"
    assert names(tmp_path) == ["a.txt"]


def test_a_file_that_is_written_twice_at_once_is_one_of_both(tmp_path: Path):
    file = tmp_path / "a.txt"
    with atomic_write(file) as one:
        one.write(b"one, the longer")
        with atomic_write(file) as other:
            other.write(b"other")
        assert file.read_text() == "other"
    assert file.read_text() == "one, the longer"
    assert names(tmp_path) == ["a.txt"]


def test_a_process_that_is_killed_leaves_a_file_of_its_own(tmp_path: Path):
    file = tmp_path / "a.txt"
    for content in (b"1", b"2"):
        process = os.fork()
        if not process:
            with atomic_write(file) as stream:
                stream.write(content)
                os._exit(1)
        os.waitpid(process, 0)
    left = names(tmp_path)
    assert len(left) == 2
    assert all(name.startswith("a.txt.") and name.endswith(".tmp") for name in left)


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_file_that_is_not_written_to_its_end_leaves_nothing_and_changes_nothing(
    tmp_path: Path, fault: type[BaseException]
):
    (tmp_path / "a.txt").write_text("before")

    def write_half() -> None:
        with atomic_write(tmp_path / "a.txt", keep=tmp_path / "b.txt") as stream:
            stream.write(b"half")
            raise fault

    with pytest.raises(fault):
        write_half()
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"


def test_a_full_disk_is_reported_with_the_files_name(tmp_path: Path):
    (tmp_path / "a.txt").write_text("before")
    with (
        pytest.raises(OSError, match="a.txt") as error,
        limited_files(1000),
        atomic_write(tmp_path / "a.txt") as stream,
    ):
        stream.write(bytes(2000))
    assert error.value.filename == str(tmp_path / "a.txt")
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"


@pytest.mark.parametrize("kind", EXISTING)
def test_no_output_replaces_what_exists(tmp_path: Path, kind: str):
    """A path that was given is refused, and a default path gets the next number."""
    place = tmp_path / "out.ckpt"
    EXISTING[kind](place)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match="out.ckpt exists"):
        new_path(place)
    with pytest.raises(UserError, match=r"out.ckpt (exists|cannot be written)"), new_folder(place):
        pass
    assert snapshot(tmp_path) == before
    assert new_path(None, place) == tmp_path / "out-2.ckpt"
    with new_file(place) as file:
        file.write_text("new")
    with new_folder(None, place) as folder:
        (folder / "new").touch()
    assert snapshot(tmp_path) == {**before, "out-2.ckpt": b"new", "out-3.ckpt": None, "out-3.ckpt/new": b""}


@pytest.mark.parametrize("path", ["", ".", "..", "/"])
def test_a_folder_is_no_name_for_a_file(path: str):
    with pytest.raises(UserError, match=r"exists, and no file is replaced"):
        new_path(Path(path))


@pytest.mark.parametrize(
    "open_one", [new_path, find_model, find_caption_files, partial(dataset_folder, content="images")]
)
def test_a_home_folder_that_does_not_exist_is_reported(open_one: Callable[[str], object]):
    with pytest.raises(UserError, match="~nobody-of-this-name/a.txt: there is no such home folder"):
        open_one("~nobody-of-this-name/a.txt")


def test_a_file_or_folder_that_fails_is_removed(tmp_path: Path):
    for make in (new_file, new_folder):
        with pytest.raises(KeyError), make(tmp_path / "out"):
            raise KeyError
        assert names(tmp_path) == []
    for whole in (True, False):
        with suppress(KeyError), new_folder(tmp_path / "out", whole=whole) as folder:
            (folder / "half").touch()
            raise KeyError
        assert names(tmp_path) == ([] if whole else ["out"])


def test_an_empty_folder_is_taken_and_one_with_files_is_resumed(tmp_path: Path):
    with new_folder(tmp_path) as folder:
        (folder / "one").touch()
    with pytest.raises(UserError, match="exists"), new_folder(tmp_path):
        pass
    taken = pytest.raises(UserError, match="another command is writing")
    with new_folder(tmp_path, resume=True), taken, new_folder(tmp_path, resume=True):
        pass


def _claim(kind: str, place: Path, start: Barrier) -> None:
    start.wait()
    if kind == "file":
        with new_file(place) as file:
            file.write_text(str(os.getpid()))
    else:
        given, default = (place, "") if kind == "given folder" else (None, place)
        with new_folder(given, default) as folder:
            (folder / "pid").write_text(str(os.getpid()))


@pytest.mark.parametrize("kind", ["file", "folder", "given folder"])
def test_of_processes_that_start_at_once_each_has_its_own_output(tmp_path: Path, kind: str):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)
    processes = [context.Process(target=_claim, args=(kind, tmp_path / "out", start)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    done = {str(process.pid) for process in processes if process.exitcode == 0}
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(done)
    assert len(done) == (1 if kind == "given folder" else 8)


def test_a_user_without_a_home_folder_has_to_name_the_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id that is not in /etc/passwd
    monkeypatch.delenv("SHOWATTENDTELL_CACHE", raising=False)
    with pytest.raises(UserError, match="SHOWATTENDTELL_CACHE"):
        cache_folder()
    monkeypatch.setenv("SHOWATTENDTELL_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


@pytest.mark.parametrize("kind", IRREGULAR)
def test_a_file_whose_reading_might_not_end_is_not_opened(tmp_path: Path, kind: str):
    place = tmp_path / "place"
    IRREGULAR[kind](place)
    for open_one in (open_regular, read_regular, check_regular, lock_file, partial(open_regular, mode="a")):
        with pytest.raises(OSError, match=r"(pipe or device|a folder|Is a directory|a symbolic link).*place'$"):
            open_one(place)


def test_links_are_read_and_not_written_through(tmp_path: Path):
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"
    with pytest.raises(OSError, match="it is a symbolic link; remove it"):
        open_regular(tmp_path / "link", "w")
    assert (tmp_path / "file").read_text() == "content"
    with open_regular(tmp_path / "new", "w") as file:
        file.write("a")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666 & ~UMASK
