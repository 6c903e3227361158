"""Trains tiny versions of examples and exports them in this process."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path

import tensorflow as tf
from rich.console import Console

from examples import demo_models
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings

APART = ("keras3_jax",)
"""Examples that are trained in a process of their own: Keras has one backend in a process."""


def train(name: str, folder: Path) -> None:
    """Trains an example's tiny version in `folder`."""
    example = demo_models.EXAMPLES[name]
    if name in APART or example.requirements:
        python = demo_models.training_python(example, folder.with_suffix(".log"))
        command = [python, "-m", f"examples.{example.package}.train", "--out", str(folder)]
        subprocess.run([*command, "--scale", "tiny"], check=True)
    else:
        _train_here(name, folder)


def export(recipe: Path, model: str | None = None) -> Published:
    """Exports a recipe; `model`: what the model is called; None: what the recipe calls it."""
    settings = ExportSettings(load=False)
    job = read_recipe(recipe)
    job = job.model_copy(update={"model": model or job.model})
    prepared = bundle_job.prepare(job, recipe.parent, settings)
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
