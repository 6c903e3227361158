"""What the client and the log learn of a failed call."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TextIO

import pytest

from service.codec.failures import (
    failure_of,
    log_failure,
)
from service.errors import (
    InvalidArgument,
    NotFound,
)
from service.observability.logging import LIMITED_LINES_PER_S_MAX, PRINCIPAL, finish


def test_log_failure_of_one_client_is_one_line_per_second(
    stream: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.5)
    monkeypatch.setattr(time, "time_ns", lambda: int(1000.5e9))
    log = logging.getLogger("rowcast.test")

    def fail(model: str, problem: Exception, times: int = 50) -> None:
        for _ in range(times):
            log_failure(log, "rank", failure_of(problem, "r1"), problem, model)

    fail("movies", InvalidArgument("k is -1"))
    fail("books", InvalidArgument("k is -1"))
    fail("movies", NotFound("model 'x' does not exist"))
    principal = PRINCIPAL.set("shop")
    fail("movies", InvalidArgument("k is -1"))
    PRINCIPAL.reset(principal)
    for number in range(100):
        fail(f"invented {number}", InvalidArgument("k is -1"), 1)
    fail("movies", KeyError("a bug"), 3)

    finish()
    lines = [json.loads(line) for line in Path(stream.name).read_text().splitlines()]
    logged = [(line["model"], line["code"], line.get("principal")) for line in lines]
    assert logged[:4] == [
        ("movies", "INVALID_ARGUMENT", None),
        ("books", "INVALID_ARGUMENT", None),
        ("movies", "NOT_FOUND", None),
        ("movies", "INVALID_ARGUMENT", "shop"),
    ]
    failures = [code for _, code, _ in logged if code != "INTERNAL"]
    assert len(failures) == LIMITED_LINES_PER_S_MAX
    assert [code for _, code, _ in logged].count("INTERNAL") == 3
    written_and_suppressed = len(lines) + sum(line.get("suppressed", 0) for line in lines)
    assert written_and_suppressed == 4 * 50 + 100 + 3
