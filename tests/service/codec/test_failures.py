"""What the client and the log learn of a failed call."""

from __future__ import annotations

import asyncio
import logging

import pytest

from service.codec.failures import MESSAGE_CHARS_MAX, Failure, failure_of, log_failure
from service.errors import INTERNAL_MESSAGE, Code, Internal, InvalidArgument, Overloaded


def test_failure_of_a_service_error_has_its_message_cut_to_what_headers_carry() -> None:
    failure = failure_of(InvalidArgument("k is -1"), "r1")
    assert failure == Failure(Code.INVALID_ARGUMENT, "k is -1", "r1", None)
    assert len(failure_of(InvalidArgument("x" * 100_000), "r1").message) == MESSAGE_CHARS_MAX
    assert failure_of(Overloaded("busy", 0.25), "r1").retry_after_s == 0.25


@pytest.mark.parametrize(
    "bug", [KeyError("secret"), Internal("secret"), MemoryError("secret"), ValueError("secret")]
)
def test_failure_of_a_bug_has_only_the_fixed_message(bug: Exception) -> None:
    failure = failure_of(bug, "r1")
    assert (failure.code, failure.message) == (Code.INTERNAL, INTERNAL_MESSAGE)


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
        "request_id": "r1",
    }
    assert "secret" not in caplog.text


def test_log_failure_of_a_bug_has_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    problem = KeyError("the cause")
    log_failure(logging.getLogger("rowcast.test"), "rank", failure_of(problem, "r1"), problem)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the cause" in caplog.text
