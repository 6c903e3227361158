"""Trains an example's tiny version and exports it in this process, then serves it in another and asks it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import tensorflow as tf

from bundle.manifest import Manifest
from examples import demo_models
from tests.export.exporting import export


@dataclass(frozen=True)
class Asked:
    """An example's folder, the manifest of its bundle, and what the service answered."""

    folder: Path
    page: Manifest
    shown: demo_models.Shown


def ask(name: str, folder: Path) -> Asked:
    """Does with a tiny version what `make demo-models` does; the service is a process of its own."""
    example = demo_models.EXAMPLES[name]
    tf.config.run_functions_eagerly(True)  # a step or two are not worth a graph
    try:
        import_module(f"examples.{example.package}.train").train(folder, "tiny", *example.training[1::2])
    finally:
        tf.config.run_functions_eagerly(False)
    published = export(folder / "recipe.toml")
    return Asked(folder, published.page, demo_models.serve_and_ask(name, folder))
