"""Segments that services copy from the one whose change log they follow: lists are those of the
writer to the bit, and whatever goes wrong with a copy is mended, and holds up no changes.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bundle.changes.segments import TEMPORARY
from service.changes import absorption, segment_copying, segments
from service.engine.calls import Condition, Filter
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.e2e.services import launching
from tests.units.service.changes.making import (
    TREE,
    absorb,
    add,
    candidate,
    change,
    deletion,
    listed,
    random_vectors,
    segments_of,
)
from tests.units.service.changes.wire import Wire, wire_to
from tests.units.service.conftest import COPIES_TOKEN
from tests.units.service.running import RunningService, flip, log_lines

Write = Callable[..., SmallBundle]
Start = Callable[..., RunningService]


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absorption, "_PRELOAD_S", 0.0)
    monkeypatch.setattr(segment_copying, "_AGAIN_S", 0.05)


@pytest.fixture
def writer(start: Start) -> RunningService:
    return start("writer")


@pytest.fixture
def wire(writer: RunningService) -> Iterator[Wire]:
    with wire_to(writer.http) as wire:
        yield wire


def directory_of(service: RunningService) -> Path:
    return service.worker.changes.path_of("movies").with_name("changes.segments")


def names_of(service: RunningService) -> list[str]:
    return sorted(path.name for path in directory_of(service).iterdir())


def has_all(follower: RunningService, writer: RunningService) -> bool:
    return follower.current().changes == writer.current().changes


def assert_equal(follower: RunningService, writer: RunningService) -> None:
    """Compares lists to the bit, and that as much is searched by an index."""
    dim = writer.current().indexes["movies"].entry.dim
    vectors = random_vectors(20, dim, 7)
    later = Filter({"year": Condition(ge=2030)})
    calls: list[dict[str, Any]] = [
        {"k": 10},
        {"k": 300},
        {"k": 10, "exact": True},
        {"k": 10, "filter": later, "attributes": ("title", "year")},
    ]
    for options in calls:
        assert listed(follower, vectors, **options) == listed(writer, vectors, **options)
    assert segments_of(follower) == segments_of(writer)


def test_a_follower_returns_the_lists_of_the_writer_and_its_work_does_not_grow(
    write: Write,
    serve: Start,
    hosted: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "_TREE_MIN", 100)
    small = write(size=200, **TREE)
    dim = small.vectors.shape[1]
    writer = serve(**hosted("writer"))
    followers = [serve(**hosted("follower", writer.http)) for _ in range(2)]
    # A follower of a follower, whose token names the same client.
    followers.append(serve(**hosted("next", followers[0].http)))
    for round_, count in enumerate((600, 150, 600)):
        add(writer, random_vectors(count, dim, round_), 5000 + 1000 * round_)
        gone = range(1000 * round_ + 4990, 1000 * round_ + 5010)
        change(writer, "candidates/delete", *deletion(gone))
        revised = [{"id": 5020 + number, "attributes": {"year": 2031}} for number in range(round_)]
        if revised:
            change(writer, "candidates/attributes", *revised)
        absorb(writer)
        change(writer, "candidates/upsert", candidate(9000 + round_), candidate(1003))
        for follower in followers:
            until(lambda: has_all(follower, writer))  # noqa: B023
            assert_equal(follower, writer)
            exact = follower.value("rowcast_changed_candidates", model="movies", search="exact")
            assert exact < 10
            assert len(names_of(follower)) <= 3
    (segment, *_) = followers[0].current().indexes["movies"].segments
    assert segment.approximate is not None

    writer.close()
    restarted = serve(**hosted("follower", writer.http))
    assert_equal(restarted, followers[0])
    assert restarted.value("rowcast_segments_unusable", model="movies") == 0


def test_one_worker_of_a_host_copies_a_segment_for_all(
    start: Start, wire: Wire, hosted: Callable[..., dict[str, Any]], serve: Start, writer: Any
) -> None:
    workers = [serve(**hosted("follower", wire.http)) for _ in range(3)]
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(writer)
    change(writer, "candidates/delete", {"id": 5003})
    for worker in workers:
        until(lambda: has_all(worker, writer))  # noqa: B023
        assert_equal(worker, writer)
    assert sum("vectors.bin" in path for path in wire.paths) == 1
    assert names_of(workers[0]) == names_of(writer)


def test_changes_wait_for_a_segment_while_the_writer_cannot_be_reached(
    wire: Wire, hosted: Callable[..., dict[str, Any]], serve: Start, writer: RunningService
) -> None:
    follower = serve(**hosted("follower", wire.http))
    until(lambda: not follower.worker.changes.problem)

    def cut(path: str, content: bytes) -> bytes | None:
        if "vectors.bin" in path:
            return None
        return content

    wire.passing = cut
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(writer)
    change(writer, "candidates/delete", {"id": 5003})
    until(lambda: follower.value("rowcast_changes_followed", model="movies") == 0)
    until(lambda: follower.worker.changes.status("movies")["lag"] == 2)
    assert "IncompleteRead" in follower.worker.changes.status("movies")["problem"]
    assert follower.current().changes == 1
    wire.passing = lambda _, content: content
    until(lambda: has_all(follower, writer))
    assert_equal(follower, writer)
    until(lambda: follower.value("rowcast_changes_followed", model="movies") == 1)
    assert names_of(follower) == names_of(writer)


def test_a_segment_that_is_damaged_on_the_wire_is_not_used_and_copied_again(
    wire: Wire, hosted: Callable[..., dict[str, Any]], serve: Start, writer: RunningService
) -> None:
    def damage(path: str, content: bytes) -> bytes:
        if "candidates.arrow" not in path:
            return content
        return bytes([content[0] ^ 1]) + content[1:]

    wire.passing = damage
    follower = serve(**hosted("follower", wire.http))
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    with log_lines() as lines:
        absorb(writer)
        change(writer, "candidates/delete", {"id": 5003})
        until(lambda: has_all(follower, writer))
        unusable = {"model": "movies"}
        until(lambda: follower.value("rowcast_segments_unusable", **unusable) == 1)
        assert segments_of(follower) == 0
        assert [name for name in names_of(follower) if not name.startswith(TEMPORARY)] == []
        vectors = random_vectors(5, writer.current().indexes["movies"].entry.dim)
        exact = {"k": 60, "exact": True}
        assert listed(follower, vectors, **exact) == listed(writer, vectors, **exact)
        events = [json.loads(line) for line in lines.getvalue().splitlines()]
    (event,) = [event for event in events if event["event"] == "segment_not_used"]
    assert "'candidates.arrow'" in event["problem"]
    assert "differs from its checksum as it came" in event["problem"]

    wire.passing = lambda _, content: content
    until(lambda: follower.value("rowcast_segments_unusable", **unusable) == 0)
    assert_equal(follower, writer)


@pytest.mark.parametrize("has_segments", [True, False], ids=["damaged", "missing"])
def test_segments_that_a_follower_lacks_when_it_starts_are_copied(
    start: Start, writer: RunningService, has_segments: bool
) -> None:
    follower = start("follower", writer)
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(writer)
    until(lambda: has_all(follower, writer))
    follower.close()
    if has_segments:
        (path,) = directory_of(follower).rglob("vectors.bin")
        flip(path, 0)
    else:
        shutil.rmtree(directory_of(follower))

    with log_lines() as lines:
        restarted = start("follower", writer)
        until(lambda: not restarted.worker.changes.problem)
        assert_equal(restarted, writer)
        assert names_of(restarted) == names_of(writer)
        assert "segment_not_used" not in lines.getvalue()
    assert restarted.value("rowcast_segments_unusable", model="movies") == 0


def test_a_segment_that_the_writer_has_replaced_is_not_missed(
    start: Start, writer: RunningService
) -> None:
    for first in (5000, 5100):
        change(writer, "candidates/upsert", *[candidate(first + number) for number in range(20)])
        absorb(writer)
    (replaced, last) = sorted(names_of(writer), key=lambda name: int(name.split("-")[3]))
    shutil.rmtree(directory_of(writer) / replaced)
    with log_lines() as lines:
        follower = start("follower", writer)
        until(lambda: not follower.worker.changes.problem)
        assert_equal(follower, writer)
        assert names_of(follower) == [last]
        assert "segment_not_used" not in lines.getvalue()


def test_a_segment_that_the_writer_has_lost_holds_up_no_changes(
    start: Start, writer: RunningService
) -> None:
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(writer)
    (lost,) = directory_of(writer).iterdir()
    shutil.rmtree(lost)
    follower = start("follower", writer)
    until(lambda: not follower.worker.changes.problem)
    unusable = {"model": "movies"}
    until(lambda: follower.value("rowcast_segments_unusable", **unusable) == 1)
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5100, 5110)])
    until(lambda: has_all(follower, writer))
    vectors = random_vectors(5, writer.current().indexes["movies"].entry.dim)
    exact = {"k": 60, "exact": True}
    assert listed(follower, vectors, **exact) == listed(writer, vectors, **exact)

    change(writer, "candidates/delete", *deletion(range(5000, 5019)))
    absorb(writer)  # a segment without the lost one, of which little was left
    until(lambda: has_all(follower, writer))
    until(lambda: follower.value("rowcast_segments_unusable", **unusable) == 0)
    assert_equal(follower, writer)


def test_changes_do_not_wait_for_a_segment_that_cannot_be_written(
    start: Start, writer: RunningService
) -> None:
    follower = start("follower", writer)
    directory_of(follower).parent.mkdir(parents=True, exist_ok=True)
    directory_of(follower).touch()  # no directory can be made there
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(writer)
    change(writer, "candidates/delete", {"id": 5003})
    until(lambda: has_all(follower, writer))
    unusable = {"model": "movies"}
    until(lambda: follower.value("rowcast_segments_unusable", **unusable) == 1)
    assert follower.value("rowcast_changes_followed", model="movies") == 1
    directory_of(follower).unlink()
    until(lambda: follower.value("rowcast_segments_unusable", **unusable) == 0)
    assert_equal(follower, writer)


def test_a_version_that_a_follower_loads_later_has_its_segments(
    write: Write, writer: RunningService, hosted: Callable[..., dict[str, Any]], root: Path
) -> None:
    host_root = root.with_name("root-of-the-follower")
    shutil.copytree(root, host_root)
    follower = RunningService(host_root, **hosted("follower", writer.http))
    try:
        change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
        absorb(writer)
        write(version=2)
        writer.scan()
        absorb(writer)
        assert writer.current().version == 2
        until(lambda: has_all(follower, writer))
        assert (follower.current().version, segments_of(follower)) == (1, 1)
        shutil.copytree(root / "movies" / "2", root.with_name("copied"))
        root.with_name("copied").rename(host_root / "movies" / "2")
        follower.scan()
        assert follower.current().version == 2
        until(lambda: segments_of(follower) == 1)
        assert_equal(follower, writer)
    finally:
        follower.close()


def test_a_follower_that_is_killed_while_it_copies_leaves_nothing_half_written(
    wire: Wire,
    hosted: Callable[..., dict[str, Any]],
    serve: Start,
    writer: RunningService,
    root: Path,
    copies_token: Path,
) -> None:
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(writer)
    is_copying = threading.Event()
    is_killed = threading.Event()

    def hold(path: str, content: bytes) -> bytes:
        if "vectors.bin" in path:
            is_copying.set()
            is_killed.wait()
        return content

    wire.passing = hold
    settings = hosted("follower", wire.http)
    options = {
        "--changes-dir": settings["changes_dir"],
        "--follow-changes": wire.http,
        "--follow-changes-token": copies_token,
    }
    try:
        with launching(root) as launch:
            process = launch(*[str(part) for option in options.items() for part in option])
            until(is_copying.is_set)
            process.kill()
    finally:
        is_killed.set()
    directory = settings["changes_dir"] / "movies" / "changes.segments"
    assert [path.name[: len(TEMPORARY)] for path in directory.iterdir()] == [TEMPORARY]
    assert len([*directory.rglob("candidates.arrow")]) == 1

    wire.passing = lambda _, content: content
    follower = serve(**settings)
    assert follower.current().changes <= 1, "the record was not copied before its segment"
    until(lambda: has_all(follower, writer))
    assert_equal(follower, writer)
    assert names_of(follower) == names_of(writer)


def test_parts_of_segments_are_for_clients_that_copy_and_of_the_files_of_segments_alone(
    writer: RunningService,
) -> None:
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5020)])
    absorb(writer)
    (name,) = names_of(writer)
    (directory_of(writer) / "secret").write_text("secret")
    (directory_of(writer) / f"{TEMPORARY}{name}").mkdir()
    (directory_of(writer) / f"{TEMPORARY}{name}" / "segment.json").write_text("{}")
    (directory_of(writer) / name / "unlisted").write_text("secret")

    def get(segment: str, token: str = COPIES_TOKEN, **query: Any) -> httpx.Response:
        query = {"file": "segment.json", "offset": 0, "bytes": 1 << 20, **query}
        headers = {}
        if token:
            headers["authorization"] = f"Bearer {token}"
        url = f"{writer.http}/v1/models/movies/changes/segments/{segment}"
        return httpx.get(url, params=query, headers=headers, timeout=20)

    whole = get(name).content
    assert whole == (directory_of(writer) / name / "segment.json").read_bytes()
    assert get(name, offset=10, bytes=20).content == whole[10:30]
    assert get(name, offset=len(whole)).content == b""
    vectors = (directory_of(writer) / name / "indexes/movies/vectors.bin").read_bytes()
    assert np.frombuffer(vectors, np.float32).any()
    assert get(name, file="indexes/movies/vectors.bin").content == vectors

    for token, status in [("", 401), ("another", 401), (f"{COPIES_TOKEN}-of-a-reader", 403)]:
        assert get(name, token=token).status_code == status
    missing = [
        ("1-00000000-movies-1-00000000", "segment.json"),
        ("%2e%2e", "changes.log"),
        ("%2e%2e%2fchanges.segments", "segment.json"),
        ("secret", ""),
        (f"{TEMPORARY}{name}", "segment.json"),
        (name, ""),
        (name, "unlisted"),
        (name, "../secret"),
        (name, "indexes/../segment.json"),
        (name, str(directory_of(writer) / "secret")),
        (name, "../../changes.log"),
    ]
    for segment, file in missing:
        response = get(segment, file=file)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "NOT_FOUND"), (segment, file)
    assert error["message"] == f"model 'movies' has no file '../../changes.log' of segment '{name}'"
    for query in ({"offset": -1}, {"bytes": 0}, {"bytes": 1 << 30}, {"offset": "x"}):
        error = get(name, **query).json()["error"]
        assert error["code"] == "INVALID_ARGUMENT", query
        ((field, value),) = query.items()
        assert f"parameter {field!r} is '{value}': Input should be" in error["message"]
