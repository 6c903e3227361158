"""JAX is imported when a model needs it, on CPUs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from export.errors import NotConvertible
from export.graphs.loading import TESTED
from export.jax_models.loading import check_release, load_jax


def test_other_release_of_jax_is_rejected() -> None:
    for supported in TESTED["jax"]:
        check_release(f"{supported}.0.1")
    for unsupported in ("0.9.0", "0.13.0", "0.1.1"):
        with pytest.raises(NotConvertible, match=unsupported):
            check_release(unsupported)


def test_missing_jax_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(NotConvertible, match=r"\[export,jax\]"):
        load_jax()


@pytest.mark.nightly
@pytest.mark.parametrize(("stated", "platforms"), [({}, "cpu"), ({"JAX_PLATFORMS": ""}, "")])
def test_jax_runs_on_cpus_unless_the_environment_says_otherwise(
    stated: dict[str, str], platforms: str
) -> None:
    pytest.importorskip("jax")
    code = "from export.jax_models.loading import jax; print(jax.config.jax_platforms or '')"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **stated},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{platforms}\n"
