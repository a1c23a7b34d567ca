"""What people see of a photograph: cards of the page, and the picture that they keep."""

from showattendtell.describing import Description
from showattendtell.report.pages import Page, make_entry
from showattendtell.serving.models import Models
from showattendtell.serving.refusal import Refusal
from showattendtell.serving.uploads import Form
from showattendtell.serving.wishes import Wishes


def make_cards(models: Models, form: Form, wishes: Wishes) -> Page:
    """The photographs as a page has them."""
    described = models.describe(form.photographs, wishes)
    rows = zip(form.photographs, zip(*described.values(), strict=True), strict=True)
    entries = [
        make_entry(sent.name, accounts[0].photograph, [one.as_account() for one in accounts]) for sent, accounts in rows
    ]
    return Page("", list(described), entries)


def draw_strip(models: Models, form: Form, wishes: Wishes) -> bytes:
    """A PNG of the photograph with a panel a word; a `Refusal` where several photographs or models are asked for."""
    if len(form.photographs) > 1 or len(wishes.model) > 1:
        raise Refusal(422, "a picture is of one photograph and one model; send one of each")
    [[description]] = models.describe(form.photographs, wishes).values()
    return _strip(description)


def get_ready() -> None:
    """Import what draws, which takes seconds."""
    import showattendtell.report.heatmaps  # noqa: F401


def _strip(description: Description) -> bytes:
    from showattendtell.report.heatmaps import DPI, heatmap_figure
    from showattendtell.report.pictures import picture_content

    return picture_content(heatmap_figure(*description.as_drawn()), "png", DPI)
