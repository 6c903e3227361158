"""Services that copy the changes of another one: what breaks on the way, and what they serve
meanwhile and afterwards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bundle.changes.states import State
from service.changes import copying
from tests.e2e.process import until
from tests.units.service.changes.making import (
    Rejected,
    applied,
    candidate,
    change,
    file_of,
    ids_of,
    nearest,
    operate,
    random_vectors,
    request,
    status,
    until_applied,
)
from tests.units.service.changes.wire import wire_to
from tests.units.service.conftest import COPIES_TOKEN
from tests.units.service.running import RunningService

Start = Callable[..., RunningService]
STATE = (1, "candidates", "movies", 7, "", None, 1, False, None, 5.0, "{}")
READS = {"headers": {"authorization": f"Bearer {COPIES_TOKEN}"}}


def lists_of(service: RunningService, **options: Any) -> list[Any]:
    return nearest(service, random_vectors(5), k=60, **READS, **options)


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
    readiness = request("GET", f"{restarted.http}/readyz")
    assert (readiness.status_code, writer.http in readiness.text) == (503, True)
    assert restarted.value("rowcast_ready") == 0
    with pytest.raises(Rejected, match="UNIMPLEMENTED"):
        change(restarted, "candidates/delete", {"id": 1000})


def test_follower_that_is_not_answered_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_SILENCE_S", 0.5)
    writer = start("writer")
    with wire_to(writer.http) as wire:
        follower = start("follower", wire)
        until_applied(writer, follower)
        wire.is_busy = True
        until(lambda: "has answered no request" in status(follower)["problem"])
        assert status(follower)["lag"] is None
        until(lambda: follower.value("rowcast_changes_followed", model="movies") == 0)
        assert math.isnan(follower.value("rowcast_change_lag", model="movies"))
        wire.is_busy = False
        until(lambda: not status(follower)["problem"])
        assert status(follower)["lag"] == 0


def copied(**changed: Any) -> str:
    fields = dict(zip(State._fields, STATE, strict=True)) | changed
    return json.dumps({"sequence": 1, "forgotten": 0, "states": [[*fields.values()]]})


@pytest.mark.parametrize(
    "changed",
    [
        {"sequence": 1 << 62},
        {"sequence": 2},
        {"id": 10**30},
        {"number": -(10**30)},
        {"version": 1 << 63},
        {"content": "{"},
        {"time_s": "soon"},
    ],
)
def test_states_that_no_file_can_have_are_not_taken(changed: dict[str, Any]) -> None:
    assert copying.Copied.model_validate_json(copied()).states == [State._make(STATE)]
    with pytest.raises(ValidationError):
        copying.Copied.model_validate_json(copied(**changed))


@pytest.mark.slow
def test_follower_with_the_highest_sequence_becomes_the_writer(start: Start) -> None:
    writer = start("writer")
    with wire_to(writer.http) as first_wire, wire_to(writer.http) as second_wire:
        follower = start("first", first_wire)
        late_follower = start("second", second_wire)
        # Each change is known to fewer services: the last one to the writer alone.
        change(writer, "candidates/upsert", *[candidate(key) for key in range(5000, 5010)])
        until_applied(writer, follower, late_follower)
        second_wire.is_cut = True
        change(writer, "candidates/upsert", candidate(6010, movie=1014))
        until_applied(writer, follower)
        first_wire.is_cut = True
        change(writer, "candidates/upsert", candidate(6011))
        services = [late_follower, follower, writer]
        until(lambda: [applied(service) for service in services] == [11, 12, 13])
        for service in services:
            service.close()

    new_writer = start("first")
    late_follower = start("second", new_writer)
    change(new_writer, "candidates/delete", {"id": 5003})
    until_applied(new_writer, late_follower)
    former_writer = start("writer", new_writer)
    until(lambda: "has no state" in status(former_writer)["problem"])
    former_writer.close()
    former = file_of(former_writer)
    former.rename(former.with_name("changes.of-the-former-writer"))
    former_writer = start("writer", new_writer)
    until_applied(new_writer, late_follower, former_writer)
    expected = lists_of(new_writer)
    assert lists_of(late_follower) == lists_of(former_writer) == expected
    ids = ids_of(new_writer, **READS)
    assert 6010 in ids
    assert not {5003, 6011} & ids


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
        upsert = request("POST", f"{path}/candidates/upsert", json=body, headers=headers)
        offsets = request("GET", f"{path}/changes", headers=headers)
        assert (upsert.status_code, offsets.status_code) == (code, code)
    assert operate(service, "GET", "changes")["streams"] == {"s": 7}
    without_tokens = serve()
    url = f"{without_tokens.http}/v1/models/movies/candidates/upsert"
    response = request("POST", url, json={"items": [candidate(5000)]})
    assert (response.status_code, "admin API" in response.text) == (403, True)
