"""List, verify and merge feature stores."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("features")
def main(config: DictConfig) -> None:

    from showattendtell.errors import UserError
    from showattendtell.features.stores import merge, print_stores, verify_stores
    from showattendtell.runtime.files import cache_folder, expand_home

    folder = cache_folder(config.cache) / "features"
    if (config.merge is None) != (config.output is None):
        raise UserError("merge names the stores and output the new one; give both, or leave both out")
    if config.merge:
        folder = expand_home(config.output)
        merge([expand_home(source) for source in config.merge], folder)
    print_stores(folder)
    if config.verify:
        verify_stores(folder)


if __name__ == "__main__":
    main()
