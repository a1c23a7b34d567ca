"""Calibrate the confidence of a checkpoint in its captions, and store the calibration in it."""

from showattendtell.config.entry_point import entry_point
from showattendtell.extensions.reliability import CalibrateSettings


@entry_point("calibrate")
def main(settings: CalibrateSettings) -> None:
    """Write the calibrated checkpoint.

    Raises:
        UserError: the checkpoint is not a local file or folder and `output` is not set.
    """
    from showattendtell.decoding.beam_search import BeamSearch
    from showattendtell.errors import UserError
    from showattendtell.extensions.reliability.confidence import fit_on_data_set, write_calibrated
    from showattendtell.loading.hub import find_model
    from showattendtell.loading.models import load_model
    from showattendtell.runtime.files import WEIGHTS, expand_home, new_path, write_errors

    checkpoint = find_model(settings.checkpoint)
    if settings.output is None and not expand_home(settings.checkpoint).exists():
        raise UserError(
            f"{settings.checkpoint} is not a file or folder here that can be changed; set output to the folder of a "
            "calibrated copy"
        )
    output = new_path(settings.output) if settings.output else checkpoint
    if output == checkpoint:
        file = checkpoint / WEIGHTS if checkpoint.is_dir() else checkpoint
        with write_errors(output), file.open("r+b"):  # a read-only file, which could be replaced, is kept
            pass
    model = load_model(settings.checkpoint, settings.device, BeamSearch())
    calibrated = model._replace(confidence=fit_on_data_set(model, settings.dataset, settings.cache))
    with write_errors(output):
        write_calibrated(checkpoint, calibrated, output)
    print(f"written to {output}")


if __name__ == "__main__":
    main()
