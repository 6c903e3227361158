"""A service that tests of several examples use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.repository.examples.showing import ExamplesService, Serve


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Trains and exports an example, and calls a service that has the bundles of all examples."""
    root = tmp_path_factory.mktemp("examples") / "bundles"
    root.mkdir()
    service = ExamplesService(root)
    yield service.serve
    service.close()
