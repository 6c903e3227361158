"""Requests of every call, protocol and transport that were changed at random: the service responds,
or rejects each with an error that is not its own fault, and every way in gets the same.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from tensors.stubs import open_inference_pb2 as inference_pb
from tensors.stubs import tensorflow_serving_pb2 as tensorflow_pb
from tests.cases.random_requests import random_request, written
from tests.cases.requests import CASES
from tests.cases.ways import RawRequest, RawResponse, serving
from tests.differential import tensor_forms as forms
from tests.differential.tensor_requests import random_tensors
from tests.hostile.mutations import NUMBERS, flip, reword
from tests.random_cases import seeds
from tests.units.service.cases import MODEL, Case
from tests.units.service.running import log_lines

MUTATED = 1_000
COMPARED = 300
TOKEN = "secret-of-a-writer"
EMBEDDING = "rowcast.embedding.v1.EmbeddingService"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 2**31, 2**62, 2**63, 2**64, 10**30, 1.5, -0.0, 1e30, 1e39),
    *(float("nan"), float("inf"), 10**400, "", "x", "7", "\ud800", "é" * 80, {}, [], [[]]),
    *([1], ["x"], [1.5, 10**400, float("nan")], [[1.0, 2.0], [3.0]], {"b64": "eA=="}),
    *({"b64": 1}, {"a": None}, {"ids": [1], "weights": [1]}, {"ge": 1}, [None], {"": []}),
)
"""What a value in JSON is replaced by."""
NAMES = (
    *("", "user", "movie", "genres", "genres_1", "genres_2", "k", "mood", "hour", "id", "data"),
    *("parameters", "content_type", "binary_data_size", "timeout", "signature_name", "context"),
)
"""What a name in JSON is replaced by."""
FAULTS = {"INTERNAL", "UNKNOWN", "DATA_LOSS"}
"""The gRPC codes that say that the service is at fault."""


def tensor_requests(seed: int) -> Iterator[RawRequest]:
    """Yields one request for named tensors in the forms of both protocols."""
    request = random_tensors(seed)
    for form in forms.FORMS.values():
        yield form.request(request.arrays(), request.signature)
    yield request.instances()
    for call in ("classify", "regress"):
        yield from request.examples(call)


def own_call(call: str, value: Any) -> RawRequest:
    return RawRequest(f"POST /v1/models/{MODEL}{call}", value)


def of_grpc(method: str, message: Any) -> RawRequest:
    return RawRequest(f"/{method}", None, message.SerializeToString())


def own_requests() -> Iterator[RawRequest]:
    """Yields requests and changes of rowcast's own protocol, and what describes models."""
    for case in CASES:
        yield own_call(f":{case.call}", case.json)
        yield RawRequest(f"/{EMBEDDING}/{case.call.capitalize()}", None, case.body())
    features = {"movie": 1007, "genres": ["drama"], "year": 0.5}
    candidates = [{"id": key, "features": features, "attributes": {"title": "x"}} for key in (1, 2)]
    upsert = {"items": candidates}
    offsets = {"stream": "s", "offset": 3, "from_offset": 1}
    for path, body in (
        ("candidates/upsert", {**upsert, **offsets}),
        ("candidates/delete", {"items": [{"id": 5000}]}),
        ("candidates/attributes", {"items": [{"id": 1000, "attributes": {"title": "x"}}]}),
    ):
        yield own_call(f"/{path}", body)
    change = pb.ChangeRequest(
        model=pb.ModelSpec(name=MODEL),
        kind=pb.CHANGE_KIND_CANDIDATES,
        action=pb.CHANGE_ACTION_UPSERT,
        target="movies",
        ids=pb.Ids(int64s=np.array([3]).tobytes()),
        vectors={"movies": np.ones(8, np.float32).tobytes()},
        sequences=np.array([4]).tobytes(),
        stream="s",
        offset=9,
    )
    yield of_grpc(f"{EMBEDDING}/Change", change)
    yield RawRequest("POST /v2/repository/index", {"ready": True, "repository_name": ""})
    spec = tensorflow_pb.ModelSpec(name=MODEL)
    metadata = tensorflow_pb.GetModelMetadataRequest(
        model_spec=spec, metadata_field=["signature_def"]
    )
    status = tensorflow_pb.GetModelStatusRequest(model_spec=spec)
    described = inference_pb.ModelMetadataRequest(name=MODEL, version="1")
    index = inference_pb.RepositoryIndexRequest(ready=True)
    for method, message in (
        (f"{forms.PREDICTION}/GetModelMetadata", metadata),
        ("tensorflow.serving.ModelService/GetModelStatus", status),
        (f"{forms.SERVICE}/ModelMetadata", described),
        (f"{forms.SERVICE}/ModelReady", described),
        (f"{forms.SERVICE}/RepositoryIndex", index),
    ):
        yield of_grpc(method, message)


def changed(rng: random.Random, value: Any) -> Any:
    """Returns a JSON value in which one thing was replaced, removed, renamed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        kind = rng.randrange(8)
        if kind == 0:
            del value[name]
        elif kind == 1:
            value[rng.choice(NAMES)] = copy.deepcopy(value[name])
        elif kind == 2:
            value[name] = copy.deepcopy(rng.choice(VALUES))
        else:
            value[name] = changed(rng, value[name])
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        number = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value * 2
        if rng.random() < 0.1:
            return [*value, rng.choice(NUMBERS)]
        value[number] = changed(rng, value[number])
        return value
    if isinstance(value, int) and rng.random() < 0.3:
        return rng.choice(NUMBERS)
    return copy.deepcopy(rng.choice(VALUES))


def mutated(rng: random.Random, raw_request: RawRequest) -> RawRequest:
    """Returns a request with no change or up to three changes of its JSON or its bytes."""
    times = rng.choice([0, 1, 1, 1, 2, 3])
    content = raw_request.content
    if raw_request.value is None:
        for _ in range(times):
            content = reword(rng, content)
        return raw_request._replace(content=content)

    value = copy.deepcopy(raw_request.value)
    headers = {"content-type": "application/json", **dict(raw_request.headers)}
    for _ in range(times):
        if content and rng.random() < 0.2:
            content = flip(rng, content)
        else:
            value = changed(rng, value)
    text = json.dumps(value).encode()
    if times and rng.random() < 0.1:
        text = flip(rng, text)
    if forms.HEADER_LENGTH in headers and rng.random() < 0.95:
        headers[forms.HEADER_LENGTH] = str(len(text))
    return RawRequest(raw_request.target, None, text + content, headers)


def is_fault(response: RawResponse) -> bool:
    """Whether a response says that the service is at fault."""
    if isinstance(response.status, str):
        return response.status in FAULTS
    assert response.status == 200 or "error" in json.loads(response.content)
    return response.status in {500, 502}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Path:
    return written(tmp_path_factory.mktemp("bundles"), small_towers).directory.parents[1]


def test_mutated_requests_are_never_a_fault_of_the_service(
    root: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "tokens").write_text(f"writer {TOKEN}\n")
    (tmp_path / "changes").mkdir()
    settings = {
        "protocols": ("tensorflow-serving", "open-inference"),
        "tokens": tmp_path / "tokens",
        "changes_from": ("writer",),
        "changes_dir": tmp_path / "changes",
    }
    simple_requests = list(own_requests())
    targets = sorted({raw_request.target for raw_request in simple_requests})
    authorization = {"authorization": f"Bearer {TOKEN}"}
    with serving(root, **settings) as ways:
        for seed in seeds(request, MUTATED, 1):
            rng = random.Random(seed)
            if rng.random() < 0.4:
                target = rng.choice(targets)
                raw_request = rng.choice([it for it in simple_requests if it.target == target])
            else:
                raw_request = rng.choice(list(tensor_requests(rng.randrange(10_000))))
            mutant = mutated(rng, raw_request)
            mutant = mutant._replace(headers={**dict(mutant.headers), **authorization})
            with log_lines() as lines:
                response = ways.by_bytes(mutant)
            assert not is_fault(response), f"seed {seed}: {raw_request}\n{lines.getvalue()}"


def is_pythonic(value: Any) -> bool:
    """Whether a body has None, which leaves an argument of Python out, and no field of JSON."""
    if isinstance(value, dict):
        return any(map(is_pythonic, value.values()))
    if isinstance(value, list):
        return any(map(is_pythonic, value))
    return value is None


def is_list_of_dicts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) for part in value)


def test_mutated_bodies_get_the_same_as_json_and_by_the_client(
    root: Path, request: pytest.FixtureRequest
) -> None:
    compared = Counter[str]()
    with serving(root) as ways:
        for seed in seeds(request, COMPARED, 1):
            rng = random.Random(seed)
            case = random_request(seed)
            body = changed(rng, copy.deepcopy(case.json))
            case = Case(case.call, case.name, body)
            outcome = ways.by_json(case)
            assert outcome.code not in FAULTS, case
            if not isinstance(body, dict) or not is_list_of_dicts(body.get("requests", [])):
                continue
            for way, by_way in ways.by_clients(case).items():
                # The client rejects what it cannot pack, such as integers beside decimal strings.
                if way == "client" or is_pythonic(body):
                    continue
                compared[outcome.code] += 1
                assert by_way.code == outcome.code, (way, case, outcome, by_way)
                assert by_way.value == outcome.value, (way, case)
    assert compared["OK"] > COMPARED / 4, compared
    assert compared["INVALID_ARGUMENT"] > COMPARED / 10, compared


def parsed(call: str, response: bytes) -> Any:
    """Returns a response without its explanations, which have times."""
    message = getattr(pb, f"{call.capitalize()}Response").FromString(response)
    if call in {"retrieve", "recommend"}:
        message.ClearField("explanations")
    return message


def test_mutated_messages_get_the_same_over_http_and_grpc(
    root: Path, request: pytest.FixtureRequest
) -> None:
    refused = 0
    with serving(root) as ways:
        for seed in seeds(request, COMPARED, 1):
            rng = random.Random(seed)
            case = random_request(seed)
            sent_case = Case(case.call, case.name, None, message=reword(rng, case.body()))
            code, response = ways.clients.by_http(sent_case, protobuf=True)
            # The path of HTTP names the model, too.
            if "send the model once" in str(response):
                continue
            other_code, by_way = ways.clients.by_grpc(sent_case)
            assert code == other_code, sent_case
            assert code not in FAULTS, sent_case
            if code == "OK":
                assert parsed(case.call, response) == parsed(case.call, by_way), sent_case
            else:
                assert response == by_way, sent_case
                refused += 1
    assert refused > COMPARED / 4
