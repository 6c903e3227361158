"""Trains tiny versions of examples and exports them in this process, and calls a service."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import tensorflow as tf
from rich.console import Console

from bundle.format.manifest import Manifest
from examples import demo_models, replay, trained
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.e2e.process import Process
from tests.e2e.services import workers_of


@dataclass(frozen=True)
class ServedExample:
    """An example that was exported, served and called.

    Attributes:
      folder: The folder of the training.
      manifest: The manifest of the bundle.
      differences: The differences from the original model's outputs, over HTTP and over gRPC.
    """

    folder: Path
    manifest: Manifest
    differences: tuple[replay.Difference, replay.Difference]

    @property
    def within(self) -> bool:
        """Whether every output keeps the parity rule."""
        return max(difference.of_limit for difference in self.differences) <= 1


Serve = Callable[..., ServedExample]


class ExamplesService:
    """One service for the bundles of all examples; none of them needs TensorFlow."""

    def __init__(self, root: Path) -> None:
        """Serves what is published in a directory."""
        self._root = root
        self._process = Process(root)
        self._process.event("listening")

    def serve(self, name: str, folder: Path, *, apart: bool = False) -> ServedExample:
        """Does with a tiny version what `make demo-models` does.

        Args:
          name: The name of the example, and of its model in the service.
          folder: The folder of the training.
          apart: Train in a process of its own: Keras has one backend in a process.
        """
        published = train_and_export(name, folder, name, apart=apart)
        # Renamed when it is complete: the service is polling the root.
        copy = shutil.copytree(folder / "bundles" / name, self._root.with_name(name))
        copy.rename(self._root / name)
        self._process.event("version_available", model=name)

        ports = self._process.ports
        bodies, expected = trained.read_requests(folder)
        result_lists = (
            replay.over_http(f"http://127.0.0.1:{ports['http']}", name, bodies),
            replay.over_grpc(f"grpc://127.0.0.1:{ports['grpc']}", name, bodies),
        )
        http, grpc = (replay.compare(bodies, results, expected) for results in result_lists)
        (worker,) = workers_of(self._process)
        assert "libtensorflow" not in Path(f"/proc/{worker.pid}/maps").read_text()
        return ServedExample(folder, published.manifest, (http, grpc))

    def close(self) -> None:
        """Ends the service."""
        self._process.kill()


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
