"""What a model file for tables and towers of PyTorch may return, and what its calls are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.given_towers.model_file import GivenTowers, read_model_file
from export.graphs.loading import load_tensorflow, tf
from export.recipe.schema import ExportJob
from tests.units.export.given_towers.graphs import write_sum
from tests.units.export.traced_models import recipe

load_tensorflow()
TABLE = (
    "{'name': 'users', 'num_embeddings': 5, 'embedding_dim': 2, "
    "'feature_names': ['user'], 'pooling': 'sum'}"
)
NUMBERS = {name: {"dtype": "float32", "shape": [2]} for name in ("user", "item")}


def job_of(inputs: dict[str, Any] | None = None, call: str = "rank") -> ExportJob:
    towers = {"rank": {"role": "ranking", "call": call}}
    return recipe("model.py:build", inputs or {}, towers)


def read(folder: Path, returned: str, job: ExportJob | None = None) -> GivenTowers:
    """Reads a model file whose factory returns an expression."""
    code = f"def build():\n    T = {TABLE}\n    return {returned}\n"
    (folder / "model.py").write_text(code)
    write_sum(folder / "rank.npz")
    return read_model_file(job or job_of(), folder)


def rejected(folder: Path, returned: str, job: ExportJob | None = None) -> str:
    with pytest.raises((NotConvertible, UsageError)) as caught:
        read(folder, returned, job)
    return str(caught.value)


RANK = "{'rank': 'rank.npz'}"
RANK_CALL = Call("rank")


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (f"[[T], {RANK}]", "list"),
        (f"([T], {RANK}, 1)", "tuple"),
        ("([T], ['rank.npz'])", "tuple"),
        ("'rank.npz'", "str"),
    ],
)
def test_factory_that_returns_no_tables_and_towers_is_rejected(
    returned: str, kind: str, tmp_path: Path
) -> None:
    message = rejected(tmp_path, returned)
    assert message.startswith(f"factory model.py:build returned a {kind}, and PyTorch saved the")


def test_tables_and_towers_are_read(tmp_path: Path) -> None:
    model = read(tmp_path, f"([T, dict(T, name='items', feature_names=('item', 'liked'))], {RANK})")
    assert model.towers.keys() == {"rank"}
    assert set(model.activations.variables) == {"users", "items"}
    assert model.activations.bags == {}  # the recipe declares none
    assert callable(model.with_call(RANK_CALL))
    with pytest.raises(AttributeError, match="other"):
        _ = model.other


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ("name=3", "tables[0].name is 3; a text was expected"),
        ("num_embeddings=True", "tables[0].num_embeddings is True; an integer was expected"),
        ("embedding_dim='2'", "tables[0].embedding_dim is '2'; an integer was expected"),
        ("feature_names='user'", "tables[0].feature_names is 'user'; a list was expected"),
        ("pooling='none'", "tables[0].pooling is 'none'; sum or mean was expected"),
    ],
)
def test_field_of_another_type_is_rejected(changes: str, reason: str, tmp_path: Path) -> None:
    assert reason in rejected(tmp_path, f"([dict(T, {changes})], {RANK})")


@pytest.mark.parametrize("tables", ["{T['name']: T}", "T['name']", "None"])
def test_tables_that_are_no_list_are_rejected(tables: str, tmp_path: Path) -> None:
    assert "the tables are a " in rejected(tmp_path, f"({tables}, {RANK})")
    assert read(tmp_path, f"((T,), {RANK})").towers


def test_feature_of_two_tables_is_rejected(tmp_path: Path) -> None:
    message = rejected(tmp_path, f"([T, dict(T, name='items')], {RANK})")
    assert "tables[1].feature_names has 'user', which tables[0] has, too" in message


WEIGHTED = {
    "user": {"dtype": "int64", "kind": "ragged"},
    "weight": {"dtype": "float32", "kind": "ragged", "weights_for": "user"},
}


def test_weights_of_a_sum_are_taken_and_of_a_mean_rejected(tmp_path: Path) -> None:
    model = read(tmp_path, f"([T], {RANK})", job_of(WEIGHTED))
    assert model.activations.bags["user"].weights == "weight"
    message = rejected(tmp_path, f"([dict(T, pooling='mean')], {RANK})", job_of(WEIGHTED))
    assert "input 'weight' holds weights of 'user', whose table 'users' has pooling" in message
    unweighted = {"user": WEIGHTED["user"], "age": {"dtype": "float32"}}
    assert read(tmp_path, f"([dict(T, pooling='mean')], {RANK})", job_of(unweighted)).towers


def test_call_gives_the_tower_its_inputs(tmp_path: Path) -> None:
    model = read(tmp_path, f"([], {RANK})", job_of(NUMBERS))
    inputs = {"user": tf.constant([[1.0, 2.0]]), "item": tf.constant([[3.0, 4.0]])}
    assert model.with_call(RANK_CALL)(inputs).numpy().tolist() == [10]
    alone = read(tmp_path, "([], {'': 'rank.npz'})", job_of(NUMBERS, call=""))
    assert alone.with_call(Call())(inputs).numpy().tolist() == [10]


@pytest.mark.parametrize(
    ("item", "described"),
    [
        (tf.constant([[3, 4]]), "int32 [1, 2]"),
        (tf.constant([[3.0]]), "float32 [1, 1]"),
        (tf.constant([3.0]), "float32 [1]"),
    ],
)
def test_input_of_another_type_than_the_tower_takes_is_rejected(
    item: Any, described: str, tmp_path: Path
) -> None:
    model = read(tmp_path, f"([], {RANK})", job_of(NUMBERS))
    with pytest.raises(UsageError) as caught:
        model.with_call(RANK_CALL)({"user": tf.constant([[1.0, 2.0]]), "item": item})
    start = f"tower 'rank' takes 'item' as float32 [?, 2], and its call gives {described}: correct"
    assert str(caught.value).startswith(start)


def test_arguments_of_a_tower_in_a_file_are_rejected(tmp_path: Path) -> None:
    model = read(tmp_path, f"([], {RANK})", job_of(NUMBERS))
    with pytest.raises(UsageError) as caught:
        model.with_call(Call("rank", ("user",), ("user",)))
    assert "which takes inputs by their names; leave 'arguments' of its tower out" in str(
        caught.value
    )


def test_input_that_the_call_lacks_is_named(tmp_path: Path) -> None:
    model = read(tmp_path, f"([], {RANK})", job_of(NUMBERS))
    with pytest.raises(UsageError) as caught:
        model.with_call(RANK_CALL)({"user": tf.constant([[1.0, 2.0]]), "age": tf.constant([1.0])})
    assert "reads 'item', which its call does not have; the call has age, user: name" in str(
        caught.value
    )
