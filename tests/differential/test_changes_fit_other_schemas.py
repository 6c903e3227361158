"""A random history of changes is served alike by versions with other attributes, features and kinds
of ids, whatever happened to the file: what a version has a place for, in the order of the changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.versions.version import ModelVersion
from tests.bundles.small import write_small_bundle
from tests.differential.schema_histories import Histories
from tests.random_cases import seeds
from tests.units.service.running import RunningService

HISTORIES = 40
LENGTH = 25


@pytest.fixture
def plain(root: Path, small_towers: Path) -> Iterator[ModelVersion]:
    """A version without indexes."""
    write_small_bundle(root, small_towers, without=frozenset({"indexes"}))
    service = RunningService(root)
    yield service.current()
    service.close()


@pytest.mark.slow
def test_versions_serve_what_they_have_a_place_for_and_count_the_rest(
    plain: ModelVersion,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    for seed in seeds(request, HISTORIES, 1):
        directory = tmp_path / str(seed)
        directory.mkdir()
        histories = Histories(directory, plain, seed)
        with monkeypatch.context() as patch:
            patch.setattr("bundle.changes.file._PAGE_STATES", histories.pick(range(1, 6)))
            for _ in range(LENGTH):
                histories.step()
        histories.check()
        histories.close()
