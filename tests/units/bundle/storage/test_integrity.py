from __future__ import annotations

from pathlib import Path

import pytest

from bundle.errors import DigestMismatch
from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_files, check_sizes

SEGMENT = "tables/users/rows-00000-of-00003.bin"
STORE = "corpora/movies/store.arrow"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_check_files_of_an_intact_bundle_pauses_after_each_file(sample_bundle: Path) -> None:
    manifest = read_manifest(sample_bundle)
    pauses: list[None] = []
    check_files(sample_bundle, manifest, "full", lambda: pauses.append(None))
    assert len(pauses) >= 2 * len(manifest.files)


def test_check_files_reads_a_segment_only_in_full(sample_bundle: Path) -> None:
    manifest = read_manifest(sample_bundle)
    flip(sample_bundle / SEGMENT)
    check_files(sample_bundle, manifest, "sizes")
    with pytest.raises(DigestMismatch, match=f"{SEGMENT}' differs from its checksum"):
        check_files(sample_bundle, manifest, "full")


def test_check_files_with_a_flipped_bit_in_a_store_names_the_store(sample_bundle: Path) -> None:
    manifest = read_manifest(sample_bundle)
    flip(sample_bundle / STORE)
    check_sizes(sample_bundle, manifest)
    with pytest.raises(DigestMismatch, match=f"{STORE}' differs from its checksum"):
        check_files(sample_bundle, manifest)


@pytest.mark.parametrize("path", [SEGMENT, STORE])
def test_check_sizes_with_a_file_cut_short_states_both_sizes(
    sample_bundle: Path, path: str
) -> None:
    manifest = read_manifest(sample_bundle)
    data = (sample_bundle / path).read_bytes()
    (sample_bundle / path).write_bytes(data[:-1])
    with pytest.raises(DigestMismatch, match=f"has {len(data) - 1} bytes, .*{len(data)} expected"):
        check_sizes(sample_bundle, manifest)
