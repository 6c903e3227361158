"""Compiled towers of the examples in JAX beside those in TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import jax_towers


def test_example_that_was_not_exported_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jax_towers.main(["--models", str(tmp_path)]) == 2
    assert f"{tmp_path}/flax_dlrm/bundles/flax_dlrm is missing" in capsys.readouterr().err
