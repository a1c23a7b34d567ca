"""Score a checkpoint, or an ensemble of several, on a split of their data set."""

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.config.schemas import EvaluateSettings, as_list
from showattendtell.loading.hub import find_model


@entry_point("evaluate")
def main(settings: EvaluateSettings) -> float:
    """Return the score of `main_score`."""
    for checkpoint in as_list(settings.checkpoint):  # before torch is imported
        find_model(checkpoint)
    from showattendtell.inference.evaluator import evaluate

    return evaluate(settings)


if __name__ == "__main__":
    main()
    exit_process()  # a process of torchrun can abort if it frees torch's threads
