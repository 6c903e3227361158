"""What golden tests of rankers share: a recipe, and the scores that a service and a SavedModel
give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rowcast_client import Client

from export.graphs.loading import load_tensorflow
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.e2e.process import WAIT_S, Process
from tests.e2e.services import workers_of

RECIPE = """
model = "{model}"
checkpoint = {{ path = "ckpt"{checkpoint} }}
code = {{ factory = "{factory}"{code} }}
output = {{ root = "bundles"{output} }}
towers.ranking = {{ role = "ranking"{outputs} }}
"""
Inputs = Mapping[str, Mapping[str, Any]]


def write_recipe(
    directory: Path,
    factory: str,
    inputs: Inputs,
    heads: tuple[str, ...] = ("score",),
    contexts: tuple[str, ...] = (),
    model: str = "ranker",
    **more: str,
) -> Path:
    """Writes the recipe of a factory, whose checkpoint lies beside it.

    Args:
      directory: The directory of the recipe.
      factory: The factory as the recipe names it.
      inputs: The recipe's entry of each input.
      heads: The outputs of the model, of which the first counts; (): it returns a tensor.
      contexts: The inputs that belong to the context, not to each candidate.
      model: The name of the model.
      more: Further text of `checkpoint`, `code` and `output`, from a comma on.
    """
    outputs = (
        f", outputs = {{ {', '.join(f'{head} = {head!r}' for head in heads)} }}, result = "
        f'"{heads[0]}"'
        if heads
        else ""
    )
    message = {"checkpoint": "", "code": "", "output": ""} | more
    lines = [RECIPE.format(model=model, factory=factory, outputs=outputs, **message)]
    for name, entry in inputs.items():
        lines.append(
            f"inputs.{name} = {{ "
            f"{', '.join(f'{key} = {json.dumps(each)}' for key, each in entry.items())} }}"
        )
        if "weights_for" not in entry and name not in contexts:
            lines.append(f'features.{name}.role = "candidate"')
    recipe = directory / "recipe.toml"
    recipe.write_text("\n".join(lines))
    return recipe


class RankerService:
    """A service of rankers.

    Attributes:
      clients: One of each transport.
    """

    def __init__(self, root: Path) -> None:
        """Serves what is in a directory, now or later."""
        self._root = root
        self._process = Process(root, "--request-timeout-s", str(WAIT_S))
        self.clients = [
            Client(f"{transport}://127.0.0.1:{self._process.ports[transport]}", timeout_s=WAIT_S)
            for transport in ("http", "grpc")
        ]

    def publish(self, bundles: Path) -> None:
        """Moves the bundles of a model into the directory, and waits until one is served."""
        bundles.rename(self._root / bundles.name)
        self._process.event("version_available", model=bundles.name)

    def wait(self) -> None:
        """Waits until any model is served."""
        self._process.event("version_available")

    @property
    def has_loaded_tensorflow(self) -> bool:
        """Whether TensorFlow's library is in its memory."""
        (worker,) = workers_of(self._process)
        return "libtensorflow" in Path(f"/proc/{worker.pid}/maps").read_text()

    def close(self) -> None:
        """Ends it."""
        for client in self.clients:
            client.close()
        self._process.kill()


def assert_ranked(
    client: Client,
    expected: Mapping[str, NDArray[Any]],
    features: dict[str, Any],
    context: dict[str, Any],
    model: str = "",
) -> None:
    """Checks that candidates are given the scores of each head; of the only model by default."""
    heads = list(expected)
    (ranked,) = client.rank(context, candidate_features=features, heads=heads, model=model)
    actual = sorted(ranked, key=lambda each: each.position)
    for head, scores in expected.items():
        got = [item.heads[head] for item in actual]
        rounding = 1e-5 * (1 + np.median(np.abs(scores)))
        np.testing.assert_allclose(got, scores.reshape(-1), rtol=1e-5, atol=rounding)


def saved_model_scores(recipe: Path, inputs: Mapping[str, Any]) -> NDArray[Any]:
    """Exports a self-contained SavedModel; returns the one output of its ranking tower."""
    tf = load_tensorflow()
    prepared = prepare_inline(read_recipe(recipe), recipe.parent, ExportSettings())
    page = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    serve = tf.saved_model.load(page["saved_model"]).signatures["ranking"]
    (scores,) = serve(**{name: tf.constant(value) for name, value in inputs.items()}).values()
    actual: NDArray[Any] = scores.numpy()
    return actual
