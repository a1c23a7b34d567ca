"""Download a data set from its publishers, and unpack it into the layout that training reads."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("download")
def main(config: DictConfig) -> None:
    from hydra.utils import instantiate

    from showattendtell.extensions.download.publication import download

    publication = instantiate(config.dataset, _convert_="all")
    download(publication, config.parts, config.mirror, config.retries)


if __name__ == "__main__":
    main()
