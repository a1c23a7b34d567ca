"""Export a checkpoint as graphs that run without this package, or as a page that runs them in a browser."""

from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.config.schemas import model_groups
from showattendtell.errors import UserError
from showattendtell.extensions.export import ExportSettings


@entry_point("export")
def main(settings: ExportSettings) -> None:
    from showattendtell.decoding.beam_search import BeamSearch
    from showattendtell.extensions.export.graphs import check_graphs, export_model, write_graphs
    from showattendtell.extensions.export.web import find_runtime, write_web
    from showattendtell.loading.hub import find_model, next_to, note_about
    from showattendtell.loading.models import load_model
    from showattendtell.models.kernels.parallel import plain_torch
    from showattendtell.runtime.files import cache_folder, new_folder, write_errors
    from showattendtell.runtime.tracing import lacks_onnx

    if missing := lacks_onnx():
        raise UserError(f"export needs {missing}")
    is_web = "web" in settings.formats
    groups = model_groups(settings.checkpoint, settings.compare, settings.names)
    if len(groups) > 1 and not is_web:
        raise UserError("compare= shows models side by side on the page of formats=[web]; add web to formats")
    runtime = find_runtime(settings.onnxruntime_web, cache_folder()) if is_web else None
    models = []
    with plain_torch():
        for name, [checkpoint] in groups.items():
            module, _, _, confidence = load_model(checkpoint, "cpu", BeamSearch(), settings.attention)
            path = find_model(checkpoint)
            models.append(export_model(name, module, path, settings.max_length, confidence, settings.precision))
    with (
        new_folder(settings.output, next_to(settings.checkpoint, "export"), whole=True) as output,
        write_errors(output),
        TemporaryDirectory(dir=output) as temporary,
        plain_torch(),
    ):
        written = [(model, Path(temporary, str(number))) for number, model in enumerate(models)]
        for model, folder in written:
            write_graphs(folder, model)
            print(check_graphs(folder, model))
        if runtime:
            note = note_about(chain(*groups.values()))
            size = write_web(output / "web", written, runtime, note, settings.webgpu)
            print(f"the page loads {size / 1e6:.1f} MB; serve it with: python -m http.server --directory {output}/web")
        if "onnx" in settings.formats:
            for file in written[0][1].iterdir():
                file.rename(output / file.name)
    print(f"written to {output}")


if __name__ == "__main__":
    main()
    exit_process()
