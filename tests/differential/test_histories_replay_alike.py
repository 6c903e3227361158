"""A random history of changes leaves one state, in the order of the changes: in the processes that
make them, in one that follows at any moments, in one that copies, and in one that starts at the
end; for versions with other schemas, and whatever changes their bundles are said to contain.
Numbered changes leave what they leave in the order of their numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from bundle.format.changes_position import ChangesPosition
from bundle.format.manifest import Distance
from service.changes.changed_version import ChangedVersion
from service.changes.model_changes import ModelChanges
from service.codec.changes import read_change
from service.config import ServiceSettings
from service.contract.changes import CHANGES
from service.errors import ServiceError
from service.versions.version import ModelVersion
from tests.bundles.small import write_small_bundle
from tests.differential.random_changes import KEYS, NEW, STORED, Change, RandomChanges
from tests.e2e.process import WAIT_S
from tests.random_cases import seeds
from tests.units.service.changes import keyed
from tests.units.service.changes.making import random_vectors
from tests.units.service.running import RunningService

HISTORIES = 8
LENGTH = 24
COMPACTED_MIN = 12
LIMITS = ServiceSettings(root=Path.cwd())
VERSIONS = (1, 2, 3)
"""The versions that changes are sent to."""
DISTANCES: dict[int, dict[str, Distance]] = {
    1: {"movies": "cosine", "opposite": "squared_l2"},
    2: {"movies": "dot_product", "opposite": "cosine"},
    3: {"movies": "squared_l2", "opposite": "dot_product"},
}
"""The distances of the indexes of each version."""
ATTRIBUTES = ("title", "year", "genres", "rating", "classic")
TREE = {"num_leaves": 4, "leaves_to_search": 2, "dimensions_per_block": 4, "reorder": 10}


@pytest.fixture(scope="module")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service that has loaded four versions: the second one rejects unknown keys, the third one
    lacks attributes, and the ids of the fourth one are strings.
    """
    root = tmp_path_factory.mktemp("histories")
    bundles = keyed.KeyedBundles(root, small_towers)
    tree = {"users": True, "index_kind": "tree_ah", "parameters": TREE}
    bundles.write(1, **tree, more_indexes=("opposite",), distances=DISTANCES[1])
    # The tree of the bundle embeds no candidate anew: its keys are all known.
    keys = {**keyed.KEYS, "movies": np.append(keyed.KEYS["movies"], keyed.MISSING)}
    tables = {"movies": random_vectors(keys["movies"].size, seed=2)}
    bundles.write(
        2,
        **tree,
        features=keyed.STRICT,
        keys=keys,
        tables=tables,
        more_indexes=("opposite",),
        distances=DISTANCES[2],
    )
    without = frozenset({"title", "genres"})
    bundles.write(3, **tree, without=without, more_indexes=("opposite",), distances=DISTANCES[3])
    write_small_bundle(root, small_towers, version=4, id_kind="string")
    service = RunningService(root, latest_versions=4)
    yield service
    service.close()


@pytest.fixture(scope="module")
def loaded(service: RunningService) -> list[ModelVersion]:
    """The versions before any change."""
    versions = []
    for number in (*VERSIONS, 4):
        with service.worker.versions.acquire("movies", number) as version:
            versions.append(version)
    return versions


def state_of(version: ChangedVersion) -> dict[str, Any]:
    """Returns all that requests can read, to the bit, whatever the positions are."""
    served = version.publish()
    state: dict[str, Any] = {"changed": {k: count for k, count in version.counts.items() if count}}
    exported = {**version.loaded.corpora, **version.loaded.contexts}
    for name, corpus in {**served.corpora, **served.contexts}.items():
        positions = np.delete(np.arange(corpus.store.size), corpus.unavailable)
        columns = corpus.store.arrays(positions, [*corpus.store.types])
        state[f"store {name}"] = {column: values.to_pylist() for column, values in columns.items()}
        # These are searched by the index of the bundle, and the others beside it.
        state[f"exported {name}"] = int(np.count_nonzero(positions < exported[name].store.size))
    for name, index in served.indexes.items():
        if index.added is not None and index.added.live.size:
            vectors = np.ascontiguousarray(index.added.vectors)[index.added.live]
            state[f"index {name}"] = vectors.view(np.uint32).tolist()
    return state


@pytest.fixture
def start(
    service: RunningService, loaded: list[ModelVersion], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ModelChanges]:
    """Returns what returns the changes of versions as a process has them that starts."""
    monkeypatch.setattr("service.changes.store_changes._COMPACTED_MIN", COMPACTED_MIN)
    monkeypatch.setattr("service.changes.applied_file._COPIED_CHARACTERS", 1_000)

    def start(path: Path, included: ChangesPosition | None = None) -> ModelChanges:
        changes = ModelChanges("movies", path, service.settings, service.worker.versions)
        for version in loaded:
            manifest = version.manifest
            if version.version == 2:
                manifest = manifest.model_copy(update={"changes_included": included})
            changes.file.attach(replace(version, manifest=manifest), lambda _: None)
        return changes

    return start


@pytest.mark.slow
def test_any_history_leaves_one_state_in_all_processes(
    start: Callable[..., ModelChanges],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    accepted_count = 0
    for seed in seeds(request, HISTORIES, 5):
        path = tmp_path / str(seed) / "changes.sqlite"
        random = np.random.default_rng(seed)
        monkeypatch.setattr("bundle.changes.file._PAGE_STATES", int(random.integers(1, 12)))
        drawn = ManyForms(seed)
        first = start(path)
        while not _send(first, drawn.draw(), int(random.choice(VERSIONS))):
            pass
        # A position of this file, or of one that lost its states. The file may get to it later.
        included = first.file.position()
        assert included is not None
        included = included.model_copy(update={"sequence": int(random.integers(1, 3 * LENGTH))})
        if random.random() < 0.3:
            included = included.model_copy(update={"mark": 32 * "a"})
        first.file.close()

        writers = [start(path, included) for _ in range(2)]
        follower = start(path, included)
        copy = start(path.with_name("copy.sqlite"), included)
        for _ in range(LENGTH):
            writer = writers[int(random.integers(2))]
            accepted_count += bool(_send(writer, drawn.draw(), int(random.choice(VERSIONS))))
            if random.random() < 0.3:
                follower.file.follow()
            if random.random() < 0.2:
                _copy(writer, copy)
        for process in (*writers, follower):
            process.file.follow()
        while _copy(follower, copy):
            pass
        processes = {
            "a process that writes": writers[1],
            "one that follows": follower,
            "one that copies": copy,
            "one that starts": start(path, included),
            "one that starts with the copy": start(copy.file.path, included),
        }
        expected = [state_of(version) for version in writers[0].file.versions]
        for name, process in processes.items():
            for changed, wanted in zip(process.file.versions, expected, strict=True):
                state = state_of(changed)
                for part in state.keys() | wanted.keys():
                    case = (seed, name, changed.loaded.version, part)
                    assert state.get(part) == wanted.get(part), case
        for process in (*writers, *processes.values()):
            process.file.close()
    assert accepted_count > HISTORIES * LENGTH / 2


@pytest.mark.slow
def test_numbered_changes_leave_one_state_in_any_order(
    start: Callable[..., ModelChanges], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What they leave is what a dictionary has behind them, in the order of their numbers."""
    for seed in seeds(request, HISTORIES, 205):
        random = np.random.default_rng(seed)
        drawn = Numbered(seed)
        changes = drawn.draw_numbered(LENGTH)
        expected: list[dict[int, Any]] = []
        for name in ("in order", "shuffled"):
            process = start(tmp_path / str(seed) / name / "changes.sqlite")
            exported = process.file.versions[0]
            candidates: Candidates = {key: (row, None) for key, (row, _) in by_id(exported).items()}
            for change, version in changes:
                assert _send(process, change, version) is not None
            states = [by_id(version) for version in process.file.versions[:3]]
            process.file.close()
            expected = expected or states
            assert states == expected, (seed, name)
            candidates = after(candidates, sorted(changes, key=order_of))
            assert states[0].keys() == candidates.keys()
            for key, (row, sent) in candidates.items():
                served = states[0][key][0]
                assert served | row == served, (seed, key)
                if sent is not None:
                    training, vector = sent
                    assert states[training - 1][key][1] == vector, (seed, key)
            random.shuffle(changes)
            changes += changes[:3]


def order_of(change: tuple[Change, int]) -> tuple[int, int]:
    """Returns the number of a change, and the training that its vectors belong to."""
    (_, body), version = change
    item = body["items"][0]
    return item["sequence"], version if "vectors" in item else 0


Candidates = dict[int, tuple[dict[str, Any], tuple[int, list[float]] | None]]
"""The attributes of candidates by column, and the vectors that were sent with their trainings."""


def after(candidates: Candidates, changes: list[tuple[Change, int]]) -> Candidates:
    """Returns what candidates are behind changes, each of which is made as it stands there."""
    changed = {**candidates}
    for (path, body), version in changes:
        for item in body["items"]:
            key = item["id"]
            row, sent = changed.pop(key, (None, None))
            values = {
                f"attribute:{name}": value for name, value in item.get("attributes", {}).items()
            }
            if path == "candidates/upsert":
                row = {f"attribute:{name}": None for name in ATTRIBUTES}
                sent = None
                if "vectors" in item:
                    sent = version, item["vectors"]["movies"]
            if path != "candidates/delete" and row is not None:
                changed[key] = row | values, sent
    return changed


def by_id(version: ChangedVersion) -> dict[int, Any]:
    """Returns the attributes and the vector of each candidate that a version has."""
    served = version.publish()
    corpus = served.corpora["movies"]
    positions = np.delete(np.arange(corpus.store.size), corpus.unavailable)
    columns = corpus.store.arrays(positions, [*corpus.store.types])
    rows = pa.table(columns).to_pylist()
    index = served.indexes["movies"]
    assert index.here is not None
    vectors = index.here.vectors
    if index.added is not None:
        vectors = np.concatenate([vectors, index.added.vectors])
    candidates = zip(rows, vectors[positions].tolist(), strict=True)
    return {row["id"]: (row, vector) for row, vector in candidates}


class Embeddings(RandomChanges):
    """Draws changes of candidates that some versions can embed, and others cannot: those that read
    keys without a row. Few ids are changed again and again.
    """

    def draw(self) -> Change:
        path, body = super().draw()
        if self._chance(0.2):
            for item in body["items"]:
                item.setdefault("sequence", self._number(0, 8))
        return path, body

    def _keys(self, kind: str) -> list[int]:
        if kind == "candidates" and self._chance(0.7):
            return self._several([*STORED[:4], *NEW[:4]], 3)
        return super()._keys(kind)

    def _item(self, kind: str, action: str, key: int) -> dict[str, Any]:
        item = super()._item(kind, action, key)
        if (kind, action) == ("candidates", "upsert") and self._chance(0.7):
            item["features"]["movie"] = self._pick([*KEYS["movie"][-4:], *STORED[:2]])
        return item


class Numbered(RandomChanges):
    """Draws changes of few candidates, each with a larger number than the one before; vectors once
    more for another version, with the same number.
    """

    def draw_numbered(self, count: int) -> list[tuple[Change, int]]:
        """Returns so many changes and some with further vectors, and the version of each."""
        changes: list[tuple[Change, int]] = []
        for sequence in range(1, count + 1):
            action = self._pick(["upsert", "upsert", "delete", "attributes", "attributes"])
            items = [self._item("candidates", action, key) for key in self._keys("candidates")]
            names = self._several([*self._attributes()], 2)
            for item in items:
                item["sequence"] = sequence
                if action != "delete":
                    item["attributes"] = {name: item["attributes"][name] for name in names}
            versions = [1]
            if action == "upsert" and self._chance(0.5):
                versions = sorted(self._several([1, 2], 2))
                for item in items:
                    item["vectors"] = {}
            for version in versions:
                sent = [
                    item | {"vectors": {"movies": self._vector()}} if "vectors" in item else item
                    for item in items
                ]
                changes.append(((f"candidates/{action}", {"items": sent}), version))
        return changes

    def _keys(self, kind: str) -> list[int]:
        return self._several([*STORED[:3], *NEW[:2]], 2)


class ManyForms(Embeddings):
    """Draws changes that send vectors of some candidates, and some of the attributes."""

    def draw(self) -> Change:
        path, body = super().draw()
        items = body["items"]
        if path == "candidates/upsert" and self._chance(0.3):
            names = self._several(["movies", "opposite"], 2)
            for item in items:
                # Zeros have no direction, by which cosine compares.
                item["vectors"] = {
                    name: self._pick([self._vector(), self._vector(), [0.0] * 8]) for name in names
                }
        if path == "candidates/attributes":
            names = self._several([*items[0]["attributes"]], 2)
            for item in items:
                item["attributes"] = {name: item["attributes"][name] for name in names}
        return path, body


def _copy(source: ModelChanges, copy: ModelChanges) -> bool:
    """Copies some states, if any are missing; returns whether there were any."""
    deadline = time.monotonic() + WAIT_S
    states, _, forgotten = source.file.after(copy.file.position(), deadline)
    copy.file.copy(states, forgotten)
    return bool(states)


def _send(changes: ModelChanges, drawn: Change, version: int) -> Any:
    """Makes a change; returns the result, None if it is rejected."""
    path, body = drawn
    (change,) = [
        drawable for drawable in CHANGES.values() if f"{drawable.kind}/{drawable.action}" == path
    ]
    try:
        body_json = orjson.loads(orjson.dumps(body))
        change_request = read_change(change, body_json, LIMITS)
        return changes.submissions.submit(change_request, version, time.monotonic() + WAIT_S)
    except ServiceError:
        return None
