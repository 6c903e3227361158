"""A front end of another framework: it uses the partition, and only the choice names it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from rowcast_client import Client

from export import front_end_choice
from export.graphs.loading import load_tensorflow
from tests.e2e.process import WAIT_S
from tests.units.export.job_runs import publish
from tests.units.service.running import RunningService

tf = load_tensorflow()

from tests.units.export.partition.perceptrons import (  # noqa: E402 after TensorFlow
    PERCEPTRONS,
    scores_of,
)

DESCRIPTION = """
def describe():
    tables = {"user": "users", "item": "items"}
    return {"tables": tables, "numbers": ["hour"], "layers": ["hidden", "scores"]}
"""
SHAPES = {
    "users": (30, 4),
    "items": (20, 6),
    "hidden_weights": (11, 8),
    "hidden_bias": (8,),
    "scores_weights": (8, 1),
    "scores_bias": (1,),
}


def test_model_of_a_fourth_framework_is_served_as_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = (PERCEPTRONS, *front_end_choice.FRONT_ENDS)
    monkeypatch.setattr(front_end_choice, "FRONT_ENDS", choices)
    random = np.random.default_rng(4)
    values = {name: random.random(shape).astype(np.float32) for name, shape in SHAPES.items()}
    (tmp_path / "perceptron.py").write_text(DESCRIPTION)
    variables = {name: tf.Variable(value) for name, value in values.items()}
    tf.train.Checkpoint(**variables).write(str(tmp_path / "ckpt"))

    published = publish(
        {
            "model": "perceptron",
            "checkpoint": {"path": "ckpt"},
            "code": {"factory": "perceptron.py:describe", "table_threshold": 1},
            "output": {"root": "bundles"},
            "inputs": {
                "user": {"dtype": "int64"},
                "item": {"dtype": "int64"},
                "hour": {"dtype": "float32"},
            },
            "towers": {"ranking": {"role": "ranking"}},
            "features": {"item": {"role": "candidate"}},
        },
        tmp_path,
    )

    items = np.array([3, 19, 0])
    parts = [
        np.repeat(values["users"][[7]], len(items), axis=0),
        values["items"][items],
        np.full((len(items), 1), 0.5, np.float32),
    ]
    expected = scores_of(parts, ("hidden", "scores"), values.__getitem__)[:, 0]
    assert set(published.manifest.tables) == {"users", "items"}
    with (
        closing(RunningService(tmp_path / "bundles")) as service,
        Client(service.http, timeout_s=WAIT_S) as client,
    ):
        (ranked,) = client.rank({"user": 7, "hour": 0.5}, candidate_features={"item": items})
    actual = {candidate.position: candidate.score for candidate in ranked}
    scores = [actual[position] for position in range(len(items))]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
