"""Feature specifications: what is read of them, and what is rejected."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.jax_models.feature_specs import SpecifiedTable, StackPosition, read_feature_specs
from export.tensorflow_models.lookups.activations import StatedSizes


def table(name: str = "users", **changes: Any) -> dict[str, Any]:
    page = {"name": name, "vocabulary_size": 100, "embedding_dim": 4, "combiner": "mean"}
    return {**page, **changes}


def feature(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "table_spec": table(), **changes}


def rejected(tree: Any) -> str:
    with pytest.raises(NotConvertible) as caught:
        read_feature_specs(tree)
    return str(caught.value)


@dataclass
class TableSpec:
    """A specification as an object, which knows its stack only once it is prepared."""

    name: str
    vocabulary_size: Any
    embedding_dim: int
    combiner: str
    quantization_config: Any = None
    setting_in_stack: Any = None
    prepared: Any = field(default=None)

    def is_stacked(self) -> bool:
        return self.prepared is not None

    @property
    def stacked_table_spec(self) -> Any:
        assert self.prepared is not None, f"Table {self.name} is not stacked."
        return self.prepared


def test_objects_lists_and_nests_are_read() -> None:
    users = TableSpec("users", np.int64(100), 4, "sqrtn")
    tree = {
        "user": SimpleNamespace(name="user", table_spec=users, output_shape=(32, 4)),
        "movies": [
            feature("movie", table_spec=table("movies")),
            {"liked": feature("likes", table_spec=table("movies"))},
        ],
    }
    specs = read_feature_specs(tree)
    assert {name: table.name for name, table in specs.table_of.items()} == {
        "user": "users",
        "movie": "movies",
        "likes": "movies",
    }
    table_of_users = specs.tables["users"]
    assert table_of_users == SpecifiedTable("users", 100, 4, "sqrtn")


def test_key_names_a_feature_without_a_name() -> None:
    assert set(read_feature_specs({"user": {"table_spec": table()}}).table_of) == {"user"}


def test_prepared_table_has_its_place_in_its_stack() -> None:
    setting = SimpleNamespace(
        stack_name="a_b", padded_vocab_size=128, row_offset_in_shard=16, shard_rotation=4
    )
    stack = SimpleNamespace(stack_vocab_size=256)
    spec = TableSpec("users", 100, 4, "mean", setting_in_stack=setting, prepared=stack)
    specs = read_feature_specs([SimpleNamespace(name="user", table_spec=spec)])
    assert specs.tables["users"].stack_position == StackPosition("a_b", 256, 128, 16, 4)


def test_something_else_among_them_is_rejected() -> None:
    assert "feature_specs['user'] is a int; a specification has" in rejected({"user": 3})
    assert "feature_specs is a type" in rejected(dict)


def test_empty_specifications_are_rejected() -> None:
    assert "returned no feature specification" in rejected({})


@pytest.mark.parametrize("name", ["name", "vocabulary_size", "embedding_dim", "combiner"])
def test_missing_field_is_named(name: str) -> None:
    page = table()
    del page[name]
    message = rejected({"user": feature("user", table_spec=page)})
    assert message.startswith(f"feature_specs['user'].table_spec has no {name!r}")


@pytest.mark.parametrize("name", ["vocabulary_size", "embedding_dim"])
@pytest.mark.parametrize("value", [0, -3, 2.5, "100", True])
def test_size_that_is_no_count_is_rejected(name: str, value: Any) -> None:
    message = rejected({"user": feature("user", table_spec=table(**{name: value}))})
    assert f"feature_specs['user'].table_spec.{name} is {value!r}" in message


def test_unknown_combiner_is_rejected() -> None:
    message = rejected({"user": feature("user", table_spec=table(combiner="max"))})
    assert "combiner of table 'users' is 'max'" in message
    assert "sum, mean, sqrtn" in message


def test_quantized_table_is_rejected() -> None:
    quantized = table(quantization_config=SimpleNamespace(num_buckets=8))
    message = rejected({"user": feature("user", table_spec=quantized)})
    assert "table 'users' has a quantization_config" in message
    assert "tables.users.dtype" in message


def test_key_with_another_name_is_rejected() -> None:
    message = rejected({"user": feature("user_id")})
    assert "feature_specs['user'] has the name 'user_id'" in message


def test_two_features_of_one_name_are_rejected() -> None:
    message = rejected([feature("user"), {"inner": feature("user")}])
    assert "feature_specs[1]['inner']: another feature specification is called 'user'" in message


@pytest.mark.parametrize(
    ("name", "value"), [("vocabulary_size", 101), ("embedding_dim", 8), ("combiner", "sum")]
)
def test_two_descriptions_of_a_table_are_rejected(name: str, value: Any) -> None:
    friend = feature("friend", table_spec=table(**{name: value}))
    message = rejected([feature("user"), friend])
    assert "feature_specs[0] and feature_specs[1] describe table 'users' differently" in message
    assert f"{name} {table()[name]!r} and {value!r}" in message


def test_activation_of_another_width_is_rejected() -> None:
    message = rejected({"user": feature("user", output_shape=(32, 8))})
    assert "output_shape is (32, 8), and table 'users' has embedding_dim=4" in message


def test_activation_of_a_sequence_is_rejected() -> None:
    message = rejected({"user": feature("user", output_shape=(32, 10, 4))})
    assert (
        "one vector for each example, (batch, embedding_dim), or for each of its n ids" in message
    )
    assert "jnp.take" in message


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ({}, StatedSizes(None, None)),
        ({"input_shape": (96, 1), "output_shape": (96, 4)}, StatedSizes(96, 1)),
        ({"input_shape": [np.int64(32), 3]}, StatedSizes(32, 3)),
        ({"input_shape": (32,), "output_shape": (32, 4)}, StatedSizes(32, None)),
        ({"input_shape": (None, 1), "output_shape": (-1, 4)}, StatedSizes(None, 1)),
    ],
)
def test_shapes_state_activations_and_their_ids(shapes: Any, sizes: StatedSizes) -> None:
    assert read_feature_specs({"user": feature("user", **shapes)}).sizes_of == {"user": sizes}


def test_shapes_of_different_batches_are_rejected() -> None:
    message = rejected({"user": feature("user", input_shape=(32, 1), output_shape=(64, 4))})
    assert "feature_specs['user'] has input_shape (32, 1) and output_shape (64, 4)" in message


def test_table_of_one_row_and_one_column_is_read() -> None:
    small = table(vocabulary_size=1, embedding_dim=1)
    users = read_feature_specs({"user": feature("user", table_spec=small)}).tables["users"]
    assert (users.rows, users.dim) == (1, 1)


@pytest.mark.parametrize("name", [3, ""])
def test_name_that_is_no_text_is_rejected(name: Any) -> None:
    message = rejected([{"name": name, "table_spec": table()}])
    assert message == f"feature_specs[0].name is {name!r}; a name was expected"
    message = rejected([feature("user", table_spec=table(name))])
    assert message == f"feature_specs[0].table_spec.name is {name!r}; a name was expected"
