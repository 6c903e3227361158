"""Services that copy the change log and the segments of another one: what breaks on the way, and
what they serve meanwhile and afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundle.changes.segments import TEMPORARY
from tests.e2e.process import until
from tests.units.service.changes.making import (
    applied,
    candidate,
    change,
    deletion,
    ids_of,
    indexed,
    log_of,
    nearest,
    operate,
    random_vectors,
    status,
    until_applied,
)
from tests.units.service.changes.wire import wire_to
from tests.units.service.conftest import COPIES_TOKEN
from tests.units.service.running import RunningService, flip

Start = Callable[..., RunningService]
READS = {"headers": {"authorization": f"Bearer {COPIES_TOKEN}"}}
UNUSABLE = "rowcast_segments_unusable"
ABSORBED = [candidate(key) for key in range(5000, 5020)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.changes.segment_copying._AGAIN_S", 0.05)


def segments_of(service: RunningService) -> Path:
    return log_of(service).with_name("changes.segments")


def lists_of(service: RunningService, **options: Any) -> list[Any]:
    return nearest(service, random_vectors(5), k=60, **READS, **options)


def absorb_all(writer: RunningService) -> None:
    """Adds candidates, and waits until they are in a segment; deletes one of them then."""
    before = indexed(writer)
    change(writer, "candidates/upsert", *ABSORBED)
    until(lambda: indexed(writer) > before)
    change(writer, "candidates/delete", {"id": 5003})


def test_follower_that_restarts_serves_its_copy_though_the_writer_is_gone(start: Start) -> None:
    writer = start("writer")
    change(writer, "candidates/upsert", candidate(5000))
    follower = start("follower", writer)
    until_applied(writer, follower)
    for service in (follower, writer):
        service.close()
    restarted = start("follower", writer)
    until(lambda: writer.http in status(restarted)["problem"])
    assert 5000 in ids_of(restarted, **READS)
    readiness = httpx.get(f"{restarted.http}/readyz", timeout=20)
    assert (readiness.status_code, writer.http in readiness.text) == (503, True)
    assert restarted.value("rowcast_ready") == 0


@pytest.mark.slow
def test_follower_with_the_highest_sequence_becomes_the_writer(start: Start) -> None:
    writer = start("writer")
    with wire_to(writer.http) as first_wire, wire_to(writer.http) as second_wire:
        follower = start("first", first_wire)
        late_follower = start("second", second_wire)
        # Each change is known to fewer services: the last one to the writer alone.
        change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5010)])
        until_applied(writer, follower, late_follower)
        second_wire.passing = lambda _, content: None
        change(writer, "candidates/upsert", candidate(6010, movie=1014))
        until_applied(writer, follower)
        first_wire.passing = lambda _, content: None
        change(writer, "candidates/upsert", candidate(6011))
        services = [late_follower, follower, writer]
        assert [applied(service) for service in services] == [1, 2, 3]
        for service in services:
            service.close()

    new_writer = start("first", absorb_changed_at=1)
    late_follower = start("second", new_writer)
    absorb_all(new_writer)
    until_applied(new_writer, late_follower)
    former_writer = start("writer", new_writer)
    until(lambda: "another log" in status(former_writer)["problem"])
    former_writer.close()
    log = log_of(former_writer)
    log.rename(log.with_name("changes.log.of-the-former-writer"))
    former_writer = start("writer", new_writer)
    until_applied(new_writer, late_follower, former_writer)
    expected = lists_of(new_writer)
    assert lists_of(late_follower) == lists_of(former_writer) == expected
    ids = ids_of(new_writer, **READS)
    assert 6010 in ids
    assert not {5003, 6011} & ids


@pytest.fixture
def writer(start: Start) -> RunningService:
    return start("writer", absorb_changed_at=20)


@pytest.mark.slow
def test_segments_that_cannot_be_copied_lose_no_change_and_are_copied_later(
    start: Start, writer: RunningService
) -> None:
    with wire_to(writer.http) as cut, wire_to(writer.http) as damaged:
        cut.passing = lambda path, content: None if "vectors.bin" in path else content
        damaged.passing = lambda path, content: (
            bytes(len(content)) if "candidates.arrow" in path else content
        )
        waiting = start("waiting", cut)
        searching = [start("damaged", damaged), start("blocked", writer)]
        followers = [waiting, *searching]
        until_applied(writer, *followers)
        # A file is where the directory of segments belongs.
        blocked = segments_of(searching[1])
        blocked.parent.mkdir(parents=True, exist_ok=True)
        blocked.touch()
        absorb_all(writer)
        until(lambda: waiting.value("rowcast_changes_followed", model="movies") == 0)
        until(lambda: status(waiting)["lag"] > 0)
        for follower in searching:
            until_applied(writer, follower)
            until(lambda: follower.value(UNUSABLE, model="movies") == 1)  # noqa: B023
            assert indexed(follower) == 0
            assert lists_of(follower, exact=True) == lists_of(writer, exact=True)

        for wire in (cut, damaged):
            wire.passing = lambda _, content: content
        blocked.unlink()
        for follower in followers:
            until_applied(writer, follower)
            until(lambda: indexed(follower) == indexed(writer))  # noqa: B023
            assert lists_of(follower) == lists_of(writer)
            until(lambda: follower.value(UNUSABLE, model="movies") == 0)  # noqa: B023
            until(lambda: follower.value("rowcast_changes_followed", model="movies") == 1)  # noqa: B023
            paths = [segments_of(service) for service in (writer, follower)]
            names = [sorted(path.name for path in directory.iterdir()) for directory in paths]
            assert names[0] == [name for name in names[1] if not name.startswith(TEMPORARY)]


@pytest.mark.slow
def test_segments_that_a_follower_or_the_writer_lacks_lose_no_change(
    start: Start, writer: RunningService
) -> None:
    follower = start("follower", writer)
    absorb_all(writer)
    until_applied(writer, follower)
    follower.close()
    (vectors,) = segments_of(follower).rglob("vectors.bin")
    flip(vectors, 0)
    restarted = start("follower", writer)
    until(lambda: indexed(restarted) == indexed(writer))
    assert lists_of(restarted) == lists_of(writer)
    restarted.close()

    shutil.rmtree(segments_of(follower))
    (lost,) = segments_of(writer).iterdir()
    shutil.rmtree(lost)
    restarted = start("follower", writer)
    until(lambda: restarted.value(UNUSABLE, model="movies") == 1)
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5100, 5110)])
    until_applied(writer, restarted)
    assert lists_of(restarted, exact=True) == lists_of(writer, exact=True)
    # The next segment has none of the lost one, of which little is left.
    change(writer, "candidates/delete", *deletion([*range(5000, 5003), *range(5004, 5019)]))
    change(writer, "candidates/upsert", *[candidate(key) for key in range(5200, 5220)])
    until(lambda: restarted.value(UNUSABLE, model="movies") == 0)
    until_applied(writer, restarted)
    assert lists_of(restarted) == lists_of(writer)


@pytest.mark.slow
def test_parts_of_segments_are_for_clients_that_copy_and_of_the_files_of_segments_alone(
    writer: RunningService,
) -> None:
    absorb_all(writer)
    directory = segments_of(writer)
    (segment,) = [path for path in directory.iterdir() if not path.name.startswith(TEMPORARY)]
    (directory / "secret").write_text("secret")
    (directory / f"{TEMPORARY}{segment.name}").mkdir()
    (directory / f"{TEMPORARY}{segment.name}" / "segment.json").write_text("{}")
    (segment / "unlisted").write_text("secret")

    def get(name: str, token: str = COPIES_TOKEN, **query: Any) -> httpx.Response:
        query = {"file": "segment.json", "offset": 0, "bytes": 1 << 20, **query}
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = f"{writer.http}/v1/models/movies/changes/segments/{name}"
        return httpx.get(url, params=query, headers=headers, timeout=20)

    name = segment.name
    whole = (segment / "segment.json").read_bytes()
    assert get(name).content == whole
    assert get(name, offset=10, bytes=20).content == whole[10:30]
    assert get(name, offset=len(whole)).content == b""
    for token, code in [("", 401), ("another", 401), (f"{COPIES_TOKEN}-of-a-reader", 403)]:
        assert get(name, token=token).status_code == code
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
        (name, str(directory / "secret")),
        (name, "../../changes.log"),
    ]
    for wanted, file in missing:
        assert get(wanted, file=file).status_code == 404, (wanted, file)
    for query in ({"offset": -1}, {"bytes": 0}, {"bytes": 1 << 30}, {"offset": "x"}):
        error = get(name, **query).json()["error"]
        assert error["code"] == "INVALID_ARGUMENT"
        assert next(iter(query)) in error["message"]


def test_clients_that_the_setting_names_change_models_and_no_others(
    start: Start, serve: Start, copies_token: Path
) -> None:
    service = start("writer")
    tokens = copies_token.with_name("tokens-of-copies")
    with tokens.open("a") as file:
        file.write(f"books {COPIES_TOKEN}-of-books books\n")
    service = start("writer", changes_from="copies,books")
    path = f"{service.http}/v1/models/movies"
    body = {"items": [candidate(5000)], "stream": "s", "offset": 7, "from_offset": 2}
    for suffix, code in [("", 200), ("-of-a-reader", 403), ("-of-books", 403), ("-none", 401)]:
        headers = {"authorization": f"Bearer {COPIES_TOKEN}{suffix}"}
        upsert = httpx.post(f"{path}/candidates/upsert", json=body, headers=headers, timeout=20)
        offsets = httpx.get(f"{path}/changes", headers=headers, timeout=20)
        assert (upsert.status_code, offsets.status_code) == (code, code)
    assert operate(service, "GET", "changes")["streams"] == {"s": 7}
    without_tokens = serve()
    url = f"{without_tokens.http}/v1/models/movies/candidates/upsert"
    response = httpx.post(url, json={"items": [candidate(5000)]}, timeout=20)
    assert (response.status_code, "admin API" in response.text) == (403, True)
