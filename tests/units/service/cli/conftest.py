"""Two versions of one model in an object store that counts what it sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from object_store.remote_path import RemotePath
from tests.bundles.large_files import write_large_bundle
from tests.units.object_store.memory_stores import uploaded


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with versions 1 and 2 of model `m`."""
    published = tmp_path_factory.mktemp("published")
    for version in (1, 2):
        write_large_bundle(published, version)
    return published


@pytest.fixture
def store(published: Path, tmp_path: Path) -> RemotePath:
    """The same in a store, with an unfinished version 3."""
    store = uploaded(published, RemotePath(f"counted://{tmp_path.name}/bundles"))
    (store / "m/3/tables/t/rows-00000-of-00001.bin").write(b"unfinished")
    return store
