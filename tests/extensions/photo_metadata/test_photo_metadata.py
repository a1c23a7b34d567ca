"""Captions in the metadata of photographs, read by ExifTool and Pillow."""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image, ImageCms, ImageSequence
from system_packages import installed

from showattendtell.errors import UserError
from showattendtell.extensions.photo_metadata.descriptions import DescriptionWriter, has_description, write_description

exiv2 = pytest.importorskip("exiv2", reason="needs the extra xmp")
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
CAPTION = "ein Hündchen läuft, 狗"
FORMATS = {"photo.jpg": "JPEG", "photo.png": "PNG", "photo.webp": "WEBP", "photo.tif": "TIFF", "stereo.jpg": "MPO"}
FIELDS = ("XMP-dc:Description", "XMP-iptcCore:AltTextAccessibility", "IPTC:Caption-Abstract")


def photograph(path: Path, **settings: Any) -> Path:
    """An image of noise with a camera's EXIF data and a color profile; an MPO has two."""
    image = Image.effect_noise((64, 48), 50).convert("RGB")
    exif = Image.Exif()
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Orientation] = "Camera", 6
    kind = FORMATS.get(path.name)
    several = {"save_all": True, "append_images": [image.rotate(180)]} if kind == "MPO" else {}
    image.save(path, kind, exif=exif, icc_profile=PROFILE, **several, **settings)
    return path


@pytest.fixture(scope="module")
def exiftool() -> str:
    tool = installed(lambda: shutil.which("exiftool"), "libimage-exiftool-perl")
    return tool or pytest.skip("needs exiftool")


def tags(exiftool: str, path: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run([exiftool, "-json", "-G1", *options, path], capture_output=True, check=True)
    [found] = json.loads(done.stdout)
    return found


def frames(path: Path) -> list[bytes]:
    with Image.open(path) as image:
        return [frame.tobytes() for frame in ImageSequence.Iterator(image)]


@pytest.mark.parametrize("name", FORMATS)
def test_exiftool_reads_the_caption_and_the_pixels_stay(exiftool: str, tmp_path: Path, name: str):
    path = photograph(tmp_path / name)
    before, content = frames(path), path.read_bytes()
    assert not has_description(str(path))
    assert write_description(str(path), CAPTION)
    found = tags(exiftool, path, *(f"-{field}" for field in FIELDS))
    iptc = None if name.endswith("webp") else CAPTION
    assert [found.get(field) for field in FIELDS] == [CAPTION, CAPTION, iptc]
    assert frames(path) == before
    assert has_description(str(path))
    assert (tmp_path / f"{name}_original").read_bytes() == content
    options = ("-IFD0:all", "-ICC_Profile:all", "-MPImage2:MPImageLength")
    others = [
        tags(exiftool, file, *options) | {"SourceFile": "", "IFD0:StripOffsets": 0} for file in tmp_path.iterdir()
    ]
    assert others[0] == others[1]
    assert ("MPImage2:MPImageLength" in others[0]) == (FORMATS[name] == "MPO")


def test_the_coded_data_of_a_jpeg_are_not_touched(tmp_path: Path):
    path = photograph(tmp_path / "photo.jpg", progressive=True)
    content = path.read_bytes()
    write_description(str(path), CAPTION)
    scans = b"\xff\xc2"  # from the frame header on
    assert path.read_bytes().partition(scans)[2] == content.partition(scans)[2] != b""


@pytest.mark.parametrize("field", [*FIELDS, "XMP-dc:Description-de", "IFD0:ImageDescription"])
def test_a_description_of_a_person_stays_unless_it_is_to_be_overwritten(exiftool: str, tmp_path: Path, field: str):
    path = photograph(tmp_path / "photo.jpg")
    subprocess.run([exiftool, "-q", "-overwrite_original", f"-{field}=by hand", path], check=True)
    content = path.read_bytes()
    assert not write_description(str(path), CAPTION)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [content]
    assert write_description(str(path), CAPTION, overwrite=True)
    found = tags(exiftool, path)
    assert [found[field] for field in FIELDS] == [CAPTION] * 3
    assert found.get("IFD0:ImageDescription", "") == ("by hand" if field.startswith("IFD0") else "")
    assert "XMP-dc:Description-de" not in found
    assert (tmp_path / "photo.jpg_original").read_bytes() == content


def test_other_metadata_stay(exiftool: str, tmp_path: Path):
    path = photograph(tmp_path / "photo.jpg")
    own = ["-XMP-dc:Subject=a tag", "-XMP-xmp:Rating=4", "-IPTC:Keywords=a tag", "-IPTC:City=Rome", "-GPSLatitude=41.9"]
    subprocess.run([exiftool, "-q", "-overwrite_original", *own, "-XMP-dc:Description= ", path], check=True)
    before = tags(exiftool, path)
    assert write_description(str(path), CAPTION)
    after = tags(exiftool, path)
    kept = {name: value for name, value in before.items() if name.startswith(("IFD0:", "XMP-", "IPTC:", "GPS:", "ICC"))}
    changed = {name for name, value in kept.items() if after.get(name) != value}
    assert {"XMP-dc:Subject", "XMP-xmp:Rating", "IPTC:Keywords", "IPTC:City", "GPS:GPSLatitude"} <= kept.keys()
    assert changed <= {"XMP-x:XMPToolkit", "XMP-dc:Description", "IPTC:CodedCharacterSet"}


def test_iptc_of_another_encoding_is_left_alone(exiftool: str, tmp_path: Path):
    path = photograph(tmp_path / "photo.jpg")
    latin1 = ["-charset", "iptc=latin", "-codedcharacterset=", "-IPTC:City=Zürich"]
    subprocess.run([exiftool, "-q", "-overwrite_original", *latin1, path], check=True)
    assert write_description(str(path), CAPTION)
    found = tags(exiftool, path, "-charset", "iptc=latin")
    assert found["XMP-dc:Description"] == CAPTION
    assert found["IPTC:City"] == "Zürich"
    assert "IPTC:Caption-Abstract" not in found


def test_exiftool_restores_the_original_which_a_second_change_keeps(exiftool: str, tmp_path: Path):
    path = photograph(tmp_path / "photo.jpg")
    path.chmod(0o640)
    content = path.read_bytes()
    write_description(str(path), CAPTION)
    write_description(str(path), "another", overwrite=True)
    assert tags(exiftool, path)["XMP-dc:Description"] == "another"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    subprocess.run([exiftool, "-q", "-restore_original", path], check=True)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [content]


def test_a_file_system_without_links_keeps_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    path = photograph(tmp_path / "photo.jpg")
    content = path.read_bytes()
    assert write_description(str(path), CAPTION)
    assert (tmp_path / "photo.jpg_original").read_bytes() == content
    assert has_description(str(path))


def test_files_of_other_formats_are_refused_and_stay(tmp_path: Path):
    names = [f"photo.{kind}" for kind in ("gif", "bmp", "ppm", "avif")]
    faults: list[str] = []
    writer = DescriptionWriter(names, overwrite=False, errors=faults)
    for name in names:
        Image.new("RGB", (8, 8)).save(tmp_path / name)
        writer(str(tmp_path / name), CAPTION)
    for name, fault in zip(names, faults, strict=True):
        assert f"{tmp_path / name}" in fault
        assert fault.endswith("give a JPEG, PNG, WebP or TIFF file that is not damaged")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_damaged_file_and_a_url_are_refused(tmp_path: Path):
    path = tmp_path / "cut.jpg"
    path.write_bytes(photograph(tmp_path / "photo.jpg").read_bytes()[:30])
    with pytest.raises(UserError, match="the metadata of .*cut.jpg cannot be written"):
        write_description(str(path), CAPTION)
    assert not has_description(str(path))
    with pytest.raises(UserError, match="https://a.org/b.jpg is none; download it first"):
        DescriptionWriter(["https://a.org/b.jpg"], overwrite=False, errors=[])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "exiv2", None)
    with pytest.raises(UserError, match=r"run pip install 'showattendtell\[xmp\]'"):
        DescriptionWriter([], overwrite=False, errors=[])
