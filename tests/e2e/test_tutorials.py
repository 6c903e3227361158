"""The tutorials for models that TF-Keras and JAX train, followed word by word: their files are
written, each command runs in a process of its own, and what the pages show of the partition is
printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.forked_programs import printed_by_export
from tests.e2e.process import Process

_FLAX = ["flax", "optax", "orbax.checkpoint"]
PACKAGES = {"keras-jax": ["jax"], "flax": _FLAX, "transformer": _FLAX}
"""What the pages need beside TensorFlow."""
TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


def printed(folder: Path, *arguments: str) -> list[str]:
    """Returns the lines that a Python process prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("model", ["tf-keras", "keras-jax", "flax", "transformer"])
def test_page_leads_from_training_to_a_response(model: str, tmp_path: Path) -> None:
    for package in PACKAGES.get(model, ()):
        pytest.importorskip(package)
    page = f"first-{model}-model.md"
    text = (TUTORIALS / page).read_text()
    blocks = dict(re.findall(r"<!-- ([\w.]+) -->\n```\w*\n(.*?)```", text, re.DOTALL))
    for name in ("model.py", "train.py", "recipe.toml"):
        (tmp_path / name).write_text(blocks[name])

    printed(tmp_path, "train.py")
    explain = ("explain", "recipe.toml", "--html", "shop.html")
    output = printed_by_export(explain, tmp_path).splitlines()
    assert [line for line in blocks["explain"].splitlines() if line not in output] == []
    assert "<svg" in (tmp_path / "shop.html").read_text()
    printed_by_export(("run", "recipe.toml"), tmp_path)

    service = Process(tmp_path / "bundles")
    try:
        service.event("listening")
        address = f"127.0.0.1:{service.ports['http']}"
        (tmp_path / "ask.py").write_text(blocks["ask.py"].replace("localhost:8080", address))
        responses = printed(tmp_path, "ask.py")
    finally:
        service.kill()
    assert len(responses) == 2
    assert {line.split()[0] for line in responses} <= {"3", "17", "19999"}
