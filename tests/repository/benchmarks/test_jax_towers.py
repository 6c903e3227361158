"""Compiled towers of the examples in JAX beside those in TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import attention_towers, jax_towers


def test_example_that_was_not_exported_is_named_before_anything_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jax_towers.main(["--models", str(tmp_path)]) == 2
    assert f"{tmp_path}/flax_dlrm/bundles/flax_dlrm is missing" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.slow
def test_towers_with_attention_are_compared_in_both_forms(tmp_path: Path) -> None:
    sasrec, hstu = attention_towers.open_pairs(tmp_path)  # which compares their vectors
    assert (sasrec.name, hstu.name) == ("SASRec", "HSTU")
    times_ms = jax_towers.compare(sasrec.in_jax, sasrec.in_tensorflow, batch=1)
    assert all(time_ms > 0 for time_ms in times_ms)
