"""Hostile pages, made from a sound one: each is refused by its typed error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import BundleError, DigestMismatch, FormatError, UnknownFormat
from bundle.format.manifest import MANIFEST_BYTES_MAX, parse
from bundle.storage.staging import read_manifest
from tests.hostile.page_changes import Page, rewrite, sealed, setting

PARTS = Path(__file__).parents[1] / "golden/bundle/root/movies/1/manifest.json"
"""Of a tower in parts."""
SHARD = "tables/users/rows-00001-of-00003.bin"
BLOCKS = {"rows": 1 << 21}
"""More rows than the checksums of blocks are of."""
STRANGE_LAYOUTS: list[Page] = [
    {"layout": "spiral"},
    {"layout": "mod"},
    {"layout": "plain", "starts": [0]},
    {"layout": "sparse_core", "cores": 4, "core_rows": 8, "offset": 0},
    {"layout": "sparse_core", "cores": 0, "core_rows": 8, "offset": 0, "rotation": 1},
]


@pytest.mark.parametrize(
    "change",
    [
        setting("tables.users.shards.1.first_row", lambda row: row - 1),
        setting("tables.users.shards", lambda shards: [shards[0], shards[2]]),
        setting("tables.users.shards.1.file", "tables/users/rows-00000-of-00003.bin"),
        setting("tables.users", lambda users: users | {"rows": 1 << 21, "shards": [users["shards"][0] | BLOCKS]}),
        setting("tables.users", lambda users: users | {"dtype": "int8", "scales": users["shards"]}),
        *(setting("tables.users.source", source | {"key": "k"}) for source in STRANGE_LAYOUTS),
        setting("tables.users.error", {"source_dtype": "float64"}),
        setting("files", lambda files: [*files, files[0]]),
        setting("files", lambda files: [*files, {"path": SHARD, "bytes": 1, "crc32c": 1}]),
        setting("tables.users.shards", []),
        setting("tables.users.dtype", "float64"),
        setting("tables.users.dtype", "int8"),
        setting("tables.users.surprise", 1),
        setting("surprise", 1),
        setting("features.user.surprise", 1),
        setting("features.user.kind", "surprise"),
        setting("features.user.table", "gone"),
        setting("features.user.unknown", {"rule": "row", "row": 50}),
        setting("features.user.unknown", {"rule": "row"}),
        setting("features.user.unknown", {"rule": "zeros", "row": 1}),
        setting("features.user.length", 3),
        setting("features.watched.combiner", None),
        setting("features.recent.length", None),
        setting("features.name.ids", {"kind": "vocabulary", "vocabulary": "gone"}),
        setting("features.name.ids", {"kind": "surprise"}),
        setting("features.shop.ids", {"kind": "keyed", "keys": "gone"}),
        setting("features.genres.ids", {"kind": "crossed", "keys": [], "buckets": 3}),
        setting("features.genres.inputs", ["a", "b"]),
        setting("features.age.inputs", ["a", "b"]),
        setting("features.age.take", "surprise"),
        setting("towers.query.formula", "gone * 2"),
        setting("towers.query.formula", "__import__('os')"),
        setting("features.hour.ids.boundaries", [1.0, 0.5]),
        setting("features.hour.ids.boundaries", [1e39]),
        setting("towers.query.result", "gone"),
        setting("towers.query.inputs.0.feature", "gone"),
        setting("candidates.movies.features", ["gone"]),
        setting("model", "../movies"),
        setting("model", ".hidden"),
        setting("tables.users.shards.0.crc32c", 1 << 32),
        setting("files.0.crc32c", -1),
        setting("tables", {}),
        setting("tables", []),
        setting("files", None),
        lambda page: page.pop("verification"),
        lambda page: page["tables"].update({"a/b": page["tables"]["users"]}),
    ],
)
def test_page_that_breaks_a_rule_is_refused(sample_bundle: Path, change: Callable[[Page], Any]) -> None:
    rewrite(sample_bundle, change)
    with pytest.raises(FormatError, match="manifest"):
        read_manifest(sample_bundle)


@pytest.mark.parametrize("value", [4, 0, -1, True, 1.0, "1", None, 1.5, [1], 10**30])
def test_format_version_that_is_not_known_says_so(sample_bundle: Path, value: Any) -> None:
    rewrite(sample_bundle, setting("format_version", value))
    with pytest.raises(UnknownFormat, match="newer product version"):
        read_manifest(sample_bundle)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format_version": 1}',
        b'{"format_version": 1, "digest": 3}',
        b"{}",
        b'{"a": NaN}',
    ],
)
def test_page_that_is_none_is_refused(sample_bundle: Path, data: bytes) -> None:
    (sample_bundle / "manifest.json").write_bytes(data)
    with pytest.raises((FormatError, DigestMismatch)):
        read_manifest(sample_bundle)


def test_page_that_is_too_large_is_not_read(sample_bundle: Path) -> None:
    with (sample_bundle / "manifest.json").open("r+b") as file:
        file.truncate(MANIFEST_BYTES_MAX + 1)  # a hole: takes no disk
    with pytest.raises(FormatError, match="at most"):
        read_manifest(sample_bundle)


@pytest.mark.parametrize("seed", range(100))
def test_page_with_damaged_bytes_is_refused(committed_bundle: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray((committed_bundle / "manifest.json").read_bytes())
    for _ in range(rng.choice([1, 5, 50])):
        data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    with pytest.raises(BundleError):
        parse(bytes(data))


@pytest.mark.parametrize("seed", range(100))
def test_page_of_damaged_values_whose_digest_fits_is_read_right_or_refused(committed_bundle: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray((committed_bundle / "manifest.json").read_bytes())
    for _ in range(rng.choice([1, 5, 50])):
        data[rng.randrange(60, len(data))] = rng.randrange(256)
    try:
        manifest = parse(sealed(json.loads(data)))
    except (FormatError, ValueError, KeyError):  # the latter two: of this test's own reading
        return
    for table in manifest.tables.values():
        assert sum(shard.rows for shard in table.shards) == table.rows


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("parts", lambda parts: parts[::-1]),
        ("parts", lambda parts: parts[:-1]),
        ("parts.0.inputs.0.features.0", "movie"),
        ("parts.0.inputs.0.features.0", "city"),
        ("parts.1.per", "context"),
        ("parts", lambda parts: [parts[0], parts[1] | {"name": parts[2]["name"]}, *parts[2:]]),
        ("parts.1.inputs.0", lambda entry: entry | {"feature": "movie"}),
        ("parts.0.per", "user"),
        ("parts.0.outputs.0.name", "trunk"),
        ("inputs.0", {"name": "user", "tensor": "trunk", "dtype": "float32", "shape": [None, 8]}),
        ("formula", "score ^"),
        ("formula", "like"),
    ],
)
def test_parts_of_a_tower_that_do_not_hold_together_are_refused(path: str, value: Any) -> None:
    page = json.loads(PARTS.read_bytes())
    parse(sealed(page))
    setting(f"towers.ranking.{path}", value)(page)
    with pytest.raises(FormatError, match="manifest"):
        parse(sealed(page))
