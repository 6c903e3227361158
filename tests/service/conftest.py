"""Towers compiled once and kept in pytest's cache; bundles written from them for each test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service import small_model
from tests.service.small_bundle import SmallBundle, compiled_towers, write_small_bundle


@pytest.fixture(scope="session")
def towers(request: pytest.FixtureRequest) -> Path:
    """Compiled towers of every edition; made again when the model's file changes."""
    script = Path(small_model.__file__).read_bytes()
    cache = request.config.cache
    assert cache is not None, "the towers are kept in pytest's cache: run without -p no:cacheprovider"
    return compiled_towers(cache.mkdir("small_towers_" + hashlib.sha256(script).hexdigest()[:16]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory of bundles."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    return bundles


@pytest.fixture
def write(root: Path, towers: Path) -> Callable[..., SmallBundle]:
    """`write_small_bundle` into `root`."""

    def written(model: str = "movies", version: int = 1, **options: object) -> SmallBundle:
        return write_small_bundle(root, towers, model, version, **options)  # type: ignore[arg-type]

    return written
