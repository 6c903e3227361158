"""A random history of changes leaves one state: in the process that makes the changes, in one that
follows it at any moments, and in one that starts from the log. Positions are equal, too, so that
equal scores have one order and codes one division. It is that of each change of the log that a
bundle is not known to contain, and of the largest number of each id. A compacted log leaves the
same candidates in the same order, and judges later changes alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from bundle.changes.log_lock import Writer
from bundle.format.log_position import LogPosition
from bundle.format.manifest import Distance
from runtime.exact import prepared
from service.changes.changed_version import ChangedVersion
from service.changes.model_changes import ModelChanges
from service.codec.changes import read_change
from service.config import ServiceSettings
from service.contract.changes import CHANGES
from service.errors import ServiceError
from service.versions.version import ModelVersion
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
UNIT = 4
QUERIES = random_vectors(4)
VERSIONS = (1, 2, 3)
DISTANCES: dict[int, dict[str, Distance]] = {
    1: {"movies": "cosine", "opposite": "squared_l2"},
    2: {"movies": "dot_product", "opposite": "cosine"},
    3: {"movies": "squared_l2", "opposite": "dot_product"},
}
"""The distances of the indexes of each version."""
ATTRIBUTES = ("title", "year", "genres", "rating", "classic")
Attributes = dict[int, dict[str, Any]]
"""The attributes of candidates by id."""
TREE = {"num_leaves": 4, "leaves_to_search": 2, "dimensions_per_block": 4, "reorder": 10}


@pytest.fixture(scope="module")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service that has loaded three versions: the second one rejects unknown keys, and the
    third one lacks an attribute.
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
    without = frozenset({"studio"})
    bundles.write(3, **tree, without=without, more_indexes=("opposite",), distances=DISTANCES[3])
    service = RunningService(root, latest_versions=3)
    yield service
    service.close()


@pytest.fixture(scope="module")
def loaded(service: RunningService) -> list[ModelVersion]:
    """The versions before any change."""
    versions = []
    for number in VERSIONS:
        with service.worker.versions.acquire("movies", number) as version:
            versions.append(version)
    return versions


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
                queries = prepared(QUERIES, index.entry.distance)
                nearest = codes.pack(live).nearest(queries, 2 * LENGTH)
                state[f"nearest {name}"] = [positions.tolist() for positions in nearest]
    return state


@pytest.fixture
def follow(
    service: RunningService, loaded: list[ModelVersion], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ModelChanges]:
    """Returns what returns the changes of versions as a process has them that starts."""
    monkeypatch.setattr("service.changes.store_changes._COMPACTED_MIN", COMPACTED_MIN)
    monkeypatch.setattr("service.changes.growing_vectors.CODED_BYTES_MIN", 0)
    monkeypatch.setattr("runtime.code_blocks.UNIT", UNIT)
    monkeypatch.setattr("runtime.code_blocks._SAMPLE_MIN", UNIT // 2)

    def follow(path: Path, versions: Sequence[ModelVersion] = loaded) -> ModelChanges:
        manager = service.worker.versions
        changes = ModelChanges("movies", path, service.settings, manager, Writer(0))
        for version in versions:
            changes.log.attach(version, lambda _: None)
        return changes

    return follow


@pytest.mark.slow
def test_any_history_leaves_one_state_in_all_processes(
    follow: Callable[..., ModelChanges],
    loaded: list[ModelVersion],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    accepted_count = 0
    for seed in seeds(request, HISTORIES, 5):
        path = tmp_path / str(seed) / "changes.log"
        random = np.random.default_rng(seed)
        drawn = ManyForms(seed)
        writer = follow(path)
        assert writer.log.may_write(time.monotonic() + WAIT_S)
        begun = False
        while not begun:
            begun = bool(_change(writer, drawn, int(random.choice(VERSIONS))))
        # Bundles of another log, and of this one before it was restored from an older copy. The
        # log comes to their sequences later, or has passed them.
        end = end_of(writer)
        sequence = int(random.integers(1, LENGTH))
        lost = end.model_copy(update={"sequence": sequence, "checksum": end.checksum ^ 1})
        others = [lost, lost.model_copy(update={"log": 32 * "a"})]
        random.shuffle(others)
        follower = follow(path, containing(loaded, others[0]))
        for _ in range(LENGTH):
            accepted_count += bool(_change(writer, drawn, int(random.choice(VERSIONS))))
            if random.random() < 0.3:
                follower.log.follow()
        follower.log.follow()
        starting = follow(path, containing(loaded, others[1]))
        expected = [state_of(version) for version in writer.log.versions]
        for process in (follower, starting):
            for changed, wanted in zip(process.log.versions, expected, strict=True):
                state = state_of(changed)
                assert state.keys() == wanted.keys(), seed
                for name, part in state.items():
                    assert part == wanted[name], (seed, name)
        writer.log.close()
    assert accepted_count > HISTORIES * LENGTH / 2


@pytest.mark.slow
def test_compacted_log_leaves_what_the_whole_log_leaves(
    follow: Callable[..., ModelChanges],
    loaded: list[ModelVersion],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    dropped_count = 0
    for seed in seeds(request, HISTORIES, 105):
        random = np.random.default_rng(seed)
        drawn = ManyForms(seed)
        compacted, whole, copy = [
            follow(tmp_path / str(seed) / name / "changes.log", loaded[:1])
            for name in ("log", "whole", "copy")
        ]
        for changes in (compacted, whole, copy):
            assert changes.log.may_write(time.monotonic() + WAIT_S)
        for _ in range(LENGTH):
            _change(compacted, drawn, 1)
        # The bundle of the second version contains these changes. Copies have none of them yet.
        # Without the third one: a candidate of the bundle that counts again, since an upsert does
        # not fit, has another place in the order if the changes before were left out.
        all_versions = [loaded[0], *containing(loaded[1:2], end_of(compacted))]
        for changes in (compacted, whole, copy):
            changes.log.attach(all_versions[1], lambda _: None)
        copied = int(random.integers(0, 4 * LENGTH))
        for number in range(2 * LENGTH):
            _change(compacted, drawn, int(random.integers(1, 3)))
            if number == copied:
                _copy(compacted, copy)
        _copy(compacted, whole)

        versions = all_versions[int(random.integers(2)) :]
        numbers = [version.version for version in versions]
        if numbers == [2]:
            for changes in (compacted, whole, copy):
                changes.log.detach(loaded[0])
        dropped_count += compacted.compactor.compact(time.monotonic() + WAIT_S).dropped
        content = compacted.log.path.read_bytes()
        repetition = compacted.compactor.compact(time.monotonic() + WAIT_S)
        assert (repetition.dropped, repetition.bytes_before, repetition.bytes_after) == (
            0,
            *2 * [len(content)],
        )
        assert compacted.log.path.read_bytes() == content
        _copy(compacted, copy)

        for changes in (compacted, whole, copy):
            later = ManyForms(seed + 1)
            random = np.random.default_rng(seed)
            results = [_change(changes, later, int(random.choice(numbers))) for _ in range(LENGTH)]
            if changes is compacted:
                expected_results = results
            assert results == expected_results, seed
            starting = follow(changes.log.path, versions)
            for process in (changes, starting):
                states = [read_of(version) for version in process.log.versions]
                if process is compacted:
                    expected = states
                for number, state in enumerate(states):
                    for name in state.keys() | expected[number].keys():
                        assert state.get(name) == expected[number].get(name), (seed, number, name)
            changes.log.close()
    assert dropped_count > 2 * HISTORIES


@pytest.mark.slow
def test_numbered_changes_leave_one_state_in_any_order(
    follow: Callable[..., ModelChanges], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for seed in seeds(request, HISTORIES, 205):
        random = np.random.default_rng(seed)
        drawn = Numbered(seed)
        changes = [(drawn.draw(), int(random.choice(VERSIONS))) for _ in range(LENGTH)]
        expected: list[dict[int, Any]] = []
        for name in ("in order", "shuffled"):
            process = follow(tmp_path / str(seed) / name / "changes.log")
            states = [by_id(version) for version in process.log.versions]
            attributes = attributes_of(states[0])
            assert process.log.may_write(time.monotonic() + WAIT_S)
            for change, version in changes:
                _send(process, change, version)
            states = [by_id(version) for version in process.log.versions]
            process.log.close()
            expected = expected or states
            assert states == expected, seed
            wanted = attributes_after(attributes, sorted(changes, key=number_of))
            assert attributes_of(states[0]) == wanted, seed
            random.shuffle(changes)
            changes += changes[:3]


def number_of(change: tuple[Change, int]) -> int:
    (_, body), _ = change
    number: int = body["items"][0]["sequence"]
    return number


def attributes_of(state: dict[int, Any]) -> Attributes:
    return {
        key: {name: row[f"attribute:{name}"] for name in ATTRIBUTES}
        for key, (row, _) in state.items()
    }


def attributes_after(attributes: Attributes, changes: list[tuple[Change, int]]) -> Attributes:
    """Returns what the first version has of its candidates, and of those that changes made, in the
    order of the changes.
    """
    changed = {**attributes}
    for (path, body), _ in changes:
        for item in body["items"]:
            key = item["id"]
            before = changed.pop(key, None)
            sent = item.get("attributes", {})
            if path == "candidates/upsert":
                before = dict.fromkeys(ATTRIBUTES)
            if path != "candidates/delete" and before is not None:
                changed[key] = before | sent
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
    """Draws changes of few candidates, each with a larger number than the one before."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._sequence = 0

    def draw(self) -> Change:
        actions = ["upsert", "delete", *["attributes"] * 2]
        action = self._pick(actions)
        items = [self._item("candidates", action, key) for key in self._keys("candidates")]
        names = self._several([*self._attributes()], 2)
        self._sequence += 1
        for item in items:
            item["sequence"] = self._sequence
            if action != "delete":
                item["attributes"] = {name: item["attributes"][name] for name in names}
        return f"candidates/{action}", {"items": items}

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


def read_of(version: ChangedVersion) -> dict[str, Any]:
    """Returns what requests read in whole, whatever the positions are."""
    state = state_of(version)
    del state["dropped"]
    return {
        name: part if name.startswith("changed") else part[1]
        for name, part in state.items()
        if not name.startswith("nearest")
    }


def containing(versions: list[ModelVersion], position: LogPosition) -> list[ModelVersion]:
    """Returns versions whose bundles contain the changes of a log up to a position."""
    included = {"changes_included": position}
    return [
        replace(version, manifest=version.manifest.model_copy(update=included))
        for version in versions
    ]


def end_of(changes: ModelChanges) -> LogPosition:
    end = changes.log.end()
    assert end is not None
    return end


def _copy(source: ModelChanges, copy: ModelChanges) -> None:
    """Appends to a copy what its log lacks."""
    while records := source.log.after(copy.log.end()):
        copy.log.copy(records)


def _change(changes: ModelChanges, drawn: RandomChanges, version: int) -> Any:
    """Draws a change and makes it; see `_send`."""
    return _send(changes, drawn.draw(), version)


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
