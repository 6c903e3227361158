from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bundle.errors import FormatError, NotCommitted
from bundle.storage.catalog import committed_versions, next_version, read_manifest


def test_next_version_counts_directories_and_committed_versions_need_a_manifest(
    sample_bundle: Path,
) -> None:
    root = sample_bundle.parents[1]
    assert (next_version(root, "movies"), committed_versions(root, "movies")) == (2, [1])
    for name in ("12", "007", "-3", "x", "0"):
        (sample_bundle.parent / name).mkdir()
    assert (next_version(root, "movies"), committed_versions(root, "movies")) == (13, [1])
    assert (next_version(root, "new"), committed_versions(root, "new")) == (1, [])


def test_committed_versions_are_in_the_order_of_their_numbers(sample_bundle: Path) -> None:
    for version in ("10", "2"):
        shutil.copytree(sample_bundle, sample_bundle.with_name(version))
    assert committed_versions(sample_bundle.parents[1], "movies") == [1, 2, 10]


def test_read_manifest_of_an_uncommitted_version_is_rejected(sample_bundle: Path) -> None:
    manifest = sample_bundle / "manifest.json"
    manifest.write_text("{}")
    with pytest.raises(FormatError):
        read_manifest(sample_bundle)
    manifest.unlink()
    with pytest.raises(NotCommitted, match=r"has no manifest\.json"):
        read_manifest(sample_bundle)
