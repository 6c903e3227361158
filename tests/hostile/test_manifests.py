"""Hostile manifests, made from a sound one: each is rejected by its typed error, which names the
violation.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import BundleError, DigestMismatch, FormatError, UnknownFormat
from bundle.format.manifest import FORMAT_VERSION, MANIFEST_BYTES_MAX, dump, parse
from bundle.storage.catalog import read_manifest
from tests.hostile.manifest_edits import Json, sealed, setting
from tests.id_graphs import hash_ids

IN_PARTS = Path(__file__).parents[1] / "differential/bundle/root/movies/1/manifest.json"
"""Of a tower in parts."""
SEGMENT = "tables/users/rows-00001-of-00003.bin"
ROWS = 1 << 21
"""More rows than the checksums of blocks are of."""
GONE = "names 'gone', which the manifest does not have"
EDITS: list[tuple[str, Any, str]] = [
    ("tables.users.segments.1.first_row", lambda row: row - 1, "row 20 expected, .* begins at 19"),
    (
        "tables.users.segments",
        lambda segments: [segments[0], segments[2]],
        "must follow one another",
    ),
    ("tables.users.segments", [], "segments hold 0 rows"),
    ("tables.users.segments.1.file", "tables/users/rows-00000-of-00003.bin", "segments overlap in"),
    (
        "tables.users",
        lambda it: it | {"rows": ROWS, "segments": [it["segments"][0] | {"rows": ROWS}]},
        "block checksums",
    ),
    ("tables.users", lambda it: it | {"dtype": "int8", "scales": it["segments"]}, "manifest"),
    ("tables.users.dtype", "int8", "scales"),
    ("tables.brands.dtype", "float16", "scales belong to int8 rows, the table's are float16"),
    ("tables", {}, GONE.replace("gone", "users")),
    ("tables.users.source", {"key": "k", "layout": "mod"}, "layout 'mod' needs 'starts'"),
    (
        "tables.users.source",
        {"key": "k", "layout": "sparse_core", "cores": 4, "core_rows": 8, "offset": 0},
        "needs 'rotation'",
    ),
    ("corpora.movies.attributes", {"title": "string"}, GONE.replace("gone", "year")),
    ("files", lambda files: [*files, files[0]], "files lists a path twice"),
    (
        "files",
        lambda files: [*files, {"path": SEGMENT, "bytes": 1, "crc32c": 1}],
        "whose digests its segments carry",
    ),
    ("tables.users.surprise", 1, "Extra inputs are not permitted"),
    ("features.user.table", "gone", GONE),
    ("features.user.unknown", {"rule": "row", "row": 50}, "is 50, the table has 50 rows"),
    ("features.user.unknown", {"rule": "row"}, "'row' is given with rule 'row'"),
    ("features.user.length", 3, "'length' belongs to a sequence"),
    ("features.recent.length", None, "a sequence needs one"),
    ("features.watched.combiner", None, "a bag needs one"),
    ("features.name.ids.tables.0.vocabulary", "gone", GONE),
    ("features.name.ids.nodes", [], "at least 1 item"),
    ("features.name.ids.nodes.1.values", [0, 1], "no list has one value"),
    ("features.name.ids.nodes.2.inputs", [0, 2], "an operation reads nodes before it"),
    ("features.name.ids.nodes.0.input", 1, "one node for each of its inputs"),
    ("features.shop.ids", {"kind": "keyed", "keys": "gone"}, GONE),
    ("features.genres.inputs", ["a", "b"], "'ids' have one input, 'inputs' or 'joint' have"),
    ("features.age.inputs", ["a", "b"], "at most 1 item"),
    ("features.age.inputs", ["user"], "with different roles, defaults or numbers"),
    ("features.age.input_length", {"values": 1 << 40}, "less than or equal to 65536"),
    ("features.age.input_length", {"values": 2, "keep": "newest"}, "'first' or 'last'"),
    ("features.age.input_length", {"values": 2, "pad_side": "start"}, "with 'pad' only"),
    ("features.user.ids", {"kind": "hash", "buckets": 9}, "'graph'"),
    ("towers.query.formula", "gone * 2", "takes 'gone', which is no output"),
    ("towers.query.result", "gone", "gone"),
    ("towers.query.inputs.0.feature", "gone", GONE),
    ("corpora.movies.features", ["gone"], GONE),
    *(("model", wrong, "is no name") for wrong in ("../movies", ".hidden", "", "a b", "a" * 129)),
]
SCORES = {"edges": [-0.5, 1.5], "shares": [0.25, 0.5, 0.25], "examples": 100}
EDITS += [
    ("unread_inputs", ["length", "length"], "lists an input twice"),
    ("unread_inputs", ["user"], "'user', which feature 'user' reads"),
    *(
        ("towers.query.scores", SCORES | changed, words)
        for changed, words in (
            ({"edges": [1.5, -0.5]}, "ascend"),
            ({"edges": []}, "0 edges"),
            ({"shares": [0.5, 0.5, 0.5]}, "add up to 1.5"),
        )
    ),
]
JOINT: list[Json] = [{"default": "nowhere"}, {"role": "candidate"}]
HASH = hash_ids(64, "string").model_dump(mode="json")
SPLIT = {"op": "StringSplit", "inputs": [0], "split": "whitespace"}
SENT: list[Json] = [
    {"op": "Input", "dtype": "string"},
    {"op": "Input", "dtype": "int64", "input": 1},
]
CROSS: Json = {"op": "SparseCross", "inputs": [0, 1], "num_buckets": 64}
JOINED = {
    "kind": "graph",
    "nodes": [*SENT, {"op": "StringLength", "inputs": [0], "attributes": {"unit": "BYTE"}}],
}
JOIN: list[Json] = [
    {"op": "AddV2", "inputs": [0, 1]},
    {"op": "StringToHashBucketFast", "inputs": [2], "attributes": {"num_buckets": 3}},
]


def words(*nodes: Json, **fields: Any) -> Json:
    """Returns hashes of the words of a text, with changes of the split, and nodes behind it."""
    hashed = {"op": "StringToHashBucketFast", "inputs": [1], "attributes": {"num_buckets": 64}}
    return {"kind": "graph", "nodes": [SENT[0], SPLIT | fields, *(nodes or [hashed])]}


FEATURES: dict[str, Json] = {
    "indicator": {"kind": "single", "table": "", "role": "context", "indicator": 3},
    "dense": {"kind": "dense", "role": "context"},
    "joined": {
        "kind": "single",
        "table": "users",
        "role": "candidate",
        "inputs": ["city", "item"],
        "joint": JOINT,
        "ids": JOINED,
    },
    "crossed": {
        "kind": "bag",
        "combiner": "sum",
        "table": "users",
        "role": "candidate",
        "inputs": ["city", "item"],
        "joint": JOINT,
        "ids": {"kind": "graph", "nodes": [*SENT, CROSS]},
    },
    "text": {
        "kind": "bag",
        "combiner": "mean",
        "table": "users",
        "role": "context",
        "inputs": ["title"],
        "ids": words(),
    },
}
PLACES = {
    name: FEATURES["indicator"] | {"inputs": ["wide"], "place": 0, "places": number}
    for name, number in (("a", 2), ("b", 3))
}
PADDED = "'padding' belongs to the inputs of a bag"
EITHER = "a feature has a 'table' or is an 'indicator'"
WORDS = "the words of a text are a bag or a sequence"
SEVERAL = "'ids' have 2 inputs: 'inputs' and 'joint' have as many"
CHANGES: list[tuple[str, Json, str]] = [
    ("indicator", {"table": "users"}, EITHER),
    ("indicator", {"kind": "bag", "combiner": "mean"}, "an 'indicator' sums"),
    ("indicator", {"max_norm": 1.0}, "belong to a bag"),
    ("indicator", {"place": 2, "places": 2}, "'place' is one of 'places'"),
    ("indicator", {"ids": {"kind": "keyed", "keys": "users"}, "from_end": True}, "'from_end'"),
    ("dense", {"take": "lengths", "shape": [2]}, "one number for an example"),
    ("dense", {"take": "padded"}, "'padded' lie in a row"),
    ("dense", {"take": "weights", "shape": [2], "dtype": "int64"}, "'weights' are float32"),
    ("joined", {"kind": "bag", "combiner": "sum"}, "ids of several inputs need a single"),
    ("joined", {"joint": [JOINT[0] | {"padding": ""}, JOINT[1]]}, PADDED),
    *((name, {"inputs": ["city"]}, SEVERAL) for name in ("joined", "crossed")),
    *((name, {"joint": JOINT[:1]}, SEVERAL) for name in ("joined", "crossed")),
    *((name, {"joint": None}, SEVERAL) for name in ("joined", "crossed")),
    *((name, {"role": "context"}, "role of the feature follows") for name in ("joined", "crossed")),
    (
        "crossed",
        {"kind": "sequence", "combiner": None, "length": 2},
        "need a single, or if they are a cross, a bag",
    ),
    ("crossed", {"weighted": True}, "without weights"),
    ("crossed", {"default": []}, "default and length of each of several inputs"),
    ("crossed", {"ids": {"kind": "keyed", "keys": "users"}}, "'ids' have one input"),
    ("crossed", {"ids": HASH}, "'ids' have one input"),
    (
        "crossed",
        {"kind": "single", "combiner": None, "joint": [JOINT[0] | {"padding": ""}, JOINT[1]]},
        PADDED,
    ),
    *(
        ("crossed", {"ids": {"kind": "graph", "nodes": nodes}}, message)
        for nodes, message in (
            ([*SENT, CROSS | {"inputs": [0]}], "at least 2 items"),
            ([*SENT, CROSS | {"inputs": [0, 2]}], "an operation reads nodes before it"),
            ([*SENT, CROSS | {"inputs": [1, 0]}], "in the order of the inputs"),
            ([*SENT, CROSS | {"inputs": [0, 0]}], "a node of each input"),
            ([*SENT, CROSS | {"num_buckets": 0}], "greater than or equal to 1"),
            ([*SENT, CROSS, {"op": "Neg", "inputs": [2]}], "a cross is the last node"),
        )
    ),
    ("text", {"kind": "single", "combiner": None}, WORDS),
    ("text", {"ids": words(split=None)}, "'whitespace', 'characters' or 'separator'"),
    ("text", {"ids": words(separator="|")}, "'separator' belongs to the split 'separator'"),
    ("text", {"ids": words(padding="")}, "'padding' needs a 'length'"),
    ("text", {"ids": words(inputs=[1])}, "an operation reads nodes before it"),
    ("text", {"ids": words(*JOIN)}, "the row of a word is computed from the word alone"),
    ("text", {"ids": words(SPLIT)}, "a text is split once"),
    ("text", {"weighted": True}, "without weights"),
    ("text", {"filler_row": 1}, "'filler_row' belongs to a sequence"),
    ("text", {"ordinal": True}, "'ordinal' belongs to an indicator"),
    ("text", {"table": "", "indicator": 1 << 17, "combiner": "sum"}, "at most 65536 rows"),
]
PARTS: list[tuple[str, Any, str]] = [
    ("parts", lambda parts: parts[::-1], "which no earlier part returns"),
    ("parts", lambda parts: parts[:-1], "do not return every output"),
    ("parts.0.inputs.0.features.0", "movie", "is per context, 'movie' a candidate's"),
    ("parts.0.inputs.0.features.0", "city", "which the tower does not"),
    ("parts.1.per", "context", "part 'trunk' is per context, 'movie' a candidate's"),
    ("parts.2.per", "context", "part 'score' is per context and takes 'trunk' of a candidate"),
    (
        "parts",
        lambda parts: [parts[0], parts[1] | {"name": parts[2]["name"]}, *parts[2:]],
        "two parts have one name",
    ),
    (
        "parts.1.inputs.0",
        lambda entry: entry | {"feature": "movie"},
        "one of 'feature', 'features' and 'tensor'",
    ),
    ("parts.2.outputs.0.name", "trunk", "two parts return 'trunk'"),
    ("parts.0.inputs.0.shape.0", 1, "'context' is per context and takes one row of a context"),
    (
        "inputs.0",
        {"name": "user", "tensor": "trunk", "dtype": "float32", "shape": [None, 8]},
        "is no part's output",
    ),
    ("formula", "score ^", "invalid syntax"),
    ("formula", "like", "takes 'like'"),
]


@pytest.fixture
def manifest(committed_bundle: Path) -> Json:
    """A sound one, as JSON."""
    actual: Json = json.loads((committed_bundle / "manifest.json").read_bytes())
    return actual


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        *EDITS,
        *((f"features.{base}", FEATURES[base] | fields, words) for base, fields, words in CHANGES),
        ("features", lambda features: features | PLACES, "places of 'wide' of different numbers"),
        *((f"towers.ranking.{path}", value, words) for path, value, words in PARTS),
    ],
)
def test_manifest_that_breaks_a_rule_is_rejected(
    manifest: Json, path: str, value: Any, message: str
) -> None:
    if "ranking" in path:
        manifest = json.loads(IN_PARTS.read_bytes())
    setting(path, value)(manifest)
    with pytest.raises(FormatError, match=message) as rejected:
        parse(sealed(manifest))
    assert "manifest" in str(rejected.value)


def test_features_that_break_no_rule_are_accepted(manifest: Json) -> None:
    sound = manifest["features"]
    for name, feature in FEATURES.items():
        parse(sealed(manifest | {"features": sound | {name: feature}}))


def test_manifest_is_written_as_it_was_read(committed_bundle: Path, manifest: Json) -> None:
    data = (committed_bundle / "manifest.json").read_bytes()
    assert dump(parse(data)) == data
    assert data.startswith(b'{\n  "format_version": 1,\n  "digest": ')
    assert b'"scores": {' not in data
    setting("towers.query.scores", SCORES)(manifest)
    scored = parse(sealed(manifest))
    assert parse(dump(scored)) == scored
    scores = scored.towers["query"].scores
    assert scores is not None
    assert scores.model_dump(mode="json") == SCORES
    with pytest.raises(FormatError, match=f"{MANIFEST_BYTES_MAX}"):
        dump(scored.model_copy(update={"created": "x" * MANIFEST_BYTES_MAX}))


@pytest.mark.parametrize("lost", ["verification", "towers.query.result", "tables.users.dim"])
def test_manifest_without_a_field_is_rejected_by_its_name(manifest: Json, lost: str) -> None:
    *parents, last = lost.split(".")
    place = manifest
    for part in parents:
        place = place[part]
    del place[last]
    with pytest.raises(FormatError, match=f"manifest: {lost}: Field required"):
        parse(sealed(manifest))


@pytest.mark.parametrize("value", [2, 0, -1, True, 1.0, "1", None, 1.5, [1], 10**18])
def test_unknown_format_version_is_named(manifest: Json, value: Any) -> None:
    words = f"{re.escape(repr(value))} is not known here .* knows {FORMAT_VERSION}"
    with pytest.raises(UnknownFormat, match=words):
        parse(sealed(manifest | {"format_version": value}))


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"null",
            b"3",
            b'"x"',
            b"\xff\xfe",
            b"[" * 100_000,
            b"{}",
            b'{"a": NaN}',
        ),
        *(b'{"format_version": 1}', b'{"format_version": 1, "digest": 3}'),
    ],
)
def test_bytes_that_are_not_a_manifest_are_rejected(data: bytes) -> None:
    with pytest.raises((FormatError, DigestMismatch)):
        parse(data)


def test_manifest_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(MANIFEST_BYTES_MAX + 1)  # a hole: takes no disk
    with pytest.raises(FormatError, match="at most"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("fits", [False, True])
def test_manifest_with_damaged_bytes_is_rejected_or_read_right(
    committed_bundle: Path, fits: bool
) -> None:
    sound = (committed_bundle / "manifest.json").read_bytes()
    for seed in range(100):
        rng = random.Random(seed)
        data = bytearray(sound)
        for _ in range(rng.choice([1, 5, 50])):
            data[rng.randrange(60 * fits, len(data))] ^= rng.randrange(1, 256)
        try:
            manifest = parse(sealed(json.loads(data)) if fits else bytes(data))
        except (BundleError, ValueError, KeyError):  # the latter two: of this test's own reading
            continue
        assert fits
        for table in manifest.tables.values():
            assert sum(segment.rows for segment in table.segments) == table.rows
