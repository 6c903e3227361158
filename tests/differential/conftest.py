from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.differential.served_rankers import RankerService


@pytest.fixture(scope="session")
def ranker_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankerService]:
    """Serves what tests publish, each under a name of its own; none of it needs TensorFlow."""
    # Not all tests in this folder need the exporter.
    from tests.differential.served_rankers import RankerService

    root = tmp_path_factory.mktemp("served") / "bundles"
    root.mkdir()
    with closing(RankerService(root)) as service:
        yield service
