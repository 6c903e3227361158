"""Versions with lists of candidates: which files make them fail, and which bundles have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.errors import DigestMismatch
from bundle.format import manifest as entries
from bundle.format.paths import MANIFEST
from tests.bundles.small import LISTS, SmallBundle
from tests.units.service.engine.served import load_version

Write = Callable[..., SmallBundle]


def test_list_has_the_candidates_of_each_segment(root: Path, write: Write) -> None:
    small = write(lists=True)
    version = load_version(root, "movies", 1)
    popular = version.lists["popular"]
    store = version.corpora["movies"].store
    for segment in ("", "oslo", "7"):
        assert popular.positions(store, segment).tolist() == list(LISTS["popular"][segment])
    assert popular.positions(store, "lima").tolist() == list(LISTS["popular"][""])
    assert small.manifest.lists["popular"].by == "city"
    version.close()


def test_version_with_a_damaged_or_missing_list_is_not_loaded(root: Path, write: Write) -> None:
    small = write(lists=True)
    path = small.directory / small.manifest.lists["popular"].file
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(DigestMismatch, match="popular"):
        load_version(root, "movies", 1)
    path.unlink()
    with pytest.raises(DigestMismatch, match="popular"):
        load_version(root, "movies", 1)


def test_manifest_without_lists_is_written_as_readers_that_know_none_take_it(write: Write) -> None:
    small = write()
    content = (small.directory / MANIFEST).read_bytes()
    assert b'"lists"' not in content
    assert entries.parse(content).lists == {}
