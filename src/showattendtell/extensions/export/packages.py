"""The export of checkpoints: ONNX graphs with the script that runs them, and a page of static files that runs them in a
browser, by onnxruntime-web."""

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

from showattendtell.config.schemas import as_list
from showattendtell.errors import UserError
from showattendtell.extensions.export.formats import CARD, check_graphs, write_graphs
from showattendtell.extensions.export.graphs import ExportModel, load_models
from showattendtell.extensions.export.settings import ExportSettings
from showattendtell.loading.hub import next_to, note_about
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.files import cache_folder, expand_home, new_folder, sha256, write_errors
from showattendtell.runtime.tracing import lacks_onnx
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


def export(settings: ExportSettings) -> None:
    """Write the export of the command, after the caption of a photograph by each model was compared with PyTorch's."""
    if missing := lacks_onnx():
        raise UserError(f"export needs {missing}")
    runtime = find_runtime(settings.onnxruntime_web, cache_folder()) if "web" in settings.formats else None
    with plain_torch():
        models = load_models(settings)
    with (
        new_folder(settings.output, next_to(settings.checkpoint, "export"), whole=True) as output,
        write_errors(output),
        TemporaryDirectory(dir=output) as temporary,
        plain_torch(),
    ):
        folders = [Path(temporary, str(number)) for number in range(len(models))]
        for folder, model in zip(folders, models, strict=True):
            write_graphs(folder, model)
            print(check_graphs(folder, model))
        if runtime:
            pages = list(zip(models, folders, strict=True))
            note = note_about(as_list(settings.checkpoint) + as_list(settings.compare))
            size = write_web(output / "web", pages, runtime, note, settings.webgpu)
            print(f"the page loads {size / 1e6:.1f} MB; serve it with: python -m http.server --directory {output}/web")
        if "onnx" in settings.formats:
            for file in folders[0].iterdir():
                file.rename(output / file.name)
    print(f"written to {output}")
