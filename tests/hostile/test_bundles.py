"""Hostile bundles, made from a sound one: each is refused by its typed error, and nothing is mapped out of bounds."""

from __future__ import annotations

import os
import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.errors import BundleError, DigestMismatch, FormatError, NotCommitted, UnsafePath
from bundle.features.reader import open_features
from bundle.storage import arrow
from bundle.storage.files import locate
from bundle.storage.staging import check_files, read_manifest
from bundle.stores.reader import CandidateStore
from tests.hostile.manifest_edits import rewrite, setting

SHARD = "tables/users/rows-00001-of-00003.bin"
STORE = "candidates/movies/store.arrow"
VOCABULARY = "vocabularies/names.arrow"
KEYS = "keys/shops.bin"
TOWER = "towers/query/compiled-f32.tflite"


def open_all(bundle: Path, tables: Any = "sizes") -> None:
    """Opens a bundle as a service does: page, sizes, checksums, maps, stores."""
    check_files(bundle, read_manifest(bundle), tables)
    open_unchecked(bundle)


def open_unchecked(bundle: Path) -> None:
    """Opens a bundle whose checksums its maker made fit."""
    manifest = read_manifest(bundle)
    open_features(bundle, manifest)
    for corpus in manifest.candidates.values():
        CandidateStore(locate(bundle, corpus.file), corpus)


def test_sound_bundle_opens(sample_bundle: Path) -> None:
    open_all(sample_bundle, "full")


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        *product([SHARD, STORE, VOCABULARY, KEYS, TOWER], ["missing", "empty", "truncated", "directory", "fifo"]),
        *product([STORE, VOCABULARY, KEYS, TOWER], ["longer"]),
    ],
)
def test_file_that_is_not_as_it_was_is_data_loss_by_its_name(sample_bundle: Path, path: str, damage: str) -> None:
    file = sample_bundle / path
    data = file.read_bytes()
    changed = {"empty": b"", "truncated": data[:-1], "longer": data + b"\0"}
    file.unlink()
    if damage in changed:
        file.write_bytes(changed[damage])
    elif damage == "directory":
        file.mkdir()
    elif damage == "fifo":
        os.mkfifo(file)
    with pytest.raises(DigestMismatch, match=path):
        open_all(sample_bundle)


@pytest.mark.parametrize("seed", range(60))
def test_any_flipped_bit_is_found(sample_bundle: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = sorted(path for path in sample_bundle.rglob("*") if path.is_file())
    victim = rng.choice(files)
    data = bytearray(victim.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    victim.write_bytes(data)
    told = "manifest|format_version" if victim.name == "manifest.json" else victim.relative_to(sample_bundle).as_posix()
    with pytest.raises(BundleError, match=told):
        open_all(sample_bundle, "full")


@pytest.mark.parametrize("seed", range(150))
def test_damaged_arrow_file_whose_checksum_fits_never_leaves_the_map(sample_bundle: Path, seed: int) -> None:
    rng = random.Random(seed)
    victim = sample_bundle / rng.choice([STORE, VOCABULARY, "vocabularies/movies.arrow"])
    data = bytearray(victim.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 20])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    victim.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
    try:
        open_unchecked(sample_bundle)
    except BundleError:
        return
    manifest = read_manifest(sample_bundle)  # what it could not tell from sound data must read as data
    store = CandidateStore(sample_bundle / STORE, manifest.candidates["movies"])
    everyone = store.positions(store.ids(np.arange(store.size)))
    store.features(everyone, list(manifest.candidates["movies"].features))


@pytest.mark.parametrize("link", ["/etc/passwd", "../../../../outside", "loop"])
@pytest.mark.parametrize("path", [SHARD, STORE, VOCABULARY, KEYS, TOWER])
def test_link_that_leaves_the_bundle_is_refused(sample_bundle: Path, path: str, link: str) -> None:
    outside = sample_bundle.parents[1] / "outside"
    outside.write_bytes((sample_bundle / path).read_bytes())
    (sample_bundle / path).unlink()
    targets = {"loop": (sample_bundle / path).name, "/etc/passwd": "/etc/passwd"}
    (sample_bundle / path).symlink_to(targets.get(link, os.path.relpath(outside, (sample_bundle / path).parent)))
    with pytest.raises(UnsafePath, match=path):
        open_all(sample_bundle)


@pytest.mark.parametrize("path", ["tables", "manifest.json"])
def test_linked_directory_or_manifest_that_leaves_the_bundle_is_refused(sample_bundle: Path, path: str) -> None:
    elsewhere = sample_bundle.parents[1] / "elsewhere"
    (sample_bundle / path).rename(elsewhere)
    (sample_bundle / path).symlink_to(elsewhere)
    with pytest.raises(UnsafePath):
        open_all(sample_bundle)


def test_links_inside_the_bundle_and_to_the_bundle_are_fine(sample_bundle: Path, tmp_path: Path) -> None:
    (sample_bundle / SHARD).rename(sample_bundle / "rows")
    (sample_bundle / SHARD).symlink_to(sample_bundle / "rows")
    (tmp_path / "alias").symlink_to(sample_bundle)
    open_all(tmp_path / "alias", "full")


@pytest.mark.parametrize("path", ["/etc/passwd", "../1/x", "a/../../x", "a\\..\\b", "", ".", "a//b", "a\0b", "./a"])
@pytest.mark.parametrize("field", ["tables.users.shards.0.file", "candidates.movies.file", "files.0.path"])
def test_path_that_leaves_the_bundle_is_refused_by_the_page(sample_bundle: Path, field: str, path: str) -> None:
    rewrite(sample_bundle, setting(field, path))
    with pytest.raises(FormatError, match="inside the bundle"):
        read_manifest(sample_bundle)


NUMBERS = [1 << 62, 1 << 63, 1 << 64, 10**30, 1e30, 1e308, -1, 1.5, True, "9", None, [], float("nan")]


COUNTS = (
    *("tables.users.rows", "tables.users.dim", "tables.users.shards.0.rows", "candidates.movies.size"),
    *("vocabularies.names.size", "keys.shops.size", "features.genres.ids.buckets", "features.recent.length"),
    *("features.grid.shape.0", "version"),
)
PLACES = ("tables.users.shards.0.offset", "tables.users.shards.0.first_row", "files.0.bytes")


@pytest.mark.parametrize(("field", "value"), [*product([*COUNTS, *PLACES], NUMBERS), *((field, 0) for field in COUNTS)])
def test_number_that_no_count_or_place_can_be_is_refused(sample_bundle: Path, field: str, value: Any) -> None:
    rewrite(sample_bundle, setting(field, value))
    with pytest.raises(FormatError):
        read_manifest(sample_bundle)


@pytest.mark.parametrize("offset", [1, 4096, 1 << 40, (1 << 62) - 1])
def test_shard_beyond_its_file_is_refused_before_it_is_mapped(sample_bundle: Path, offset: int) -> None:
    rewrite(sample_bundle, setting("tables.users.shards.0.offset", offset))
    with pytest.raises(DigestMismatch, match="rows-00000-of-00003"):
        open_unchecked(sample_bundle)
    with pytest.raises(DigestMismatch):
        open_all(sample_bundle)


def test_rows_or_width_beyond_the_file_are_refused_before_they_are_mapped(sample_bundle: Path) -> None:
    rewrite(sample_bundle, setting("tables.users.rows", lambda rows: rows + 1000))
    rewrite(sample_bundle, setting("tables.users.shards.2.rows", lambda rows: rows + 1000))
    with pytest.raises(DigestMismatch, match="rows-00002-of-00003"):
        open_unchecked(sample_bundle)
    rewrite(sample_bundle, setting("tables.users.dim", 5))
    with pytest.raises(DigestMismatch):
        open_unchecked(sample_bundle)


@pytest.mark.parametrize("size", [3, 5, 1 << 40, (1 << 62) - 1])
def test_key_index_of_another_size_than_the_page_says_is_refused_before_it_is_mapped(
    sample_bundle: Path, size: int
) -> None:
    rewrite(sample_bundle, setting("keys.shops.size", size))
    with pytest.raises(DigestMismatch, match=r"key index 'shops\.bin' has"):
        open_all(sample_bundle)


def test_directory_without_a_page_is_not_committed(sample_bundle: Path) -> None:
    (sample_bundle / "manifest.json").unlink()
    with pytest.raises(NotCommitted):
        open_all(sample_bundle)


@pytest.mark.parametrize(
    "data", [b"", b"ARROW1", b"ARROW1\0\0" + b"\xff" * 100 + b"ARROW1", b"PK\x03\x04", b"\x80\x04\x95" + bytes(50)]
)
@pytest.mark.parametrize("path", [STORE, VOCABULARY])
def test_file_that_is_no_arrow_is_refused(sample_bundle: Path, path: str, data: bytes) -> None:
    (sample_bundle / path).write_bytes(data)
    with pytest.raises(FormatError, match="Arrow"):
        open_unchecked(sample_bundle)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": pa.array([1, 1, 2, 3])},
        {"id": pa.array([1, None, 2, 3])},
        {"id": pa.array(["a", "b", "c", "d"])},
        {"id": pa.array([1, 2, 3])},
        {},
    ],
)
def test_store_with_other_ids_than_the_page_says_is_refused(sample_bundle: Path, columns: dict[str, Any]) -> None:
    arrow.write(sample_bundle / STORE, pa.table({**columns, "x": pa.array([0] * len(columns.get("id", [0])))}))
    with pytest.raises(FormatError):
        open_unchecked(sample_bundle)
