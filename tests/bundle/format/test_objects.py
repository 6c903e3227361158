"""The file that says which object of a store each file of a bundle is."""

from __future__ import annotations

import pytest

from bundle.errors import FormatError
from bundle.format.objects import ObjectMap, StoredFile, parse

SHA256 = "0123456789abcdef" * 4
MAP = ObjectMap(
    model="movies",
    version=3,
    files={
        "manifest.json": StoredFile(sha256=SHA256, bytes=17),
        "tables/users/rows-00000-of-00001.bin": StoredFile(sha256="f" * 64, bytes=0),
    },
)


def test_object_map_reads_back() -> None:
    assert parse(MAP.dump()) == MAP
    assert parse(MAP.dump()).files["manifest.json"].path == f"objects/{SHA256}"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b'"format_version": 1', b'"format_version": 2', "format_version"),
        (SHA256.encode(), b"../" * 21 + b"x", "sha256"),
        (SHA256.encode(), SHA256.upper().encode(), "sha256"),
        (b'"bytes": 17', b'"bytes": -1', "bytes"),
        (b'"bytes": 17', b'"bytes": "17"', "bytes"),
        (b'"tables/users', b'"../tables/users', "normalized"),
        (b'"manifest.json"', b'"manifest"', "manifest.json"),
        (b'"model"', b'"name"', "model"),
        (b"{", b"[", "no JSON"),
    ],
)
def test_object_map_that_breaks_the_format_is_refused(old: bytes, new: bytes, told: str) -> None:
    assert old in MAP.dump()
    with pytest.raises(FormatError, match=told):
        parse(MAP.dump().replace(old, new, 1))
