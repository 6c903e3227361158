"""What the client and the log learn of a failed call."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

import pytest

from service.codec.failures import (
    MESSAGE_BYTES_MAX,
    Failure,
    details_message,
    details_value,
    failure_of,
    log_failure,
    reason_of,
)
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import (
    INTERNAL_MESSAGE,
    Code,
    FieldViolation,
    Internal,
    InvalidArgument,
    NotFound,
    NotReady,
    Overloaded,
    PermissionDenied,
    RowNotFinite,
    TooLarge,
)
from service.grpc_api.status import trailing_metadata_of
from service.observability.logging import LIMITED_LINES_PER_S_MAX, PRINCIPAL, finish


def test_failure_of_a_service_error_has_its_message_cut_to_what_headers_carry() -> None:
    failure = failure_of(InvalidArgument("k is -1"), "r1")
    assert failure == Failure(Code.INVALID_ARGUMENT, "k is -1", "r1", None, ())
    assert len(failure_of(InvalidArgument("x" * 100_000), "r1").message) == MESSAGE_BYTES_MAX
    assert failure_of(Overloaded("busy", 0.25), "r1").retry_after_s == 1
    assert failure_of(Overloaded("busy", 2.5), "r1").retry_after_s == 3


def test_failure_of_a_field_has_it_in_the_sentence_and_in_each_form() -> None:
    problem = InvalidArgument.of_field("k", -1, "1 to 50 (max_k)", hint="leave it out")
    failure = failure_of(problem, "r1")
    assert failure.message == "k is -1; 1 to 50 (max_k) was expected; leave it out"
    assert failure.violations == (FieldViolation("k", "-1", "1 to 50 (max_k)"),)
    violation = {"field": "k", "value": "-1", "expected": "1 to 50 (max_k)"}
    assert details_value(failure)["error"]["violations"] == [violation]
    assert list(details_message(failure).violations) == [pb.FieldViolation(**violation)]


def test_failure_of_a_limit_names_the_setting() -> None:
    failure = failure_of(TooLarge.of_limit("request", "9 values", 8, "max_values"), "r1")
    assert failure.message == "the request has 9 values; at most 8 are accepted (max_values)"
    assert failure.violations == (FieldViolation("request", "9 values", "at most 8 (max_values)"),)


def test_failure_of_an_overload_ends_with_its_request_id_in_either_form() -> None:
    failure = failure_of(Overloaded("busy", 1.5), "1")
    error = details_value(failure)["error"]
    assert list(error) == ["code", "message", "retry_after_s", "request_id"]
    assert error["retry_after_s"] == 2
    assert details_message(failure).SerializeToString().endswith(b"1")


@pytest.mark.parametrize("letter", ["x", "\n", "ж", "😀"])
def test_failure_of_long_texts_fits_into_the_headers_of_grpc(letter: str) -> None:
    text = letter * 9_000
    failure = failure_of(InvalidArgument.of_field(text, text, text), "r1")
    sizes = [len(key) + len(value) for key, value in trailing_metadata_of(failure)]
    # Base64 takes four bytes for three, and a byte of the message is one, or three with a %.
    assert sum(sizes) * 4 / 3 + len(quote(failure.message)) < 8_192


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
    problem = InvalidArgument.of_field("features.user", "'secret'", "an integer", "holds")
    with caplog.at_level(logging.DEBUG):
        log_failure(logging.getLogger("rowcast.test"), "rank", failure_of(problem, "r1"), problem)
    assert len(caplog.records) == 1
    record = caplog.records[0]
    assert (record.message, record.levelname, record.exc_info) == ("request_failed", "INFO", None)
    assert record.__dict__["rowcast_fields"] == {
        "call": "rank",
        "code": "INVALID_ARGUMENT",
        "model": "",
        "reason": "features.…: an integer was expected",
        "request_id": "r1",
    }
    assert "secret" not in caplog.text


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


def test_log_failure_of_a_bug_has_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    problem = KeyError("the cause")
    log_failure(logging.getLogger("rowcast.test"), "rank", failure_of(problem, "r1"), problem)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the cause" in caplog.text
