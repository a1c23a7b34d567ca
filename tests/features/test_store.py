import json
import multiprocessing
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.features.store import FeatureStore, FeatureWriter, refuse_difference

SETTINGS = {"network": "tiny", "preprocessing": {"crop": 4, "mean": [0.5, 0.5, 0.5]}, "grid": [2, 3], "dim": 5}
NAMES = [f"photograph {number}.jpg" for number in range(10)]
LARGE = {"grid": [100, 100], "dim": 50}
MEGABYTE = 1_000_000


def grids_of(names: list[str], settings: dict[str, Any] = SETTINGS) -> Tensor:
    """Numbers that fp16 has to round, other ones for each name."""
    rows, columns = settings["grid"]
    generators = [torch.Generator().manual_seed(len(name) * 1000 + int(name.split()[1][:-4])) for name in names]
    return torch.stack([torch.randn(rows * columns, settings["dim"], generator=g) for g in generators])


def write(path: Path, names: list[str], batches: int | None = None, settings: dict[str, Any] = SETTINGS) -> list[str]:
    """Write what remains, three images a batch; stop after some batches where that is asked for. What remained."""
    with FeatureWriter(path, settings, names) as writer:
        remaining = writer.remaining()
        starts = range(0, len(remaining), 3)[:batches]
        for start in starts:
            batch = remaining[start : start + 3]
            writer.write(batch, grids_of(batch, settings), {})
        if batches is None:
            writer.finish()
    return remaining


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "grids.safetensors"


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """As on a disk that is almost full: no file can grow beyond the size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_is_written_is_read_back_to_the_precision_of_fp16(path: Path):
    write(path, NAMES)
    store = FeatureStore(path, SETTINGS)
    assert torch.equal(store[store.rows(NAMES)], grids_of(NAMES).half())
    assert torch.equal(
        store[store.rows([NAMES[7], NAMES[2], NAMES[7]])], grids_of([NAMES[i] for i in (7, 2, 7)]).half()
    )
    assert store.skipped == []


def test_any_reader_of_safetensors_reads_the_file(path: Path):
    write(path, NAMES)
    assert torch.equal(load_file(path)["grids"], grids_of(NAMES).half())
    with safe_open(path, framework="np") as file:
        metadata = {key: json.loads(value) for key, value in file.metadata().items()}
    assert metadata == {"settings": SETTINGS, "images": NAMES, "skipped": []}


def test_nothing_but_the_finished_file_is_left(path: Path):
    write(path, NAMES, batches=2)
    assert not path.exists()
    write(path, NAMES)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_announced_size_is_the_size_on_disk(path: Path):
    announced = FeatureWriter(path, SETTINGS, NAMES).num_bytes
    write(path, NAMES)
    assert path.stat().st_size == announced


def test_a_new_writer_continues_after_the_last_batch(path: Path, tmp_path: Path):
    write(path, NAMES, batches=2)
    assert write(path, NAMES) == NAMES[6:]
    write(tmp_path / "undisturbed", NAMES)
    assert path.read_bytes() == (tmp_path / "undisturbed").read_bytes()


def test_a_writer_that_was_stopped_before_the_end_of_the_file_has_nothing_left_to_do(path: Path, tmp_path: Path):
    write(path, NAMES, batches=4)
    assert write(path, NAMES) == []
    write(tmp_path / "undisturbed", NAMES)
    assert path.read_bytes() == (tmp_path / "undisturbed").read_bytes()


@pytest.mark.parametrize("torn", [1, 5, 30])
def test_a_torn_last_line_of_the_journal_loses_one_batch(path: Path, tmp_path: Path, torn: int):
    write(path, NAMES, batches=2)
    journal = Path(f"{path}.progress")
    journal.write_bytes(journal.read_bytes()[:-torn])
    assert write(path, NAMES) == NAMES[3:]
    write(tmp_path / "undisturbed", NAMES)
    assert path.read_bytes() == (tmp_path / "undisturbed").read_bytes()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda journal: b"",
    "torn first line": lambda journal: journal[:20],
    "empty line": lambda journal: b"\n",
    "no settings": lambda journal: b"{}\n",
    "a list": lambda journal: b"[]\n",
    "zeros": lambda journal: b"\0" * len(journal) + b"\n",
    "not UTF-8": lambda journal: b"\xff\xfe\n",
    "garbage behind": lambda journal: journal + b"garbage\n",
    "no images": lambda journal: journal + b"{}\n",
    "a batch twice": lambda journal: journal + journal.splitlines(keepends=True)[-1],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_journal_that_cannot_be_trusted_costs_work_but_nothing_else(
    path: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
):
    write(path, NAMES, batches=2)
    journal = Path(f"{path}.progress")
    journal.write_bytes(damage(journal.read_bytes()))
    write(path, NAMES)
    write(tmp_path / "undisturbed", NAMES)
    assert path.read_bytes() == (tmp_path / "undisturbed").read_bytes()


def test_without_the_unfinished_file_the_journal_does_not_count(path: Path):
    write(path, NAMES, batches=2)
    Path(f"{path}.part").unlink()
    assert write(path, NAMES) == NAMES


def test_other_settings_start_anew(path: Path):
    write(path, NAMES, batches=2)
    other = {**SETTINGS, "network": "another"}
    assert write(path, NAMES, settings=other) == NAMES
    assert torch.equal(FeatureStore(path, other).grids, grids_of(NAMES).half())


@pytest.mark.parametrize("names", [NAMES[:8], NAMES[::-1], [f"image {number}.jpg" for number in range(1000)] + NAMES])
def test_a_data_set_that_changed_since_the_interruption_gets_the_right_grids(path: Path, names: list[str]):
    write(path, NAMES, batches=2)
    write(path, names)
    store = FeatureStore(path, SETTINGS)
    assert torch.equal(store[store.rows(names)], grids_of(names).half())


def test_a_data_set_without_images_of_the_interrupted_one_starts_anew(path: Path):
    write(path, NAMES, batches=2)
    assert write(path, NAMES[4:]) == NAMES[4:]
    assert torch.equal(FeatureStore(path, SETTINGS).grids, grids_of(NAMES[4:]).half())


def test_skipped_images_are_remembered_over_an_interruption(path: Path):
    with FeatureWriter(path, SETTINGS, NAMES) as writer:
        writer.write([NAMES[0], NAMES[2]], grids_of([NAMES[0], NAMES[2]]), {NAMES[1]: "broken"})
    assert write(path, NAMES) == NAMES[3:]
    store = FeatureStore(path, SETTINGS)
    present = [NAMES[0], *NAMES[2:]]
    assert store.skipped == [NAMES[1]]
    assert NAMES[1] not in store
    assert torch.equal(store[store.rows(present)], grids_of(present).half())
    assert len(load_file(path)["grids"]) == 9


def test_a_batch_of_which_nothing_could_be_read_is_remembered(path: Path):
    with FeatureWriter(path, SETTINGS, NAMES) as writer:
        writer.write([], torch.zeros(0, 6, 5), dict.fromkeys(NAMES, "broken"))
        writer.finish()
    assert FeatureStore(path, SETTINGS).skipped == NAMES


@pytest.mark.parametrize("settings", [SETTINGS, {**SETTINGS, "network": "another"}], ids=["the same", "other"])
@pytest.mark.parametrize("begun", [0, 2])
def test_a_second_writer_of_the_same_file_is_refused_and_spoils_nothing(path: Path, settings: dict, begun: int):
    def try_to_write() -> None:
        try:
            write(path, NAMES, settings=settings)
        except UserError as fault:
            answers.put(str(fault))
        else:
            answers.put("wrote")

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with FeatureWriter(path, SETTINGS, NAMES) as first:
        for name in NAMES[:begun]:
            first.write([name], grids_of([name]), {})
        second = context.Process(target=try_to_write)
        second.start()
        second.join()
        assert f"{path} is being written by another process" in answers.get()
        assert Path(f"{path}.part").stat().st_size == first.num_bytes
        first.write(NAMES[begun:], grids_of(NAMES[begun:]), {})
        first.finish()
    assert torch.equal(FeatureStore(path, SETTINGS).grids, grids_of(NAMES).half())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"network": "vgg19"}, r"network=tiny, this run has network=vgg19"),
        ({"preprocessing": {"crop": 8, "mean": [0.5, 0.5, 0.5]}}, r"crop=4, this run has crop=8"),
        ({"preprocessing": {"crop": 4, "mean": [0.5, 0.5, 0.4]}}, r"mean=\[0.5, 0.5, 0.5\], .* mean=\[0.5, 0.5, 0.4\]"),
        ({"dim": 6}, r"dim=5, this run has dim=6"),
        ({"later": 1}, r"later=None, this run has later=1"),
    ],
)
def test_a_store_made_with_other_settings_is_refused_by_naming_the_difference(path: Path, change: dict, told: str):
    write(path, NAMES)
    with pytest.raises(UserError, match=rf"grids.safetensors was made with {told}; set cache to another folder"):
        FeatureStore(path, {**SETTINGS, **change})


def test_a_setting_that_only_the_store_has_is_a_difference():
    with pytest.raises(UserError, match="made with network=tiny, this run has network=None"):
        refuse_difference(Path("store"), SETTINGS, {key: SETTINGS[key] for key in ("preprocessing", "grid", "dim")})


def test_equal_settings_are_accepted_whatever_their_order():
    turned = dict(reversed(SETTINGS.items()))
    assert list(turned) != list(SETTINGS)
    assert refuse_difference(Path("store"), SETTINGS, turned) is None


def test_a_store_that_lacks_images_is_told(path: Path):
    write(path, NAMES)
    store = FeatureStore(path, SETTINGS)
    with pytest.raises(UserError, match=r"lacks 2 of the data set's images, the first is new.jpg; remove the file"):
        store.rows([NAMES[0], "new.jpg", "newer.jpg"])


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "length", "folder"])
def test_a_damaged_store_is_told(path: Path, damage: str):
    write(path, NAMES)
    content = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        damaged = {"empty": b"", "cut": content[:-100], "header": content[:8] + b"?" + content[9:]}
        path.write_bytes(damaged.get(damage, b"\xff" * 8 + content[8:]))
    with pytest.raises(UserError, match=r"grids.safetensors is damaged \(.+\); remove it and it will be made again"):
        FeatureStore(path, SETTINGS)


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ("grids", None),
        ("grids", {"author": "somebody else"}),
        ("grids", {"settings": "{"}),
        ("other", {"settings": "{}"}),
    ],
)
def test_a_safetensors_file_of_another_kind_is_told(tmp_path: Path, tensors: str, metadata: dict | None):
    save_file({tensors: torch.zeros(1, 6, 5)}, tmp_path / "foreign.safetensors", metadata)
    with pytest.raises(UserError, match=r"foreign.safetensors .*; remove it and it will be made again"):
        FeatureStore(tmp_path / "foreign.safetensors", {})


def test_a_full_disk_is_told_before_any_work_and_later_there_is_room(path: Path):
    with (
        largest_file(2 * MEGABYTE),
        pytest.raises(
            UserError, match=r"cannot be written \(File too large\); it needs 10.0 MB: make room, or set cache"
        ),
    ):
        write(path, NAMES, settings=LARGE)
    assert not path.exists()
    write(path, NAMES[:2], settings=LARGE)
    assert torch.equal(FeatureStore(path, LARGE).grids, grids_of(NAMES[:2], LARGE).half())


@pytest.mark.parametrize("room", [0.0, 0.5])
def test_a_batch_that_the_disk_takes_in_part_is_told_and_written_again(path: Path, room: float):
    """A grid has one megabyte; there is room for one grid, and for none or half of the next."""
    with FeatureWriter(path, LARGE, NAMES[:2]) as writer:
        header = writer.num_bytes - 2 * MEGABYTE
        writer.write(NAMES[:1], grids_of(NAMES[:1], LARGE), {})
        with (
            largest_file(header + int((1 + room) * MEGABYTE)),
            pytest.raises(UserError, match=r"cannot be written \(.*\); it needs"),
        ):
            writer.write(NAMES[1:2], grids_of(NAMES[1:2], LARGE), {})
    assert write(path, NAMES[:2], settings=LARGE) == NAMES[1:2]
    assert torch.equal(FeatureStore(path, LARGE).grids, grids_of(NAMES[:2], LARGE).half())


def write_on_a_full_disk(path: Path) -> None:
    """Space for the whole file is there at the start, and is gone when the first small batch comes."""
    with ExitStack() as limits, FeatureWriter(path, SETTINGS, NAMES) as writer:
        limits.enter_context(largest_file(writer.num_bytes - 60 * len(NAMES) + 30))
        writer.write(NAMES, grids_of(NAMES), {})


def test_a_disk_that_stays_full_is_told_in_the_same_words(path: Path):
    with pytest.raises(UserError, match=r"cannot be written \(File too large\); it needs 4.7 kB: make room"):
        write_on_a_full_disk(path)


def test_a_cache_folder_that_is_a_file_is_told(tmp_path: Path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match=r"cache/grids cannot be written \(.+\).* set cache to a folder"):
        write(tmp_path / "cache" / "grids", NAMES)


def test_values_beyond_fp16_are_told_and_do_not_become_infinite(path: Path):
    with FeatureWriter(path, SETTINGS, NAMES) as writer, pytest.raises(UserError, match=r"65504|fp16|not finite"):
        writer.write(NAMES[:1], torch.full((1, 6, 5), 1e5), {})
