"""Writes what `rowcast-serve --help` prints of settings and changes: the import of their modules
takes pydantic and NumPy.

    python scripts/command_options.py DIRECTORY   # for scripts/generate_stubs
"""

from __future__ import annotations

import json
import sys
import textwrap
import typing
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from service.config import PREFIX, ServiceSettings
from service.contract.changes import CHANGES, ChangeClass
from service.contract.layouts import layout_of

COLUMNS = 100
INDENT = "    "
HEADER = '''"""Options of `rowcast-serve` for settings, and commands of its `ctl` for changes.
Generated from service/config.py and service/contract/changes.py; see scripts/command_options.py.
"""

from __future__ import annotations

from typing import NamedTuple


class SettingOption(NamedTuple):
    """The option of a setting.

    Attributes:
      name: The name of the setting.
      metavar: The placeholder for the value; "": the option is a switch.
      is_repeatable: Whether the setting is a list.
      text: The help.
    """

    name: str
    metavar: str
    is_repeatable: bool
    text: str


class ChangeCommand(NamedTuple):
    """The command that makes a change.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      options: The names of the fields of a request, beside its items.
      text: The help.
    """

    kind: str
    action: str
    options: tuple[str, ...]
    text: str
'''
LIMITS = {"ge": "at least", "gt": "above", "le": "at most"}
"""The words for the constraints of a setting."""


def setting_option(name: str, field: FieldInfo) -> list[str]:
    """Returns the lines of the option of a setting."""
    # The type of an optional setting is a union with None.
    kind = field.annotation
    alternatives = typing.get_args(kind)
    if type(None) in alternatives:
        kind = next(part for part in alternatives if part is not type(None))

    text = str(field.description)
    limits = []
    for constraint in field.metadata:
        for attribute, words in LIMITS.items():
            if hasattr(constraint, attribute):
                limits.append(f"{words} {getattr(constraint, attribute)}")
    if limits:
        text += f" ({', '.join(limits)})"
    if not field.is_required() and field.default not in (None, ()):
        text += f" [default: {field.default}]"
    text += f" [env: {PREFIX}{name.upper()}]"

    is_repeatable = typing.get_origin(kind) is tuple
    return record("SettingOption", name, metavar(kind), is_repeatable, text=text)


def metavar(kind: Any) -> str:
    """Returns the placeholder for a value of a type in the help; "": a switch has none."""
    if typing.get_origin(kind) is typing.Literal:
        return f"<{'|'.join(typing.get_args(kind))}>"
    return {bool: "", int: "<int>", float: "<float>", Path: "<path>"}.get(kind, "<text>")


def change_command(change: ChangeClass) -> list[str]:
    """Returns the lines of the command that makes a change."""
    layout = layout_of(change)
    text = "Ids that are not there are counted, and are no error."
    if change.action != "delete":
        required = " and ".join([name for name, field in layout.parts.items() if field.is_required])
        optional = ", ".join(
            [name for name, field in layout.parts.items() if not field.is_required]
        )
        text = f"An item has {required}, and optionally {optional}."
    text = f"{change.__doc__} {text}"
    return record("ChangeCommand", change.kind, change.action, tuple(layout.options), text=text)


def record(name: str, *values: Any, text: str) -> list[str]:
    """Returns the lines of a record, formatted as `ruff format` does."""
    parts = textwrap.wrap(
        " ".join(text.split()),
        COLUMNS - 2 * len(INDENT) - len('"",') - 1,
        break_on_hyphens=False,
    )
    # All parts but the last end with the space at which they were divided.
    texts = [source_of(f"{part} ") for part in parts[:-1]] + [f"{source_of(parts[-1])},"]
    lines = [f"{source_of(value)}," for value in values] + texts
    return [f"{INDENT}{name}(", *[f"{2 * INDENT}{line}" for line in lines], f"{INDENT}),"]


def source_of(value: Any) -> str:
    """Returns the source of a value; of a text with double quotes, unless it has some."""
    if isinstance(value, tuple):
        return f"({', '.join(map(source_of, value))})"
    if isinstance(value, str) and '"' not in value:
        return json.dumps(value)
    return repr(value)


def main(directory: str) -> None:
    """Writes the module into a directory."""
    lines = [HEADER, "", "SETTINGS = ("]
    for name, field in ServiceSettings.model_fields.items():
        lines += setting_option(name, field)
    lines += [")", "CHANGES = ("]
    for change in CHANGES.values():
        lines += change_command(change)
    lines.append(")")
    (Path(directory) / "command_options.py").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
