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
    reason_of,
)
from service.errors import (
    Code,
    FieldViolation,
    Internal,
    InvalidArgument,
    NotFound,
    NotReady,
    Overloaded,
    PermissionDenied,
    RowNotFinite,
)
from service.observability.logging import LIMITED_LINES_PER_S_MAX, PRINCIPAL, finish


def test_failure_of_a_row_names_it_to_the_client_and_its_table_alone_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = RowNotFinite("items", 19_998)
    failure = failure_of(problem, "r1")
    assert failure.code is Code.INTERNAL
    assert failure.message.startswith("the row of id 19998 in table 'items' holds NaN or an infin")
    with caplog.at_level(logging.DEBUG):
        log_failure(logging.getLogger("rowcast.test"), "rank", failure, problem, "shop")
    (record,) = [record for record in caplog.records if record.name == "rowcast.test"]
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    assert record.__dict__["rowcast_fields"]["reason"] == (
        "a row of table items holds NaN or an infinity"
    )
    assert "19998" not in str(record.__dict__)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (
            InvalidArgument.of_field("k", 5000, "1 to 1000 (max_k)"),
            "k: 1 to 1000 (max_k) was expected",
        ),
        (
            InvalidArgument.of_field("features.alice@example.com", "nested", "one list", "holds"),
            "features.….…: one list was expected",
        ),
        (
            InvalidArgument.of_field("filter.any[3].secret.ge", '"a"', "a number"),
            "filter.any.….ge: a number was expected",
        ),
        (
            InvalidArgument.of_field("requests[7]", "'secret'", "one of context", "has"),
            "requests: one of context was expected",
        ),
        (
            NotFound("no model 'secret'", FieldViolation("model", "'secret'", "one of 'shop'")),
            "model: one of 'shop' was expected",
        ),
        (
            InvalidArgument.of_field("content-type", "'secret'", "application/json"),
            "content-type: application/json was expected",
        ),
        (InvalidArgument("a secret"), "InvalidArgument"),
        (PermissionDenied("a secret"), "PermissionDenied"),
        (NotReady("no model is loaded yet"), "no model is loaded yet"),
        (
            NotReady("row of id 7 is lost", FieldViolation("context.secret", "id 7", "another")),
            "context.…: another was expected",
        ),
        (Overloaded("busy", 0.25, "queue"), "queue"),
        (KeyError("secret"), "KeyError"),
        (Internal("secret"), "Internal"),
    ],
)
def test_reason_has_no_value_that_the_client_sent(problem: Exception, reason: str) -> None:
    assert reason_of(problem) == reason


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
