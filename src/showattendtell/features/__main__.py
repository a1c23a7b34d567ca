"""List and verify feature stores."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("features")
def main(config: DictConfig) -> None:
    from showattendtell.features.store import print_stores
    from showattendtell.runtime.files import cache_folder

    print_stores(cache_folder(config.cache) / "features", config.verify)


if __name__ == "__main__":
    main()
