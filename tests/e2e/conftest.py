"""Services in processes of their own, over bundles that the tests write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.services import Launch, launching


@pytest.fixture
def launch(root: Path) -> Iterator[Launch]:
    """Starts `rowcast-serve` over `root`; kills it after the test."""
    with launching(root) as launch:
        yield launch
