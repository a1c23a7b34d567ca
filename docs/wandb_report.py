"""Create the wandb report that docs/extensions/dashboards.md describes, of the runs in a project.

pip install '.[report]'
python docs/wandb_report.py ENTITY/PROJECT           all its runs
python docs/wandb_report.py ENTITY/PROJECT GROUP     the runs of a group, such as a sweep
"""

import sys

import wandb_workspaces.reports.v2 as wr

CURVES = {
    "Scores": ["val/bleu4", "val/nll_per_word", "train/nll_per_word", "val/distinct_captions"],
    "Attention in ground-truth boxes": ["val/pointing_game", "val/attention_correctness"],
    "Statistics of attention maps": ["val/attention_entropy", "val/attention_movement", "val/attention_coverage"],
    "Gate by word class": ["val/beta_content", "val/beta_determiner", "val/beta_preposition", "val/beta_end"],
    "Training": ["train/loss", "train/gradient_norm"],
}
"""The metrics of each section, one plot each."""

BEST = ["best/val/bleu4", "best/val/bleu4_with_penalty", "best/val/nll_per_word"]


def build_report(entity: str, project: str, group: str | None) -> wr.Report:
    """Return the report; its method `save` uploads it."""

    def grid(panels: list) -> wr.PanelGrid:
        runs = wr.Runset(entity, project, name=group or "runs", filters=f'Group == "{group}"' if group else "")
        return wr.PanelGrid(runsets=[runs], panels=panels)

    blocks = [
        wr.H1("Best checkpoints"),
        grid([wr.BarPlot(title=name, metrics=[name]) for name in BEST]),
        wr.H1("Captions of the validation images"),
        grid([wr.WeavePanelSummaryTable(table_name="val/captions", layout=wr.Layout(w=24, h=24))]),
    ]
    for title, names in CURVES.items():
        blocks += [wr.H1(title), grid([wr.LinePlot(title=name, x="trainer/global_step", y=[name]) for name in names])]
    blocks += [wr.H1("Settings that differ"), grid([wr.RunComparer(diff_only="split", layout=wr.Layout(w=24, h=12))])]
    return wr.Report(project=project, entity=entity, title=f"{group or project}: captions and attention", blocks=blocks)


def main() -> None:
    place, *group = sys.argv[1:] or sys.exit(__doc__)
    entity, separator, project = place.partition("/")
    if not separator:
        sys.exit(f"error: {place} has no project; give ENTITY/PROJECT, as in the address of its page on wandb")
    report = build_report(entity, project, group[0] if group else None)
    report.save()
    print(report.url)


if __name__ == "__main__":
    main()
