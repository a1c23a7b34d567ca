"""Whatever a file holds, its reader returns, or raises `UserError` with one line that a terminal can show.

`make test` draws few files for each reader, always the same ones; `make test-all` draws others for minutes.
`corpus/READER/CASE/` holds folders that once did something else.
"""

import os
import resource
import signal
import time
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from existing_files import IRREGULAR
from fuzzed import READERS, Files, folders, laid_out
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from showattendtell.errors import UserError

CORPUS = Path(__file__).with_name("corpus")
SECONDS, MEGABYTES = 5.0, 600
"""CPU time and growth of memory that no reader exceeds for a file of 2 MB."""
FEW, MANY = 12, int(os.environ.get("SHOWATTENDTELL_FUZZ_EXAMPLES", "400"))
"""Files for each reader."""

anyhow = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


def assert_reads_or_refuses(name: str, files: Files) -> bool:
    """Read files within the limits, and return whether they were accepted."""
    accepted = True
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with laid_out(files) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            READERS[name].read(folder)
        except Exception as fault:
            accepted = False
            # by its name, so that an unknown type is reported with its own traceback
            if type(fault).__name__ != "UserError":
                raise
            message = str(fault)
            assert message
            assert not [one for one in message if unicodedata.category(one) in ("Cc", "Cs")], repr(message)
    assert time.process_time() - begin < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000 < MEGABYTES
    return accepted


@pytest.mark.parametrize("name", READERS)
def test_a_reader_accepts_its_own_files(name: str):
    assert assert_reads_or_refuses(name, READERS[name].files())


@pytest.mark.parametrize("case", sorted(CORPUS.glob("*/*")), ids=lambda case: f"{case.parent.name}-{case.name}")
def test_what_was_found_before(case: Path):
    files = {file.relative_to(case).as_posix(): file.read_bytes() for file in case.rglob("*") if file.is_file()}
    assert_reads_or_refuses(case.parent.name, files)


@pytest.mark.parametrize("name", READERS)
@settings(anyhow, max_examples=FEW, derandomize=True)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(name: str, data: st.DataObject):
    assert_reads_or_refuses(name, data.draw(folders(name)))


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("name", sorted({*READERS} - {"images"}))  # whose reader gets the content of files
def test_what_is_no_file_is_not_read(name: str, kind: str, alarm: None):
    files = READERS[name].files()
    for other in files:
        with laid_out(files) as folder:
            (folder / other).unlink()
            IRREGULAR[kind](folder / other)
            begin = time.monotonic()
            with suppress(UserError):
                READERS[name].read(folder)
            assert time.monotonic() - begin < SECONDS  # it has not waited for what a pipe may bring


@pytest.fixture
def alarm() -> Iterator[None]:
    """Raise `TimeoutError` in a test that waits for a pipe."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@settings(anyhow, max_examples=MANY)
@given(data=st.data())
def test_many_damaged_files_are_read_or_refused(name: str, data: st.DataObject):
    assert_reads_or_refuses(name, data.draw(folders(name)))
