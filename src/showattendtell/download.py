"""Download a data set from its publishers, and unpack it into the layout that training reads."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("download")
def main(config: DictConfig) -> None:
    from pathlib import Path

    from hydra.utils import instantiate

    from showattendtell.data import download
    from showattendtell.data.archives import check_free_space
    from showattendtell.runtime.files import new_folder

    publication = instantiate(config.dataset, _convert_="all")
    cache = download.DownloadCache(Path(publication.root).expanduser())
    with new_folder(cache.folder, resume=True):
        plan = download.make_plan(publication, cache, config.parts, config.mirror)
        download.print_plan(plan, publication)
        check_free_space(cache.root, download.required_space(plan, cache), "the archives and what is in them")
        for step in plan:
            download.acquire(step, cache, config.retries)
        download.check_requests(plan, publication)
    print(f"complete in {cache.root}")


if __name__ == "__main__":
    main()
