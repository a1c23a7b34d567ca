"""A page of static files that runs exported graphs in a browser, by onnxruntime-web."""

import base64
import gzip
import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from showattendtell.errors import UserError
from showattendtell.extensions.export.graphs import CARD, ExportModel
from showattendtell.runtime.files import expand_home, sha256
from showattendtell.visualization.pages import EVEN, UNSURE
from showattendtell.visualization.rendering import DARKEST, EXAMPLES, UNGATED, fill

TEMPLATES = Path(__file__).parent / "templates"
RUNTIME = "onnxruntime-web"
VERSION = "1.30.0"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""SHA-512 of the package's archive in base64, as npm states it."""

SCRIPT, PROGRAM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
GPU_SCRIPT, GPU_PROGRAM = "ort.webgpu.bundle.min.mjs", "ort-wasm-simd-threaded.asyncify.wasm"
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "AVIF")
MEGABYTES = 32
MAX_BEAM_SIZE = 10
FILES = ("index.html", "style.css", "web.js", "worker.js", "captioner.js", "icon.svg", "manifest.webmanifest")


def find_runtime(archive: str | None, cache: Path) -> Path:
    """Return the archive of onnxruntime-web: `archive`, or the one in the cache, where npm puts it first.

    Raises:
        UserError: there is none, npm cannot fetch it, or its checksum is wrong.
    """
    path = expand_home(archive) if archive else cache / f"{RUNTIME}-{VERSION}.tgz"
    advice = f"run npm pack {RUNTIME}@{VERSION} where there is a network, and give the file as onnxruntime_web=FILE"
    if not path.is_file():
        if archive:
            raise UserError(f"onnxruntime_web={archive} does not exist; {advice}")
        if not shutil.which("npm"):
            raise UserError(f"formats=[web] needs npm, which fetches {RUNTIME} {VERSION}; install Node.js, or {advice}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent) as folder:
            command = ["npm", "pack", "--silent", f"{RUNTIME}@{VERSION}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
            fetched = next(Path(folder).glob("*.tgz"), None)
            if done.returncode or fetched is None:
                reason = done.stderr.strip().partition("\n")[0] or "npm printed no reason"
                raise UserError(f"npm cannot fetch {RUNTIME} {VERSION} ({reason}); {advice}")
            fetched.replace(path)
    if base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode() != INTEGRITY:
        raise UserError(f"{path} is not {RUNTIME} {VERSION} (its checksum differs); remove it, and {advice}")
    return path


def write_web(
    folder: Path, models: Sequence[tuple[ExportModel, Path]], archive: Path, note: str, webgpu: bool = False
) -> int:
    """Write the page of one model, or of several side by side, to a new folder; return the bytes that it loads.

    Args:
        models: with the folders of their graphs.
        archive: the package onnxruntime-web.
        note: what users should know about the models.
        webgpu: run encoders with WebGPU in browsers that have it.
    """
    folder.mkdir()
    _extract(archive, folder / "onnxruntime", webgpu)
    described = [_write_model(folder, i, *model) for i, model in enumerate(models)]
    shutil.copytree(EXAMPLES, folder / "examples")
    total = sum(file.stat().st_size for model in described for file in (folder / model["folder"]).iterdir())
    total += (folder / f"onnxruntime/{PROGRAM}.gz").stat().st_size
    content = {
        "models": [model["name"] for model in described],
        "loaded": described,
        "formats": FORMATS,
        "beam_size": 3,
        "beams": MAX_BEAM_SIZE,
        "hard_attention": False,
        "megabytes": MEGABYTES,
        "note": note,
        "bytes": total,
        "darkest": DARKEST,
        "not_sure": UNSURE,
        "even": EVEN,
        "ungated": UNGATED,
        "webgpu": webgpu,
    }
    for name in FILES:
        (folder / name).write_text(fill(TEMPLATES / name, **content), encoding="utf-8")
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    version = hashlib.sha256("".join(sha256(folder / name) for name in names).encode()).hexdigest()[:16]
    script = fill(TEMPLATES / "service_worker.js", files=["./", *names], version=version)
    (folder / "service_worker.js").write_text(script, encoding="utf-8")
    return total


def _write_model(folder: Path, number: int, model: ExportModel, graphs: Path) -> dict[str, Any]:
    """Write the files of a model, compressed; return what web.js needs of it."""
    model_folder = folder / "models" / f"{number}-{re.sub(r'[^A-Za-z0-9._-]+', '-', model.name)}"
    model_folder.mkdir(parents=True)
    for graph in graphs.glob("onnx/*.onnx"):
        (model_folder / f"{graph.name}.gz").write_bytes(gzip.compress(graph.read_bytes(), mtime=0))
    shutil.copy(graphs / CARD, model_folder)
    return {
        "name": model.name,
        "folder": model_folder.relative_to(folder).as_posix(),
        **{key: model.card[key] for key in ("graphs", "grid", "preprocessing")},
    }


def _extract(archive: Path, folder: Path, webgpu: bool) -> None:
    """Extract the files of onnxruntime-web that the page uses, the programs compressed, and add its license."""
    import onnxruntime

    folder.mkdir()
    with tarfile.open(archive) as package:
        for name in (SCRIPT, PROGRAM, *([GPU_SCRIPT, GPU_PROGRAM] if webgpu else [])):
            member = package.extractfile(f"package/dist/{name}")
            assert member
            content = member.read()
            if name.endswith(".wasm"):
                name, content = f"{name}.gz", gzip.compress(content, mtime=0)
            (folder / name).write_bytes(content)
    for name in ("LICENSE", "ThirdPartyNotices.txt"):  # the npm package has none
        shutil.copy(Path(onnxruntime.__file__).parent / name, folder)
