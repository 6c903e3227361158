"""Names of features and vocabularies of traced models."""

from __future__ import annotations

from typing import Any

from bundle.format.graph_builder import GraphBuilder
from bundle.format.manifest import (
    CrossedIds,
    CrossKey,
    JoinedIds,
    LookupTable,
    TextIds,
    TowerInput,
    lookup_tables_of,
)
from export.front_end.calls import Call
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TowerSpec
from export.tensorflow_models.model.feature_names import traced_name, with_bundle_names
from tests.id_graphs import hash_ids, vocabulary_ids
from tests.units.export.traced_features import dense, embedded

CROSS = CrossedIds(buckets=9, keys=(CrossKey(dtype="int64"), CrossKey(dtype="int64")))
UNNAMED = vocabulary_ids("unnamed")
A = ("a", "b")
B = ("c", "d", "e")


def test_traced_names_tell_features_apart() -> None:
    names: dict[FeatureSpec, str] = {}
    features = [
        embedded("", "items", inputs=("item",)),
        embedded("", "users", inputs=("item",)),
        embedded("", "items", inputs=("item",), kind="bag", combiner="mean"),
        embedded("", "items", inputs=("item",), kind="bag", combiner="mean", max_norm=1.0),
        embedded("", "items", inputs=("item",), kind="bag", combiner="mean", max_norm=2.0),
        embedded("", "items", inputs=("item",), padding=3),
        embedded("", "items", inputs=("pair",), place=1, places=2),
        embedded("", "items", inputs=("pair",), place=0, places=2),
        embedded("", "items", inputs=("a", "b"), ids=CROSS),
        embedded("", "", inputs=("item",), indicator=4),
    ]
    names_of_features = [traced_name(feature, names) for feature in features]
    assert names_of_features == [
        "item@items",
        "item@users",
        "item@items.mean",
        "item@items.2",
        "item@items.3",
        "item@items.single",
        "pair[1]@items",
        "pair[0]@items",
        "a*b@items",
        "item@indicator",
    ]
    same_feature = embedded("", "users", inputs=("item",))
    assert traced_name(same_feature, names) == "item@users"
    assert len(names) == len(features)


def model(*features: FeatureSpec | DenseSpec, tower: tuple[str, ...] = ()) -> ModelSpec:
    """Returns a model of features, of which a tower takes some, by their traced names."""
    inputs = tuple(
        TowerInput(name=f"input_{position}", feature=name, dtype="float32", shape=(None, 4))
        for position, name in enumerate(tower)
    )
    spec = TowerSpec("tower", "query", Call(), {}, inputs, (), "result")
    return ModelSpec({}, {feature.name: feature for feature in features}, {"tower": spec})


def test_feature_has_the_name_of_an_input_that_nothing_else_reads() -> None:
    named = with_bundle_names(
        model(
            embedded("item@items", "items", inputs=("item",)),
            embedded("user@users", "users", inputs=("user",)),
            dense("user@values", "int64", (), inputs=("user",), take="values"),
            dense("age@values", "float32", (), inputs=("age",), take="values"),
            tower=("age@values", "user@users", "item@items", "other"),
        ),
        [],
    )
    assert {
        name: (feature.name, feature.entry.inputs) for name, feature in named.features.items()
    } == {
        "item": ("item", ()),
        "user@users": ("user@users", ("user",)),
        "user@values": ("user@values", ("user",)),
        "age": ("age", ()),
    }
    tower_inputs = [(tensor.name, tensor.feature) for tensor in named.towers["tower"].inputs]
    assert tower_inputs == [
        ("age", "age"),
        ("user_users", "user@users"),
        ("item", "item"),
        ("other", "other"),
    ]


def test_cross_has_the_name_of_its_inputs_once() -> None:
    named = with_bundle_names(
        model(
            embedded("a@items", "items", inputs=("a",)),
            embedded("a*b@items", "items", inputs=("a", "b"), ids=CROSS),
            embedded("a*b@users", "users", inputs=("a", "b"), ids=CROSS),
        ),
        [],
    )
    assert {name: feature.entry.inputs for name, feature in named.features.items()} == {
        "a@items": ("a",),
        "a*b": ("a", "b"),
        "a*b@users": ("a", "b"),
    }


def test_cross_of_one_input_keeps_that_input() -> None:
    single_cross = CrossedIds(buckets=9, keys=(CrossKey(dtype="int64"),))
    feature = embedded("a@items", "items", inputs=("a",))
    entry = feature.entry.model_copy(update={"ids": single_cross})
    named = with_bundle_names(model(FeatureSpec("a@items", entry, has_rule=True)), [])
    assert named.features["a"].entry.inputs == ("a",)


def vocabularies(*features: FeatureSpec | DenseSpec, recipe: tuple[str, ...] = ()) -> Any:
    """Returns the keys of the vocabularies of a model, by name."""
    return with_bundle_names(model(*features), recipe).vocabularies


def word(name: str, *keys: Any, ids: Any = UNNAMED, **fields: Any) -> FeatureSpec:
    return embedded(f"{name}@items", "items", inputs=(name,), ids=ids, keys=keys, **fields)


def test_equal_vocabularies_share_the_name_of_the_first_input() -> None:
    names = vocabularies(
        dense("age@values", "float32", (), inputs=("age",), take="values"),
        embedded("user@users", "users", inputs=("user",)),
        embedded("hashed@items", "items", inputs=("hashed",), ids=hash_ids(3)),
        word("title", A),
        word("word", A),
        word("tag", B),
    )
    assert names == {"title": A, "tag": B}


def test_vocabulary_gets_a_number_if_the_recipe_has_its_name() -> None:
    assert vocabularies(word("title", A), recipe=("title", "tag")) == {"title_2": A}


def test_two_vocabularies_of_one_input_are_numbered() -> None:
    chain = GraphBuilder("string", UNNAMED)
    chain.positions(chain.last, LookupTable(vocabulary="second"))
    assert vocabularies(word("title", A, B, ids=chain.graph())) == {"title": A, "title_2": B}


def test_vocabularies_of_a_text_are_those_of_the_text_and_of_its_words() -> None:
    text = TextIds(text=UNNAMED, split="whitespace", ids=vocabulary_ids("second"))
    named = with_bundle_names(model(word("title", A, B, ids=text, kind="bag", combiner="sum")), [])
    assert named.vocabularies == {"title": A, "title_2": B}
    (feature,) = named.features.values()
    assert isinstance(feature, FeatureSpec)
    assert feature.rule is not None
    read = [table.vocabulary for table in lookup_tables_of(feature.rule)]
    assert read == ["title", "title_2"]


def test_vocabularies_of_a_cross_have_the_names_of_their_inputs() -> None:
    cross = CrossedIds(
        buckets=9,
        keys=(
            CrossKey(dtype="int64"),
            CrossKey(dtype="string", ids=UNNAMED),
            CrossKey(dtype="string", ids=UNNAMED),
        ),
    )
    crossed = embedded("x", "items", inputs=("item", "title", "tag"), ids=cross, keys=(A, B))
    assert vocabularies(crossed) == {"title": A, "tag": B}


def test_vocabulary_of_joined_words_has_the_names_of_all_inputs() -> None:
    joined = GraphBuilder("string")
    words = joined.compute("StringJoin", 0, joined.input("string", 1), separator="-")
    joined.positions(words, LookupTable(vocabulary="unnamed"))
    keys = (CrossKey(dtype="string"), CrossKey(dtype="string"))
    ids = JoinedIds(keys=keys, ids=joined.graph())
    feature = embedded("x", "items", inputs=("title", "tag"), ids=ids, keys=(A,))
    assert vocabularies(feature) == {"title_tag": A}
