"""Names of tables that are plain variables, by where the model holds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from export.front_end.specs import TableFacts
from export.graphs.loading import tf
from export.tensorflow_models.model.object_paths import name_tables, object_paths


def named(*locations: tuple[str, Any], used_names: tuple[str, ...] = ()) -> list[str]:
    """Returns the names of tables by the path and owner of each; a path of "" is not known."""
    variables = {
        str(index): tf.Variable(tf.zeros((3, 2)), name=f"scope/v{index}/embeddings")
        for index in range(len(locations))
    }
    paths = {str(index): location for index, location in enumerate(locations) if location[0]}
    return [facts.name for facts in name_tables(variables, paths, set(used_names)).values()]


class Embedding:
    """A layer, which Keras numbers if the user does not name it."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("path", "owner", "name"),
    [
        ("users", None, "users"),
        ("towers.users", None, "towers.users"),
        ("embeddings", None, "embeddings"),
        ("towers.users.embeddings", None, "towers.users"),
        ("towers.users._embeddings", None, "towers.users"),
        ("towers._kept.users", None, "towers.users"),
        ("layer-3.embeddings", Embedding("movies"), "movies"),
        ("layer-3.embeddings", Embedding("embedding_7"), "layer-3"),
        ("layer-3.embeddings", Embedding("embedding"), "layer-3"),
        ("layer-3.embeddings", SimpleNamespace(name=7), "layer-3"),
        ("layer-3.embeddings", SimpleNamespace(name=""), "layer-3"),
        ("users.embeddings", Embedding("movies"), "users"),
        ("columns.ads/embedding_weights", None, "columns.ads"),
        ("", None, "v0"),
    ],
)
def test_table_is_named_by_the_steps_to_it_without_what_keras_adds(
    path: str, owner: Any, name: str
) -> None:
    assert named((path, owner)) == [name]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["_users"], ["users"]),
        (["_towers._users._embeddings"], ["towers._users"]),
        (["_users", "users"], ["users_2", "users"]),
        (["_users", "_users.embeddings"], ["users", "users.embeddings"]),
        (
            ["_query.layer-1.embeddings", "_items.layer-1.embeddings"],
            ["layer-1", "items.layer-1.embeddings"],
        ),
    ],
)
def test_table_in_a_private_place_is_named_without_its_underscore(
    paths: list[str], names: list[str]
) -> None:
    assert named(*((path, None) for path in paths)) == names


def test_tables_whose_names_no_file_may_have_are_numbered() -> None:
    assert named(("__.embeddings", None), ("товары", None)) == ["table", "table_2"]


def test_tables_of_one_name_have_longer_names_then_numbers() -> None:
    movies = Embedding("movies")
    locations = [(f"{part}.layer-1.embeddings", movies) for part in ("query", "candidate")]
    assert named(*locations) == ["movies", "candidate.layer-1.embeddings"]
    assert named(("users", None), used_names=("users",)) == ["users_2"]
    assert named(("users", None), ("users", None), ("users", None)) == [
        "users",
        "users_2",
        "users_3",
    ]


def test_facts_of_a_table_are_its_whole_path_and_its_shape() -> None:
    model = tf.train.Checkpoint(users=tf.train.Checkpoint(embeddings=tf.Variable(tf.ones((5, 2)))))
    paths = object_paths(model)
    ((key, (path, owner)),) = paths.items()
    assert (path, owner) == ("users.embeddings", model.users)
    tables = name_tables({key: model.users.embeddings}, paths, set())
    assert tables == {key: TableFacts("users", "users.embeddings", 5, 2)}
    assert object_paths(lambda inputs: inputs) == {}
