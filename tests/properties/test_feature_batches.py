"""Features looked up together have the bits, the counts and the errors of each alone, whatever is sent."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.errors import FeatureError, UnknownRefused
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader, Place
from bundle.format import manifest as entries
from bundle.tables.key_index import KeyIndex, KeyIndexWriter
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from tests.conftest import write_table

ROWS, SMALL = 40, 20
TEXTS = entries.VocabularyIds(vocabulary="texts", oov_buckets=3, oov_first_row=20)
RULES: tuple[entries.IdRule, ...] = (
    entries.IdentityIds(),
    entries.HashIds(buckets=ROWS),
    entries.HashIds(buckets=ROWS - 1, first_row=1, mask=3),
    entries.ArithmeticIds(shift=2, buckets=30, truncated=True),
    entries.ArithmeticIds(shift=2, buckets=17),
    entries.ComputedIds(
        operations=(entries.IdOperation(do="multiply", by=-3), entries.IdOperation(do="remainder", by=45))
    ),
    entries.VocabularyIds(vocabulary="numbers"),
    TEXTS,
    entries.KeyedIds(keys="keys"),
)
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"max_norm": 1.5},
    {"empty_row": 7},
    {"max_norm": 0.5, "empty_row": 0, "weighted": True},
    {"weighted": True, "encoding": "ragged", "max_norm": 2.0},
)
KEYS: dict[str, entries.CrossKey] = {
    "number": entries.CrossKey(dtype="int64", default=4),
    "text": entries.CrossKey(dtype="string", default=["a", "b"]),
    "bucket": entries.CrossKey(dtype="int64", boundaries=(1.0, 9.0), default=2),
    "row": entries.CrossKey(dtype="int64", ids=entries.IdentityIds(), rows=9, unknown_row=5),
    "word": entries.CrossKey(dtype="string", ids=TEXTS, rows=23, padding="z"),
}


def _pages() -> dict[str, entries.Feature]:
    """Every rule with every change of a bag, every pair of keys and some threes; many read one table."""
    told: list[dict[str, Any]] = [
        {"ids": rule, "kind": "bag", "combiner": combiner, "unknown": unknown, **change}
        for (rule, change), combiner, unknown in zip(
            itertools.product(RULES, CHANGES),
            itertools.cycle(("sum", "mean", "sqrtn")),
            itertools.cycle((entries.Unknown(), entries.Unknown(rule="row", row=3))),
            strict=False,
        )
    ]
    told += [
        {"ids": rule, "kind": kind, "length": 2 if kind == "sequence" else None}
        for rule, kind in itertools.product(RULES, ("single", "sequence"))
    ]
    combinations = [*itertools.product(KEYS, repeat=2), ("text", "bucket", "number"), ("row", "word", "text")]
    told += [
        {
            "ids": entries.CrossedIds(
                keys=tuple(KEYS[kind] for kind in kinds), buckets=ROWS + number % 3, hash_key=number
            ),
            "kind": "bag",
            "combiner": "mean",
            "inputs": tuple(f"{number}.{key}.{kind}" for key, kind in enumerate(kinds)),
            **{name: value for name, value in CHANGES[number % 4].items() if name != "weighted"},
        }
        for number, kinds in enumerate(combinations)
    ]
    told += [_single(each) for each in told if "inputs" in each]
    told += [_joined(each, number) for number, each in enumerate(told) if "inputs" in each and each["kind"] == "single"]
    told += [{"kind": "bag", "combiner": "sum", "table": "", "indicator": width} for width in (3, 8, 3)]
    return {
        f"f{number}": entries.EmbeddedFeature.model_validate(
            {"role": "context", "table": "narrow" if number % 3 else f"t{number % SMALL}"} | each
        )
        for number, each in enumerate(told)
    }


def _single(told: dict[str, Any]) -> dict[str, Any]:
    """Returns a cross of one value of each input, under names of their own."""
    changes = ({"padding": None} | ({"default": "a"} if key.default == ["a", "b"] else {}) for key in told["ids"].keys)
    keys = [key.model_copy(update=change) for key, change in zip(told["ids"].keys, changes, strict=True)]
    rule = told["ids"].model_copy(update={"keys": tuple(keys)})
    return {"ids": rule, "kind": "single", "inputs": tuple(f"one.{read}" for read in told["inputs"])}


def _joined(told: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns strings that are put together of the values of a cross, hashed or found in a vocabulary."""
    rule, keys = (
        (entries.HashIds(buckets=ROWS), entries.HashIds(buckets=9, key=(1, 2)), TEXTS)[number % 3],
        told["ids"].keys,
    )
    texts = ("", *("_",) * (len(keys) - 1), "" if number % 2 else "%")
    return {**told, "ids": entries.JoinedIds(keys=keys, texts=texts, ids=rule)}


PAGES = _pages()


@pytest.fixture(scope="module", params=["compiled", "numpy"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FeatureReader:
    root, random = tmp_path_factory.mktemp("tables"), np.random.default_rng(1)
    tables = {
        f"t{number}": write_table(root, f"t{number}", random.standard_normal((ROWS, 9)).astype("<f4"), "float32", [10])
        for number in range(SMALL)
    }
    tables |= {
        "narrow": write_table(root, "narrow", random.standard_normal((ROWS, 2)).astype("<f2"), "float16", []),
    }
    with KeyIndexWriter(root / "keys.bin") as writer:
        writer.append(np.array([4, 9, -3, 0]))
        writer.finish()
    vocabularies = {
        "numbers": Vocabulary(IntegerKeys(np.array([5, 1, 8]))),
        "texts": Vocabulary(StringKeys(["a", "b", "c"])),
    }
    opened = {name: TableReader(root, table, request.param == "compiled") for name, table in tables.items()}
    return FeatureReader(PAGES, opened, vocabularies, {"keys": KeyIndex(root / "keys.bin", 4)})


def _column(page: entries.EmbeddedFeature, n: int, texts: bool, random: np.random.Generator) -> Column:
    single = page.kind == "single"
    lengths = np.ones(n, int) if single else random.integers(0, 4, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values: Any = random.integers(-2, 45, offsets[-1])
    if texts:
        values = np.array([*"abcdefgz"], object)[random.integers(0, 8, values.size)]
    weights = random.uniform(-0.5, 2, values.size).astype(np.float32)
    return Column(values, None if single else offsets, weights if page.weighted and random.random() < 0.8 else None)


def _without_some(column: Column, random: np.random.Generator) -> Column:
    given = random.random(column.values.size) < 0.7
    return Column(column.values[given], np.concatenate([[0], np.cumsum(given)]))


def _sent(n: int, seed: int) -> dict[str, Column]:
    random, sent = np.random.default_rng(seed), {}
    for name, page in PAGES.items():
        assert isinstance(page, entries.EmbeddedFeature)
        if isinstance(page.ids, entries.SeveralIds):
            for read, key in zip(page.inputs, page.ids.keys, strict=True):
                if key.default is None or random.random() < 0.8:
                    sent[read] = _column(page, n, key.dtype == "string", random)
                    if page.kind == "single" and key.default is not None and random.random() < 0.5:
                        sent[read] = _without_some(sent[read], random)
        else:
            sent[name] = _column(page, n, page.ids is TEXTS, random)
    return sent


@given(st.integers(0, 6), st.integers(0, 1 << 32), st.permutations(list(PAGES)), st.integers(1, len(PAGES)))
def test_features_together_are_as_each_alone(
    reader: FeatureReader, n: int, seed: int, names: list[str], count: int
) -> None:
    sent, names = _sent(n, seed), names[:count]
    together = reader.activations(names, sent, n)
    assert list(together) == names
    places, ends = [], np.cumsum([together[name].values.reshape(n, -1).shape[1] if n else 1 for name in names]).tolist()
    if n:
        places = [Place(np.full((n, ends[-1]), np.nan, np.float32), tuple(names), tuple(ends))]
    unknown = reader.write(places, sent, n) if places else {}
    for name, start, end in zip(names, [0, *ends], ends, strict=False):
        alone = reader.activation(name, sent, n)
        assert together[name].values.shape == alone.values.shape
        assert (together[name].values.view(np.uint32) == alone.values.view(np.uint32)).all(), name
        assert together[name].unknown == alone.unknown, name
        for place in places:
            written = np.ascontiguousarray(place.array[:, start:end])
            assert (written.view(np.uint32) == alone.values.reshape(n, -1).view(np.uint32)).all(), name
            assert unknown.get(name, 0) == alone.unknown


@pytest.mark.parametrize(
    ("changes", "column", "told"),
    [
        ({"ids": entries.ArithmeticIds(buckets=30)}, Column(np.array(["a"], object)), "'f7': 'a' is no integer id"),
        ({"ids": TEXTS}, Column(np.array([3])), "'f7': 3 is an integer; the ids of this feature are strings"),
        ({"max_norm": 1.0}, Column(np.array([0.5])), "'f7': 0.5 is no id"),
    ],
)
def test_what_is_no_id_names_its_input_among_many_alike(
    tmp_path: Path, changes: dict[str, Any], column: Column, told: str
) -> None:
    page = entries.EmbeddedFeature.model_validate(
        {"kind": "bag", "combiner": "sum", "table": "t", "role": "context"} | changes
    )
    table = TableReader(tmp_path, write_table(tmp_path, "t", np.ones((30, 2), "<f4"), "float32", []))
    features = {f"f{number}": page for number in range(20)}
    reader = FeatureReader(features, {"t": table}, {"texts": Vocabulary(StringKeys(["a", "b", "c"]))})
    value: Any = np.array(["a"], object) if page.ids == TEXTS else np.array([1])
    sent = dict.fromkeys(features, Column(value))
    assert set(reader.activations(features, sent, 1)) == set(features)
    with pytest.raises(FeatureError, match=told):
        reader.activations(features, sent | {"f7": column}, 1)


def test_cross_whose_row_is_refused_among_many_is_refused_as_alone(tmp_path: Path) -> None:
    table = TableReader(tmp_path, write_table(tmp_path, "t", np.ones((1, 2), "<f4"), "float32", []))
    features = {
        f"f{number}": entries.EmbeddedFeature(
            kind="bag",
            table="t",
            role="context",
            inputs=("a", "b"),
            ids=entries.CrossedIds(keys=(entries.CrossKey(dtype="int64"),) * 2, buckets=1 if number != 5 else 1 << 40),
            combiner="sum",
            unknown=entries.Unknown(rule="refuse"),
        )
        for number in range(9)
    }
    reader, sent = FeatureReader(features, {"t": table}, {}), dict.fromkeys("ab", Column(np.ones(1, np.int64)))
    with pytest.raises(UnknownRefused) as alone:
        reader.activation("f5", sent, 1)
    with pytest.raises(UnknownRefused) as together:
        reader.activations(features, sent, 1)
    assert str(together.value) == str(alone.value)
    with pytest.raises(FeatureError, match="'b': a value must be sent"):
        reader.activations(features, {"a": sent["a"]}, 1)
