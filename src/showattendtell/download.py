"""Fetches a data set: archives from their publishers, unpacked as training reads them."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> None:
    from pathlib import Path

    from hydra.utils import instantiate

    from showattendtell.downloads.acquire import acquire
    from showattendtell.downloads.depot import Depot
    from showattendtell.downloads.plan import make_plan, needed_room, print_plan, refuse_requests, to_do
    from showattendtell.downloads.unpack import refuse_without_room

    publication = instantiate(config.dataset, _convert_="all")
    depot = Depot(Path(publication.root).expanduser())
    with depot.claimed():
        plan = make_plan(publication, depot, config.parts, config.mirror)
        print_plan(plan, publication)
        refuse_without_room(depot.root, needed_room(plan, depot), "the archives and what is in them")
        for step in to_do(plan):
            acquire(step, depot, config.retries)
        refuse_requests(plan, publication)
    print(f"complete in {depot.root}")


main = entry_point("download", run)

if __name__ == "__main__":
    main()
