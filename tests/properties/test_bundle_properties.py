from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import farmhash
import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.features.reader import Column, FeatureReader
from bundle.features.rules.ids import rule_of, within
from bundle.format import manifest as entries
from bundle.format.checksums import Digest, combine, crc32c
from bundle.format.manifest import Manifest, dump, parse
from bundle.storage.staging import Staging, read_manifest
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import write_store
from bundle.tables.combiner import combine as combine_bags
from bundle.tables.reader import ShardWriter, TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary, write_vocabulary

STORED: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def objects(values: list[Any]) -> NDArray[Any]:
    result = np.empty(len(values), object)
    result[:] = values
    return result


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, NDArray[Any], list[int], list[int]]:
    """A dtype, [rows, dim] of it from random bits, where it is cut into shards, and bytes of junk before each shard."""
    rows, dim = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(sorted(STORED)))
    width = np.dtype(STORED[dtype]).itemsize
    bits = np.random.default_rng(draw(st.integers(0, 1 << 32))).bytes(rows * dim * width)
    cuts = sorted(draw(st.sets(st.integers(1, rows - 1), max_size=5))) if rows > 1 else []
    junk = [draw(st.integers(0, 9)) for _ in range(len(cuts) + 1)]
    return dtype, np.frombuffer(bits, STORED[dtype]).reshape(rows, dim), cuts, junk


def write_shards(root: Path, dtype: str, stored: NDArray[Any], cuts: list[int], junk: list[int]) -> entries.Table:
    """Writes all shards into one file, each at an odd offset."""
    shards, first, position = [], 0, 0
    with ShardWriter(root / "rows") as writer:
        for end, before in zip([*cuts, len(stored)], junk, strict=True):
            data, digest = stored[first:end].tobytes(), Digest()
            digest.update(data)
            writer.write(b"\xff" * before)
            writer.write(data)
            position += before
            shards.append(
                entries.Shard(
                    file="rows",
                    offset=position,
                    first_row=first,
                    rows=end - first,
                    crc32c=digest.crc32c,
                    blocks=digest.blocks if before % 2 else (),
                )
            )
            position += len(data)
            first = end
    rows, dim = stored.shape
    table = {"rows": rows, "dim": dim, "dtype": dtype, "shards": shards, "source": {"layout": "plain", "key": "k"}}
    if dtype == "int8":
        (root / "scales").write_bytes(np.arange(rows, dtype="<f4").tobytes())
        table["scales"] = [entries.Shard(file="scales", first_row=0, rows=rows, crc32c=0, blocks=())]
    return entries.Table.model_validate(table)


@given(tables(), st.data())
def test_table_cut_anyhow_gathers_and_reads_what_was_written(
    table: tuple[str, NDArray[Any], list[int], list[int]], data: st.DataObject
) -> None:
    dtype, stored, cuts, junk = table
    rows = np.array(data.draw(st.lists(st.integers(0, len(stored) - 1), max_size=60)), np.int64)
    first = data.draw(st.integers(0, len(stored)))
    count = data.draw(st.integers(0, len(stored) - first))
    with tempfile.TemporaryDirectory() as root:
        reader = TableReader(Path(root), write_shards(Path(root), dtype, stored, cuts, junk))
        found = reader.gather(rows)
        with np.errstate(invalid="ignore"):  # signalling NaNs among random bits
            expected = stored.astype(np.float32)[rows]
        if dtype == "int8":
            expected *= rows[:, np.newaxis].astype(np.float32)
        np.testing.assert_array_equal(found, expected)
        if dtype != "float16":  # numpy may quieten a NaN when it widens a half
            assert (found.view(np.uint32) >> 16 == expected.view(np.uint32) >> 16).all()
        assert reader.read(first, count).tobytes() == stored[first : first + count].tobytes()
        reader.close()


@st.composite
def bags(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None]:
    lengths = draw(st.lists(st.integers(0, 12) | st.just(70), max_size=12))
    dim = draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    vectors = random.standard_normal((offsets[-1], dim)).astype(np.float32)
    weights = random.choice([-1.5, 0, 0.25, 1, 3], offsets[-1]).astype(np.float32) if draw(st.booleans()) else None
    return vectors, offsets, weights


@settings(max_examples=300)
@given(bags(), st.sampled_from(["sum", "mean", "sqrtn"]))
def test_combiner_agrees_with_a_loop_in_float64(
    given_bags: tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None], combiner: Any
) -> None:
    vectors, offsets, weights = given_bags
    found = combine_bags(vectors.copy(), offsets, combiner, weights)
    assert found.shape == (len(offsets) - 1, vectors.shape[1])
    assert found.dtype == np.float32
    for bag, (first, end) in enumerate(pairwise(offsets)):
        factors = [1.0] * int(end - first) if weights is None else weights[first:end].tolist()
        total, size = np.zeros(vectors.shape[1]), np.zeros(vectors.shape[1])
        for factor, vector in zip(factors, vectors[first:end].astype(np.float64), strict=True):
            total += factor * vector
            size += abs(factor * vector)
        divisor = {"sum": 1.0, "mean": sum(factors), "sqrtn": sum(factor * factor for factor in factors) ** 0.5}[
            combiner
        ]
        expected = total / divisor if divisor else np.zeros_like(total)
        allowed = (len(factors) + 4) * 2.0**-24 * 2 * size / (abs(divisor) or 1.0)
        assert (np.abs(found[bag] - expected) <= allowed).all()


@given(bags(), st.sampled_from(["sum", "mean", "sqrtn"]), st.randoms(use_true_random=False))
def test_combiner_gives_a_bag_the_same_bits_whatever_is_beside_it(
    given_bags: tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None], combiner: Any, random: Any
) -> None:
    vectors, offsets, weights = given_bags
    together = combine_bags(vectors.copy(), offsets, combiner, weights)
    for bag, (first, end) in enumerate(pairwise(offsets)):
        alone = combine_bags(
            vectors[first:end].copy(),
            np.array([0, end - first]),
            combiner,
            None if weights is None else weights[first:end],
        )
        assert alone[0].tobytes() == together[bag].tobytes()
        in_order = np.zeros(vectors.shape[1], np.float32)
        for place in range(first, end):
            term = vectors[place] if weights is None else vectors[place] * weights[place]
            in_order = term if place == first else in_order + term
        if combiner == "sum":
            assert in_order.tobytes() == together[bag].tobytes()


@given(st.lists(INT64, unique=True, max_size=40), st.lists(INT64, max_size=20))
def test_integer_keys_are_a_dictionary(keys: list[int], others: list[int]) -> None:
    wanted = keys[::-1] + others
    places = {key: place for place, key in enumerate(keys)}
    found = IntegerKeys(np.array(keys, np.int64)).positions("f", np.array(wanted, np.int64))
    assert found.tolist() == [places.get(key, -1) for key in wanted]
    texts = objects([str(key) for key in wanted])
    assert IntegerKeys(np.array(keys, np.int64)).positions("f", texts).tolist() == found.tolist()


@given(st.integers(-5, 5), st.integers(0, 20), st.lists(st.integers(-30, 30), max_size=20))
def test_consecutive_integer_keys_are_a_range(first: int, size: int, wanted: list[int]) -> None:
    keys = range(first, first + size)
    found = IntegerKeys(np.array(keys, np.int64)).positions("f", np.array(wanted, np.int64))
    assert found.tolist() == [key - first if key in keys else -1 for key in wanted]


@settings(max_examples=30)
@given(st.lists(TEXT, unique=True, min_size=1, max_size=20), st.lists(TEXT, max_size=10))
def test_vocabulary_of_strings_survives_its_file(keys: list[str], others: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        write_vocabulary(Path(root) / "v", objects(keys))
        found = Vocabulary.open(Path(root) / "v").find("f", objects(keys + others))
    assert found.tolist() == StringKeys(keys).positions("f", objects(keys + others)).tolist()
    assert found[: len(keys)].tolist() == list(range(len(keys)))


@given(st.lists(INT64, max_size=30), st.integers(1, (1 << 62) - 1), st.integers(1, (1 << 62) - 1))
def test_hash_and_identity_stay_inside_the_table(ids: list[int], buckets: int, rows: int) -> None:
    values = np.array(ids, np.int64)
    hashed = [farmhash.fingerprint64(str(value)) % buckets for value in ids]
    hashing, identity = rule_of(entries.HashIds(buckets=buckets), {}), rule_of(entries.IdentityIds(), {})
    assert within(hashing.resolve("f", values), rows).tolist() == [row if row < rows else -1 for row in hashed]
    assert within(identity.resolve("f", values), rows).tolist() == [row if 0 <= row < rows else -1 for row in ids]


@given(st.binary(max_size=300), st.integers(0, 300))
def test_crc_of_joined_ranges_is_that_of_the_whole(data: bytes, cut: int) -> None:
    assert combine(crc32c(data[:cut]), crc32c(data[cut:]), len(data[cut:])) == crc32c(data)


@settings(max_examples=40)
@given(
    st.data(),
    st.lists(INT64, unique=True, min_size=1, max_size=12) | st.lists(TEXT, unique=True, min_size=1, max_size=12),
)
def test_store_returns_what_was_written(data: st.DataObject, ids: list[Any]) -> None:
    import pyarrow as pa

    size = len(ids)
    lists = data.draw(st.lists(st.lists(TEXT, max_size=4), min_size=size, max_size=size))
    titles = data.draw(st.lists(st.none() | TEXT, min_size=size, max_size=size))
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    column = Column(objects([text for one in lists for text in one]), offsets)
    keys = np.array(ids, np.int64) if isinstance(ids[0], int) else objects(ids)
    with tempfile.TemporaryDirectory() as root:
        written = write_store(Path(root) / "s", keys, {"g": column}, {"title": pa.array(titles, pa.string())})
        store = CandidateStore(Path(root) / "s", entries.Corpus(file="s", **vars(written)))
        assert store.ids(positions).tolist() == [ids[place] for place in positions]
        assert store.positions(store.ids(positions)).tolist() == positions.tolist()
        found = store.features(positions, ["g"])["g"]
        assert found.offsets is not None
        bounds = pairwise(found.offsets)
        assert [found.values[a:b].tolist() for a, b in bounds] == [lists[place] for place in positions]
        assert store.attributes(positions, ["title"])["title"] == [titles[place] for place in positions]


@settings(max_examples=40)
@given(st.data())
def test_manifest_survives_its_bytes(committed_bundle: Path, data: st.DataObject) -> None:
    manifest = read_manifest(committed_bundle)
    default = data.draw(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | TEXT | st.lists(st.integers(0, 9)))
    feature = entries.EmbeddedFeature(
        kind="bag",
        table=data.draw(st.sampled_from(sorted(manifest.tables))),
        role=data.draw(st.sampled_from(["context", "candidate"])),
        ids=data.draw(
            st.builds(entries.HashIds, buckets=st.integers(1, (1 << 62) - 1))
            | st.builds(
                entries.BucketIds, boundaries=st.lists(st.floats(-1e9, 1e9, width=32)).map(lambda b: tuple(sorted(b)))
            )
            | st.just(entries.IdentityIds())
        ),
        combiner=data.draw(st.sampled_from(["sum", "mean", "sqrtn"])),
        default=default,
    )
    changed = manifest.model_copy(
        update={
            "created": data.draw(TEXT),
            "version": data.draw(st.integers(1, (1 << 62) - 1)),
            "features": {**manifest.features, data.draw(TEXT): feature},
        }
    )
    again = parse(dump(changed))
    assert again == changed
    assert dump(again) == dump(changed)
    page = json.loads(dump(again))
    digest = page.pop("digest")
    assert digest == crc32c(dump(again).replace(b'"digest": %d' % digest, b'"digest": 0', 1))
    assert page == changed.model_dump(mode="json")
    assert isinstance(again, Manifest)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(TEXT, st.none() | st.integers(0, 9) | st.dictionaries(TEXT, TEXT)), min_size=1, max_size=6),
    st.data(),
)
def test_journal_cut_anywhere_keeps_a_prefix_of_its_steps(steps: list[tuple[str, Any]], data: st.DataObject) -> None:
    steps = [(f"step {number} {name}", payload) for number, (name, payload) in enumerate(steps)]
    with tempfile.TemporaryDirectory() as root:
        with Staging(Path(root), "m", 1) as stage:
            for step, payload in steps:
                stage.finish(step, "key", payload)
        journal = Path(root) / "m" / ".staging-1.journal"
        whole = journal.read_bytes()
        journal.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        with Staging(Path(root), "m", 1) as again:
            found = [again.finished(step, "key") for step, _ in steps]
        kept = sum(one is not None for one in found)
        assert [one.payload for one in found if one is not None] == [payload for _, payload in steps[:kept]]
        assert all(one is None for one in found[kept:])


@settings(max_examples=50)
@given(tables(), st.lists(st.lists(st.integers(-2, 45), max_size=9), max_size=10), st.integers(1, 4))
def test_sequence_is_a_loop_over_its_ids(
    table: tuple[str, NDArray[Any], list[int], list[int]], examples: list[list[int]], length: int
) -> None:
    dtype, stored, cuts, junk = table
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in examples])]).astype(np.int64)
    column = Column(np.array([one for example in examples for one in example], np.int64), offsets)
    with np.errstate(invalid="ignore"):
        wide = stored.astype(np.float32)
    if dtype == "int8":
        wide *= np.arange(len(stored), dtype=np.float32)[:, np.newaxis]
    expected = np.zeros((len(examples), length, stored.shape[1]), np.float32)
    unknown = 0
    for example, ids in enumerate(examples):
        for place, one in enumerate(ids[:length]):
            if 0 <= one < len(stored):
                expected[example, place] = wide[one]
            else:
                unknown += 1
    feature = entries.EmbeddedFeature(kind="sequence", table="t", role="context", length=length)
    with tempfile.TemporaryDirectory() as root:
        reader = TableReader(Path(root), write_shards(Path(root), dtype, stored, cuts, junk))
        found = FeatureReader({"f": feature}, {"t": reader}, {}).activation("f", {"f": column}, len(examples))
    np.testing.assert_array_equal(found.values, expected)
    assert found.unknown == unknown
