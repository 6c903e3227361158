"""Services in processes of their own, over bundles that the tests write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.bundles.sparse_tables import add_sparse_table
from tests.e2e.process import Process
from tests.e2e.services import Launch, launching, wait_for

VAST_BYTES = 64 << 30
"""The size of a table that is larger than the memory."""


class Standing(NamedTuple):
    """A service of two workers that no test ends or changes.

    Attributes:
      small: The bundle of the model `movies`, in parts, with stored contexts.
      vast_rows: The number of rows of the table of the model `vast`.
    """

    service: Process
    small: SmallBundle
    vast_rows: int


@pytest.fixture(scope="session")
def standing(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    root = tmp_path_factory.mktemp("standing") / "bundles"
    small = write_small_bundle(root, small_towers, parts=True, users=True)
    vast = write_small_bundle(root, small_towers, "vast")
    vast_rows = add_sparse_table(vast.directory, VAST_BYTES)
    with launching(root) as launch:
        service = launch("--workers", "2", "--scrub-bytes-per-s", "0")
        wait_for(service, "2")
        yield Standing(service, small, vast_rows)


@pytest.fixture
def launch(root: Path) -> Iterator[Launch]:
    """Starts `rowcast-serve` over `root`; kills it after the test."""
    with launching(root) as launch:
        yield launch
