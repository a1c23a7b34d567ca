"""Captions photographs and shows where the model looked."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> None:
    from pathlib import Path

    import torch

    from showattendtell.checkpoint import restore
    from showattendtell.config.build import build
    from showattendtell.data.images import find_images, open_image
    from showattendtell.errors import UserError
    from showattendtell.report.heatmaps import draw_heatmaps, picture_names

    files = find_images([config.images] if isinstance(config.images, str) else config.images)
    torch.manual_seed(config.seed)
    module = restore(config.checkpoint, config.device, build(config.decoding), config.attention).module
    preprocessing, grid = module.encoder.preprocessing, module.encoder.grid
    faults = []
    for file, name in zip(files, picture_names(files), strict=True):
        try:
            photograph = open_image(file)
        except UserError as fault:
            faults.append(str(fault))
            continue
        [caption] = module.write(preprocessing(photograph).unsqueeze(0).to(module.device))
        words = module.vocabulary.decode(caption.tokens)
        path = Path(config.output) / name
        maps = caption.weights.unflatten(1, grid).numpy()
        draw_heatmaps(photograph, words, maps, caption.gates.numpy(), preprocessing.crop_box(*photograph.size), path)
        print(f"{file}: {' '.join(words)}\n  {path}")
    if faults:
        raise UserError("; ".join(faults))


main = entry_point("caption", run)

if __name__ == "__main__":
    main()
