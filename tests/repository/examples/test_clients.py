"""`make test-clients`: what it expects of the programs in other languages, and when it skips one.

That target builds and runs them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from examples.clients.__main__ import ClientFailed, compare, run
from examples.clients.output import Output, Result, differences, read_output
from examples.clients.programs import (
    PROGRAMS,
    NotInstalled,
    Program,
    check_installed,
)

ROOT = Path(__file__).parents[3]
PRINTED = """7 47 -0.674754
7 9007199254740993 2.499531
error INVALID_ARGUMENT: feature 'hour': id 24 is unknown
  context.hour: id 24; an hour was expected
"""
OUTPUT = Output(
    [Result(7, 47, -0.6747543), Result(7, 9007199254740993, 2.499531)],
    "INVALID_ARGUMENT",
    "feature 'hour': id 24 is unknown",
    ["context.hour"],
)


def test_printed_results_and_error_are_read() -> None:
    assert list(differences(OUTPUT, read_output(PRINTED))) == []


@pytest.mark.parametrize(
    ("line", "replacement", "difference"),
    [
        ("2.499531", "2.499500", "result 2 is 7 9007199254740993 2.499500"),
        ("unknown", "odd", "the message of the error is \"feature 'hour': id 24 is odd\""),
        ("context.hour", "hour", "the fields of the error is ['hour']"),
    ],
)
def test_printed_difference_is_named(line: str, replacement: str, difference: str) -> None:
    printed = read_output(PRINTED.replace(line, replacement))

    assert any(text.startswith(difference) for text in differences(OUTPUT, printed))


def test_client_without_its_tools_is_skipped_with_the_packages_that_have_them() -> None:
    needs = {"compiler": ["sh", "no-such-compiler"], "library": ["/no/such.jar"], "dash": ["sh"]}
    program = Program("odd", "HTTP", needs, steps=[], command=[])

    with pytest.raises(NotInstalled, match="packages compiler library"):
        check_installed(program)
    check_installed(replace(program, needs={"dash": ["sh"]}))


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


def test_page_shows_each_client() -> None:
    page = (ROOT / "docs/how-to/clients-in-other-languages.md").read_text()
    sources = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "examples/clients").rglob("*")
        if path.suffix in {".java", ".go", ".ts", ".cc"}
    ]

    assert len(sources) == len(PROGRAMS)
    for source in sources:
        assert f'--8<-- "{source}"' in page
