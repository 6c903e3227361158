"""Command lines of options and their values alone, as services are started: read without the library for all others.

That library takes 40 ms to be imported and to learn of fifty options: a tenth of a start. What is not understood here
is left to it, help, commands and mistakes among that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.settings import ServiceSettings


def plain_options(words: Sequence[str]) -> dict[str, Any] | None:
    """Returns what options say, by the name of their setting, as text; None: there is anything else among them."""
    fields = ServiceSettings.model_fields.items()
    flags = {f"--{name.replace('_', '-')}": name for name, one in fields if one.annotation is not bool}
    found: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        name = flags.get(flag)
        if not equals:
            value = next(rest, "-")
        if name is None or value.startswith("-"):
            return None
        found[name] = (*found.get(name, ()), value) if name == "require" else value
    return found
