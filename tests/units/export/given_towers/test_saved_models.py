"""Towers as SavedModels: which signature is the tower, and how it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.errors import NotConvertible, UsageError
from export.given_towers.saved_models import SavedModelTower
from export.given_towers.tower import open_tower
from export.graphs.loading import load_tensorflow, tf

load_tensorflow()
NUMBERS = tf.TensorSpec([None, 2], tf.float32, "user")


class Scaled(tf.Module):  # type: ignore[misc]
    """Multiplies its input by a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = tf.Variable(3.0)

    def scaled(self, user: Any) -> dict[str, Any]:
        return {"score": tf.reduce_sum(user * self.factor, -1), "user": user}

    def doubled(self, user: Any) -> dict[str, Any]:
        return {"score": user * 2.0}

    def negated(self, user: Any) -> dict[str, Any]:
        return {"score": -tf.reduce_sum(user, -1)}


def saved(folder: Path, spec: Any = NUMBERS, **signatures: str) -> Path:
    """Saves a module with signatures by name, each of one of its methods."""
    module = Scaled()
    functions = {
        name: tf.function(getattr(module, method)).get_concrete_function(spec)
        for name, method in signatures.items()
    }
    tf.saved_model.save(module, str(folder / "tower"), signatures=functions or None)
    return folder / "tower"


@pytest.mark.parametrize(
    ("signatures", "score"),
    [
        ({"other": "scaled"}, 9),
        ({"serving_default": "scaled"}, 9),
        ({"first": "negated", "serving_default": "scaled"}, 9),
        ({"serving_default": "negated", "last": "scaled"}, -3),
    ],
)
def test_tower_is_the_default_signature_or_the_only_one(
    signatures: dict[str, str], score: float, tmp_path: Path
) -> None:
    tower = SavedModelTower(saved(tmp_path, **signatures))
    assert tower.inputs.keys() == {"user"}
    values = tf.constant([[1.0, 2.0]])
    assert tower({"user": values, "other": values})["score"].numpy().tolist() == [score]
    traced = tf.function(tower, autograph=False).get_concrete_function({"user": NUMBERS})
    assert traced(user=values)["score"].numpy().tolist() == [score]
    # Its variables are constants of the trace.
    assert traced.graph.variables == ()


@pytest.mark.parametrize(
    ("signatures", "listed"), [({}, "none"), ({"b": "scaled", "a": "negated"}, "a, b")]
)
def test_tower_without_a_default_among_several_is_rejected(
    signatures: dict[str, str], listed: str, tmp_path: Path
) -> None:
    with pytest.raises(NotConvertible) as caught:
        SavedModelTower(saved(tmp_path, **signatures))
    assert f"has no signature 'serving_default'; it has {listed}: save it" in str(caught.value)


@pytest.mark.parametrize(
    "spec", [tf.TensorSpec([], tf.float32, "user"), tf.TensorSpec(None, tf.float32, "user")]
)
def test_inputs_without_a_batch_are_taken(spec: Any, tmp_path: Path) -> None:
    assert SavedModelTower(saved(tmp_path, spec, other="doubled")).inputs.keys() == {"user"}


def test_fixed_batch_is_rejected(tmp_path: Path) -> None:
    spec = tf.TensorSpec([7, 2], tf.float32, "user")
    with pytest.raises(NotConvertible, match="input 'user' has a fixed batch of 7; save it with"):
        SavedModelTower(saved(tmp_path, spec, other="scaled"))


def test_damaged_saved_model_is_rejected_with_a_short_reason(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200) / ("e" * 200)
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"damaged")
    with pytest.raises(NotConvertible) as caught:
        open_tower(folder)
    start = f"tower {folder} cannot be read: "
    assert str(caught.value).startswith(start)
    assert len(str(caught.value)) == len(start) + 300


def test_path_without_a_tower_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none does not exist; a SavedModel or an \.npz file"):
        open_tower(tmp_path / "none")
    (tmp_path / "tower.pt").touch()
    with pytest.raises(NotConvertible, match=r"tower\.pt is of no form that is read"):
        open_tower(tmp_path / "tower.pt")


def test_variable_that_is_not_finite_is_named_unless_it_is_allowed(tmp_path: Path) -> None:
    module = Scaled()
    module.factor.assign(float("inf"))
    signature = tf.function(module.scaled).get_concrete_function(NUMBERS)
    folder = str(tmp_path / "tower")
    tf.saved_model.save(module, folder, signatures={"serving_default": signature})
    message = (
        r"tower: variable 'Variable:0' \[\] holds NaN or an infinity in 1 of 1 values, the first"
    )
    with pytest.raises(NotConvertible, match=message):
        open_tower(tmp_path / "tower")
    assert open_tower(tmp_path / "tower", ["Variable:0"]).inputs.keys() == {"user"}
