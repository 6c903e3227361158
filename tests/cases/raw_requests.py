"""The table of requests as bytes, by their path or method: what each protocol cannot read or does
not compute, and what is wrong with the headers, the size and the encoding of a body. `requests` has
what is wrong with the fields of rowcast's own calls.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from service.codec.stubs import embedding_service_pb2 as own_pb
from service.errors import TRANSPORT_STATUS, Code
from service.grpc_api.servicer import SERVICE
from service.protocols.tensorflow_serving.protocol import MODEL_SERVICE, PREDICTION_SERVICE
from tensors.stubs import open_inference_pb2 as pb
from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.bundles.tfrecords import example
from tests.cases.ways import RawRequest, RawResponse
from tests.differential import tensor_forms as forms
from tests.units.service.cases import LIMITS, MODEL
from tests.units.service.grpc_api.requests import lookup
from tests.units.service.http.clients import BODY, PROTOBUF, checked_error

SETTINGS = {**LIMITS, "max_request_bytes": 131_072}
"""Of the service that the requests are sent to."""
BAD = Code.INVALID_ARGUMENT
LARGE = Code.TOO_LARGE
GONE = Code.NOT_FOUND
DENIED = Code.PERMISSION_DENIED
LATE = Code.DEADLINE
ABSENT = Code.UNIMPLEMENTED
PAGE = f"/v1/models/{MODEL}"
RETRIEVE = f"POST {PAGE}:retrieve"
LOOKUP = f"/{SERVICE}/Lookup"
PREDICT = f"{forms.REST}:predict"
USERS_3 = lookup(3).SerializeToString()
TEXT = json.dumps(BODY).encode()
GZIP = {"content-encoding": "gzip"}
ELSEWHERE = {"origin": "https://example.com"}
FOREIGN = {"host": "example.com"}
BROWSER = {
    "accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8",
    "accept-language": "de;q=0.5",
    "cookie": "session=1",
    "dnt": "1",
    "referer": "http://127.0.0.1/docs",
    "sec-fetch-mode": "cors",
}
PROXY = [
    ("x-forwarded-for", "10.0.0.1, unknown"),
    ("via", "1.1 proxy"),
    ("forwarded", "for=unknown"),
    ("traceparent", "00-xyz-1-01"),
    ("x-rowcast-timeout", "soon"),
    ("x-request-id", "its own"),
    ("x-request-id", "that of the proxy"),
]
QUERY = {"signature_name": "query"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
ACCEPTED: dict[str, RawRequest] = {
    "a version": RawRequest(f"POST {PAGE}/versions/1:retrieve", BODY),
    "an encoded name": RawRequest("POST /v1/models/%6Dovies:retrieve", BODY),
    "no content type": RawRequest(RETRIEVE, content=TEXT),
    "a charset": RawRequest(
        RETRIEVE, BODY, headers={"content-type": 'Application/JSON; charset="UTF-8"'}
    ),
    "a typed page": RawRequest(RETRIEVE, BODY, headers=ELSEWHERE),
    "gzip": RawRequest(RETRIEVE, content=gzip.compress(TEXT), headers=GZIP),
    "gzip that shrinks": RawRequest(
        RETRIEVE, content=gzip.compress(TEXT + b" " * 100_000), headers=GZIP
    ),
    "a timeout": RawRequest(RETRIEVE, BODY, headers={"x-request-timeout-ms": "60000"}),
    "headers of a browser": RawRequest(RETRIEVE, BODY, headers=BROWSER),
    "headers of a proxy": RawRequest(RETRIEVE, BODY, headers=PROXY),
    "a parameter against caches": RawRequest("GET /docs/assets/swagger-ui.css?v=2"),
    "parameters of a scrape": RawRequest("GET /metrics?name[]=rowcast_ready"),
    "a probe of another host": RawRequest("GET /readyz", headers=FOREIGN),
    "metadata of a proxy": RawRequest(
        LOOKUP, content=USERS_3, headers={name: text for name, text in PROXY if "id" not in name}
    ),
    # As `curl -d` sends JSON to TensorFlow Serving.
    "a body of a form": RawRequest(PREDICT, {**QUERY, "inputs": {"user": [5]}}, headers=FORM),
}


def _query(*inputs: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), "parameters": {"signature_name": "query"}, **more}


def _user(**changes: Any) -> dict[str, Any]:
    return _query({**USER, **changes})


def _parameters(**more: Any) -> dict[str, Any]:
    return {"inputs": [USER], "parameters": more}


def _of(signature: str = "query", **fields: Any) -> dict[str, Any]:
    return {"signature_name": signature, **fields}


def _binary(
    name: str, datatype: str, data: bytes, size: int | None = None
) -> tuple[bytes, dict[str, str]]:
    """Returns a body in which a tensor follows the JSON, and its headers."""
    sizes = {"binary_data_size": len(data) if size is None else size}
    head = json.dumps(
        _query({"name": name, "datatype": datatype, "shape": [1], "parameters": sizes})
    )
    return head.encode() + data, {forms.HEADER_LENGTH: str(len(head))}


def _contents(datatype: str, shape: list[int], **values: Any) -> pb.ModelInferRequest:
    message = _raw()
    message.inputs[0].datatype = datatype
    message.inputs[0].shape[:] = shape
    message.inputs[0].contents.CopyFrom(pb.InferTensorContents(**values))
    return message


def _raw(*tensors: bytes) -> pb.ModelInferRequest:
    message = _named()
    message.raw_input_contents[:] = tensors
    return message


def _named(name: str = MODEL, version: str = "") -> pb.ModelInferRequest:
    return forms.message({"user": np.array([5])}, "query", name, model_version=version)


def _with_parameter(name: str, of_tensor: bool = False, **value: Any) -> pb.ModelInferRequest:
    message = _named()
    parameters = message.inputs[0].parameters if of_tensor else message.parameters
    parameters[name].CopyFrom(pb.InferParameter(**value))
    return message


def shape(*sizes: int) -> tf_pb.TensorShapeProto:
    return tf_pb.TensorShapeProto(dim=[tf_pb.TensorShapeProto.Dim(size=size) for size in sizes])


def tensor(dtype: Any, *sizes: int, **values: Any) -> tf_pb.TensorProto:
    return tf_pb.TensorProto(dtype=dtype, tensor_shape=shape(*sizes), **values)


def predict(spec: Mapping[str, Any] | None = None, **inputs: Any) -> tf_pb.PredictRequest:
    named = {"name": MODEL, **_of()} if spec is None else spec
    return tf_pb.PredictRequest(model_spec=tf_pb.ModelSpec(**named), inputs=inputs)


def _examples(signature: str, *listed: tf_pb.Example) -> tf_pb.ExamplesRequest:
    spec = tf_pb.ModelSpec(name=MODEL, signature_name=signature)
    example_list = tf_pb.ExampleList(examples=listed)
    return tf_pb.ExamplesRequest(model_spec=spec, input=tf_pb.Input(example_list=example_list))


USER = {"name": "user", "datatype": "INT64", "shape": [1], "data": [5]}
INT64 = tf_pb.DT_INT64
_MANY = 2**40
_EXAMPLE = example({"user": 5}, tf_pb)
_UNKNOWN_RANK = tf_pb.TensorProto(
    dtype=INT64, tensor_shape=tf_pb.TensorShapeProto(unknown_rank=True)
)
_EMPTY_STRINGS = own_pb.Column(strings=own_pb.Strings(values=[""] * 60_000))
_OTHER_MODEL = own_pb.RetrieveRequest(model=own_pb.ModelSpec(name="books"))
_OTHER_SPEC = tf_pb.ModelSpec(name="books")
_METADATA = tf_pb.GetModelMetadataRequest(
    model_spec=tf_pb.ModelSpec(name=MODEL), metadata_field=["graph"]
)
_FEATURES = {f"f{number}": [1] for number in range(21)}
_TOO_MANY = [1] * 301
REFUSED: dict[str, dict[str, tuple[Any, ...]]] = {
    RETRIEVE: {
        "no JSON": (b"{", BAD, "JSON"),
        "no UTF-8": (b'{"k": "\xff"}', BAD, "JSON"),
        "a lone surrogate": (b'"\\ud800"', BAD, "JSON"),
        "NaN": (b'{"k": [0,\n -Infinity]}', BAD, "line 2"),
        "many separators": (b"[],[" * 400, LARGE, "max_values"),
        "many fields of a message": (b"\x18\x01" * 50_000, LARGE, "max_features", PROTOBUF),
        "another model in the body": (_OTHER_MODEL, BAD, "send the model once", PROTOBUF),
        "too large": (bytes(131_073), LARGE, "131072"),
        "another type": (BODY, BAD, "application/x-protobuf", {"content-type": "text/plain"}),
        "an untyped page": (TEXT, BAD, "application/x-protobuf", ELSEWHERE),
        "another charset": (
            BODY,
            BAD,
            "utf-8",
            {"content-type": "application/json; Charset=utf-16"},
        ),
        "another encoding": (TEXT, BAD, "gzip or none", {"content-encoding": "br"}),
        "no gzip": (TEXT, BAD, "leave content-encoding out", GZIP),
        "gzip of too much": (gzip.compress(bytes(10**6)), LARGE, "131072", GZIP),
        "gzip that ends early": (gzip.compress(b"{}")[:-3], BAD, "truncated", GZIP),
        "two gzips": (gzip.compress(b"{}") * 2, BAD, "one gzip", GZIP),
        **{
            f"a timeout of {text!r:.9}": (
                BODY,
                BAD,
                "x-request-timeout-ms",
                {"x-request-timeout-ms": text},
            )
            for text in ("soon", "", "-1", "1.5", "1e3", "3600001", "9" * 5000)
        },
        "two timeouts": (BODY, BAD, "9, 9", [("x-request-timeout-ms", "9")] * 2),
        **{
            f"an id of {text!r:.9}": (
                BODY,
                BAD,
                f"x-request-id is {text[:20]!r}; 1 to 128 characters",
                {"x-request-id": text},
            )
            for text in ("a b;c", "x" * 129, 'a"b', "a\\b")
        },
        "another host": (BODY, DENIED, "host", FOREIGN),
    },
    f"{RETRIEVE}?k=1": {
        "a parameter": (
            BODY,
            BAD,
            "'k' of the query string is unknown; no parameter was expected; options are fields",
        ),
    },
    RETRIEVE.replace("retrieve", "lookup"): {
        "many strings of a message": (
            own_pb.LookupRequest(ids=_EMPTY_STRINGS),
            LARGE,
            "max_values",
            PROTOBUF,
        ),
    },
    f"POST {PAGE}/versions/one:retrieve": {"a word": (BODY, BAD, "version")},
    f"POST {PAGE}/versions/2:retrieve": {"an unknown version": (BODY, GONE, "2")},
    f"POST {PAGE}/labels/x:retrieve": {"an unknown label": (BODY, GONE, "'x'")},
    "POST /v1/models/x:retrieve": {"an unknown model": (BODY, GONE, "'x'")},
    f"POST {PAGE}:retreive": {"an unknown call": (BODY, GONE, "retrieve")},
    f"POST {PAGE}/retrieve": {"a call as a path": (BODY, GONE, f"{PAGE}:retrieve")},
    "POST /v1/nothing": {"an unknown path": (BODY, GONE, "/docs")},
    "GET /v1/status": {"a path of operators": (None, GONE, "rowcast-serve ctl")},
    f"DELETE {PAGE}/candidates/5": {
        "a resource": (None, GONE, f"POST {PAGE}/candidates/ACTION, with one of upsert, delete"),
    },
    "GET /v1/models": {
        "an id": (None, BAD, "'a b'", {"x-request-id": "a b"}),
        "another host": (None, DENIED, "allowed_hosts", {"host": "127.0.0.1.example.com"}),
    },
    "GET /v1/models/x": {"an unknown model": (None, GONE, "'x'")},
    "GET /": {
        "no browser": (None, GONE, "accept: text/html; /v1/models", {"accept": "*/*"}),
        "another host": (None, DENIED, "host", BROWSER | FOREIGN),
    },
    "GET /?token=secret": {"a parameter": (None, BAD, "'token'", BROWSER)},
    "POST /": {"no page": (None, GONE, "/docs", BROWSER)},
    "GET /docs/assets/nothing.js": {"no asset": (None, GONE, "/docs")},
    "GET /docs/assets/%2e%2e/core.py": {"an asset elsewhere": (None, GONE, "/docs")},
    f"GET {PAGE}:retrieve": {"another method": (None, 405, "POST")},
    f"POST {PAGE}": {"another method": (None, 405, "GET")},
    "GET /v1/models?k": {"a parameter": (None, BAD, "'k'")},
    "GET /openapi.json?k": {"a parameter": (None, BAD, "'k'")},
    forms.INFER: {
        "a tensor twice": (_query(USER, USER), BAD, "two tensors"),
        "no name": (_query({"shape": [1]}), BAD, "inputs[0].name"),
        "an unknown datatype": (_user(datatype="INT128"), BAD, "one of BOOL"),
        "fewer elements": (_user(shape=[2]), BAD, "1 elements"),
        "lists of another shape": (_user(shape=[2, 2], data=[[1, 2], [3]]), BAD, "nested lists"),
        "a negative size": (_user(shape=[-1]), BAD, "shape: -1"),
        "an enormous product": (_user(shape=[_MANY] * 4), LARGE, "max_values"),
        "an enormous empty shape": (_user(shape=[_MANY, 0, _MANY], data=[]), LARGE, "max_values"),
        "many tensors": (_query(*[USER] * 21), LARGE, "21 features"),
        "no data": (_user(data=None), BAD, "inputs.user.data"),
        "a fraction": (_user(data=[0.5]), BAD, "user: 0.5"),
        "a large integer": (_user(datatype="INT8", data=[300]), BAD, "fits INT8"),
        "an unknown output": (_query(USER, outputs=[{"name": "vectr"}]), BAD, "'vectr'"),
        "a signature of numbers": (_parameters(signature_name=7), BAD, "signature_name is 7"),
        "shared memory": (
            _user(parameters={"shared_memory_region": "a"}),
            ABSENT,
            "shared memory",
        ),
        "a classification": (
            _query(USER, outputs=[{"name": "vector", "parameters": {"classification": 3}}]),
            ABSENT,
            "classification",
        ),
        "a sequence": (_parameters(sequence_id=7), ABSENT, "sequence_id"),
        "an unknown parameter": (_parameters(timeouts=7), BAD, "'timeouts'"),
        "a negative timeout": (_parameters(timeout=-1), BAD, "timeout is -1"),
        "a timeout that has passed": (_parameters(timeout=1, **_of()), LATE, "deadline"),
        "base64": (_user(parameters={"content_type": "base64"}), BAD, "np or str"),
        "another model": (_query(USER, model_name="books"), BAD, "model_name"),
        "an unserved version": (_query(USER, model_version="7"), GONE, "7"),
        "no JSON": (b"{", BAD, "JSON"),
        "NaN": (b'{"inputs": [NaN]}', BAD, "no such number"),
        "an unknown field": ({"input": [USER]}, BAD, "'input'"),
        "a long id": (_query(USER, id="x" * 1025), BAD, "1025 characters"),
        "another type": (_query(USER), BAD, "content-type", {"content-type": "text/plain"}),
        "a JSON size that cuts": (_query(USER), BAD, "JSON", {forms.HEADER_LENGTH: "20"}),
        "both forms": (_user(parameters={"binary_data_size": 0}), BAD, "data and binary_data_size"),
        "too large": (bytes(131_073), LARGE, "131072"),
        **{
            name: (body, BAD, words, headers)
            for name, (body, headers), words in (
                ("half a binary tensor", _binary("user", "INT64", bytes(4), 8), "0 to 4"),
                ("a tensor of half the size", _binary("user", "INT64", bytes(4)), "4 bytes"),
                ("bytes behind all", _binary("user", "INT64", bytes(11), 8), "3 bytes after"),
                ("a byte of BOOL", _binary("user", "BOOL", b"\2"), "other than 0 and 1"),
                ("a long text", _binary("city", "BYTES", b"\xff" * 4 + b"oslo"), "at most 4"),
                ("no UTF-8", _binary("city", "BYTES", b"\1\0\0\0\xff"), "UTF-8"),
            )
        },
    },
    forms.INFER.replace("/infer", "/versions/1/infer"): {
        "another version": (_query(USER, model_version="2"), BAD, "model_version"),
    },
    forms.INFER.replace("/infer", "/versions/x/infer"): {"no number": (_query(USER), BAD, "'x'")},
    forms.INFER.replace("POST", "GET"): {"another method": (None, 405, "POST")},
    "POST /v2/models/books/infer": {"an unknown model": (_query(USER), GONE, "books")},
    f"POST /v2/repository/models/{MODEL}/load": {"a load": ({}, ABSENT, "not provided")},
    "POST /v2/models": {"an unknown path": ({}, GONE, "does not exist")},
    PREDICT: {
        "no JSON": (b"{", BAD, "JSON"),
        "no values": ({}, BAD, "'instances' or 'inputs'"),
        "both forms": ({"instances": [{"user": 1}], "inputs": {"user": [1]}}, BAD, "either"),
        "other rows": (_of(instances=[{"user": 1}, {"hour": 2}]), BAD, "instances[1]"),
        "rows and values": (_of(instances=[1, {"user": 1}]), BAD, "beside objects"),
        "values without a name": (_of(instances=[1, 2]), BAD, "no name"),
        "null": (_of(inputs={"user": [None]}), BAD, "null"),
        "no base64": (_of(inputs={"user": [{"b64": "*"}]}), BAD, "base64"),
        "many digits": (b'{"inputs": {"user": [NaN, %s]}}' % (b"9" * 5_000), BAD, "digits"),
        "kinds": (_of(inputs={"user": [1, "a"]}), BAD, "int, str"),
        "infinity": (
            b'{"signature_name": "query", "instances": [{"user": 1, "hour": Infinity}]}',
            BAD,
            "not finite",
        ),
        "many columns": (_of(inputs=_FEATURES), LARGE, "21 features"),
        "many names of a row": (_of(instances=[_FEATURES]), LARGE, "21 features"),
        "a form of a page": (TEXT, BAD, "content-type", FORM | ELSEWHERE),
    },
    PREDICT.replace("predict", "classify"): {
        "no examples": ({}, BAD, "examples is null"),
        "a context of numbers": ({"context": 1, "examples": [{}]}, BAD, "context: 1"),
        "a vector": (_of(examples=[{"user": 1}]), BAD, "classify cannot"),
        "many examples": (_of("ranking", examples=[{}] * 9), LARGE, "max_queries"),
        "many names of an example": (_of("ranking", examples=[_FEATURES]), LARGE, "max_features"),
        "many values of a context": (
            _of("ranking", examples=[{}], context={"liked": _TOO_MANY}),
            LARGE,
            "max_values",
        ),
    },
    f"POST {PAGE}/versions/9:predict": {"an unknown version": ({"instances": [1]}, GONE, "9")},
    f"POST {PAGE}/labels/x:predict": {"an unknown label": ({"instances": [1]}, GONE, "'x'")},
    f"GET {PAGE}/versions/9/metadata": {"an unknown version": (None, GONE, "9")},
    LOOKUP: {
        f"an id of {text!r:.9}": (
            USERS_3,
            BAD,
            f"x-request-id is {text[:20]!r}; 1 to 128",
            {"x-request-id": text},
        )
        for text in ("a b", 'a"b', "x" * 129)
    },
    f"/{forms.SERVICE}/ModelInfer": {
        "no message": (b"\xff\xff", BAD, "ModelInferRequest"),
        "nothing": (pb.ModelInferRequest(), BAD, "'serving_default'"),
        "a signature of truth": (
            _with_parameter("signature_name", bool_param=True),
            BAD,
            "true",
        ),
        "an unknown model": (_named("books"), GONE, "books"),
        "an unknown version": (_named(version="7"), GONE, "7"),
        "half a tensor": (_raw(bytes(4)), BAD, "4 bytes"),
        "two tensors for one": (_raw(b"", b""), BAD, "2 tensors"),
        "another field": (_contents("INT64", [1], int_contents=[5]), BAD, "int64_contents"),
        "FP16 in a field": (_contents("FP16", [1]), BAD, "raw_input_contents"),
        "an enormous product": (_contents("INT64", [2**62, 2**62]), LARGE, "max_values"),
        "a timeout of fractions": (_with_parameter("timeout", double_param=1.5), BAD, "1.5"),
        "no bytes": (_with_parameter("binary_data_output", bool_param=False), BAD, "true"),
        "a sequence": (_with_parameter("sequence_start", bool_param=True), ABSENT, "sequence"),
        "another binary size": (
            _with_parameter("binary_data_size", of_tensor=True, int64_param=4),
            BAD,
            "is 4; 8",
        ),
        "shared memory": (
            _with_parameter("shared_memory_region", of_tensor=True, string_param="x"),
            ABSENT,
            "shared memory",
        ),
    },
    f"/{forms.SERVICE}/RepositoryModelLoad": {"a method": (b"", ABSENT, forms.SERVICE)},
    f"/{forms.PREDICTION}/Predict": {
        "no TensorFlow": (b"\xff", BAD, "protobuf"),
        "no model": (predict({}), BAD, "model_spec.name"),
        "another model": (predict({"name": "books"}), GONE, "'books'"),
        "a label": (predict({"name": MODEL, "version_label": "x"}), GONE, "'x'"),
        "another signature": (predict({"name": MODEL, **_of("x")}), BAD, "'x'"),
        "no dtype": (predict(user=tensor(0, 1)), BAD, "one of DT_FLOAT"),
        "an unknown rank": (predict(user=_UNKNOWN_RANK), BAD, "unknown rank"),
        "an enormous empty tensor": (predict(user=tensor(INT64, 1 << 62, 0)), LARGE, "max_values"),
        "many values": (predict(user=tensor(INT64, 1, int64_val=[1, 2])), BAD, "at most 1"),
        "one value for many": (
            predict(user=tensor(INT64, 1 << 40, int64_val=[1])),
            LARGE,
            "max_values",
        ),
        "a large int8": (predict(user=tensor(tf_pb.DT_INT8, 1, int_val=[300])), BAD, "int8"),
        "half of the content": (
            predict(user=tensor(INT64, 2, tensor_content=bytes(12))),
            BAD,
            "12 bytes",
        ),
        "a field of another type": (predict(user=tensor(INT64, 1, int_val=[5])), BAD, "int64_val"),
        "both fields": (
            predict(user=tensor(INT64, 1, int64_val=[5], tensor_content=bytes(8))),
            BAD,
            "tensor_content and int64_val",
        ),
    },
    f"/{PREDICTION_SERVICE}/Classify": {
        "no examples": (_examples("query"), BAD, "examples: empty"),
    },
    f"/{PREDICTION_SERVICE}/Regress": {
        "a vector to regress": (_examples("query", _EXAMPLE), BAD, "regress"),
    },
    f"/{PREDICTION_SERVICE}/GetModelMetadata": {"other metadata": (_METADATA, BAD, "metadata_f")},
    f"/{MODEL_SERVICE}/GetModelStatus": {
        "another model": (tf_pb.GetModelStatusRequest(model_spec=_OTHER_SPEC), GONE, "'books'"),
    },
    f"/{PREDICTION_SERVICE}/MultiInference": {"several": (b"", ABSENT, "Classify")},
    f"/{MODEL_SERVICE}/HandleReloadConfigRequest": {"a reload": (b"", ABSENT, "rowcast-serve ctl")},
}
"""A JSON value, bytes or a message, the code or the status, words of the error or of the header
`allow`, and headers.
"""

USERS = {"user": np.array([5, 7, 9])}
HISTORY = {"history": np.array([1000, 1007, 1014, 1000]), "history_1": np.array([0, 2, 2, 4])}
QUERIES = USERS | HISTORY
SPARSE = {
    "history": np.array([[1, 0], [0, 0]]),
    "history_1": np.array([1000, 1000]),
    "history_2": np.array([3, 1]),
}
PAIRS = {
    "user": np.array([5, 7]),
    "liked": np.array([1000, 1007, 1014]),
    "liked_1": np.array([0, 2, 3]),
    "movie": np.array([1000, 1007]),
    "genres": np.array(["comedy", "drama", "drama"], object),
    "genres_1": np.array([0, 1, 3]),
    "year": np.array([0.5, 0.25], np.float32),
}
UNFIT: dict[str, tuple[str, Mapping[str, Any], Code, str]] = {
    "a signature": ("querry", QUERIES, BAD, "did you mean 'query'"),
    "a missing input": ("query", {"hour": np.zeros(1)}, BAD, "inputs.user is missing"),
    "an unknown input": ("query", USERS | {"usr": np.ones(3)}, BAD, "did you mean 'user'"),
    "numbers for ids": ("query", {"user": np.array([1.5])}, BAD, "int64 was expected"),
    "truth for ids": ("query", {"user": np.array([True])}, BAD, "int64 was expected"),
    "texts for ids": ("query", {"user": np.array(["7"], object)}, BAD, "int64 was expected"),
    "numbers for texts": ("query", USERS | {"city": np.zeros(3)}, BAD, "int64_or_string"),
    "an id beyond int64": ("query", {"user": np.array([2**63], np.uint64)}, BAD, "int64"),
    "a number beyond float32": (
        "query",
        USERS | {"hour": np.array([0, 1e300, 0])},
        BAD,
        "fits float32",
    ),
    "texts for numbers": ("query", USERS | {"hour": np.full(3, "1", object)}, BAD, "float32"),
    "a matrix": ("query", {"user": np.array([[1, 2]])}, BAD, "shape [1, 2]"),
    "a scalar": ("query", {"user": np.array(7)}, BAD, "shape []"),
    "other rows": ("query", USERS | {"hour": np.zeros(2)}, BAD, "inputs.hour has 2 rows"),
    "no rows": ("query", {"user": np.empty(0, int)}, BAD, "no query"),
    "many rows": ("query", {"user": np.arange(9)}, LARGE, "9 queries"),
    "a dense shape": ("ranking", PAIRS | {"mood": np.zeros((2, 3))}, BAD, "[-1, 2]"),
    "splits beyond the end": (
        "query",
        QUERIES | {"history_1": np.array([0, 2, 2, 9])},
        BAD,
        "history_1",
    ),
    "splits that fall": (
        "query",
        QUERIES | {"history_1": np.array([0, 3, 2, 4])},
        BAD,
        "history_1",
    ),
    "values of a matrix": (
        "query",
        QUERIES | {"history": np.zeros((2, 2), int)},
        BAD,
        "flat array",
    ),
    "weights of others": ("ranking", PAIRS | {"liked_weights": np.ones(2)}, BAD, "one weight"),
    "half a sparse tensor": (
        "query",
        USERS | {"history": np.zeros((1, 2), int), "history_2": np.array([3, 1])},
        BAD,
        "history_1",
    ),
    "a sparse row beyond the end": (
        "query",
        USERS | SPARSE | {"history": np.array([[4, 0], [5, 0]])},
        BAD,
        "its 3 rows",
    ),
    "sparse rows in disorder": ("query", USERS | SPARSE, BAD, "order of the rows"),
    "enormous sparse rows": (
        "query",
        {"user": np.array([1]), "history": np.empty((0, 2), int), "history_1": np.empty(0, int)}
        | {"history_2": np.array([1 << 60, 1])},
        LARGE,
        "max_queries",
    ),
    "several k": ("retrieve", QUERIES | {"k": np.array([3, 4])}, BAD, "one integer"),
    "k elsewhere": ("query", QUERIES | {"k": np.array([3])}, BAD, "'k' is unknown"),
}
"""Signature, tensors, code, and a word of the message."""


OTHER_PROTOCOL = re.compile("/v2|:(predict|classify|regress)|/metadata")


def raw_request(target: str, content: Any, headers: Any = MappingProxyType({})) -> RawRequest:
    """Returns the request of a JSON value, bytes or a message; None: without a body."""
    if isinstance(content, dict):
        return RawRequest(target, content, headers=headers)
    if content is None:
        content = b""
    elif not isinstance(content, bytes):
        content = content.SerializeToString()
    return RawRequest(target, None, content, headers)


def refused() -> Iterator[tuple[str, RawRequest, Code | int, str]]:
    """Yields the name of each request that is refused, the request, the code and the words."""
    for target, rows in REFUSED.items():
        for name, (content, code, words, *headers) in rows.items():
            yield f"{target}: {name}", raw_request(target, content, *headers), code, words


def sentence_of(request: RawRequest, response: RawResponse, code: Code) -> str:
    """Returns the sentence of an error, once its status is that of the code, and its form is that
    of the protocol.
    """
    text = response.content.decode(errors="replace")
    status = TRANSPORT_STATUS[code]
    if request.target.startswith("/"):
        assert response.status == status.grpc, text
        return text
    assert response.status == status.http, text
    # A client that sends protobuf gets a message.
    if response.headers["content-type"] != "application/json":
        return text
    error = json.loads(text)["error"]
    if OTHER_PROTOCOL.search(request.target):
        assert [*json.loads(text)] == ["error"]
        return str(error)
    assert error["code"] == code.value
    return str(checked_error(error, response.headers)["message"])
