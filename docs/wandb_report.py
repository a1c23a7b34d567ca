"""Makes the report that dashboards.md explains, of the runs in a project on wandb.

pip install wandb-workspaces
python docs/wandb_report.py ENTITY/PROJECT           of all its runs
python docs/wandb_report.py ENTITY/PROJECT GROUP     of those of one group, such as a sweep
"""

import sys

import wandb_workspaces.reports.v2 as wr

CURVES = {
    "How well it captions": ["val/bleu4", "val/nll_per_word", "train/nll_per_word", "val/distinct_captions"],
    "Where it looks": ["val/pointing_game", "val/attention_correctness"],
    "What its maps do": ["val/attention_entropy", "val/attention_movement", "val/attention_coverage"],
    "When it looks": ["val/beta_content", "val/beta_determiner", "val/beta_preposition", "val/beta_end"],
    "How it learns": ["train/loss", "train/gradient_norm"],
}
"""The figures of each section, a plot each."""

BEST = ["best/val/bleu4", "best/val/bleu4_with_penalty", "best/val/nll_per_word"]


def build_report(entity: str, project: str, group: str | None) -> wr.Report:
    """The report, which is nowhere yet: `save` uploads it."""

    def grid(panels: list) -> wr.PanelGrid:
        runs = wr.Runset(entity, project, name=group or "runs", filters=f'Group == "{group}"' if group else "")
        return wr.PanelGrid(runsets=[runs], panels=panels)

    blocks = [
        wr.H1("Best checkpoints"),
        grid([wr.BarPlot(title=name, metrics=[name]) for name in BEST]),
        wr.H1("The same images by each run"),
        grid([wr.WeavePanelSummaryTable(table_name="val/captions", layout=wr.Layout(w=24, h=24))]),
    ]
    for title, names in CURVES.items():
        blocks += [wr.H1(title), grid([wr.LinePlot(title=name, x="trainer/global_step", y=[name]) for name in names])]
    blocks += [wr.H1("How the runs differ"), grid([wr.RunComparer(diff_only="split", layout=wr.Layout(w=24, h=12))])]
    return wr.Report(project=project, entity=entity, title=f"{group or project}: captions and attention", blocks=blocks)


def main() -> None:
    place, *group = sys.argv[1:] or sys.exit(__doc__)
    entity, separator, project = place.partition("/")
    if not separator:
        sys.exit(f"error: {place} names no project; give ENTITY/PROJECT, as the address of its page on wandb has them")
    report = build_report(entity, project, group[0] if group else None)
    report.save()
    print(report.url)


if __name__ == "__main__":
    main()
