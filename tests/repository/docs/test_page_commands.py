"""Every command line of the documentation has only arguments and options that its program takes."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rowcast_client import commands
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from export.cli.commands import app
from service.cli.serve import command
from tests.repository.docs.blocks import ROOT, pages

COMMAND = re.compile(
    r" *(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*bin/)?(rowcast-export|rowcast-serve|rowcast) (\S.*)"
)
PROGRAMS: dict[str, Callable[[], typer.Typer]] = {
    "rowcast": commands.app,
    "rowcast-export": lambda: app,
    "rowcast-serve": command,
}
OTHERS = ("deploy/README.md", "CONTRIBUTING.md", "SECURITY.md")


def command_lines() -> Iterator[tuple[str, str, list[str]]]:
    """Yields the place, the program and the arguments of each command in an indented or fenced
    block.
    """
    for page in [*pages(), *(ROOT / other for other in OTHERS)]:
        lines = page.read_text().splitlines()
        language: str | None = None
        position = 0
        while position < len(lines):
            line = lines[position]
            if line.lstrip().startswith("```"):
                language = line.strip().removeprefix("```") if language is None else None
            # A block without a language shows output.
            is_code = language == "sh" if language is not None else line.startswith("    ")
            actual = COMMAND.fullmatch(line) if is_code else None
            place = f"{page.relative_to(ROOT)}:{position + 1}"
            position += 1
            if actual:
                text = actual[2]
                while text.endswith("\\") or text.count("'") % 2:
                    text = text.removesuffix("\\") + "\n" + lines[position]
                    position += 1
                yield place, actual[1], arguments_of(text)


def arguments_of(text: str) -> list[str]:
    """Returns the words of a command, without a comment, a redirection and what comes
    after them.
    """
    words = shlex.split(text.removesuffix("&"), comments=True)
    ends = [
        number
        for number, word in enumerate(words)
        if word in {"|", ">", "&&", ";"} or word.startswith("<<")
    ]
    return words[: ends[0]] if ends else words


def test_commands_of_the_pages_have_only_options_that_exist() -> None:
    wrong = []
    programs = set()
    for place, program, arguments in command_lines():
        programs.add(program)
        try:
            parse(get_command(PROGRAMS[program]()), program, arguments)
        except TyperException as problem:
            wrong.append((place, str(problem)))
    assert wrong == []
    assert programs == set(PROGRAMS)


def parse(group: Any, name: str, arguments: list[str]) -> None:
    """Parses the arguments of a command and of the command within it; runs neither."""
    with contextlib.ExitStack() as stack:
        context = group.make_context(name, arguments)
        stack.enter_context(context)
        while isinstance(group, TyperGroup) and (rest := remaining(context)):
            inner, group, rest = group.resolve_command(context, rest)
            assert group is not None
            context = group.make_context(inner, rest, parent=context)
            stack.enter_context(context)


def remaining(context: Any) -> list[str]:
    """Returns the arguments that a group leaves to a command within it."""
    return [*getattr(context, "_protected_args", []), *context.args]
