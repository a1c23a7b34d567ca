"""Download a data set from its publishers, and unpack it into the layout that training reads."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


def run(config: DictConfig) -> None:
    from pathlib import Path

    from hydra.utils import instantiate

    from showattendtell.data.download.archives import check_free_space
    from showattendtell.data.download.fetch import DownloadCache
    from showattendtell.data.download.plan import (
        acquire,
        check_requests,
        make_plan,
        print_plan,
        remaining_steps,
        required_space,
    )

    publication = instantiate(config.dataset, _convert_="all")
    depot = DownloadCache(Path(publication.root).expanduser())
    with depot.claimed():
        plan = make_plan(publication, depot, config.parts, config.mirror)
        print_plan(plan, publication)
        check_free_space(depot.root, required_space(plan, depot), "the archives and what is in them")
        for step in remaining_steps(plan):
            acquire(step, depot, config.retries)
        check_requests(plan, publication)
    print(f"complete in {depot.root}")


main = entry_point("download", run)

if __name__ == "__main__":
    main()
