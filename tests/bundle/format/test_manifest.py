from __future__ import annotations

from pathlib import Path

import pytest

from bundle.errors import FormatError
from bundle.format.manifest import MANIFEST_BYTES_MAX, dump, parse
from bundle.storage.catalog import read_manifest


def test_manifest_written_twice_has_the_same_bytes(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    data = (committed_bundle / "manifest.json").read_bytes()
    assert dump(manifest) == dump(parse(data)) == data
    assert data.startswith(b'{\n  "format_version": 2,\n  "digest": ')


@pytest.mark.parametrize(
    ("unread", "message"),
    [
        (("length", "length"), "unread_inputs lists an input twice"),
        (("user",), "unread_inputs lists 'user', which feature 'user' reads"),
    ],
)
def test_manifest_with_a_wrong_list_of_unread_inputs_is_rejected(
    unread: tuple[str, ...], message: str, committed_bundle: Path
) -> None:
    manifest = read_manifest(committed_bundle)
    wrong = manifest.model_copy(update={"unread_inputs": unread})
    with pytest.raises(FormatError, match=message):
        parse(dump(wrong))


def test_manifest_larger_than_the_limit_of_readers_is_not_written(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    large = manifest.model_copy(update={"created": "x" * MANIFEST_BYTES_MAX})
    with pytest.raises(FormatError, match=f"readers take {MANIFEST_BYTES_MAX}"):
        dump(large)
