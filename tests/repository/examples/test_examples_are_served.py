"""Tiny versions of the examples are trained, exported and served: the service responds as the
trained model did, over HTTP and over gRPC; by the example's own recipe, and by the draft of one,
which is right or asks.

Before a change lands, tests/cases/models plans them all, and tests/differential/test_examples.py
serves bundles that they once wrote.
"""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from bundle.format.manifest import Manifest, readers_of
from examples import replay, served, trained
from examples.demo_models import EXAMPLES, serve_and_compare
from examples.requests import Body, Outputs
from export.drafts.drafting import draft_recipe
from export.errors import UsageError
from export.recipe.questions import check_settled
from export.recipe.schema import read_recipe
from tests.repository.examples.showing import export, train

OF_JAX = ("flax_dlrm", "flax_two_tower", "hstu", "jax_tpu_embedding", "keras3_jax")
COMPARED = 200
"""The maximum number of responses that are compared with a trained model."""
ASKED = {"hstu": "which row has the first key of movies.txt?"}
"""What a draft asks where neither the model nor its examples show it."""
MISSING = {"jax_tpu_embedding": "name the file as checkpoint.layout"}
"""What a draft cannot be planned without, by the message of `init` and `plan`."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Even though .* does not apply to tf.data"),
]


@pytest.fixture(
    scope="module", params=[name for name, example in EXAMPLES.items() if not example.requirements]
)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained example, by its name."""
    name = request.param
    if name in OF_JAX and not find_spec("flax"):
        pytest.skip("flax is not installed")
    folder: Path = tmp_path_factory.mktemp("trained") / name
    train(name, folder)
    return folder


def test_service_returns_what_the_trained_model_does(example: Path) -> None:
    manifest = export(example / "recipe.toml").manifest
    assert serve_and_compare(example.name, example).within
    for tower in manifest.towers.values():
        assert "litert" in {form.kind for form in tower.forms}
    for index in manifest.indexes.values():
        assert index.recall.value == 1.0


def test_unedited_draft_is_right_or_asks(example: Path, tmp_path: Path) -> None:
    name = example.name
    folder = tmp_path / name
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("bundles"))
    job = read_recipe(folder / "recipe.toml")
    checkpoint = str(job.checkpoint.path)
    draft = draft_recipe(job.code.factory, checkpoint, Path("examples.jsonl"), folder)
    recipe = folder / "draft.toml"
    recipe.write_text(draft.text)
    assert MISSING.get(name, "") in draft.problem
    assert bool(draft.problem) == (name in MISSING)
    if name in ASKED:
        with pytest.raises(UsageError) as asked:
            check_settled(read_recipe(recipe))
        assert ASKED[name] in str(asked.value)
    if name in ASKED or name in MISSING:
        return

    check_settled(read_recipe(recipe))
    manifest = export(recipe).manifest
    bodies, expected = draft_requests(folder, manifest)
    assert bodies
    with served.serving(folder / "bundles", manifest.model, 1, folder / "serve.log") as service:
        responses = replay.over_http(service.http, manifest.model, bodies)
    assert replay.compare(bodies, responses, expected).of_limit <= 1


def draft_requests(folder: Path, manifest: Manifest) -> tuple[list[Body], Outputs]:
    """Returns requests to the bundle of a draft, which has no corpus, and what the trained model
    returned for their values.
    """
    recorded, expected = trained.read_requests(folder)
    if replay.SCORE not in expected:
        del expected[replay.NEIGHBORS]
        return [body for body in recorded if body["call"] == "embed"], expected

    # The examples are the first pairs of the recorded scores. A draft may take other inputs for
    # those of candidates than the requests of the recipe: each pair is a request of its own.
    heads = [output for output in expected if output != replay.SCORE]
    candidate_inputs = {
        name
        for name, readers in readers_of(manifest.features).items()
        if manifest.features[readers[0]].role == "candidate"
    }
    bodies: list[Body] = []
    for line in (folder / trained.EXAMPLES_FILE).read_text().splitlines()[:COMPARED]:
        values = json.loads(line)
        context = {name: value for name, value in values.items() if name not in candidate_inputs}
        features = {name: [values[name]] for name in values.keys() & candidate_inputs}
        bodies.append({"call": "rank", "context": context, "candidate_features": features})
        if heads:
            bodies[-1]["heads"] = heads
    if heads:
        # Requests combine them to a score, each by another formula.
        del expected[replay.SCORE]
    return bodies, {output: values[: len(bodies)] for output, values in expected.items()}
