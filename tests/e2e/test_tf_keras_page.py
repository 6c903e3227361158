"""docs/tutorials/first-tf-keras-model.md, followed word by word: its files are written and run, and
it shows what is printed.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import pytest

from export.cli.main import main
from export.graphs.loading import load_tensorflow
from tests.e2e.process import Process

PAGE = (Path(__file__).parents[2] / "docs/tutorials/first-tf-keras-model.md").read_text()
BLOCKS = dict(re.findall(r"<!-- ([\w.]+) -->\n```\w*\n(.*?)```", PAGE, re.DOTALL))


def printed(program: str, *arguments: str) -> str:
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", [program, *arguments])
        if program == "python":
            patch.syspath_prepend(str(Path.cwd()))
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            with pytest.raises(SystemExit) as finished:
                main()
            assert finished.value.code == 0
    return output.getvalue()


@pytest.mark.slow
def test_tf_keras_page_leads_from_training_to_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_tensorflow()
    monkeypatch.chdir(tmp_path)
    for name, text in BLOCKS.items():
        Path(name).write_text(text)
    printed("python", "train.py")
    sys.modules.pop("model")
    output = printed("rowcast-export", "explain", "recipe.toml", "--html", "shop.html").splitlines()
    assert [line for line in BLOCKS["explain"].splitlines() if line not in output] == []
    assert "<svg" in Path("shop.html").read_text()
    printed("rowcast-export", "run", "recipe.toml")
    service = Process(Path("bundles").absolute())
    try:
        service.event("listening")
        ask = Path("ask.py")
        ask.write_text(
            ask.read_text().replace("localhost:8080", f"127.0.0.1:{service.ports['http']}")
        )
        responses = printed("python", "ask.py").splitlines()
    finally:
        service.kill()
    assert len(responses) == 2
    assert {line.split()[0] for line in responses} <= {"3", "17", "19999"}
