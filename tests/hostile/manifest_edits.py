"""Edits a bundle's manifest and gives it the digest that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundle.format.checksums import crc32c

Json = dict[str, Any]


def rewrite(bundle: Path, edit: Callable[[Json], None]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    edit(manifest)
    (bundle / "manifest.json").write_bytes(sealed(manifest))


def reseal(bundle: Path) -> None:
    """Writes the right digests into the manifest, so that only the contents show what is wrong."""

    def edit(manifest: Json) -> None:
        for file in manifest["files"]:
            data = (bundle / file["path"]).read_bytes()
            file |= {"bytes": len(data), "crc32c": crc32c(data)}

    rewrite(bundle, edit)


def sealed(manifest: Json) -> bytes:
    """Returns a manifest's bytes with the digest that fits them."""
    data = json.dumps(manifest | {"digest": 0}, indent=2).encode()
    return data.replace(b'"digest": 0', b'"digest": %d' % crc32c(data), 1)


def setting(path: str, value: Any) -> Callable[[Json], None]:
    """Returns the edit that sets one field, named as `tables.users.rows`; a list's item by its
    number.

    A value that is a function is called with what is there.
    """

    def edit(manifest: Json) -> None:
        place: Any = manifest
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            place = place[part]
        place[last] = value(place[last]) if callable(value) else value

    return edit
