from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from service.codec.failures import Failure
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import TRANSPORT_STATUS, Code, FieldViolation
from service.grpc_api.status import status_code_of, trailing_metadata_of
from tests.units.service.grpc_api.requests import code_of


@pytest.mark.parametrize("code", list(Code))
def test_failure_of_each_code_has_the_status_of_the_table_and_details(code: Code) -> None:
    failure = Failure(code, "a sentence", "r-1", 2 if code is Code.OVERLOADED else None)
    assert status_code_of(failure) is grpc.StatusCode[TRANSPORT_STATUS[code].grpc]
    trailing = dict(trailing_metadata_of(failure))
    assert trailing["x-request-id"] == "r-1"
    status = Status.FromString(bytes(trailing["grpc-status-details-bin"]))  # type: ignore[arg-type]
    details = pb.ErrorDetails()
    assert (status.code, status.message) == (status_code_of(failure).value[0], "a sentence")
    assert status.details[0].Unpack(details)
    assert code_of(details) == code.value
    assert (details.message, details.request_id) == ("a sentence", "r-1")
    assert trailing.get("retry-after") == ("2" if code is Code.OVERLOADED else None)
    assert trailing.get("grpc-retry-pushback-ms") == ("2000" if code is Code.OVERLOADED else None)
    info = error_details_pb2.ErrorInfo()
    assert status.details[1].Unpack(info)
    assert (info.reason, info.domain) == (code.value, "rowcast")
    assert dict(info.metadata) == {"request_id": "r-1"}
    assert len(status.details) == 2 + (code is Code.OVERLOADED)
    if code is Code.OVERLOADED:
        retry = error_details_pb2.RetryInfo()
        assert status.details[2].Unpack(retry)
        assert retry.retry_delay.ToMilliseconds() == 2000


def test_failure_of_a_field_has_a_bad_request() -> None:
    violation = FieldViolation("filter.year.ge", "'old'", "a number")
    message = "filter.year.ge is 'old'; a number was expected"
    failure = Failure(Code.INVALID_ARGUMENT, message, "r-1", violations=(violation,))
    trailing = dict(trailing_metadata_of(failure))
    status = Status.FromString(bytes(trailing["grpc-status-details-bin"]))  # type: ignore[arg-type]
    details = pb.ErrorDetails()
    bad_request = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(details)
    assert list(details.violations) == [pb.FieldViolation(**vars(violation))]
    assert status.details[2].Unpack(bad_request)
    (bad_field,) = bad_request.field_violations
    assert bad_field.field == "filter.year.ge"
    assert bad_field.description == "'old'; a number was expected"
    assert bad_field.reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize("request_id", ["1", "0" * 32, "a-client/chose:it", "x" * 128])
def test_failures_that_repeat_differ_in_their_ids_alone(request_id: str) -> None:
    message = "the response would miss the deadline of the request"
    for failure_id in ("first-of-all", request_id):
        trailing = dict(trailing_metadata_of(Failure(Code.OVERLOADED, message, failure_id, 1)))
        status = Status.FromString(bytes(trailing["grpc-status-details-bin"]))  # type: ignore[arg-type]
        details = pb.ErrorDetails()
        assert status.details[0].Unpack(details)
        assert (details.message, details.request_id) == (message, failure_id)
        assert trailing["x-request-id"] == failure_id
        info = error_details_pb2.ErrorInfo()
        assert (status.message, len(status.details)) == (message, 3)
        assert status.details[1].Unpack(info)
        assert info.metadata["request_id"] == failure_id
