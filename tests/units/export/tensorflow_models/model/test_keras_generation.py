"""Checkpoints of Keras 2 and Keras 3 under models of either."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.reader import open_checkpoint
from export.graphs.loading import load_tensorflow, tf
from export.model_code.factories import load_factory
from export.tensorflow_models.model.keras_generation import generation_of_checkpoint
from tests.units.export.commands import Command
from tests.units.export.movies_job import toml
from tests.units.export.traced_models import MODELS

Write = Callable[[int, Path], Path]


def write_checkpoint(generation: int, directory: Path) -> Path:
    load_tensorflow()
    model = load_factory(f"either_keras.py:build_{generation}", MODELS)()
    return Path(tf.train.Checkpoint(model=model).write(str(directory / "ckpt")))


def write_export(generation: int, directory: Path) -> Path:
    load_tensorflow()
    model = load_factory(f"either_keras.py:build_{generation}", MODELS)()
    model.export(str(directory / "export"), verbose=False)
    return directory / "export/variables/variables"


def write_recipe(directory: Path, function: str, checkpoint: Path, **parts: Any) -> Path:
    shutil.copy(MODELS / "either_keras.py", directory)
    page: dict[str, Any] = {
        "model": "either",
        "checkpoint": {"path": str(checkpoint), **parts},
        "code": {"factory": f"either_keras.py:{function}", "table_threshold": 0},
        "output": {"root": "bundles"},
        "inputs": {"item": {"dtype": "int64"}},
        "towers": {"query": {"role": "query"}},
    }
    path = directory / "recipe.toml"
    path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in page.items()))
    return path


@pytest.mark.parametrize("generation", [2, 3])
def test_generation_of_a_checkpoint_follows_from_its_objects(
    generation: int, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_checkpoint(generation, tmp_path))
    assert generation_of_checkpoint(checkpoint) == generation


@pytest.mark.parametrize(("written", "built", "value"), [(3, "build_2", "0"), (2, "build_3", "1")])
def test_checkpoint_of_the_other_keras_exits_3_and_suggests_the_setting(
    written: int, built: str, value: str, tmp_path: Path, command: Command
) -> None:
    prefix = write_checkpoint(written, tmp_path)
    done = command("plan", write_recipe(tmp_path, built, prefix, object_path="model"))
    assert done.code == 3
    assert f"written by Keras {written}" in done.message
    assert f"set TF_USE_LEGACY_KERAS={value} in the environment" in done.message
    assert "tables.items.key" not in done.message


def test_saved_model_of_keras_3_export_exits_3_and_suggests_what_to_save(
    tmp_path: Path, command: Command
) -> None:
    done = command("plan", write_recipe(tmp_path, "build_3", write_export(3, tmp_path)))
    assert done.code == 3
    assert "model.export()" in done.message
    assert "tf.train.Checkpoint(model=model).write(path)" in done.message


@pytest.mark.slow
def test_tf_keras_is_the_generation_of_the_checkpoint_on_tensorflow(tmp_path: Path) -> None:
    prefix = write_checkpoint(3, tmp_path)
    recipe = write_recipe(tmp_path, "build_default", prefix, object_path="model")
    done = subprocess.run(
        [Path(sys.executable).parent / "rowcast-export", "run", recipe],
        env={
            **{name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"},
            "KERAS_BACKEND": "jax",  # where the model was trained; the exporter sets its own
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
