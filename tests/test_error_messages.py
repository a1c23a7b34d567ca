"""Every message of a `UserError`, in one table: `python tests/test_error_messages.py` writes it after a change."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import showattendtell

PACKAGE = Path(showattendtell.__file__).parent
TABLE = Path(__file__).with_name("error_messages.md")

HEAD = """# Error messages

Each message of a `UserError` with its module, to review the wording in one place. `{...}` is a value.

| module | message |
|---|---|
"""

PRIVATE = re.compile(
    r"\b(told|tells?|anew|beside|goes on|go on|people's|stands? (?:in|for|there)|be it|none of ours)\b"
)


def messages() -> Iterator[tuple[str, str]]:
    """Yield (module, message) for every `UserError("...")` of the package, in order."""
    for file in sorted(PACKAGE.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda node: node.lineno):
            message = template(call.args[0]) if ast.unparse(call.func) == "UserError" and call.args else ""
            if message:
                yield file.relative_to(PACKAGE).as_posix(), message


def template(node: ast.expr) -> str:
    """Return the text of a string or an f-string, with its values as `{value}`; empty for another expression."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(template(part) or placeholder(part) for part in node.values)


def placeholder(node: ast.expr) -> str:
    return f"{{{ast.unparse(node.value)}}}" if isinstance(node, ast.FormattedValue) else ""


def table() -> str:
    return HEAD + "".join(f"| {module} | {message.replace('|', chr(92) + '|')} |\n" for module, message in messages())


def test_the_table_has_every_message():
    assert table() == TABLE.read_text(encoding="utf-8"), "run python tests/test_error_messages.py"


def is_plain(message: str) -> bool:
    """Whether it is one sentence without an end mark, in the field's words, with lines only for a list."""
    ends = message.removesuffix("...").endswith((".", "!"))
    return not ends and not PRIVATE.search(message) and ("\n" not in message or ":" in message)


def test_a_message_is_one_plain_sentence():
    assert [(module, message) for module, message in messages() if not is_plain(message)] == []


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
