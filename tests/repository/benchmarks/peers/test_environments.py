from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.environments import Environment


@pytest.mark.nightly
@pytest.mark.slow
def test_environment_that_does_not_install_keeps_the_reason(tmp_path: Path) -> None:
    environment = Environment("broken", (str(tmp_path / "no-such-wheel.whl"),), root=tmp_path)
    assert environment.problem == "not installed: make bench-peers"
    environment.make()
    assert environment.problem.startswith("ERROR: ")
    assert "no-such-wheel.whl" in environment.problem
