"""What the client and the log learn of a failed call."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import TextIO

import pytest

from service.codec.failures import (
    MESSAGE_CHARS_MAX,
    Failure,
    failure_of,
    log_failure,
    reason_of,
)
from service.errors import (
    INTERNAL_MESSAGE,
    Code,
    Internal,
    InvalidArgument,
    NotFound,
    Overloaded,
    RowNotFinite,
)
from service.observability.logging import LIMITED_LINES_PER_S_MAX, PRINCIPAL, finish


def test_failure_of_a_service_error_has_its_message_cut_to_what_headers_carry() -> None:
    failure = failure_of(InvalidArgument("k is -1"), "r1")
    assert failure == Failure(Code.INVALID_ARGUMENT, "k is -1", "r1", None)
    assert len(failure_of(InvalidArgument("x" * 100_000), "r1").message) == MESSAGE_CHARS_MAX
    assert failure_of(Overloaded("busy", 0.25), "r1").retry_after_s == 1
    assert failure_of(Overloaded("busy", 2.5), "r1").retry_after_s == 3


@pytest.mark.parametrize(
    "bug", [KeyError("secret"), Internal("secret"), MemoryError("secret"), ValueError("secret")]
)
def test_failure_of_a_bug_has_only_the_fixed_message(bug: Exception) -> None:
    failure = failure_of(bug, "r1")
    assert (failure.code, failure.message) == (Code.INTERNAL, INTERNAL_MESSAGE)


def test_failure_of_a_row_names_it_to_the_client_and_its_table_alone_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = RowNotFinite("items", 19_998)
    failure = failure_of(problem, "r1")
    assert failure.code is Code.INTERNAL
    assert failure.message.startswith("the row of id 19998 in table 'items' holds NaN or an infin")
    with caplog.at_level(logging.DEBUG):
        log_failure(logging.getLogger("rowcast.test"), "rank", failure, problem, "shop")
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    assert record.__dict__["rowcast_fields"]["reason"] == (
        "a row of table items holds NaN or an infinity"
    )
    assert "19998" not in str(record.__dict__)


def test_failure_of_a_cancelled_task_is_cancelled() -> None:
    assert failure_of(asyncio.CancelledError(), "r1").code is Code.CANCELLED


def test_log_failure_of_a_clients_mistake_leaves_out_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = InvalidArgument("features.user holds 'secret'")
    with caplog.at_level(logging.DEBUG):
        log_failure(logging.getLogger("rowcast.test"), "rank", failure_of(problem, "r1"), problem)
    assert len(caplog.records) == 1
    record = caplog.records[0]
    assert (record.message, record.levelname, record.exc_info) == ("request_failed", "INFO", None)
    assert record.__dict__["rowcast_fields"] == {
        "call": "rank",
        "code": "INVALID_ARGUMENT",
        "model": "",
        "reason": "features.… holds …",
        "request_id": "r1",
    }
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (
            InvalidArgument("k is 5000; 1 to 1000 (max_k) was expected"),
            "k is …; … to … (max_k) was expected",
        ),
        (
            InvalidArgument("features.alice@example.com holds nested lists"),
            "features.… holds nested lists",
        ),
        (
            InvalidArgument("features.a name holds 'it\\'s me' and -1.5e+3"),
            "features.… holds … and …",
        ),
        (
            InvalidArgument('filter.year.ge is "a \'b"; a number was expected'),
            "filter.… is …; a number was expected",
        ),
        (NotFound("model 'shop' does not exist"), "model … does not exist"),
        (
            InvalidArgument("vectors of shape [3, 4]; [n, 8] float32 is expected"),
            "vectors of shape [… …]; [n, …] float32 is expected",
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


def test_log_failure_of_a_bug_has_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    problem = KeyError("the cause")
    log_failure(logging.getLogger("rowcast.test"), "rank", failure_of(problem, "r1"), problem)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the cause" in caplog.text
