"""Score a checkpoint, or an ensemble of several, on a split of their data set."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.errors import UserError
from showattendtell.inference.finding import as_list, find_model


@entry_point("evaluate")
def main(config: DictConfig) -> float:
    """Return the score of `main_score`; the mean over the languages of a model of several."""
    first, *_ = map(find_model, as_list(config.checkpoint))  # before torch is imported
    from statistics import mean

    from showattendtell.config.compose import with_overrides
    from showattendtell.inference.checkpoints import read_checkpoint
    from showattendtell.inference.evaluator import evaluate

    languages = read_checkpoint(first)[0].get("languages", []) if config.language is None else []
    if config.output and languages:
        raise UserError(
            f"output is one file, and the model writes {', '.join(languages)}; choose one with language=..."
        )
    return mean(evaluate(with_overrides(config, language=language)) for language in languages or [config.language])


if __name__ == "__main__":
    main()
    exit_process()  # a process of torchrun can abort if it frees torch's threads
