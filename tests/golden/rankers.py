"""What golden tests of rankers share: a recipe, and the scores that a service and a SavedModel give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rowcast_client import Client, RankedCandidate

from export.frameworks.loading import load_tensorflow
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.e2e.process import Process

RECIPE = """
model = "{models}"
checkpoint = {{ path = "ckpt", object_path = "model" }}
code = {{ factory = "{file}:{name}", table_threshold = 0 }}
output = {{ root = "bundles" }}
towers.ranking = {{ role = "ranking", outputs = {{ {outputs} }}, result = "{result}" }}
"""


def write_recipe(directory: Path, models: ModuleType, name: str, lines: Iterable[str], heads: Sequence[str]) -> Path:
    """Writes the recipe of a factory of a module, whose checkpoint lies beside it; the first head counts."""
    told = {"models": models.__name__.rpartition(".")[2], "file": models.__file__, "name": name}
    outputs = ", ".join(f'{head} = "{head}"' for head in heads)
    recipe = directory / "recipe.toml"
    recipe.write_text("\n".join([RECIPE.format(**told, outputs=outputs, result=heads[0]), *lines]))
    return recipe


def as_sent(ranked: Iterable[RankedCandidate]) -> list[RankedCandidate]:
    """Returns ranked candidates in the order of the request."""
    return sorted(ranked, key=lambda each: each.position)


@contextmanager
def serving(root: Path, *, by_tensorflow: bool = False) -> Iterator[list[Client]]:
    """Serves a root; yields a client of each transport. Checks at the end that TensorFlow was loaded only if needed."""
    service = Process(root)
    try:
        service.event("version_available")
        clients = [Client(f"{transport}://127.0.0.1:{service.ports[transport]}") for transport in ("http", "grpc")]
        with clients[0], clients[1]:
            yield clients
        assert ("libtensorflow" in Path(f"/proc/{service.process.pid}/maps").read_text()) == by_tensorflow
    finally:
        service.kill()


def assert_ranked(
    client: Client, expected: Mapping[str, NDArray[Any]], features: dict[str, Any], context: dict[str, Any]
) -> None:
    """Checks that candidates are given the scores of each head."""
    found = as_sent(client.rank(context, features=features, heads=list(expected))[0])
    for head, scores in expected.items():
        got = [item.heads[head] for item in found]
        np.testing.assert_allclose(got, scores.reshape(-1), rtol=1e-5, atol=1e-5)


def saved_model_scores(recipe: Path, inputs: Mapping[str, Any]) -> NDArray[Any]:
    """Exports a self-contained SavedModel; returns the one output of its ranking tower."""
    tf = load_tensorflow()
    prepared = prepare_inline(read_recipe(recipe), recipe.parent, ExportSettings())
    page = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    serve = tf.saved_model.load(page["saved_model"]).signatures["ranking"]
    (scores,) = serve(**{name: tf.constant(value) for name, value in inputs.items()}).values()
    found: NDArray[Any] = scores.numpy()
    return found
