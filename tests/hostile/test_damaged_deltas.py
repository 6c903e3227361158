"""Versions whose deltas are damaged, missing or those of another segment: every program that takes
one refuses it with both files named, and nothing of it is served or published.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bundle.errors import BundleError, DigestMismatch, FormatError
from bundle.format.manifest import EmbeddedFeature
from bundle.storage import catalog
from bundle.storage.integrity import check_files
from bundle.tables.row_deltas import RANGE_ROWS
from service.cli.serve import command
from service.config import ServiceSettings
from service.versions.loader import Loader
from tests.bundles.next_versions import write_next_version
from tests.bundles.tables import write_floats
from tests.bundles.writer import BundleWriter
from tests.hostile.manifest_edits import rewrite, setting

ROWS = RANGE_ROWS + 9_000
DIM = 6
BASE = "tables/t/rows-00000-of-00002.bin"
DELTA = f"{BASE}.delta-2"
RECORD_HEAD = 64
"""The first record begins here, with the JSON of the segment; `DELTA` is its second delta."""


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 3 of a model: two segments, each of which has two deltas."""
    root = tmp_path_factory.mktemp("intact")
    rows = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
    with BundleWriter(root, "m", 1) as writer:
        cuts = [ROWS - 5_000]
        writer.tables["t"] = write_floats(writer.directory, "t", rows, "float32", cuts)
        bundle, _ = writer.commit({"t": EmbeddedFeature(kind="single", table="t", role="context")})
    for seed in (1, 2):
        bundle = write_next_version(bundle, 0.02, seed)
    return bundle


@pytest.fixture
def bundle(intact: Path, tmp_path: Path) -> Path:
    """A copy, which a test may damage."""
    return Path(shutil.copytree(intact, tmp_path / "published/m/3"))


def serve(bundle: Path, **settings: Any) -> None:
    """Loads a version as a service does."""
    chosen = ServiceSettings(root=bundle.parents[1], **settings)
    loader = Loader(chosen, 1, lambda version, throttle: None)
    loader.load("m", 3).close()


def serve_shard(bundle: Path, **settings: Any) -> None:
    serve(bundle, shard="1/2", shard_min_bytes=1, **settings)


def scrub(bundle: Path) -> None:
    check_files(bundle, catalog.read_manifest(bundle), "full")


def pull(bundle: Path) -> None:
    """Pulls a version from a directory; raises what it prints."""
    root = bundle.parents[2] / "pulled"
    arguments = ["pull", str(bundle.parents[1]), str(root)]
    done = CliRunner().invoke(command(), arguments)
    if done.exit_code:
        assert done.exit_code in {3, 5}, done.stderr
        assert not (root / "m/3").exists()
        raise DigestMismatch(done.stderr)


Take = Callable[..., None]
TAKES: list[Take] = [serve, serve_shard, scrub, pull]


@pytest.mark.parametrize("take", TAKES)
def test_intact_deltas_are_taken(bundle: Path, take: Take) -> None:
    take(bundle)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut short", "longer", "a pipe"])
@pytest.mark.parametrize("take", TAKES)
def test_delta_that_is_not_whole_is_refused(bundle: Path, take: Take, damage: str) -> None:
    path = bundle / DELTA
    content = path.read_bytes()
    path.unlink()
    if damage == "a pipe":
        os.mkfifo(path)
        if take is pull:
            pytest.skip("opening it would wait: a store has no pipes")
    elif damage != "missing":
        contents = {"empty": b"", "cut short": content[:-1], "longer": content + b"\0"}
        path.write_bytes(contents[damage])
    if take is pull and damage == "longer":
        # Of a longer object, the bytes of the file are read.
        pull(bundle)
        return
    with pytest.raises(DigestMismatch) as caught:
        take(bundle)
    assert DELTA in str(caught.value)


def test_any_flipped_bit_of_a_delta_is_found(bundle: Path) -> None:
    path = bundle / DELTA
    content = path.read_bytes()
    random = np.random.default_rng(2)
    # Of the frames and the JSON many bytes, of rows and their numbers some.
    within = random.integers(0, len(content), 15).tolist()
    outside = [*range(0, RECORD_HEAD, 5), RECORD_HEAD + 6, len(content) - 1]
    for position in (*outside, *within):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(random.integers(8))
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(DigestMismatch, match=DELTA):
            serve(bundle, verify="full")
        with pytest.raises(DigestMismatch, match=DELTA):
            pull(bundle)
        # Damaged rows are found by the scrub, as those of a segment are: they are wrong numbers.
        # Whatever else is damaged ends the load.
        ends: AbstractContextManager[Any] = suppress(DigestMismatch)
        if position in outside:
            ends = pytest.raises(DigestMismatch, match=DELTA)
        with ends:
            serve(bundle)


def other_base(bundle: Path) -> None:
    """The segment is that of another version, as its own checksums say."""
    rewrite(bundle, setting("tables.t.segments.0.crc32c", lambda crc: crc ^ 1))


def other_chain(bundle: Path) -> None:
    """The first delta is missing in the manifest."""
    rewrite(bundle, setting("tables.t.segments.0.deltas", lambda deltas: deltas[1:]))


def reordered(bundle: Path) -> None:
    rewrite(bundle, setting("tables.t.segments.0.deltas", lambda deltas: deltas[::-1]))


def other_width(bundle: Path) -> None:
    """Rows of half as many bytes: the file of the segment is long enough."""
    rewrite(bundle, setting("tables.t.dtype", "float16"))
    shorten(bundle)


def other_dim(bundle: Path) -> None:
    rewrite(bundle, setting("tables.t.dim", DIM // 2))
    shorten(bundle)


def shorten(bundle: Path) -> None:
    """Gives the segments the checksums of the first half of their blocks."""

    def edit(manifest: dict[str, Any]) -> None:
        for segment in manifest["tables"]["t"]["segments"]:
            segment["blocks"] = segment["blocks"][:1]

    rewrite(bundle, edit)


@pytest.mark.parametrize(
    "change", [other_base, other_chain, reordered, other_width, other_dim], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("take", [serve, serve_shard])
def test_delta_of_other_rows_is_refused_with_both_files_named(
    bundle: Path, take: Take, change: Callable[[Path], None]
) -> None:
    change(bundle)
    with pytest.raises(DigestMismatch) as caught:
        take(bundle)
    assert f"{BASE}.delta-" in str(caught.value)
    assert f"segment {BASE!r}" in str(caught.value)


def test_chain_of_more_deltas_than_a_reader_takes_is_refused(bundle: Path) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        segment = manifest["tables"]["t"]["segments"][0]
        (*_, delta) = segment["deltas"]
        more = [delta | {"file": f"{BASE}.delta-{number}"} for number in range(3, 12)]
        segment["deltas"] += more

    rewrite(bundle, edit)
    for take in TAKES:
        with pytest.raises(BundleError, match=r"segments\.0\.deltas.*10"):
            take(bundle)


@pytest.mark.parametrize(
    "file", ["tables/t/other.bin.delta-2", f"{BASE}.delta-1", BASE, "manifest.json"]
)
def test_delta_under_the_name_of_another_file_is_refused(bundle: Path, file: str) -> None:
    rewrite(bundle, setting("tables.t.segments.0.deltas.1.file", file))
    with pytest.raises(FormatError, match=r"delta|overlap"):
        serve(bundle)


def test_numbers_of_another_range_or_order_are_refused_without_a_checksum(bundle: Path) -> None:
    path = bundle / DELTA
    content = path.read_bytes()
    begin = content.index(struct.pack("<IHH", DIM * 4, 2, 0))
    first = begin + 8
    count = begin + 16
    for position, number in ((first, -1), (first, RANGE_ROWS - 1), (count, 0), (count, -1)):
        damaged = bytearray(content)
        struct.pack_into("<q", damaged, position, number)
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(DigestMismatch, match=DELTA):
            serve(bundle)


def test_the_facts_of_a_delta_are_json_that_any_program_reads(bundle: Path) -> None:
    content = (bundle / DELTA).read_bytes()
    facts = json.loads(content[RECORD_HEAD : content.index(b"}") + 1])
    segment = catalog.read_manifest(bundle).tables["t"].segments[0]
    assert facts == {
        "format": 1,
        "row_bytes": DIM * 4,
        "rows": segment.rows,
        "base": segment.deltas[0].result,
    }
