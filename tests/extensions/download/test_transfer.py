import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_server import ArchiveServer, serve_archives
from rich.console import Console
from rich.progress import Progress

from showattendtell.errors import UserError
from showattendtell.extensions.download import publication
from showattendtell.extensions.download.publication import fetch

CONTENT = random.Random(1).randbytes(700_001)

Fetch = Callable[..., Path]


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveServer]:
    monkeypatch.setattr(publication, "LONGEST_WAIT", 0.0)
    monkeypatch.setattr(publication, "CHUNK", 1000)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve_archives() as server:
        yield server


@pytest.fixture
def get(publisher: ArchiveServer, tmp_path: Path) -> Fetch:
    """Fetches a.zip from the publisher; `task` of the function is its task of the progress bar."""
    publisher.files["a.zip"] = CONTENT

    def run(retries: int = 3) -> Path:
        path = tmp_path / "a.zip"
        progress = Progress(console=Console(stderr=True))
        assert fetch(f"{publisher.address}/zips/a.zip", path, retries, progress)
        assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]
        [run.task] = progress.tasks  # type: ignore[attr-defined]
        return path

    return run


def asked(publisher: ArchiveServer) -> list[str | None]:
    return [wanted for _, wanted in publisher.requests]


def test_a_file_arrives_whole_and_is_reported_on_the_way(publisher: ArchiveServer, get: Fetch):
    assert get().read_bytes() == CONTENT
    assert asked(publisher) == [None]
    assert (get.task.completed, get.task.total) == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("seed", range(4))
def test_what_came_before_the_line_broke_is_not_requested_again(
    publisher: ArchiveServer, get: Fetch, seed: int, capsys: pytest.CaptureFixture[str]
):
    cuts = sorted(random.Random(seed).sample(range(1000, len(CONTENT), 1000), 3))
    publisher.faults = [f"drop:{end - start}" for start, end in zip([0, *cuts], cuts, strict=False)]
    assert get().read_bytes() == CONTENT
    assert asked(publisher) == [None, *(f"bytes={cut}-" for cut in cuts)]
    assert capsys.readouterr().err.count("trying again") == 3


def test_a_second_run_continues_where_the_first_gave_up(publisher: ArchiveServer, get: Fetch, tmp_path: Path):
    publisher.faults = ["drop:300000"] + ["drop:0"] * 3
    with pytest.raises(UserError, match=r"a.zip cannot be downloaded \(.*\); 300.0 kB are here: run the command again"):
        get(retries=2)
    assert (tmp_path / "a.zip.part").read_bytes() == CONTENT[:300_000]
    publisher.requests.clear()
    publisher.faults.clear()
    assert get().read_bytes() == CONTENT
    assert asked(publisher) == ["bytes=300000-"]


@pytest.mark.parametrize("faults", [["drop:9"], ["drop:300000", "drop:9"], ["drop:300000", "drop:0", "drop:350000"]])
def test_a_server_without_ranges_is_required_the_whole(publisher: ArchiveServer, get: Fetch, faults: list[str]):
    publisher.ranges, publisher.faults = False, faults
    assert get().read_bytes() == CONTENT


def test_a_server_without_ranges_that_breaks_at_one_place_is_given_up(publisher: ArchiveServer, get: Fetch):
    publisher.ranges, publisher.faults = False, ["drop:300000"] * 100
    with pytest.raises(UserError, match="cannot be downloaded"):
        get(retries=3)
    assert len(publisher.requests) == 4


def test_a_rest_that_does_not_begin_where_the_beginning_ends_is_refused(publisher: ArchiveServer, get: Fetch):
    publisher.faults = ["drop:300000", "shift"]
    assert get().read_bytes() == CONTENT
    assert asked(publisher) == [None, "bytes=300000-", None]


def test_a_beginning_longer_than_the_file_is_forgotten(publisher: ArchiveServer, get: Fetch, tmp_path: Path):
    publisher.faults = ["drop:300000"]
    with pytest.raises(UserError):
        get(retries=0)
    (tmp_path / "a.zip.part").write_bytes(CONTENT + b"more")
    assert get().read_bytes() == CONTENT


def test_a_busy_server_is_requested_again(publisher: ArchiveServer, get: Fetch, capsys: pytest.CaptureFixture[str]):
    publisher.faults = ["busy", "busy"]
    assert get().read_bytes() == CONTENT
    assert len(publisher.requests) == 3
    assert "the server answers 503 Service Unavailable; trying again" in capsys.readouterr().err


def test_a_server_that_stays_busy_is_reported(publisher: ArchiveServer, get: Fetch):
    publisher.faults = ["busy"] * 9
    with pytest.raises(UserError, match=r"cannot be downloaded \(the server answers 503 Service Unavailable\)"):
        get(retries=3)
    assert len(publisher.requests) == 4


def test_a_file_of_unreported_length_ends_where_the_answer_ends(publisher: ArchiveServer, get: Fetch):
    publisher.sends_length = False
    assert get().read_bytes() == CONTENT
    assert (get.task.completed, get.task.total) == (len(CONTENT), None)


def test_a_silent_server_is_given_up(publisher: ArchiveServer, get: Fetch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("showattendtell.extensions.download.publication.TIMEOUT", 0.1)
    silent = threading.Event()
    monkeypatch.setattr("archive_server.Handler.do_GET", lambda self: silent.wait(5))
    with pytest.raises(UserError, match="timed out"):
        get(retries=1)
    silent.set()
