"""The file that says which objects of a store each file of a bundle consists of."""

from __future__ import annotations

import pytest

from bundle.errors import FormatError
from bundle.format.objects import (
    OBJECT_BYTES,
    ObjectMap,
    StoredBlock,
    StoredFile,
    parse,
    pool_path,
)

SHA256 = "0123456789abcdef" * 4
OTHER = "f" * 64
SEGMENT = "tables/users/rows-00000-of-00001.bin"
MAP = ObjectMap(
    model="movies",
    version=3,
    files={
        "manifest.json": StoredFile(bytes=17, objects=(SHA256,)),
        SEGMENT: StoredFile(bytes=OBJECT_BYTES + 1, objects=(OTHER, SHA256)),
        "empty": StoredFile(bytes=0, objects=()),
    },
)


def test_object_map_reads_back() -> None:
    read = parse(MAP.dump())
    assert read == MAP
    assert read.files[SEGMENT].blocks == (
        StoredBlock(OTHER, 0, OBJECT_BYTES),
        StoredBlock(SHA256, OBJECT_BYTES, 1),
    )
    assert read.files["empty"].blocks == ()
    assert pool_path(SHA256) == f".objects/01/{SHA256}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"format_version":1', b'"format_version":2', "format_version 2 .* knows 1"),
        (b'"format_version":1', b'"format_vers":1', "format_version None .* knows 1"),
        (SHA256.encode(), b"../" * 21 + b"x", "objects"),
        (SHA256.encode(), SHA256.upper().encode(), "objects"),
        (b'"bytes":17', b'"bytes":-1', "bytes"),
        (b'"bytes":17', b'"bytes":"17"', "bytes"),
        (b'"bytes":17', b'"bytes":0', "not 1"),
        (b'"bytes":4194305', b'"bytes":4194304', "not 2"),
        (b'"tables/users', b'"../tables/users', "normalized"),
        (b'"manifest.json"', b'"manifest"', "manifest.json"),
        (b'"model"', b'"name"', "model"),
        (b"{", b"[", "no JSON"),
    ],
)
def test_object_map_that_breaks_the_format_is_rejected(
    old: bytes, new: bytes, message: str
) -> None:
    assert old in MAP.dump()
    with pytest.raises(FormatError, match=message):
        parse(MAP.dump().replace(old, new, 1))
