from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console
from rich.text import Text

from export.cli.terminal import SENTENCE_CHARS_MAX, Shown, sentence

NOISE = """
import os, sys
from export.errors import ExportError
from export.cli.terminal import kept_clean
def work(end):
    with kept_clean():
        os.write(1, b"native result\\n")
        os.write(2, b"native warning\\n")
        print("model code says")
        print("progress", file=sys.stderr)
        end()
def fine(): pass
def bug(): raise KeyError("bug")
def told(): raise ExportError("told")
def interrupted():
    try: raise KeyboardInterrupt
    except KeyboardInterrupt as at: raise ImportError("initialization failed") from at
"""


def ran(end: str) -> subprocess.CompletedProcess[str]:
    program = f"{NOISE}\nwork({end})\nprint('result')\nos.write(2, b'native again\\n')\n"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_kept_clean_hides_native_lines_and_sends_prints_to_stderr() -> None:
    done = ran("fine")
    assert (done.stdout, done.stderr) == ("result\n", "model code says\nprogress\nnative again\n")


@pytest.mark.parametrize(
    ("end", "shown", "native"),
    [
        ("bug", "KeyError: 'bug'", True),
        ("told", "ExportError: told", False),
        ("interrupted", "KeyboardInterrupt", False),
    ],
)
def test_kept_clean_shows_native_lines_with_a_bug_alone(end: str, shown: str, native: bool) -> None:
    done = ran(end)
    assert done.stdout == ""
    assert done.stderr.rstrip().endswith(shown)
    assert ("native warning" in done.stderr.partition("Traceback")[0]) == native


HOSTILE = "a\x1b[31m\x07b\u202ec\x9b2Jd\udcff[bold]e"


def test_names_cannot_control_the_terminal() -> None:
    screen = io.StringIO()
    Console(file=screen, width=100, force_terminal=True, color_system=None).print(
        Shown(Text(HOSTILE))
    )
    assert "\ufffd[31m" in screen.getvalue()
    assert not set("\x1b\x07\u202e\x9b\udcff") & set(screen.getvalue())
    assert sentence(f"table {HOSTILE}\n is gone") == (
        r"table a\x1b[31m\x07b\u202ec\x9b2Jd\udcff[bold]e\n is gone"
    )
    told = sentence("x" * 10**6 + "cure")
    assert (len(told), told[-4:]) == (SENTENCE_CHARS_MAX + 5, "cure")
