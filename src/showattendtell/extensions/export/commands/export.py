"""Export a checkpoint as graphs that run without this package, or as a page that runs them in a browser."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process

if TYPE_CHECKING:
    from showattendtell.extensions.export.graphs import ExportModel


@entry_point("export")
def main(config: DictConfig) -> None:
    import shutil

    from showattendtell.data.images import find_images
    from showattendtell.extensions.export import formats, packages
    from showattendtell.extensions.export.graphs import load_models
    from showattendtell.inference.finding import next_to
    from showattendtell.models.kernels.parallel import plain_torch
    from showattendtell.runtime.files import cache_folder, new_folder, write_errors
    from showattendtell.visualization.rendering import EXAMPLES

    names = formats.graph_formats(config.formats)
    package = packages.check_package(config.package) if "wheel" in config.formats else None
    runtime = packages.find_runtime(config.onnxruntime_web, cache_folder()) if "web" in config.formats else None
    photographs = find_images(config.images or str(EXAMPLES)).sources
    with plain_torch():
        model, *other_models = load_models(config)
    with new_folder(config.output, next_to(config.checkpoint, "export"), whole=True) as output, write_errors(output):
        with plain_torch():
            formats.write_formats(output, model, names)
        found = formats.check_formats(model, output, names, list(map(model.preprocess, photographs)))
        if runtime:
            page_bytes = _write_page(config, model, other_models, runtime, output)
        if package:
            packages.write_wheel(output, package, model.metadata)
        if "onnx" in names and "onnx" not in config.formats:  # they are in the page or in the wheel
            shutil.rmtree(output / "onnx")
            (output / "run_onnx.py").unlink()
        formats.write_metadata(output, model.metadata)
    formats.print_export(found, len(photographs))
    if runtime:
        print(
            f"the page loads {page_bytes / 1e6:.1f} MB; serve it with: python -m http.server --directory {output}/web"
        )
    print(f"written to {output}")


def _write_page(
    config: DictConfig, first: "ExportModel", others: Sequence["ExportModel"], runtime: Path, output: Path
) -> int:
    """Write the page of the models; return the bytes that it loads. The graphs of the first are in `output`."""
    from tempfile import TemporaryDirectory

    from showattendtell.extensions.export.formats import write_formats
    from showattendtell.extensions.export.packages import WebModel, write_web
    from showattendtell.inference.captioning import model_note
    from showattendtell.models.kernels.parallel import plain_torch

    models = [WebModel(first.name, first.metadata, output / "onnx")]
    with TemporaryDirectory() as temporary, plain_torch():
        for number, other in enumerate(others):
            folder = Path(temporary, str(number))
            write_formats(folder, other, ["onnx"])
            models.append(WebModel(other.name, other.metadata, folder / "onnx"))
        return write_web(output / "web", models, runtime, model_note(config), config.webgpu)


if __name__ == "__main__":
    main()
    exit_process()
