"""`make test-clients`: what it expects of the programs in other languages.

That target builds and runs them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from examples.clients.__main__ import ClientFailed, compare, run
from examples.clients.output import Output, Result
from examples.clients.programs import PROGRAMS, Program

ROOT = Path(__file__).parents[3]
OUTPUT = Output(
    [Result(7, 47, -0.6747543), Result(7, 9007199254740993, 2.499531)],
    "INVALID_ARGUMENT",
    "feature 'hour': id 24 is unknown",
    ["context.hour"],
)


def test_client_that_prints_something_else_fails() -> None:
    script = "echo 7 47 1.000000; echo error $ROWCAST_TOKEN: at $0"
    program = Program("odd", "HTTP", needs={}, steps=[], command=["sh", "-c", script])

    output = run(program, "http://localhost", token="TOKEN")

    assert output == "7 47 1.000000\nerror TOKEN: at http://localhost\n"
    with pytest.raises(ClientFailed, match="the code of the error is 'TOKEN'"):
        compare(OUTPUT, output)
    with pytest.raises(ClientFailed, match="the client printed 'Segmentation fault'"):
        compare(OUTPUT, "Segmentation fault\n")
    with pytest.raises(ClientFailed, match="ended with 3\nno connection"):
        run(replace(program, command=["sh", "-c", "echo no connection >&2; exit 3"]), "", "")


def test_page_links_each_client() -> None:
    page = (ROOT / "docs/how-to/clients-in-other-languages.md").read_text()
    sources = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "examples/clients").rglob("*")
        if path.suffix in {".java", ".go", ".ts", ".cc"}
    ]

    assert len(sources) == len(PROGRAMS)
    for source in sources:
        assert f"](../../{source})" in page
