"""Hostile bundles, made from a sound one: each is rejected by its typed error, and nothing is
mapped out of bounds.
"""

from __future__ import annotations

import json
import os
import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import BundleError, DigestMismatch, FormatError, NotCommitted, UnsafePath
from bundle.features.reader import open_features
from bundle.format.manifest import parse
from bundle.storage.catalog import read_manifest
from bundle.storage.files import locate
from bundle.storage.integrity import check_files
from bundle.stores.attribute_index import AttributeIndex, Bounds
from bundle.stores.reader import CandidateStore
from tests.hostile.manifest_edits import rewrite, sealed, setting

SEGMENT = "tables/users/rows-00001-of-00003.bin"
STORE = "corpora/movies/store.arrow"
TITLES, YEARS = (f"corpora/movies/filters/0000{number}/values.arrow" for number in (0, 1))
TITLE_ROWS = "corpora/movies/filters/00000/rows.bin"
VOCABULARY = "vocabularies/names.arrow"
KEYS = "keys/shops.bin"
TOWER = "towers/query/compiled-f32.tflite"
WHOLE = [STORE, TITLES, TITLE_ROWS, VOCABULARY, KEYS, TOWER]
"""Files that are read in full; a segment's may go by its size."""


def open_all(bundle: Path, tables: Any = "sizes") -> None:
    """Opens a bundle as a service does: manifest, sizes, checksums, maps, stores."""
    check_files(bundle, read_manifest(bundle), tables)
    open_unchecked(bundle)


def open_unchecked(bundle: Path) -> None:
    """Opens a bundle whose checksums its maker made fit."""
    manifest = read_manifest(bundle)
    open_features(bundle, manifest)
    for corpus in manifest.corpora.values():
        CandidateStore(locate(bundle, corpus.file), corpus)
        for attribute, index in corpus.filters.items():
            AttributeIndex(bundle, index, corpus.attributes[attribute], corpus.size)


def test_intact_bundle_opens(sample_bundle: Path) -> None:
    open_all(sample_bundle, "full")


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        *product(
            [SEGMENT, STORE, TITLES, TITLE_ROWS, VOCABULARY, KEYS, TOWER],
            ["missing", "empty", "truncated", "directory", "fifo"],
        ),
        *product([STORE, TITLES, TITLE_ROWS, VOCABULARY, KEYS, TOWER], ["longer"]),
    ],
)
def test_changed_file_is_data_loss_with_its_name(
    sample_bundle: Path, path: str, damage: str
) -> None:
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


def test_any_flipped_bit_is_found(sample_bundle: Path) -> None:
    files = sorted(path for path in sample_bundle.rglob("*") if path.is_file())
    for seed in range(60):
        rng = random.Random(seed)
        victim = rng.choice(files)
        sound = victim.read_bytes()
        data = bytearray(sound)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
        name = victim.relative_to(sample_bundle).as_posix()
        with pytest.raises(
            BundleError, match="manifest|format_version" if name == "manifest.json" else name
        ):
            open_all(sample_bundle, "full")
        victim.write_bytes(sound)


def test_damaged_arrow_file_whose_checksum_fits_never_leaves_the_map(sample_bundle: Path) -> None:
    corpus = read_manifest(sample_bundle).corpora["movies"]
    for seed in range(150):
        rng = random.Random(seed)
        victim = sample_bundle / rng.choice(
            [STORE, TITLES, YEARS, TITLE_ROWS, VOCABULARY, "vocabularies/movies.arrow"]
        )
        sound = victim.read_bytes()
        data = bytearray(sound)
        for _ in range(rng.choice([1, 1, 3, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        # An offset or a size: the smallest, the largest, or -1.
        if rng.random() < 0.5:
            position = 8 * rng.randrange(len(data) // 8)
            data[position : position + 8] = rng.choice([bytes(8), b"\x7f" * 8, b"\xff" * 8])
        victim.unlink()  # what an earlier trial mapped stays as it was
        victim.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        try:
            open_unchecked(sample_bundle)
        except BundleError:
            pass
        else:  # damage that opening does not notice must read as data
            store = CandidateStore(sample_bundle / STORE, corpus)
            store.features(store.positions(store.ids(np.arange(store.size))), list(corpus.features))
            titles = AttributeIndex(sample_bundle, corpus.filters["title"], "string", corpus.size)
            store.ids(titles.rows_of(np.array(["Ten", "Eight"], object)).astype(np.int64))
            years = AttributeIndex(sample_bundle, corpus.filters["year"], "int64", corpus.size)
            store.ids(years.rows_between(Bounds(ge=1960)).astype(np.int64))
        victim.unlink()
        victim.write_bytes(sound)


@pytest.mark.parametrize("link", ["/etc/passwd", "../../../../outside", "loop"])
@pytest.mark.parametrize("path", [SEGMENT, *WHOLE])
def test_link_that_leaves_the_bundle_is_rejected(sample_bundle: Path, path: str, link: str) -> None:
    outside = sample_bundle.parents[1] / "outside"
    outside.write_bytes((sample_bundle / path).read_bytes())
    (sample_bundle / path).unlink()
    targets = {"loop": (sample_bundle / path).name, "/etc/passwd": "/etc/passwd"}
    (sample_bundle / path).symlink_to(
        targets.get(link, os.path.relpath(outside, (sample_bundle / path).parent))
    )
    with pytest.raises(UnsafePath, match=path):
        open_all(sample_bundle)


@pytest.mark.parametrize("path", ["tables", "manifest.json"])
def test_linked_directory_or_manifest_that_leaves_the_bundle_is_rejected(
    sample_bundle: Path, path: str
) -> None:
    elsewhere = sample_bundle.parents[1] / "elsewhere"
    (sample_bundle / path).rename(elsewhere)
    (sample_bundle / path).symlink_to(elsewhere)
    with pytest.raises(UnsafePath):
        open_all(sample_bundle)


def test_links_inside_the_bundle_and_to_the_bundle_are_fine(
    sample_bundle: Path, tmp_path: Path
) -> None:
    (sample_bundle / SEGMENT).rename(sample_bundle / "rows")
    (sample_bundle / SEGMENT).symlink_to(sample_bundle / "rows")
    (tmp_path / "alias").symlink_to(sample_bundle)
    open_all(tmp_path / "alias", "full")


NUMBERS = [1 << 62, 1 << 64, 10**30, 1e30, 1e308, -1, 1.5, True, "9", None, [], float("nan")]
COUNTS = (
    *(
        "tables.users.rows",
        "tables.users.dim",
        "tables.users.segments.0.rows",
        "corpora.movies.size",
    ),
    *(
        "vocabularies.names.size",
        "keys.shops.size",
        "features.genres.ids.buckets",
        "features.recent.length",
    ),
    *("features.grid.shape.0", "version"),
)
PLACES = ("tables.users.segments.0.offset", "tables.users.segments.0.first_row", "files.0.bytes")
PATHS = ("/etc/passwd", "../1/x", "a/../../x", "a\\..\\b", "", ".", "a//b", "a\0b", "./a")
FILES = (
    *("tables.users.segments.0.file", "corpora.movies.file", "files.0.path"),
    *(f"corpora.movies.filters.title.{file}" for file in ("values", "rows")),
)


@pytest.mark.parametrize("field", [*COUNTS, *PLACES, *FILES])
def test_impossible_count_offset_or_path_is_rejected(committed_bundle: Path, field: str) -> None:
    sound = (committed_bundle / "manifest.json").read_bytes()
    values: list[Any] = [*PATHS] if field in FILES else [*NUMBERS]
    if field in COUNTS:
        values.append(0)
    for value in values:
        manifest = json.loads(sound)
        setting(field, value)(manifest)
        with pytest.raises(
            FormatError, match="inside the bundle" if field in FILES else "manifest"
        ):
            parse(sealed(manifest))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        *(
            ({"tables.users.segments.0.offset": at}, "rows-00000-of-00003")
            for at in (1, 4096, 1 << 40, (1 << 62) - 1)
        ),
        ({"tables.users.rows": 1050, "tables.users.segments.2.rows": 1029}, "rows-00002-of-00003"),
        ({"tables.users.dim": 5}, "rows-0000"),
        *(
            ({"keys.shops.size": size}, r"key index 'shops\.bin' has")
            for size in (3, 5, 1 << 40, (1 << 62) - 1)
        ),
    ],
)
def test_rows_or_keys_beyond_their_file_are_rejected_before_they_are_mapped(
    sample_bundle: Path, edits: dict[str, int], message: str
) -> None:
    for field, value in edits.items():
        rewrite(sample_bundle, setting(field, value))
    with pytest.raises(DigestMismatch, match=message):
        open_unchecked(sample_bundle)
    with pytest.raises(DigestMismatch):
        open_all(sample_bundle)


def test_directory_without_a_manifest_is_not_committed(sample_bundle: Path) -> None:
    (sample_bundle / "manifest.json").unlink()
    with pytest.raises(NotCommitted):
        open_all(sample_bundle)
