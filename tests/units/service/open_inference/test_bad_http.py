"""What the protocol rejects over HTTP: with its own form of errors, the status of the code, and a
message that names what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.units.service.cases import LIMITS, MODEL
from tests.units.service.open_inference import forms

INFER = f"/v2/models/{MODEL}/infer"
USER = {"name": "user", "datatype": "INT64", "shape": [1], "data": [5]}
MANY = 2**40


@dataclass(frozen=True)
class Case:
    """A request that is rejected.

    Attributes:
      name: The name of the test.
      words: A part of the message.
      body: A JSON value, or bytes.
      status: The status of the response.
      headers: The headers beside those of httpx.
    """

    name: str
    words: str
    body: Any
    status: int = 400
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = INFER


def query(*inputs: Any, **more: Any) -> dict[str, Any]:
    """Returns a request of the query tower."""
    return {"inputs": list(inputs), "parameters": {"signature_name": "query"}, **more}


def user(**changes: Any) -> dict[str, Any]:
    """Returns a request whose only tensor differs from USER."""
    return query({**USER, **changes})


def with_bytes(name: str, datatype: str, shape: list[int], data: bytes, **sizes: int) -> Any:
    """Returns a body in which a tensor follows the JSON."""
    size = sizes.get("binary_data_size", len(data))
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    entry |= {"parameters": {"binary_data_size": size}}
    head = json.dumps(query(entry)).encode()
    return Binary(head + data, len(head))


@dataclass(frozen=True)
class Binary:
    body: bytes
    header_length: int


TEXT = b"\4\0\0\0oslo"

CASES = (
    Case(
        "an unknown signature",
        "no signature 'qery'; did you mean 'query'?",
        {"inputs": [USER], "parameters": {"signature_name": "qery"}},
    ),
    Case(
        "an unknown tensor",
        "input 'usr' is unknown to signature 'query'; did you mean 'user'?",
        query(USER, {**USER, "name": "usr"}),
    ),
    Case("a missing tensor", "input 'user' of signature 'query' is missing", query()),
    Case("a tensor twice", "inputs.user has two tensors; one was expected", query(USER, USER)),
    Case(
        "a tensor without a name",
        "inputs[0].name is null; a string was expected",
        query({"shape": [1]}),
    ),
    Case("no tensors", "inputs is null; a list was expected", {"parameters": {}}),
    Case(
        "strings for integers",
        "input 'user' is string; int64 was expected",
        user(datatype="BYTES", data=["5"]),
    ),
    Case(
        "an unknown datatype",
        "inputs.user.datatype is 'INT128'; one of BOOL, INT8",
        user(datatype="INT128"),
    ),
    Case("BF16", "inputs.user.datatype is 'BF16'; one of", user(datatype="BF16")),
    Case(
        "another number of rows",
        "has 2 rows",
        query(USER, {"name": "hour", "datatype": "FP32", "shape": [2], "data": [1, 2]}),
    ),
    Case(
        "a dense tensor of another shape",
        "'mood' is float32 of shape [1, 3]",
        {
            "inputs": [
                USER,
                {"name": "mood", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
            ],
            "parameters": {},
        },
    ),
    Case(
        "fewer elements",
        "inputs.user has 1 elements; 2 for INT64 of shape [2]",
        user(shape=[2]),
    ),
    Case(
        "lists of another shape",
        "nested lists of another shape; the shape [2, 2]",
        user(shape=[2, 2], data=[[1, 2], [3]]),
    ),
    Case(
        "deeper lists",
        "nested lists of another shape; the shape [1, 1]",
        user(shape=[1, 1], data=[[[5]], [5]]),
    ),
    Case("a negative size", "inputs.user.shape holds -1", user(shape=[-1])),
    Case(
        "a size that is no integer",
        "inputs.user.shape holds true; an integer of at least 0",
        user(shape=[True]),
    ),
    Case("a shape that is no list", "inputs[0].shape is 1; a list was expected", user(shape=1)),
    Case(
        "a shape whose product is enormous",
        f"has {MANY**4} values; at most 300 are accepted",
        user(shape=[MANY] * 4),
        413,
    ),
    Case(
        "an empty shape of an enormous size",
        f"inputs.user has {MANY**2} values; at most 300 are accepted",
        user(shape=[MANY, 0, MANY], data=[]),
        413,
    ),
    Case(
        "tensors that are too large together",
        "inputs has 400 values; at most 300 are accepted",
        query(
            {**USER, "shape": [200], "data": [5] * 200},
            {"name": "hour", "datatype": "FP32", "shape": [200], "data": [0] * 200},
        ),
        413,
    ),
    Case(
        "too many tensors",
        "inputs has 21 features; at most 20 are accepted",
        query(*[USER] * 21),
        413,
    ),
    Case(
        "a shape of many axes",
        "inputs.user.shape has 9 axes; at most 8 was expected",
        user(shape=[1] * 9),
    ),
    Case(
        "no data",
        "inputs.user.data is null; a list was expected",
        query({"name": "user", "datatype": "INT64", "shape": [1]}),
    ),
    Case(
        "an element of another type",
        "inputs.user holds 0.5; an integer for INT64",
        user(data=[0.5]),
    ),
    Case("true for an integer", "inputs.user holds true; an integer for INT64", user(data=[True])),
    Case(
        "an integer that is too large",
        "inputs.user holds 300; a number that fits INT8",
        user(datatype="INT8", data=[300]),
    ),
    Case(
        "a number that is too large",
        "holds 1e+39; a number that fits FP32",
        user(datatype="FP32", data=[1e39]),
    ),
    Case(
        "row splits that fall",
        "history_1 is",
        query(
            USER,
            {"name": "history", "datatype": "INT64", "shape": [2], "data": [1, 2]},
            {"name": "history_1", "datatype": "INT64", "shape": [2], "data": [2, 0]},
        ),
    ),
    Case("an unknown output", "output 'vectr'", query(USER, outputs=[{"name": "vectr"}])),
    Case(
        "an output twice",
        "outputs has 'vector' twice; each output once",
        query(USER, outputs=[{"name": "vector"}] * 2),
    ),
    Case(
        "too many outputs",
        "outputs has 11 names; at most 10",
        query(USER, outputs=[{"name": str(n)} for n in range(11)]),
        413,
    ),
    Case(
        "parameters that are no object",
        "parameters is [1]; a JSON object was expected",
        {"inputs": [USER], "parameters": [1]},
    ),
    Case(
        "a signature that is no string",
        "parameters.signature_name is 7; a string was expected",
        {"inputs": [USER], "parameters": {"signature_name": 7}},
    ),
    Case(
        "a flag that is no flag",
        "parameters.binary_data_output is 'yes'; true or false was expected",
        {"inputs": [USER], "parameters": {"binary_data_output": "yes"}},
    ),
    Case(
        "shared memory",
        "shared memory is not provided",
        query({**USER, "parameters": {"shared_memory_region": "a"}}),
        501,
    ),
    Case(
        "a classification",
        "classification is not provided",
        query(USER, outputs=[{"name": "vector", "parameters": {"classification": 3}}]),
        501,
    ),
    Case(
        "a sequence",
        "parameters.sequence_id is 7; no such parameter was expected; sequences are not provided",
        {"inputs": [USER], "parameters": {"sequence_id": 7}},
        501,
    ),
    Case(
        "an unknown parameter of a request",
        "parameters has the unknown field 'timeouts'; one of signature_name",
        {"inputs": [USER], "parameters": {"timeouts": 7}},
    ),
    Case(
        "an unknown parameter of a tensor",
        "inputs.user.parameters has the unknown field 'encoding'; one of binary_data_size",
        user(parameters={"encoding": "x"}),
    ),
    Case(
        "an unknown parameter of an output",
        "outputs[0].parameters has the unknown field 'binary_data_output'; one of binary_data, ",
        query(USER, outputs=[{"name": "vector", "parameters": {"binary_data_output": True}}]),
    ),
    Case(
        "a timeout that is negative",
        "parameters.timeout is -1; 0 or more was expected",
        {"inputs": [USER], "parameters": {"timeout": -1}},
    ),
    Case(
        "a timeout that has passed",
        "deadline",
        {"inputs": [USER], "parameters": {"timeout": 1, "signature_name": "query"}},
        504,
    ),
    Case(
        "base64 in a tensor",
        "inputs.user.parameters.content_type is 'base64'; np or str was expected",
        user(parameters={"content_type": "base64"}),
    ),
    Case(
        "objects in all tensors",
        "parameters.content_type is 'pd_json'; np or pd or str was expected",
        {"inputs": [USER], "parameters": {"content_type": "pd_json"}},
    ),
    Case(
        "texts of a tensor of integers",
        "inputs.user.parameters.content_type is 'str'; np for INT64 was expected",
        user(parameters={"content_type": "str"}),
    ),
    Case(
        "texts as an output",
        "outputs[0].parameters.content_type is 'str'; np was expected",
        query(USER, outputs=[{"name": "vector", "parameters": {"content_type": "str"}}]),
    ),
    Case(
        "another model than the URL",
        "model_name is 'books'; the model of the URL was expected",
        query(USER, model_name="books"),
    ),
    Case(
        "another version than the URL",
        "model_version is '2'; the version of the URL was expected",
        query(USER, model_version="2"),
        path=f"/v2/models/{MODEL}/versions/1/infer",
    ),
    Case("a version that is not served", "7", query(USER, model_version="7"), 404),
    Case("no JSON", "the body is not valid JSON", b"{"),
    Case("an empty body", "the body is not valid JSON", b""),
    Case("NaN", "JSON has no such number", b'{"inputs": [NaN]}'),
    Case("a JSON list", "a JSON object was expected", b"[]"),
    Case("an unknown field", "unknown field 'input'; one of id, model_name", {"input": [USER]}),
    Case("an id that is no string", "id is 7; a string was expected", query(USER, id=7)),
    Case(
        "a long id", "id has 1025 characters; at most 1024 was expected", query(USER, id="x" * 1025)
    ),
    Case(
        "another content type",
        "content-type is 'text/plain'",
        query(USER),
        headers={"content-type": "text/plain"},
    ),
    Case(
        "a web page without a type",
        "content-type is ''",
        query(USER),
        headers={"content-type": "", "origin": "https://example"},
    ),
    Case(
        "a JSON size that is no number",
        "inference-header-content-length is '1e3'",
        query(USER),
        headers={forms.HEADER_LENGTH: "1e3"},
    ),
    Case(
        "another charset",
        "content-type names the charset 'utf-16'; JSON in utf-8 was expected",
        query(USER),
        headers={"content-type": "application/json; charset=utf-16"},
    ),
    Case(
        "another encoding",
        "content-encoding is 'deflate'; gzip or none was expected",
        query(USER),
        headers={"content-encoding": "deflate"},
    ),
    Case(
        "another encoding than declared",
        "the body is not gzip",
        query(USER),
        headers={"content-encoding": "gzip"},
    ),
    Case(
        "a JSON size twice",
        "inference-header-content-length is '10, 10'; a number of bytes was expected",
        query(USER),
        headers={forms.HEADER_LENGTH: "10, 10"},
    ),
    Case(
        "a JSON size beyond the body",
        "inference-header-content-length is 9999; at most",
        query(USER),
        headers={forms.HEADER_LENGTH: "9999"},
    ),
    Case(
        "a JSON size that cuts the JSON",
        "the body is not valid JSON",
        query(USER),
        headers={forms.HEADER_LENGTH: "20"},
    ),
    Case(
        "half a binary tensor",
        "binary_data_size is 8; 0 to 4, the bytes that follow",
        with_bytes("user", "INT64", [1], b"\0" * 4, binary_data_size=8),
    ),
    Case(
        "a binary tensor of half the size",
        "has 4 bytes; 8 for INT64 of shape [1]",
        with_bytes("user", "INT64", [1], b"\0" * 4),
    ),
    Case(
        "bytes after the tensors",
        "3 bytes after those of its inputs",
        with_bytes("user", "INT64", [1], b"\0" * 11, binary_data_size=8),
    ),
    Case(
        "a negative binary size",
        "binary_data_size is -8; 0 or more",
        with_bytes("user", "INT64", [1], b"", binary_data_size=-8),
    ),
    Case(
        "both forms of a tensor",
        "inputs.user has data and binary_data_size",
        query({**USER, "parameters": {"binary_data_size": 0}}),
    ),
    Case(
        "a byte that is no BOOL",
        "holds a byte other than 0 and 1",
        with_bytes("user", "BOOL", [1], b"\2"),
    ),
    Case(
        "a string without its length",
        "has 2 bytes; 4 or more for BYTES",
        with_bytes("city", "BYTES", [1], b"\4\0"),
    ),
    Case(
        "a string that is longer than the tensor",
        "declares 4294967295 bytes for element 0; at most 4",
        with_bytes("city", "BYTES", [1], b"\xff" * 4 + b"oslo"),
    ),
    Case(
        "a tensor that ends in a length",
        "ends in the length of element 1",
        with_bytes("city", "BYTES", [2], TEXT + b"\1\0"),
    ),
    Case(
        "bytes after the strings",
        "has 1 bytes after its last element",
        with_bytes("city", "BYTES", [1], TEXT + b"!"),
    ),
    Case(
        "a string that is not UTF-8",
        "holds bytes that are not UTF-8",
        with_bytes("city", "BYTES", [1], b"\1\0\0\0\xff"),
    ),
    Case("too large a body", "the body has", b" " * (LIMITS["max_request_bytes"] + 1), 413),
    Case("an unknown model", "books", query(USER), 404, path="/v2/models/books/infer"),
    Case("an unknown version", "7", query(USER), 404, path=f"/v2/models/{MODEL}/versions/7/infer"),
    Case(
        "a version that is no number",
        "version is 'x'",
        query(USER),
        path=f"/v2/models/{MODEL}/versions/x/infer",
    ),
    Case(
        "loading a model",
        "loading and unloading are not provided",
        b"",
        501,
        path=f"/v2/repository/models/{MODEL}/load",
    ),
    Case("an unknown path", "does not exist", b"", 404, path="/v2/models"),
    Case(
        "an index of another repository",
        "repository_name is 'other'; no name was expected",
        {"repository_name": "other"},
        404,
        path="/v2/repository/index",
    ),
    Case(
        "an index of a wrong type",
        "body.ready is 1; true or false was expected",
        {"ready": 1},
        path="/v2/repository/index",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_request_that_is_rejected_names_why(case: Case, http: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    body = case.body
    if isinstance(body, Binary):
        headers = {**headers, forms.HEADER_LENGTH: str(body.header_length)}
        body = body.body
    elif not isinstance(body, bytes):
        body = json.dumps(body).encode()
    response = http.post(case.path, content=body, headers={**headers, **case.headers})
    assert response.status_code == case.status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    assert case.words in response.json()["error"]


def test_other_method_of_a_path_is_rejected(http: httpx.Client) -> None:
    for method, path, allowed in (("GET", INFER, "POST"), ("POST", "/v2/health/live", "GET")):
        response = http.request(method, path)
        assert response.status_code == 405
        assert allowed in response.headers["allow"]
        assert set(response.json()) == {"error"}
