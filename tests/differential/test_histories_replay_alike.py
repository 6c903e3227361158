"""A random history of changes leaves one state: in the process that makes the changes, in one that
follows it at any moments, and in one that starts from the log. Positions are equal, too, so that
equal scores have one order and codes one division.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from bundle.changes.log_lock import Writer
from service.changes.changed_version import ChangedVersion
from service.changes.model_changes import ModelChanges
from service.codec.changes import read_change
from service.config import ServiceSettings
from service.contract.changes import CHANGES
from service.errors import ServiceError
from service.versions.version import ModelVersion
from tests.differential.random_changes import RandomChanges
from tests.random_cases import seeds
from tests.units.service.changes import keyed
from tests.units.service.changes.making import random_vectors
from tests.units.service.running import RunningService

HISTORIES = 40
LENGTH = 24
COMPACTED_MIN = 12
UNIT = 4
QUERIES = random_vectors(4)
TREE = {"num_leaves": 4, "leaves_to_search": 2, "dimensions_per_block": 4, "reorder": 10}


@pytest.fixture(scope="module")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service that has loaded two versions."""
    root = tmp_path_factory.mktemp("histories")
    bundles = keyed.KeyedBundles(root, small_towers)
    bundles.write(1, users=True, index_kind="tree_ah", parameters=TREE)
    bundles.write(2, users=True, index_kind="tree_ah", parameters=TREE)
    service = RunningService(root, latest_versions=2)
    yield service
    service.close()


def state_of(version: ChangedVersion) -> dict[str, Any]:
    """Returns all that requests can read, to the bit."""
    served = version.publish()
    counts = {name: count for name, count in version.counts.items() if count}
    state: dict[str, Any] = {"changed": counts, "dropped": dict(version.dropped)}
    for name, corpus in {**served.corpora, **served.contexts}.items():
        unavailable = corpus.unavailable
        positions = np.delete(np.arange(corpus.store.size), unavailable)
        columns = corpus.store.arrays(positions, [*corpus.store.types])
        state[f"store {name}"] = [
            positions.tolist(),
            {column: values.to_pylist() for column, values in columns.items()},
        ]
    for name, index in served.indexes.items():
        if index.added is not None:
            live = index.added.live
            vectors = np.ascontiguousarray(index.added.vectors)[live]
            state[f"index {name}"] = [live.tolist(), vectors.view(np.uint32).tolist()]
            codes = index.added.codes
            if codes is not None and live.size:
                nearest = codes.pack(live).nearest(QUERIES, 2 * LENGTH)
                state[f"nearest {name}"] = [positions.tolist() for positions in nearest]
    for name, changed in version.tables.rows.items():
        if changed.count:
            positions, stored = changed.find(changed.rows)
            rows = np.empty((positions.size, changed.dim), np.float32)
            changed.write(stored, positions, rows)
            state[f"table {name}"] = [changed.rows.tolist(), rows.view(np.uint32).tolist()]
    return state


@pytest.mark.slow
def test_any_history_leaves_one_state_in_all_processes(
    service: RunningService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr("service.changes.store_changes._COMPACTED_MIN", COMPACTED_MIN)
    monkeypatch.setattr("service.changes.growing_vectors.CODED_BYTES_MIN", 0)
    monkeypatch.setattr("runtime.code_blocks.UNIT", UNIT)
    monkeypatch.setattr("runtime.code_blocks._SAMPLE_MIN", UNIT // 2)
    manager = service.worker.versions
    versions: list[ModelVersion] = []
    for number in (1, 2):
        with manager.acquire("movies", number) as version:
            versions.append(version)

    def follow(path: Path) -> ModelChanges:
        """Returns the changes of the versions as a process has them that starts now."""
        changes = ModelChanges("movies", path, service.settings, manager, Writer(0))
        for version in versions:
            changes.log.attach(version, lambda _: None)
        return changes

    accepted_count = 0
    for seed in seeds(request, HISTORIES, 5):
        path = tmp_path / str(seed) / "changes.log"
        random = np.random.default_rng(seed)
        drawn = RandomChanges(seed)
        writer = follow(path)
        follower = follow(path)
        assert writer.log.may_write(time.monotonic() + 60)
        for _ in range(LENGTH):
            accepted_count += _change(writer, drawn, int(random.integers(1, 3)), service.settings)
            if random.random() < 0.3:
                follower.log.follow()
        follower.log.follow()
        starting = follow(path)
        expected = [state_of(version) for version in writer.log.versions]
        for process in (follower, starting):
            for changed, wanted in zip(process.log.versions, expected, strict=True):
                state = state_of(changed)
                assert state.keys() == wanted.keys(), seed
                for name, part in state.items():
                    assert part == wanted[name], (seed, name)
        writer.log.close()
    assert accepted_count > HISTORIES * LENGTH / 2


def _change(
    changes: ModelChanges, drawn: RandomChanges, version: int, settings: ServiceSettings
) -> bool:
    """Makes a change; returns whether it was accepted."""
    path, body = drawn.draw()
    change = next(known for known in CHANGES.values() if f"{known.kind}/{known.action}" == path)
    try:
        change_request = read_change(change, orjson.loads(orjson.dumps(body)), settings)
        changes.submissions.submit(change_request, version, time.monotonic() + 60)
    except ServiceError:
        return False
    return True
