from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console
from rich.text import Text

from export.cli.terminal import (
    SENTENCE_CHARS_MAX,
    SafeReport,
    native_output_hidden,
    print_report,
    sentence,
)

NOISE = """
import os, sys
from export.errors import ExportError
from export.cli.terminal import native_output_hidden
def work(end):
    with native_output_hidden():
        os.write(1, b"native result\\n")
        os.write(2, b"native warning\\n")
        print("model code says")
        print("progress", file=sys.stderr)
        end()
def fine(): pass
def bug(): raise KeyError("bug")
def rejected(): raise ExportError("rejection")
def interrupted():
    try: raise KeyboardInterrupt
    except KeyboardInterrupt as at: raise ImportError("initialization failed") from at
"""


def ran(end: str) -> subprocess.CompletedProcess[str]:
    program = f"{NOISE}\nwork({end})\nprint('result')\nos.write(2, b'native again\\n')\n"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_native_output_hidden_hides_native_lines_and_sends_prints_to_stderr() -> None:
    done = ran("fine")
    assert (done.stdout, done.stderr) == ("result\n", "model code says\nprogress\nnative again\n")


@pytest.mark.parametrize(
    ("end", "end_text", "native"),
    [
        ("bug", "KeyError: 'bug'", True),
        ("rejected", "ExportError: rejection", False),
        ("interrupted", "KeyboardInterrupt", False),
    ],
)
def test_native_output_hidden_shows_native_lines_with_a_bug_alone(
    end: str, end_text: str, native: bool
) -> None:
    done = ran(end)
    assert done.stdout == ""
    assert done.stderr.rstrip().endswith(end_text)
    assert ("native warning" in done.stderr.partition("Traceback")[0]) == native


HOSTILE = "a\x1b[31m\x07b\u202ec\x9b2Jd\udcff[bold]e"


def test_names_cannot_control_the_terminal() -> None:
    screen = io.StringIO()
    Console(file=screen, width=100, force_terminal=True, color_system=None).print(
        SafeReport(Text(HOSTILE))
    )
    assert "\ufffd[31m" in screen.getvalue()
    assert not set("\x1b\x07\u202e\x9b\udcff") & set(screen.getvalue())
    assert sentence(f"table {HOSTILE}\n is gone") == (
        r"table a\x1b[31m\x07b\u202ec\x9b2Jd\udcff[bold]e\n is gone"
    )
    text = sentence("x" * 10**6 + "cure")
    assert (len(text), text[-4:]) == (SENTENCE_CHARS_MAX + 5, "cure")


@pytest.mark.parametrize(
    ("count", "expected_text"),
    [
        (SENTENCE_CHARS_MAX, "x" * SENTENCE_CHARS_MAX),
        (SENTENCE_CHARS_MAX + 1, "x" * 4000 + " ... " + "x" * 4000),
    ],
)
def test_middle_of_a_sentence_that_is_too_long_is_left_out(count: int, expected_text: str) -> None:
    assert sentence("x" * count) == expected_text


def test_report_is_printed_as_json_or_as_a_table_of_a_fixed_width(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_report({"path": "a\udcff", "rows": 3}, "unused", True)
    assert capsys.readouterr().out == '{\n  "path": "a\\udcff",\n  "rows": 3\n}\n'
    print_report({}, Text("word " * 60), False)
    first, *further_lines = capsys.readouterr().out.splitlines()
    assert 150 < len(first) <= 160
    assert further_lines


def test_native_output_hidden_gives_the_streams_back(capfd: pytest.CaptureFixture[str]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with native_output_hidden():
        os.write(1, b"native result\n")
    os.write(1, b"out\n")
    os.write(2, b"err\n")
    assert set(os.listdir("/proc/self/fd")) == before
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")
