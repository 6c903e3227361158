"""Plans exports of models that are functions of a test: what the exporter says before it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from rich.console import Console

from export.errors import ExportError
from export.graphs.loading import load_tensorflow, tf
from export.jobs.preparation import TracedJob, trace_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings

load_tensorflow()

Build = Callable[[], Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})
_FACTORIES: list[Build] = [object]


def build() -> Any:
    """Returns the model that a test plans: the factory of each recipe of `planned`."""
    return _FACTORIES[-1]()


def planned(
    make: Build,
    checkpoint: Path,
    inputs: Mapping[str, Any],
    *,
    object_path: str = "",
    code: Mapping[str, Any] = NOTHING,
    **sections: Any,
) -> TracedJob:
    """Returns the plan of a model's export.

    Args:
      make: Builds the model.
      checkpoint: The checkpoint.
      inputs: The recipe's inputs.
      object_path: The recipe's path of the model in the checkpoint.
      code: The recipe's other entries about code.
      sections: Other sections of the recipe; without `towers`, there is one query tower.
    """
    page = {
        "model": "tested",
        "checkpoint": {"path": str(checkpoint), "object_path": object_path},
        "code": {"factory": f"{__name__}:build", **code},
        "inputs": inputs,
        "towers": {"tower": {"role": "query"}},
        "output": {"root": "bundles"},
        **sections,
    }
    job = ExportJob.model_validate(page)
    _FACTORIES.append(make)
    try:
        progress = Progress(Console(quiet=True))
        return trace_job(job, checkpoint.parent, ExportSettings(), None, progress)
    finally:
        _FACTORIES.pop()


def refusal(error: type[ExportError], *arguments: Any, **options: Any) -> str:
    """Returns the message with which a model is refused; the arguments are those of `planned`."""
    with pytest.raises(error) as refused:
        planned(*arguments, **options)
    return str(refused.value)


def assert_says(message: str, *words: str) -> None:
    """Checks that a message has some words."""
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} are not in: {message}"


def written(folder: Path, **objects: Any) -> Path:
    """Writes objects as a training script does; returns the prefix."""
    return Path(tf.train.Checkpoint(**objects).write(str(folder / "ckpt")))


class Tables(tf.Module):  # type: ignore[misc]
    """Tables by their numbers of rows, and what a test computes of them and of inputs."""

    def __init__(self, call: Callable[[Any, Any], Any], **rows: int) -> None:
        super().__init__()
        self.compute = call
        for name, count in rows.items():
            setattr(self, name, tf.Variable(tf.ones([count, 4]), name=name))

    def __call__(self, inputs: Any) -> Any:
        return self.compute(self, inputs)
