"""Names of settings in other projects: each is taken, or the error names the setting here."""

import re
from functools import cache

import pytest

from showattendtell.__main__ import COMMANDS
from showattendtell.config.command_line import find_options
from showattendtell.config.compose import compose
from showattendtell.config.names import ALIASES, MEANT
from showattendtell.errors import UserError

SIDES = ("train", "caption", "evaluate", "score")


@cache
def hints_of(command: str) -> dict[str, str]:
    """What a command says of each name that it does not take."""
    own = {*compose(command, complete=False)}
    with pytest.raises(UserError) as error:
        compose(command, [f"{name}=1" for name in MEANT if name not in own | {*ALIASES}], complete=False)
    return dict(re.findall(r"there is no setting (\w+)(.*)", str(error.value)))


def test_a_name_of_another_project_leads_to_the_setting_here():
    for name in MEANT.keys() - {*ALIASES, "data"}:
        hints = [hint for command in SIDES if "did you mean" in (hint := hints_of(command).get(name, ""))]
        assert hints, name
        for meant in re.findall(r"'(.*?)'", " ".join(hints)):
            assert meant in MEANT[name] or meant.endswith(f".{name}"), name


@pytest.mark.parametrize("command", SIDES)
def test_what_an_error_names_is_there(command: str):
    hints = "".join(hints_of(command).values())
    meant = {*re.findall(r"'(.*?)'", hints)}
    assert {name.partition("=")[2] for name in meant if "=" in name} <= {"NAME", "ema", "sample"}
    for group in {name.partition("=")[0] for name in meant if "=" in name}:
        assert find_options(group)
    with pytest.raises(UserError) as error:
        compose(command, ["seed=no", *(f"{name}=null" for name in meant if "=" not in name)], complete=False)
    assert "there is no setting" not in str(error.value)
    assert {*re.findall(r"the command (\w+)", hints)} <= {*COMMANDS}
