"""Calibrate the confidence of a checkpoint in its captions, and store the calibration in it."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("calibrate")
def main(config: DictConfig) -> None:
    """Write the calibrated checkpoint.

    Raises:
        UserError: the checkpoint is not a local file or folder and `output` is not set, or only one of both is a
            folder.
    """
    from pathlib import Path

    from showattendtell.decoding.beam_search import BeamSearch
    from showattendtell.errors import UserError
    from showattendtell.inference.confidence import fit_on_data_set
    from showattendtell.inference.loading import find_model, load_model, write_calibration
    from showattendtell.visualization.result_files import write_errors
    from showattendtell.visualization.tables import print_calibration

    model = find_model(config.checkpoint)
    if config.output is None and not Path(config.checkpoint).expanduser().exists():
        raise UserError(
            f"{config.checkpoint} is not a file or folder here that can be changed; set output to the folder of a "
            "calibrated copy"
        )
    output = Path(config.output or config.checkpoint).expanduser()
    if output.exists() and output.is_dir() != model.is_dir():
        raise UserError(f"{output} exists and is not a {'folder' if model.is_dir() else 'file'}; set another output")
    calibration, scores = fit_on_data_set(load_model(config.checkpoint, config.device, BeamSearch()), config)
    print_calibration(scores.before, scores.after, "at the words of the validation captions")
    with write_errors(output):
        write_calibration(model, calibration, output)
    print(f"written to {output}")


if __name__ == "__main__":
    main()
