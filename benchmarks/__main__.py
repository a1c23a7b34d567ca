"""`python -m benchmarks`: every speed figure that the README claims, one script a claim."""

from benchmarks import checkpoints, data_sets, decoding, features, generation, loader, sampler, scoring, training_step

SCRIPTS = (training_step, generation, scoring, data_sets, decoding, features, sampler, loader, checkpoints)


def main() -> None:
    for script in SCRIPTS:
        script.main()


if __name__ == "__main__":
    main()
