"""What there is to do for a data set, and what is known of what was done."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from showattendtell.data.download import (
    Archive,
    ArchiveState,
    DownloadCache,
    Part,
    Publication,
    check_requests,
    make_plan,
    print_plan,
    required_space,
)
from showattendtell.errors import UserError

IMAGES = Archive("images", "images.zip", ["photos/*.jpg"], "http://a.org/zips", 1000)
TEXT = Archive("captions", "text.zip", ["text/*.txt"], "http://a.org/zips/", 50)
SPLITS = Archive("splits", "asked.zip", ["splits.json"], places=["splits.json", "other.json"])


@pytest.fixture
def depot(tmp_path: Path) -> DownloadCache:
    depot = DownloadCache(tmp_path / "root")
    depot.folder.mkdir(parents=True)
    return depot


def plan_of(depot: DownloadCache, parts: Sequence[Part] | None = None, mirror: Path | str | None = None):
    archives = {"images": IMAGES, "text": TEXT, "splits": SPLITS}
    publication = Publication(str(depot.root), "for research", archives, "write to its authors")
    return make_plan(publication, depot, parts, None if mirror is None else str(mirror)), publication


def states(*given: object) -> list[ArchiveState]:
    return [step.state for step in plan_of(*given)[0]]


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_what_has_an_address_is_fetched_and_what_has_none_requested(depot: DownloadCache):
    plan, publication = plan_of(depot)
    assert [step.state for step in plan] == [ArchiveState.FETCH, ArchiveState.FETCH, ArchiveState.REQUEST]
    assert [step.addresses for step in plan] == [
        ("http://a.org/zips/images.zip",),
        ("http://a.org/zips/text.zip",),
        (),
    ]
    with pytest.raises(
        UserError, match=r"^asked.zip has no public URL: write to its authors, put the files you receive into "
    ):
        check_requests(plan, publication)


def test_parts_choose(depot: DownloadCache):
    plan, publication = plan_of(depot, ["captions"])
    assert [step.archive for step in plan] == [TEXT]
    check_requests(plan, publication)


def test_a_part_that_the_data_set_lacks_is_reported(depot: DownloadCache):
    with pytest.raises(UserError, match="^parts=splits: this data set has no splits; available: captions, images$"):
        make_plan(Publication("r", "free", {"a": IMAGES, "b": TEXT}), depot, ["images", "splits"], None)


def test_the_address_of_a_mirror_is_requested_before_the_publisher(depot: DownloadCache):
    plan, _ = plan_of(depot, None, "https://b.org/copy/")
    assert [step.addresses for step in plan] == [
        ("https://b.org/copy/images.zip", "http://a.org/zips/images.zip"),
        ("https://b.org/copy/text.zip", "http://a.org/zips/text.zip"),
        ("https://b.org/copy/asked.zip",),
    ]


def test_archives_lie_in_the_root_in_a_mirror_or_are_one(depot: DownloadCache, tmp_path: Path):
    in_root = write(depot.root / "asked.zip")
    assert [step.source for step in plan_of(depot)[0]][2] == in_root
    assert states(depot) == [ArchiveState.FETCH, ArchiveState.FETCH, ArchiveState.UNPACK]
    mirror = write(tmp_path / "mirror" / "text.zip")
    assert (
        states(depot, None, mirror.parent)
        == states(depot, None, mirror)
        == [ArchiveState.FETCH, ArchiveState.UNPACK, ArchiveState.UNPACK]
    )


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere", "nowhere is neither an http address nor a folder or file that exists"),
        ("other.zip", "other.zip is not an archive of the data set, which has images.zip, text.zip, asked.zip"),
    ],
)
def test_a_mirror_of_nothing_is_reported(depot: DownloadCache, tmp_path: Path, name: str, complaint: str):
    write(tmp_path / "other.zip")
    with pytest.raises(UserError, match=f"^mirror=.*{complaint}$"):
        plan_of(depot, None, tmp_path / name)


def test_an_archive_is_done_while_all_that_it_gave_is_there(depot: DownloadCache):
    files = [write(depot.root / name) for name in ("photos/1.jpg", "photos/2.jpg")]
    assert not depot.is_done(IMAGES)
    depot.begin(IMAGES)
    assert not depot.is_done(IMAGES)
    depot.finish(IMAGES, ["photos/1.jpg", "photos/2.jpg"])
    assert depot.is_done(IMAGES)
    assert not depot.is_done(IMAGES._replace(members=["photos/*.jpg", "others/*.jpg"]))
    files[1].unlink()
    assert not depot.is_done(IMAGES)


def test_only_a_fetched_archive_is_removed_when_it_is_unpacked(depot: DownloadCache):
    fetched, own = write(depot.fetched(SPLITS)), write(depot.root / SPLITS.file)
    depot.finish(SPLITS, [])
    assert not fetched.exists()
    assert own.exists()


@pytest.mark.parametrize("place", ["splits.json", "other.json"])
def test_what_the_user_put_there_is_not_requested(depot: DownloadCache, place: str):
    write(depot.root / place)
    assert states(depot)[2] is ArchiveState.DONE


def test_what_was_unpacked_in_part_is_not_what_the_user_put_there(depot: DownloadCache):
    write(depot.root / "splits.json")
    depot.begin(SPLITS)
    assert states(depot)[2] is ArchiveState.REQUEST


def test_the_room_is_that_of_the_files_and_of_one_archive_at_a_time(depot: DownloadCache):
    larger = IMAGES._replace(file="larger.zip", num_bytes=3000)
    publication = Publication("root", "free", {"a": IMAGES, "b": larger, "c": TEXT})
    assert required_space(make_plan(publication, depot, None, None), depot) == 1000 + 2 * 3000
    write(depot.fetched(larger).with_name("larger.zip.part"), 2900 * "x")
    assert required_space(make_plan(publication, depot, None, None), depot) == 1000 + 3000 + 100
    write(depot.fetched(larger), 3000 * "x")
    assert required_space(make_plan(publication, depot, None, None), depot) == 1000 + 3000 + 2 * 50
    assert required_space([], depot) == 0
    depot.begin(larger)
    assert required_space(make_plan(publication, depot, None, None), depot) == 2 * 1000


def test_license_sizes_and_places_are_shown(depot: DownloadCache, capsys: pytest.CaptureFixture[str]):
    write(depot.root / "asked.zip", "content")
    plan, publication = plan_of(depot)
    print_plan(plan, publication)
    license, _, *rows = capsys.readouterr().out.splitlines()
    assert license == "license: for research"
    assert rows[0].split() == ["images.zip", "images", "1.0", "kB", "to", "be", "downloaded", "a.org"]
    assert rows[2].split()[:6] == ["asked.zip", "splits", "7", "bytes", "to", "be"]


CONTENT = b"content"
SHA = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
MD5 = "9a0364b9e99bb480dd25e1f0284c8555"


@pytest.mark.parametrize(
    ("published", "difference"),
    [
        ({}, None),
        ({"num_bytes": 7, "checksum": f"sha256:{SHA}"}, None),
        ({"checksum": f"md5:{MD5}"}, None),
        ({"num_bytes": 8_000}, "has 7 bytes instead of 8,000"),
        ({"checksum": f"md5:{32 * '0'}"}, f"has the md5 checksum {MD5} instead of {32 * '0'}"),
        ({"checksum": f"sha256:{64 * '0'}"}, f"has the sha256 checksum {SHA} instead of {64 * '0'}"),
    ],
)
def test_a_file_is_held_against_what_was_published(published: dict, difference: str | None, tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(CONTENT)
    assert Archive("images", "a.zip", ["*"], **published).find_difference(tmp_path / "a.zip") == difference
