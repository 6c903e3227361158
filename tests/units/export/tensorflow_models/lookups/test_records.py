"""The record of a lookup: its shape, and the names in a bundle."""

from __future__ import annotations

import re

import pytest

from export.errors import NotConvertible
from export.front_end.specs import TableFacts
from export.graphs.loading import tf
from export.tensorflow_models.lookups.records import (
    batch_size,
    facts_of,
    free_name,
    of_indicator,
    of_table,
    table_name,
)
from tests.units.export.tensorflow_models.lookups.interceptions import table_of

IDS = tf.constant([1, 2, 3], tf.int64)


@pytest.mark.parametrize(
    ("name", "bundle_name"),
    [
        ("users", "users"),
        ("a_b.c-d", "a_b.c-d"),
        ("a/b c", "a_b_c"),
        ("7", "7"),
        ("a" * 128, "a" * 128),
        ("größe", "gr__e"),
        ("_users", "users"),
        ("__users_", "users_"),
        (".users", "users"),
        ("/users", "users"),
        ("-users", "users"),
        ("_", "table"),
        ("товары", "table"),
    ],
)
def test_name_in_a_bundle_keeps_what_a_file_name_may_have(name: str, bundle_name: str) -> None:
    assert table_name(name, "table") == bundle_name


def test_name_that_is_too_long_is_rejected() -> None:
    name = "a" * 129
    message = (
        f"table {name!r} cannot be a name in a bundle: it has 129 characters, and at most 128 were "
        "expected"
    )
    with pytest.raises(NotConvertible, match=f"^{re.escape(message)}$"):
        table_name(name, "table")


@pytest.mark.parametrize(
    ("used_names", "free"),
    [([], "a"), (["b"], "a"), (["a"], "a_2"), (["a", "a_2"], "a_3"), (["a", "a_3"], "a_2")],
)
def test_name_that_is_taken_gets_a_number(used_names: list[str], free: str) -> None:
    assert free_name("a", used_names) == free


def test_lookup_of_a_table_has_its_name_and_shape() -> None:
    table = table_of()
    assert facts_of(table) == TableFacts("", "items", 9, 4)
    single = of_table(table, IDS)
    assert (single.path, single.shape) == ("items", (None, 4))
    assert of_table(table, IDS, path="seen", length=1).shape == (None, 1, 4)


def test_lookup_of_an_indicator_has_a_number_per_row_unless_stated() -> None:
    wide = of_indicator("seen", 9, IDS)
    assert (wide.table, wide.variable) == (TableFacts("", "seen", 9, 9), None)
    assert wide.shape == (None, 9)
    assert of_indicator("seen", 9, IDS, 1).table == TableFacts("", "seen", 9, 1)


def test_batch_size_of_ids_is_their_number_of_examples() -> None:
    ragged = tf.ragged.constant([[1], [], [2, 3]])
    assert [int(batch_size(tensor)) for tensor in (IDS, ragged, ragged.to_sparse())] == [3, 3, 3]
