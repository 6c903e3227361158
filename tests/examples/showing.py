"""Trains an example's tiny version and exports it in this process, then serves it in another and
asks it.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import tensorflow as tf
from rich.console import Console

from bundle.format.manifest import Manifest
from examples import demo_models
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings


@dataclass(frozen=True)
class Asked:
    """An example's folder, the manifest of its bundle, and what the service answered."""

    folder: Path
    manifest: Manifest
    shown: demo_models.Shown


def ask(name: str, folder: Path, *, apart: bool = False) -> Asked:
    """Does with a tiny version what `make demo-models` does; the service is a process
    of its own, and so is training if it is `apart`: Keras has one backend in a process.
    """
    manifest = train_and_export(name, folder, apart=apart).manifest
    return Asked(folder, manifest, demo_models.serve_and_ask(name, folder))


def train_and_export(
    name: str, folder: Path, model: str | None = None, *, apart: bool = False
) -> Published:
    """Trains an example's tiny version in `folder` and exports it; `model`, if given, is what it is
    called.
    """
    settings = ExportSettings()
    example = demo_models.EXAMPLES[name]
    if apart or example.requirements:
        python = demo_models.training_python(example, folder.with_suffix(".log"))
        command = [python, "-m", f"examples.{example.package}.train", "--out", str(folder)]
        subprocess.run([*command, "--scale", "tiny"], check=True)
    else:
        _train_here(name, folder)
    job = read_recipe(folder / "recipe.toml")
    job = job.model_copy(update={"model": model or job.model})
    prepared = bundle_job.prepare(job, folder, settings)
    return bundle_job.run(prepared, settings, Progress(Console(quiet=True)))


def _train_here(name: str, folder: Path) -> None:
    example = demo_models.EXAMPLES[name]
    tf.config.run_functions_eagerly(True)  # a step or two are not worth a graph
    try:
        import_module(f"examples.{example.package}.train").train(
            folder, "tiny", *example.training[1::2]
        )
    finally:
        tf.config.run_functions_eagerly(False)
