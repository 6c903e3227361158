"""Many features at once have the bits, the counts and the errors of each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle import native
from bundle.errors import FeatureError, UnknownRefused
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader, Place
from bundle.format import manifest as entries
from bundle.tables.key_index import KeyIndex, KeyIndexWriter
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from tests.conftest import write_table

N = 9
RULES: tuple[entries.IdRule, ...] = (
    entries.IdentityIds(),
    entries.HashIds(buckets=20, first_row=5),
    entries.HashIds(buckets=40),
    entries.VocabularyIds(vocabulary="numbers", first_row=3),
    entries.VocabularyIds(vocabulary="texts", oov_buckets=2, oov_first_row=20),
    entries.BucketIds(boundaries=(1.0, 5.0)),
    entries.BucketIds(boundaries=()),
    entries.KeyedIds(keys="keys"),
)
KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "single", "default": 1},
    {"kind": "bag", "combiner": "mean", "default": [1, 2]},
    {"kind": "bag", "combiner": "sqrtn", "weighted": True, "encoding": "ragged", "default": []},
    {"kind": "bag", "combiner": "sum", "weighted": True},
    {"kind": "bag", "combiner": "mean", "weighted": True},
    {"kind": "sequence", "length": 2},
    {"kind": "sequence", "length": 5, "default": [3]},
)
UNKNOWN = (entries.Unknown(), entries.Unknown(rule="row", row=7))


def _features() -> dict[str, entries.EmbeddedFeature]:
    found = {}
    for number, rule in enumerate(RULES):
        for place, kind in enumerate(KINDS):
            texts = isinstance(rule, entries.VocabularyIds) and rule.vocabulary == "texts"
            told = dict(kind)
            if texts and "default" in told:
                told["default"] = "a" if told["kind"] == "single" else ["a"]
            found[f"{number}.{place}"] = entries.EmbeddedFeature(
                table=("wide", "narrow")[(number + place) % 2],
                role="context",
                ids=rule,
                unknown=UNKNOWN[place % 2],
                padding=3 if place == 1 and not texts else None,
                from_end=number == 0 and place % 2 == 0,
                **told,
            )
    return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> FeatureReader:
    root = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(1)
    tables = {
        "wide": write_table(root, "wide", random.standard_normal((25, 6)).astype("<f4"), "float32", [10]),
        "narrow": write_table(root, "narrow", random.standard_normal((23, 2)).astype("<f2"), "float16", []),
    }
    with KeyIndexWriter(root / "keys.bin") as writer:
        writer.append(np.array([4, 9, -3, 0]))
        writer.finish()
    vocabularies = {
        "numbers": Vocabulary(IntegerKeys(np.array([5, 1, 8]))),
        "texts": Vocabulary(StringKeys(["a", "b", "c"])),
    }
    opened = {name: TableReader(root, table) for name, table in tables.items()}
    return FeatureReader(_features(), opened, vocabularies, {"keys": KeyIndex(root / "keys.bin", 4)})


def _sent(seed: int) -> dict[str, Column]:
    random = np.random.default_rng(seed)
    sent = {}
    for name, page in _features().items():
        if page.default is not None and random.random() < 0.2:
            continue
        lengths = random.integers(0, 4, N) if page.kind != "single" else np.ones(N, int)
        if page.kind == "single" and random.random() < 0.3:
            lengths[3] = 0
        offsets: Any = np.concatenate([[0], np.cumsum(lengths)])
        values: Any = random.integers(-2, 30, offsets[-1])
        if isinstance(page.ids, entries.VocabularyIds) and page.ids.vocabulary == "texts":
            values = np.array([*"abcdefgh"], object)[random.integers(0, 8, values.size)]
        elif random.random() < 0.3 and not isinstance(page.ids, entries.BucketIds):
            values = values.astype(str).astype(object)
        weights = random.uniform(-0.5, 2, values.size).astype(np.float32) if page.weighted else None
        if (lengths == 1).all():
            offsets = None
        sent[name] = Column(values, offsets, weights)
    return sent


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rows of many features are read in one go only where the extension was built."""
    if request.param == "numpy":
        monkeypatch.setattr("bundle.features.reader.beside", None)
    elif native.MISSING:
        pytest.skip(native.MISSING)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_rows_written_into_places_need_no_more_than_their_ids(tmp_path: Path) -> None:
    stored = {f"t{number}": np.random.default_rng(number).standard_normal((9, number + 1)) for number in range(4)}
    tables = {
        name: TableReader(tmp_path, write_table(tmp_path, name, rows.astype("<f4"), "float32", [4]))
        for name, rows in stored.items()
    }
    unknown = (entries.Unknown(), entries.Unknown(rule="row", row=2), entries.Unknown(rule="refuse"), entries.Unknown())
    features = {
        f"f{number}": entries.EmbeddedFeature(
            kind="single", table=f"t{number}", role="context", unknown=unknown[number]
        )
        for number in range(4)
    }
    numbers = {"mood": entries.DenseFeature(kind="dense", role="context", shape=(2,))}
    reader = FeatureReader({**features, **numbers}, tables, {})
    sent = {
        "f0": Column(np.array([0, 8, 9])),  # 9 is past the end
        "f1": Column(np.array([-1, 8, 1])),
        "f2": Column(np.array([0, 8, 7]), np.arange(4)),
        "f3": Column(np.arange(6)[::2]),
        "mood": Column(np.arange(6, dtype=np.float32), np.arange(4) * 2),
    }
    room = np.full((3, 12), 7.0, np.float32)
    place = Place(room, (*features, "mood"), (1, 3, 6, 10, 12))
    assert reader.write([place], sent, 3) == {"f0": 1, "f1": 1}
    rows = [[0, 8, -1], [2, 8, 1], [0, 8, 7], [0, 2, 4]]
    wanted = [np.vstack([stored[f"t{n}"], np.zeros(n + 1)])[rows[n]] for n in range(4)]
    assert (room == np.hstack([*wanted, np.arange(6).reshape(3, 2)]).astype(np.float32)).all()
    assert reader.write([place], {**sent, "mood": Column(np.arange(6))}, 3) == {"f0": 1, "f1": 1}
    assert room[:, 10:].tolist() == [[0, 1], [2, 3], [4, 5]]

    with pytest.raises(FeatureError, match="'f3': 2 values for 3 examples"):
        reader.write([place], sent | {"f3": Column(np.arange(2))}, 3)
    with pytest.raises(UnknownRefused, match="id 9 is not in table 't2'"):
        reader.write([place], sent | {"f2": Column(np.array([0, 9, 3]))}, 3)
    with pytest.raises(FeatureError, match="'mood': nan is not finite"):
        reader.write([place], sent | {"mood": Column(np.full(6, np.nan, np.float32))}, 3)
    with pytest.raises(FeatureError, match=r"'mood'.*example 0 has 3"):
        reader.write([place], sent | {"mood": Column(np.zeros(6, np.float32), np.array([0, 3, 4, 6]))}, 3)
    with pytest.raises(FeatureError, match=r"'f1': 0\.5 is no id"):
        reader.write([place], sent | {"f1": Column(np.full(3, 0.5))}, 3)


class _Counted(TableReader):
    """Counts how often its rows are read."""

    reads = 0

    def take(self, rows: NDArray[np.int64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        self.reads += 1
        return super().take(rows, out)

    def bags(self, *told: Any) -> NDArray[np.float32]:
        self.reads += 1
        return super().bags(*told)


@pytest.mark.parametrize("kind", ["single", "bag"])
def test_thousands_of_features_take_one_gather_for_each_table(tmp_path: Path, kind: str) -> None:
    stored = np.arange(60, dtype="<f4").reshape(20, 3)
    tables = {
        name: _Counted(tmp_path, write_table(tmp_path, name, stored + number, "float32", [7]))
        for number, name in enumerate(("users", "items", "tags"))
    }
    features = {
        f"f{number}": entries.EmbeddedFeature(
            kind=kind,
            table=table,
            role="context",
            ids=entries.HashIds(buckets=20),
            combiner="sum" if kind == "bag" else None,
        )
        for number, table in enumerate([*tables] * 700)
    }
    sent = {name: Column(np.arange(number, number + N)) for number, name in enumerate(features)}
    reader = FeatureReader(features, tables, {})
    found = reader.activations(features, sent, N)
    assert {name: table.reads for name, table in tables.items()} == {"users": 1, "items": 1, "tags": 1}
    for name in ("f0", "f1001", "f2099"):
        assert (found[name].values == reader.activation(name, sent, N).values).all()


def test_features_of_no_example_are_looked_up_together(reader: FeatureReader) -> None:
    found = reader.activations(_features(), _sent(0) | {name: Column(np.empty(0, np.int64)) for name in _features()}, 0)
    assert {each.values.shape[0] for each in found.values()} == {0}


@pytest.mark.parametrize(
    ("name", "column", "told"),
    [
        ("0.0", Column(np.ones(N + 1, np.int64)), "10 values for 9 examples"),
        ("0.1", Column(np.ones(3, np.int64), np.array([0, 3])), "'0.1': offsets of shape"),
        ("0.1", Column(np.array([0.5] * N), None), "'0.1': 0.5 is no id"),
        ("1.1", Column(np.array(["\ud800"] * N, object), None), "'1.1': a string is no Unicode text"),
        ("4.0", Column(np.arange(N)), "'4.0': 0 is an integer; the ids of this feature are strings"),
        ("5.1", Column(np.array([np.nan] * N, np.float32)), "'5.1': nan is not finite"),
        ("0.1", Column(np.arange(N), None, np.ones(N, np.float32)), "'0.1': weights were sent"),
        ("0.3", Column(np.arange(N), None, np.ones(N - 1, np.float32)), "'0.3': 8 weights for 9 values"),
    ],
)
def test_what_does_not_fit_names_its_input_among_many(
    reader: FeatureReader, name: str, column: Column, told: str
) -> None:
    with pytest.raises(FeatureError, match=told):
        reader.activations(_features(), _sent(1) | {name: column}, N)


def test_features_of_one_input_read_it_each_by_its_own_rule(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).standard_normal((50, 3)).astype("<f4")
    table = TableReader(tmp_path, write_table(tmp_path, "t", stored, "float32", []))
    embedded, dense = entries.EmbeddedFeature, entries.DenseFeature
    features: dict[str, entries.Feature] = {
        "id@deep": embedded(kind="bag", table="t", role="context", inputs=("id",), combiner="sum", weighted=True),
        "id@wide": embedded(kind="bag", table="t", role="context", inputs=("id",), combiner="mean"),
        "id@many": embedded(kind="sequence", table="t", role="context", inputs=("id",), length=1),
        "id@lengths": dense(kind="dense", role="context", inputs=("id",), take="lengths", dtype="int64"),
        "id@share": dense(kind="dense", role="context", inputs=("id",), take="lengths", shape=(1,)),
        "pair@values": dense(kind="dense", role="context", inputs=("pair",), shape=(2,)),
        "pair": embedded(kind="sequence", table="t", role="context", length=2),
    }
    reader = FeatureReader(features, {"t": table}, {})
    assert reader.inputs["id"][0] == "id@deep"
    assert reader.inputs["pair"] == ("pair", "pair@values")
    sent = {
        "id": Column(np.array([4, 9, 2]), np.array([0, 2, 2, 3]), np.array([2, 1, 5], np.float32)),
        "pair": Column(np.arange(6)),
    }
    found = {name: each.values for name, each in reader.activations(features, sent, 3).items()}
    assert (found["id@deep"] == [2 * stored[4] + stored[9], 0 * stored[0], 5 * stored[2]]).all()
    assert (found["id@wide"][0] == (stored[4] + stored[9]) / np.float32(2)).all()
    assert (found["id@many"][:, 0] == [stored[4], 0 * stored[0], stored[2]]).all()
    assert found["id@lengths"].tolist() == [2, 0, 1]
    assert found["id@share"].tolist() == [[2.0], [0.0], [1.0]]
    assert found["pair@values"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (found["pair"] == stored[np.arange(6)].reshape(3, 2, 3)).all()


@pytest.mark.parametrize("n", [0, 1, 5])
def test_numbers_of_many_features_are_as_of_each_alone(n: int) -> None:
    shapes: list[tuple[int, ...]] = [(), (3,), (2, 2)]
    features = {
        f"{number}": entries.DenseFeature(
            kind="dense",
            role="context",
            shape=shapes[number % 3],
            dtype="int64" if number % 7 == 0 else "float32",
            default=np.ones(shapes[number % 3], int).tolist() if number % 5 == 0 else None,
        )
        for number in range(60)
    }
    random, sent = np.random.default_rng(n), {}
    for number, (name, page) in enumerate(features.items()):
        size = n * int(np.prod(page.shape))
        kind = np.int64 if page.dtype == "int64" else (np.float32, np.float64, np.int32, np.float16)[number % 4]
        if number % 5:
            offsets = np.arange(n + 1) * (size // n) if n and number % 4 == 1 else None
            sent[name] = Column((100 * random.standard_normal(size)).astype(kind), offsets)
    reader = FeatureReader(features, {}, {})
    together = reader.activations(features, sent, n)
    for name in features:
        alone = reader.activation(name, sent, n).values
        assert (together[name].values.dtype, together[name].values.shape) == (alone.dtype, alone.shape)
        assert (together[name].values == alone).all()
    if n:
        sent["58"] = Column(np.full(sent["58"].values.size, np.nan))
        with pytest.raises(FeatureError, match="'58': nan is not finite"):
            reader.activations(features, sent, n)


@pytest.mark.parametrize("many", [False, True])
def test_ids_beyond_int32_are_refused_and_never_wrap(tmp_path: Path, many: bool) -> None:
    stored = np.ones((8, 2), "<f4")
    table = TableReader(tmp_path, write_table(tmp_path, "t", stored, "float32", []))
    refuse = entries.Unknown(rule="refuse")
    one = entries.EmbeddedFeature(kind="single", table="t", role="context", inputs=("id",), unknown=refuse)
    names = [f"id@{number}" for number in range(40 if many else 1)]
    reader = FeatureReader(dict.fromkeys(names, one), {"t": table}, {})
    for wrapped in (1 << 32, (1 << 32) + 3, 1 << 40, -(1 << 32) + 3, -1):
        with pytest.raises(UnknownRefused, match=f"'id': id {wrapped} is not in table 't'"):
            reader.activations(names, {"id": Column(np.array([3, wrapped]))}, 2)
