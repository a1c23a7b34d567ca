"""`showattendtell download` with a local server: layouts, interruptions and faults."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from archive_server import ArchiveServer, files_in, serve_archives, zipped
from disks import small_disk
from slow_cases import slow_after

from showattendtell.data.flickr import read_flickr8k

Download = Callable[..., Any]

LINE = [sys.executable, "-m", "showattendtell.download"]
PHOTOS = {f"train2017/{number:012}.jpg": random.Random(number).randbytes(3000) for number in range(1000)}
COCO2017 = {
    "train2017.zip": PHOTOS,
    "val2017.zip": {"val2017/000000000139.jpg": b"photo"},
    "annotations_trainval2017.zip": {
        f"annotations/{kind}_{split}2017.json": kind.encode()
        for kind in ("captions", "instances", "person_keypoints")
        for split in ("train", "val")
    },
}
UNPACKED = {
    name: data for members in COCO2017.values() for name, data in sorted(members.items()) if "keypoints" not in name
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve_archives() as server:
        server.files = {name: zipped(members) for name, members in COCO2017.items()}
        yield server


def unpublished(dataset: str, *archives: str) -> list[str]:
    """The settings for archives of other sizes and checksums than the published ones."""
    settings = [f"dataset.archives.{name}.{what}=null" for name in archives for what in ("num_bytes", "checksum")]
    return [f"dataset={dataset}", *settings]


SETTINGS = unpublished("coco2017", "train2017", "val2017", "annotations")


@pytest.fixture
def download(run_forked: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """The command with some settings; it puts the data set into the folder `data`."""
    return partial(run_forked, "download", "dataset.root=data", folder=tmp_path, NO_PROXY="127.0.0.1")


def complaint(done: Any) -> str:
    """The error message of a command."""
    assert done.status == 2
    return done.err.splitlines()[-1]


def test_coco_is_fetched_once_and_only_the_parts_that_are_required(
    download: Download, server: ArchiveServer, tmp_path: Path
):
    mirror = f"mirror={server.address}/zips"
    captions = download(*SETTINGS, mirror, "parts=[captions]")
    assert captions.status == 0
    assert "license: captions: CC BY 4.0" in captions.out
    assert [name for name, *_ in server.requests] == ["annotations_trainval2017.zip"]
    assert all(name.startswith("annotations/") for name in files_in(tmp_path / "data"))
    done = download(*SETTINGS, mirror)
    assert (done.status, done.out.splitlines()[-1]) == (0, "complete in data")
    assert files_in(tmp_path / "data") == dict(sorted(UNPACKED.items()))
    assert not list((tmp_path / "data" / "downloads").glob("*.zip*part*"))
    assert not list((tmp_path / "data" / "downloads").glob("*.zip"))
    asked = len(server.requests)
    again = download(*SETTINGS, mirror)
    assert again.status == 0
    assert again.out.count(": complete\n") == 3
    assert len(server.requests) == asked == 3


FLICKR8K_TEXT = {
    "Flickr8k.token.txt": "".join(f"{n}.jpg#{k}\ta dog {k}\n" for n in range(3) for k in range(5)).encode(),
    "Flickr_8k.trainImages.txt": b"0.jpg\n",
    "Flickr_8k.devImages.txt": b"1.jpg\n",
    "Flickr_8k.testImages.txt": b"2.jpg\n",
    "readme.txt": b"",
    "__MACOSX/._readme.txt": b"",
}
KARPATHY = [
    {"filename": f"{n}.jpg", "split": split, "sentences": [{"raw": f"a dog {k}"} for k in range(5)]}
    for n, split in enumerate(("train", "val", "test"))
]
FLICKR8K = {
    "Flickr8k_Dataset.zip": {f"Flicker8k_Dataset/{n}.jpg": b"photo" for n in range(3)},
    "Flickr8k_text.zip": FLICKR8K_TEXT,
    "caption_datasets.zip": {
        "dataset_flickr8k.json": json.dumps({"images": KARPATHY, "dataset": "flickr8k"}).encode(),
        "dataset_coco.json": b"",
    },
}


def test_what_has_no_address_is_required_when_the_rest_is_there(
    download: Download, server: ArchiveServer, tmp_path: Path
):
    server.files["caption_datasets.zip"] = zipped(FLICKR8K["caption_datasets.zip"])
    settings = [*unpublished("flickr8k", "karpathy"), f"dataset.archives.karpathy.base={server.address}"]
    assert complaint(download(*settings)) == (
        "error: no public URL for Flickr8k_Dataset.zip and Flickr8k_text.zip: fill in the form of its authors at "
        "https://forms.illinois.edu/sec/1713398, put the files you receive into data, and run the command again "
        "to unpack them"
    )
    assert list(files_in(tmp_path / "data")) == ["dataset_flickr8k.json"]
    for name in ("Flickr8k_Dataset.zip", "Flickr8k_text.zip"):
        (tmp_path / "data" / name).write_bytes(zipped(FLICKR8K[name]))
    assert download(*settings).status == 0
    assert len(server.requests) == 1
    assert len(read_flickr8k(str(tmp_path / "data")).examples()) == 3


@pytest.mark.slow
def test_a_broken_line_and_a_busy_server_are_got_over(download: Download, server: ArchiveServer, tmp_path: Path):
    server.faults = ["busy", "drop:1000000", "busy", "drop:500000"]
    done = download(*SETTINGS, f"mirror={server.address}", "parts=[images]")
    assert done.status == 0
    assert files_in(tmp_path / "data") == {name: data for name, data in UNPACKED.items() if name.endswith("jpg")}
    assert done.err.count("trying again in") == 4


def test_a_wrong_checksum_is_reported(download: Download, server: ArchiveServer, tmp_path: Path):
    right = server.files["val2017.zip"]
    settings = ["dataset=coco2017", "parts=[images]", f"mirror={server.address}", *SETTINGS[1:3]]
    server.files["val2017.zip"] = right[:50] + b"?" + right[51:]
    settings += [f"dataset.archives.val2017.num_bytes={len(right)}"]
    output = complaint(download(*settings))
    assert output.startswith("error: data/downloads/val2017.zip has the sha256 checksum ")
    checksum = "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05"
    assert output.endswith(f"instead of {checksum}; remove it, and run the command again")
    assert not any(name.startswith("val2017/") for name in files_in(tmp_path / "data"))


@pytest.mark.parametrize(
    ("settings", "files", "sentence"),
    slow_after(
        4,
        [
            (
                [],
                {},
                "http://127.0.0.1:PORT/train2017.zip and http://images.invalid/train2017.zip: not found",
            ),
            (
                ["dataset.archives.train2017.num_bytes=1000"],
                {"train2017.zip": b"<html>log in</html>"},
                "data/downloads/train2017.zip has 19 bytes instead of 1,000; remove it, and run the command again",
            ),
            (["mirror=nowhere"], {}, "mirror=nowhere is neither an http address nor a folder that exists"),
            (["parts=[splits]"], {}, "parts=splits: this data set has none of these; available: captions, images"),
            (
                ["dataset.root=file"],
                {},
                "file/downloads: Not a directory",
            ),
        ],
    ),
)
def test_a_fault_is_reported_in_a_sentence(
    download: Download,
    server: ArchiveServer,
    tmp_path: Path,
    settings: list[str],
    files: dict[str, bytes],
    sentence: str,
):
    server.files = files
    (tmp_path / "file").touch()
    elsewhere = f"dataset.archives.train2017.base={server.address}/images.invalid"
    line = [*SETTINGS, f"mirror={server.address}", elsewhere, *settings]
    done = download(*line)
    assert done.status == 2
    port = str(server.server_address[1])
    output = done.err.replace(port, "PORT").replace("127.0.0.1:PORT/images.invalid", "images.invalid")
    assert sentence in output
    assert "Traceback" not in output
    assert "settings are wrong" not in output
    assert not list(tmp_path.rglob("*.part"))


def start(folder: Path, *settings: str) -> subprocess.Popen[bytes]:
    line = [*LINE, "dataset.root=data", *settings]
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_process_killed_while_it_fetches_loses_nothing(download: Download, server: ArchiveServer, tmp_path: Path):
    server.pause = 0.01
    begun = tmp_path / "data" / "downloads" / "train2017.zip.part"
    process = start(tmp_path, *SETTINGS, f"mirror={server.address}")
    while not (begun.exists() and begun.stat().st_size > 1_000_000):
        assert process.poll() is None
        time.sleep(0.01)
    kill(process)
    size = begun.stat().st_size
    assert begun.read_bytes() == server.files["train2017.zip"][:size]
    server.pause = 0.0
    assert download(*SETTINGS, f"mirror={server.address}").status == 0
    assert files_in(tmp_path / "data") == dict(sorted(UNPACKED.items()))
    assert [wanted for name, wanted in server.requests if name == "train2017.zip"] == [None, f"bytes={size}-"]


def test_a_process_killed_while_it_unpacks_writes_nothing_twice(
    download: Download, server: ArchiveServer, tmp_path: Path
):
    server.files["train2017.zip"] = zipped({f"train2017/{n}.jpg": n.to_bytes(2) * 2000 for n in range(4000)})
    folder = tmp_path / "data" / "train2017"
    process = start(tmp_path, *SETTINGS, f"mirror={server.address}")
    while not (folder.exists() and len(os.listdir(folder)) > 20):
        assert process.poll() is None
        time.sleep(0.001)
    kill(process)
    written = {path.name: path.stat().st_ino for path in folder.glob("*.jpg")}
    assert 20 <= len(written) < 4000
    assert download(*SETTINGS, f"mirror={server.address}").status == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        f"{n}.jpg": n.to_bytes(2) * 2000 for n in range(4000)
    }
    assert {name: (folder / name).stat().st_ino for name in written} == written
    assert len(server.requests) == 3


def test_a_full_disk_is_reported_and_what_came_is_kept(download: Download, server: ArchiveServer, tmp_path: Path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))"
    done = download(*SETTINGS, f"mirror={server.address}", first=limit)
    assert complaint(done) == "error: data: file too large; fix this and run the command again to resume"
    assert (tmp_path / "data" / "downloads" / "train2017.zip.part").stat().st_size == 2_000_000
    assert download(*SETTINGS, f"mirror={server.address}").status == 0
    assert server.requests[1][1] == "bytes=2000000-"


def test_a_disk_that_is_too_small_is_reported_before_anything_is_fetched(
    download: Download, server: ArchiveServer, tmp_path: Path
):
    settings = [*SETTINGS, f"mirror={server.address}", f"dataset.archives.train2017.num_bytes={3_000_000}"]
    with small_disk(tmp_path / "data", "2M"):
        assert complaint(download(*settings)).startswith(
            "error: train2017.zip and its content need 6.0 MB, and the disk of data/downloads/train2017.zip has"
        )
    assert server.requests == []
