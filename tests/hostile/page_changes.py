"""Changes a bundle's page and gives it the digest that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundle.format.checksums import crc32c

Page = dict[str, Any]


def rewrite(bundle: Path, change: Callable[[Page], None]) -> None:
    page = json.loads((bundle / "manifest.json").read_bytes())
    change(page)
    (bundle / "manifest.json").write_bytes(sealed(page))


def sealed(page: Page) -> bytes:
    """Writes a page with a digest that fits it."""
    data = json.dumps(page | {"digest": 0}, indent=2).encode()
    return data.replace(b'"digest": 0', b'"digest": %d' % crc32c(data), 1)


def setting(path: str, value: Any) -> Callable[[Page], None]:
    """Returns the change that sets one field of the page, told as `tables.users.rows`; a list's item by its number.

    A value that is a function is called with what is there.
    """

    def change(page: Page) -> None:
        place: Any = page
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            place = place[part]
        place[last] = value(place[last]) if callable(value) else value

    return change
