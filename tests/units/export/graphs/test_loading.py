from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from export.graphs.loading import (
    TESTED,
    describe_tested,
    load_tensorflow,
    note_untested_releases,
)


@pytest.mark.parametrize("package", TESTED)
def test_untested_release_of_a_library_is_a_note_that_names_the_tested_one(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(package)
    module.__version__ = "9.1.0.dev2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), module)
    (note,) = [note for note in note_untested_releases() if note.startswith(f"{package} ")]
    assert note.startswith(f"{package} 9.1.0.dev2: rowcast-export ")
    assert f"is tested with {describe_tested(package)};" in note


def test_tested_releases_need_no_note() -> None:
    load_tensorflow()
    assert note_untested_releases() == ()


@pytest.mark.nightly
def test_tensorflow_is_loaded_for_cpus_and_with_tf_keras() -> None:
    names = ("CUDA_VISIBLE_DEVICES", "KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "TF_CPP_MIN_LOG_LEVEL")
    code = (
        "import os, sys; from export.graphs.loading import load_tensorflow; load_tensorflow(); "
        f"print(*(os.environ[name] for name in {names}), 'tensorflow' in sys.modules)"
    )
    stated = {"CUDA_VISIBLE_DEVICES": "0", "KERAS_BACKEND": "jax"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**environment, **stated}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["-1", "tensorflow", "1", "3", "True"]
