"""The export of a checkpoint, and packages of its ONNX graphs: a folder of static files that captions photographs in a
browser, by onnxruntime-web; and a pip wheel that needs numpy, Pillow and onnxruntime only."""

import base64
import gzip
import hashlib
import json
import keyword
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy import ndarray
from omegaconf import DictConfig

from showattendtell.data.images import find_images, open_image
from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.formats import (
    CARD,
    check_formats,
    graph_formats,
    print_export,
    write_formats,
    write_metadata,
)
from showattendtell.extensions.export.graphs import ExportModel, load_models
from showattendtell.inference.captioning import model_note
from showattendtell.inference.finding import next_to
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.files import cache_folder, expand_home, new_folder, sha256, write_errors
from showattendtell.runtime.tracing import quietly
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
        models: with the folders of their ONNX graphs.
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
        "unsure": UNSURE,
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
    for graph in graphs.glob("*.onnx"):
        (model_folder / f"{graph.name}.gz").write_bytes(gzip.compress(graph.read_bytes(), mtime=0))
    (model_folder / CARD).write_text(json.dumps(model.metadata, ensure_ascii=False), encoding="utf-8")
    return {
        "name": model.name,
        "folder": model_folder.relative_to(folder).as_posix(),
        "hard_attention": False,  # the mode is that of the export
        **{key: model.metadata[key] for key in ("graphs", "grid", "preprocessing")},
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


WHEEL_SCRIPT = "captioner.py"
SUMMARY = "Captions photographs with an exported model"
REQUIRES = ("numpy>=1.26", "onnxruntime>=1.22", "Pillow>=11")
TAKEN = {*keyword.kwlist, *keyword.softkwlist, *sys.stdlib_module_names, "numpy", "onnxruntime", "pil", "pillow"}


def check_package(name: str | None) -> str:
    """Return the name of a package that can be written.

    Raises:
        UserError: there is no name, or it cannot be imported; or flit_core is missing.
    """
    if name is None:
        raise UserError("formats=[wheel] needs a name for the package; give it as package=my_captioner")
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,60}[A-Za-z0-9]", name) or name.lower() in TAKEN:
        raise UserError(
            f"package={name} cannot be imported or is taken; use letters, digits and underscores, as in my_captioner"
        )
    if find_spec("flit_core") is None:
        raise UserError("formats=[wheel] needs the package flit_core; run pip install 'showattendtell[onnx]'")
    return name


def write_wheel(folder: Path, package: str, metadata: Mapping[str, Any]) -> None:
    """Write a wheel of the ONNX graphs in an export folder to the same folder.

    Args:
        package: name of the package, and of its command.
        metadata: content of captioner.json.
    """
    from flit_core.wheel import make_wheel_in

    with TemporaryDirectory() as temporary:
        source = Path(temporary, package)
        source.mkdir()
        shutil.copytree(folder / "onnx", source / "onnx")
        (source / CARD).write_text(json.dumps(metadata, ensure_ascii=False), encoding="utf-8")
        shutil.copy(run_onnx.__file__, source / WHEEL_SCRIPT)
        content = {"package": package, "summary": SUMMARY, "card": metadata, "requires": REQUIRES}
        (source / "__init__.py").write_text(fill(TEMPLATES / "wheel_init.jinja", **content), encoding="utf-8")
        for template, name in (("wheel.toml", "pyproject.toml"), ("wheel.md", "README.md")):
            Path(temporary, name).write_text(fill(TEMPLATES / template, **content), encoding="utf-8")
        with quietly():
            make_wheel_in(Path(temporary, "pyproject.toml"), folder)


def export(config: DictConfig) -> None:
    """Write the export of the command, after its captions were compared with PyTorch's."""
    names = graph_formats(config.formats)
    package = check_package(config.package) if "wheel" in config.formats else None
    runtime = find_runtime(config.onnxruntime_web, cache_folder()) if "web" in config.formats else None
    photographs = find_images(config.images or str(EXAMPLES)).sources
    with plain_torch():
        models = load_models(config)
    model, page_bytes = models[0], 0
    with new_folder(config.output, next_to(config.checkpoint, "export"), whole=True) as output, write_errors(output):
        with plain_torch():
            write_formats(output, model, names)
        found = check_formats(model, output, names, _pixels(model, photographs))
        if runtime:
            with TemporaryDirectory() as temporary, plain_torch():
                folders = [output, *(Path(temporary, str(number)) for number in range(1, len(models)))]
                for folder, other in zip(folders[1:], models[1:], strict=True):
                    write_formats(folder, other, ["onnx"])
                    check_formats(other, folder, ["onnx"], _pixels(other, photographs))
                pages = [(each, folder / "onnx") for each, folder in zip(models, folders, strict=True)]
                page_bytes = write_web(output / "web", pages, runtime, model_note(config), config.webgpu)
        if package:
            write_wheel(output, package, model.metadata)
        if "onnx" in names and "onnx" not in config.formats:  # they are in the page or in the wheel
            shutil.rmtree(output / "onnx")
            (output / "run_onnx.py").unlink()
        write_metadata(output, model.metadata)
    print_export(found, len(photographs), config.precision)
    if runtime:
        print(
            f"the page loads {page_bytes / 1e6:.1f} MB; serve it with: python -m http.server --directory {output}/web"
        )
    print(f"written to {output}")


def _pixels(model: ExportModel, photographs: Sequence[str]) -> list[ndarray]:
    """Return the pixels (1, 3, S, S) of photographs, uint8, as the graph `encode` takes them."""
    preprocessing = model.module.encoder.preprocessing
    return [preprocessing(open_image(path)).unsqueeze(0).numpy() for path in photographs]
