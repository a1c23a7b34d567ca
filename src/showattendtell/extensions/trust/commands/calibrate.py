"""Calibrate the confidence of a checkpoint in its captions, and store the calibration in it."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("calibrate")
def main(config: DictConfig) -> None:
    """Write the calibrated checkpoint.

    Raises:
        UserError: the checkpoint is not a local file or folder and `output` is not set.
    """
    from collections.abc import Callable
    from contextlib import AbstractContextManager, nullcontext
    from pathlib import Path

    from showattendtell.decoding.beam_search import BeamSearch
    from showattendtell.errors import UserError
    from showattendtell.extensions.trust.confidence import fit_on_data_set, print_calibration, write_calibration
    from showattendtell.inference.finding import find_model
    from showattendtell.inference.loading import load_model
    from showattendtell.runtime.files import WEIGHTS, expand_home, new_file, new_folder, new_path, write_errors

    model = find_model(config.checkpoint)
    if config.output is None and not expand_home(config.checkpoint).exists():
        raise UserError(
            f"{config.checkpoint} is not a file or folder here that can be changed; set output to the folder of a "
            "calibrated copy"
        )
    output = new_path(config.output) if config.output else expand_home(config.checkpoint)
    make: Callable[[Path], AbstractContextManager[Path]] = new_folder if model.is_dir() else new_file
    if not config.output:
        make = nullcontext
        file = model / WEIGHTS if model.is_dir() else model
        with write_errors(output), file.open("r+b"):  # raises for a read-only file, which would be replaced
            pass
    calibration, scores = fit_on_data_set(load_model(config.checkpoint, config.device, BeamSearch()), config)
    print_calibration(*scores, "at the words of the validation captions")
    with make(output) as output, write_errors(output):
        write_calibration(model, calibration, output)
    print(f"written to {output}")


if __name__ == "__main__":
    main()
