"""Writes the client's functions that change candidates and contexts, from what the service declares
of the changes (`service/contract/changes.py`).

    python scripts/change_calls.py DIRECTORY   # for scripts/generate_stubs
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from service.contract.changes import CHANGES, ChangeClass
from service.contract.layouts import layout_of

COLUMNS = 100
HEADER = '''"""Calls that change candidates and contexts while they are served. Generated from
service/contract/changes.py; see scripts/change_calls.py.

A service makes them for the clients that its setting `changes_from` names. When a call returns, the
change is on the disk and served by the process that responded; the others follow within
milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from numpy.typing import ArrayLike

from rowcast_client.calls import Call
from rowcast_client.changes import ChangeOptions, Values, change
from rowcast_client.columns import Features
from rowcast_client.model_details import ChangeResult
'''
TYPES = {
    "features": "Features",
    "attributes": "Mapping[str, Values]",
    "vectors": "Mapping[str, ArrayLike]",
    "expires_s": "Values",
}
"""The type of an argument, by the name of the field of an item."""
TEXTS = {
    "features": "One value of each, by the name of the feature.",
    "attributes": "One value of each, by the name of the attribute; None stands for no value.",
    "vectors": "[m, dim] by index, instead of those that the candidate tower computes.",
    "expires_s": "The time when each expires, in Unix seconds; None: never.",
    "corpus": "The name of the corpus; the only one if left out.",
    "store": "The name of the context store; the only one if left out.",
}
"""What the documentation says of an argument."""


def function(change: ChangeClass) -> list[str]:
    """Returns the lines of the function that makes a change."""
    arguments = ["ids: Values"]
    documented = [f"ids: The ids of the m {change.kind}."]
    passed = []
    layout = layout_of(change)
    fields = [field for name, field in layout.parts.items() if name in TYPES]
    for number, field in enumerate(fields):
        if number == 1:
            arguments.append("*")
        default = " | None = None"
        if field.is_required:
            default = ""
        arguments.append(f"{field.name}: {TYPES[field.json]}{default}")
        documented.append(f"{field.name}: {TEXTS[field.json]}")
        passed.append(f"{field.name}={field.name}")
    if "*" not in arguments:
        arguments.append("*")
    for name, option in layout.options.items():
        if name in TEXTS:
            arguments.append(f'{name}: str = ""')
            documented.append(f"{name}: {TEXTS[name]}")
            passed.append(f"{option.name}={name}")
    arguments.append("**options: Unpack[ChangeOptions]")
    documented.append("options: Options such as model, sequences and stream: see ChangeOptions.")
    call = [f'"{change.kind}"', f'"{change.action}"', "ids", *passed, "**options"]
    return [
        "",
        "",
        f"def {change.body.call}(",
        *[f"    {argument}," for argument in arguments],
        ") -> Call[ChangeResult]:",
        f'    """{in_third_person(change.__doc__ or "")}',
        "",
        "    Args:",
        *[
            textwrap.fill(f"      {text}", COLUMNS, subsequent_indent=" " * 8)
            for text in documented
        ],
        "",
        "    Raises:",
        "      InvalidArgument: A value cannot be sent; the service's own errors are raised as",
        "        `errors.py` lists them.",
        '    """',
        "    return change(",
        *[f"        {argument}," for argument in call],
        "    )",
    ]


def in_third_person(summary: str) -> str:
    """Returns an imperative sentence, such as "Add it, or replace it.", in the third person."""
    return re.sub("(^[A-Z][a-z]+|(?<=or )[a-z]+)", r"\1s", summary)


def main(directory: str) -> None:
    """Writes the module into a directory."""
    lines = [HEADER.rstrip()]
    for change in CHANGES.values():
        lines += function(change)
    (Path(directory) / "change_calls.py").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
