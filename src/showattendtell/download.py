"""Download a data set from its publishers, and unpack it into the layout that training reads."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


def run(config: DictConfig) -> None:
    from pathlib import Path

    from hydra.utils import instantiate

    from showattendtell.data.download import (
        DownloadCache,
        acquire,
        check_free_space,
        check_requests,
        make_plan,
        print_plan,
        required_space,
    )

    publication = instantiate(config.dataset, _convert_="all")
    cache = DownloadCache(Path(publication.root).expanduser())
    with cache.claimed():
        plan = make_plan(publication, cache, config.parts, config.mirror)
        print_plan(plan, publication)
        check_free_space(cache.root, required_space(plan, cache), "the archives and what is in them")
        for step in plan:
            acquire(step, cache, config.retries)
        check_requests(plan, publication)
    print(f"complete in {cache.root}")


main = entry_point("download", run)

if __name__ == "__main__":
    main()
