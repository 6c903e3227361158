"""Request ids, timeouts and server timing."""

from __future__ import annotations

import pytest

from service.codec.metadata import is_protobuf, request_id_of, server_timing, timeout_s_of
from service.errors import InvalidArgument

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(("request_id", "expected"), [("order-17/a", "order-17/a"), (None, TRACE)])
def test_request_id_is_what_was_sent_else_the_trace_id(
    request_id: str | None, expected: str
) -> None:
    assert request_id_of(request_id, f"00-{TRACE}-00f067aa0ba902b7-01") == expected


@pytest.mark.parametrize(
    "bad", ["", "a b", "x" * 129, "a\nb", 'a"b', "-x", "é", "a\r\nset-cookie: x"]
)
def test_request_id_that_is_unsafe_in_a_log_is_replaced(bad: str) -> None:
    replacement = request_id_of(bad, None)
    assert replacement != bad
    assert len(replacement) == 32


@pytest.mark.parametrize("bad", ["", "00-xyz-1-01", f"00-{'0' * 32}-00f067aa0ba902b7-01", TRACE])
def test_request_id_of_a_bad_trace_is_a_new_one_each_time(bad: str) -> None:
    assert request_id_of(None, bad) != request_id_of(None, bad)


def test_timeout_is_milliseconds() -> None:
    assert timeout_s_of("1500") == 1.5
    assert timeout_s_of("0") == 0.0


@pytest.mark.parametrize("bad", ["", "-1", "1.5", "1e3", "soon", "3600001", "٣", "9" * 5000])
def test_timeout_that_is_no_number_of_milliseconds_is_rejected(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="x-request-timeout-ms is"):
        timeout_s_of(bad)


def test_server_timing_of_phases_is_milliseconds_in_their_order() -> None:
    phases = {"queue": 0.000123, "lookup": 0.0450006, "compute": 0.0}
    assert server_timing(phases) == "queue;dur=0.123, lookup;dur=45.001, compute;dur=0.000"
    assert server_timing({}) == ""


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "us-ascii"])
def test_json_in_utf_8_is_accepted(charset: str) -> None:
    assert not is_protobuf({"content-type": f"application/json; charset={charset}"})


@pytest.mark.parametrize("charset", ["utf-16", "iso-8859-1"])
def test_json_in_another_charset_is_rejected_by_its_name(charset: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the charset '{charset}'; JSON in utf-8"):
        is_protobuf({"content-type": f"application/json; v=1; Charset={charset}"})
