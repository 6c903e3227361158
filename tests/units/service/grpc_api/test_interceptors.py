from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import grpc
import pytest

from service.errors import INTERNAL_MESSAGE
from service.grpc_api.servicer import SERVICE
from service.observability import logging
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.grpc_api.conftest import MAX_REQUEST_BYTES
from tests.units.service.grpc_api.requests import (
    PREFACE,
    WAIT_S,
    call,
    connect,
    frame,
    lookup,
    outcome,
    request_frames,
    retrieve,
)
from tests.units.service.running import FailingTower, RunningService, log_lines

DIM = 8
TOKEN = "token-0123456789abcdef"
AUTHORIZATION = (("authorization", f"Bearer {TOKEN}"),)


def counted(service: RunningService, name: str, code: str) -> float:
    return service.value("rowcast_requests_total", transport="grpc", call=name, code=code)


def never_sends(
    channel: grpc.Channel, method: str, metadata: tuple[tuple[str, str], ...] = ()
) -> grpc.Future:
    """A call whose message never comes; the test's end releases it."""
    silent = threading.Event()

    def messages() -> Iterator[bytes]:
        silent.wait(WAIT_S)
        yield from ()

    pending = channel.stream_unary(f"/{SERVICE}/{method}").future(messages(), metadata=metadata)
    pending.add_done_callback(lambda _: silent.set())
    return pending


@pytest.fixture
def limited_service(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tmp_path: Path
) -> RunningService:
    """A service with one place for requests and a token, whose query tower waits or fails as a test
    wants.
    """
    write()
    (tmp_path / "tokens").write_text(f"client {TOKEN}\n")
    return serve(
        tokens=tmp_path / "tokens", max_concurrent_requests=1, inline_max_us=0, request_timeout_s=60
    )


def test_rejected_calls_messages_are_never_read(limited_service: RunningService) -> None:
    tower = limited_service.waiting()
    with grpc.insecure_channel(limited_service.grpc) as channel:
        assert outcome(never_sends(channel, "Retrieve")).code == "UNAUTHENTICATED"
        pending = channel.unary_unary(f"/{SERVICE}/Retrieve").future(
            retrieve().SerializeToString(), timeout=WAIT_S, metadata=AUTHORIZATION
        )
        assert tower.entered.wait(WAIT_S)
        rejected = outcome(never_sends(channel, "Rank", AUTHORIZATION))
        tower.release.set()
        assert (rejected.code, rejected.status.name) == ("OVERLOADED", "RESOURCE_EXHAUSTED")
        assert float(rejected.trailing["retry-after"]) > 0
        assert outcome(pending).code == "OK"
    assert (
        limited_service.value("rowcast_rejected_requests_total", call="rank", reason="requests")
        == 1
    )
    assert (
        counted(limited_service, "rank", "OVERLOADED")
        == counted(limited_service, "retrieve", "UNAUTHENTICATED")
        == 1
    )
    assert limited_service.value("rowcast_phase_seconds_count", call="rank", phase="decode") == 0


def test_cancelled_and_expired_calls_end_their_requests(limited_service: RunningService) -> None:
    with grpc.insecure_channel(limited_service.grpc) as channel, log_lines() as written:
        for end in ("cancel", "deadline"):
            tower = limited_service.waiting()
            pending = channel.unary_unary(f"/{SERVICE}/Retrieve").future(
                retrieve().SerializeToString(),
                timeout=WAIT_S if end == "cancel" else 0.5,
                metadata=AUTHORIZATION,
            )
            assert tower.entered.wait(WAIT_S)
            if end == "cancel":
                pending.cancel()
            until(
                lambda: limited_service.dataplane.engine.inflight == 0
            )  # while the tower still computes
            assert pending.code().name == ("CANCELLED" if end == "cancel" else "DEADLINE_EXCEEDED")
            tower.release.set()
        until(
            lambda: (
                counted(limited_service, "retrieve", "CANCELLED")
                + counted(limited_service, "retrieve", "DEADLINE")
                == 2
            )
        )
        assert call(channel, "Retrieve", retrieve(), TOKEN).code == "OK"
    assert "request_failed" in written.getvalue()
    assert '"traceback"' not in written.getvalue()


def test_bug_reaches_the_log_and_not_the_client(
    limited_service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    limited_service.with_network("query", FailingTower(limited_service.waiting()))
    with grpc.insecure_channel(limited_service.grpc) as channel:
        failed = call(channel, "Retrieve", retrieve(), TOKEN)
    assert (failed.code, failed.response) == ("INTERNAL", INTERNAL_MESSAGE)
    assert b"secret" not in failed.trailing["grpc-status-details-bin"]
    assert "secret of the tower" in caplog.text


def test_request_ids_are_returned_and_malformed_ones_replaced(channel: grpc.Channel) -> None:
    trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
    for metadata, expected in (
        ([("x-request-id", "r-1")], "r-1"),
        ([("traceparent", trace)], "0123456789abcdef0123456789abcdef"),
        ([("x-request-id", "a"), ("x-request-id", "b")], None),
        ([("x-request-id", "no spaces")], None),
    ):
        for message in (lookup(3), b"\xff"):
            returned = call(channel, "Lookup", message, metadata=metadata).trailing["x-request-id"]
            assert returned == expected or (expected is None and len(returned) == 32)


def test_unknown_methods_are_unimplemented(service: RunningService, channel: grpc.Channel) -> None:
    failed = call(channel, "Nothing", metadata=[("x-request-id", "r-2")])
    assert (failed.code, failed.status.name) == ("UNIMPLEMENTED", "UNIMPLEMENTED")
    assert SERVICE in failed.response
    with pytest.raises(grpc.RpcError) as error:
        channel.unary_unary("/other.Service/Method")(b"", timeout=WAIT_S)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert counted(service, "other", "UNIMPLEMENTED") == 2


def test_message_over_the_limit_is_resource_exhausted(
    service: RunningService, channel: grpc.Channel
) -> None:
    before = counted(service, "retrieve", "CANCELLED")
    rejected = call(channel, "Retrieve", bytes(8 * MAX_REQUEST_BYTES))
    assert rejected.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "retry-after" not in rejected.trailing
    until(lambda: counted(service, "retrieve", "CANCELLED") == before + 1)
    assert call(channel, "Lookup", lookup(3)).code == "OK"


def test_call_without_a_message_is_invalid(service: RunningService, channel: grpc.Channel) -> None:
    before = counted(service, "retrieve", "INVALID_ARGUMENT")
    rejected = outcome(channel.stream_unary(f"/{SERVICE}/Retrieve").future(iter(())))
    assert (rejected.code, rejected.response) == (
        "INVALID_ARGUMENT",
        "the call has no message; one was expected",
    )
    until(lambda: counted(service, "retrieve", "INVALID_ARGUMENT") == before + 1)


def test_message_that_does_not_arrive_ends_at_the_body_timeout(
    service: RunningService, channel: grpc.Channel
) -> None:
    expired = outcome(never_sends(channel, "Embed"))
    assert (expired.code, expired.status.name) == ("DEADLINE", "DEADLINE_EXCEEDED")
    assert service.dataplane.budget.held == 0


@pytest.mark.parametrize(
    ("timeout_ms", "code"), [("20000", "OK"), ("0", "DEADLINE"), ("soon", "INVALID_ARGUMENT")]
)
def test_timeout_in_the_metadata_is_that_of_http(
    timeout_ms: str, code: str, channel: grpc.Channel
) -> None:
    metadata = [("x-request-timeout-ms", timeout_ms)]
    assert call(channel, "Retrieve", retrieve(), TOKEN, metadata=metadata).code == code


def test_unread_responses_count_as_bytes_in_flight(service: RunningService) -> None:
    budget = service.dataplane.budget
    with connect(service.grpc) as client:
        client.sendall(
            PREFACE
            + request_frames(f"/{SERVICE}/Lookup", lookup(*range(8_000)).SerializeToString())
        )
        until(lambda: budget.held > 8_000 * 4 * DIM)
    until(lambda: budget.held == 0)


def test_metadata_that_is_not_text_is_not_logged(
    service: RunningService, stream: TextIO, tmp_path: Path
) -> None:
    value = b"Bearer secret\xff\xfe"
    metadata = b"\0\x0dauthorization" + bytes([len(value)]) + value
    frames = request_frames(f"/{SERVICE}/Lookup", lookup(1).SerializeToString())
    size = int.from_bytes(frames[:3], "big")
    before = counted(service, "lookup", "OK")
    headers = frame(1, 4, 1, frames[9 : 9 + size] + metadata)
    with connect(service.grpc) as client:
        client.sendall(PREFACE + headers + frames[9 + size :])
        until(lambda: counted(service, "lookup", "OK") == before + 1)

    logging.shutdown()
    text = (tmp_path / "log").read_text()
    assert "secret" not in text
    assert "Invalid encoding" not in text


@pytest.mark.parametrize("message", [lookup(1).SerializeToString(), b""])
def test_client_that_leaves_amid_its_call_is_counted_as_cancelled(
    message: bytes, service: RunningService
) -> None:
    before = counted(service, "lookup", "CANCELLED")
    frames = request_frames(f"/{SERVICE}/Lookup", message)
    with connect(service.grpc) as client:
        client.sendall(PREFACE + frames[:-1])
    until(lambda: counted(service, "lookup", "CANCELLED") == before + 1)
