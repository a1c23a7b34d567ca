"""Captions photographs and shows where the model looked."""

from collections.abc import Callable

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point, leave


def run(config: DictConfig) -> None:
    from showattendtell.report.drawing import drawing

    with drawing() as draw:  # starts before torch is imported, for which it need not wait
        _caption(config, draw)


def _caption(config: DictConfig, draw: Callable[..., None]) -> None:
    """Caption each photograph that can be read; a `UserError` at the end tells of the others."""
    from pathlib import Path

    import torch

    from showattendtell.captioning import Choir
    from showattendtell.checkpoint import restore_together
    from showattendtell.config.build import build
    from showattendtell.data.images import find_images, open_image
    from showattendtell.errors import UserError
    from showattendtell.model.loops import plain_torch
    from showattendtell.report.drawing import picture_names

    files = find_images([config.images] if isinstance(config.images, str) else config.images)
    torch.manual_seed(config.seed)
    checkpoints = [config.checkpoint] if isinstance(config.checkpoint, str) else config.checkpoint
    models = restore_together(checkpoints, config.device, build(config.decoding), config.attention)
    modules = [model.module for model in models]
    choir, vocabulary, encoder = Choir(modules), modules[0].vocabulary, modules[0].encoder
    faults = []
    for file, name in zip(files, picture_names(files), strict=True):
        try:
            photograph = open_image(file)
        except UserError as fault:
            faults.append(str(fault))
            continue
        seen = [module.encoder.preprocessing(photograph).unsqueeze(0).to(module.device) for module in modules]
        with plain_torch():
            [[best, *others]] = choir.write(seen)
        words, path = vocabulary.decode(best.tokens), Path(config.output) / name
        maps, frame = best.weights.unflatten(1, encoder.grid).numpy(), encoder.preprocessing.crop_box(*photograph.size)
        draw(photograph, words, maps, best.gates.numpy(), frame, path)
        print(f"{file}: {' '.join(words)}")
        for caption in others:
            print(f"  also: {' '.join(vocabulary.decode(caption.tokens))}")
        print(f"  {path}")
    if faults:
        raise UserError("; ".join(faults))


main = entry_point("caption", run, positional="images")

if __name__ == "__main__":
    main()
    leave()
