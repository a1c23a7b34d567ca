"""Shows where a checkpoint looks in images of its data set, as one HTML file."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point, leave


def run(config: DictConfig) -> None:
    """A `UserError` at the end tells of images that cannot be read, unless they are to be passed over."""
    from pathlib import Path

    from showattendtell.accounts import restore_captioners, settle_dataset, spread, tell_all, warn_of_size
    from showattendtell.config.build import build
    from showattendtell.errors import UserError
    from showattendtell.evaluation import people_said
    from showattendtell.portable import beside
    from showattendtell.report.pages import Page, make_entry, write_page
    from showattendtell.report.results import writable
    from showattendtell.report.tables import print_notes

    first = config.checkpoint if isinstance(config.checkpoint, str) else config.checkpoint[0]
    path = writable(Path(config.output or beside(first, f"page-{config.split}.html")))
    captioners = restore_captioners(config)
    settings = settle_dataset(captioners[0].config, config)
    dataset = build(settings)
    split = dataset.split(config.split)
    examples = spread(split, config.number)
    warn_of_size(len(examples), "a smaller number= gives a smaller one")
    faults: list[str] = []
    people, entries = people_said(examples), []
    files = [Path(example.path) for example in examples]
    for number, descriptions in tell_all(captioners, files, faults):
        name, accounts = examples[number].image, [description.as_account() for description in descriptions]
        entries.append(make_entry(name, descriptions[0].photograph, accounts, people[name]))
    about = f"{dataset.name}, {len(entries):,} of {len(split):,} images of {config.split}"
    write_page(Page(about, [captioner.name for captioner in captioners], entries), path)
    print(f"written to {path}")
    if settings.get("skip_unreadable"):
        print_notes(faults)
    elif faults:
        raise UserError("; ".join(faults))


main = entry_point("page", run)

if __name__ == "__main__":
    main()
    leave()
