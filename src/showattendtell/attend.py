"""Scores where a checkpoint looks while it reads people's captions."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> float:
    """The attention's correctness, in percent."""
    from pathlib import Path

    from showattendtell.decode.search import BeamSearch
    from showattendtell.errors import UserError
    from showattendtell.evaluation import measure_gaze
    from showattendtell.report.results import gaze_figures, writable, write_json
    from showattendtell.report.tables import print_gaze, print_notes
    from showattendtell.scoring import open_trial

    trial = open_trial(config, BeamSearch())
    path = writable(Path(config.output or trial.result_file("attention")))
    gaze = measure_gaze(*trial.writers[0], trial.examples)
    if not gaze:
        raise UserError(
            f"the data set {trial.dataset.name} does not say where the things are that its captions name; "
            "give people's boxes as dataset.entities=entities.zip (Flickr30k Entities) or, for COCO, as "
            "dataset.instances=instances_val2014.json"
        )
    print_gaze(gaze, trial.title(), with_kinds=True)
    print_notes(trial.dataset.notes)

    write_json({**gaze_figures(gaze), **trial.origin()}, path)
    print(f"written to {path}")
    return 100 * gaze.model.correctness


main = entry_point("attend", run)

if __name__ == "__main__":
    main()
