"""Bodies of hostile structure, in every form of every protocol: to receive, decompress, decode and
reject one takes memory in proportion to its size as sent and decompressed, and nothing of it stays.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.errors import ServiceError
from service.protocols.open_inference.protocol import SERVICE as INFERENCE
from service.protocols.tensorflow_serving.protocol import PREDICTION_SERVICE
from service.shards.servicer import OPERATIONS as SHARD_OPERATIONS
from tensors.stubs import open_inference_pb2 as inference_pb
from tensors.stubs import tensorflow_serving_pb2 as serving_pb
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S
from tests.units.service.running import RunningService

TOKEN = "decoding-0123456789"
MODEL = "/v1/models/movies"
MEMORY_BYTES = 12 << 20
"""Memory of a request of any size: 1,000,000 numbers, the limit of what one value may stand for."""
MEMORY_PER_BYTE = 48


class Shape(NamedTuple):
    """What a body is made of.

    Attributes:
      names: The number of names in an object.
      examples: The number of examples, most of which are empty.
      values: The number of values of a name.
      depth: The number of lists around a value.
      text: Whether the values are texts.
    """

    names: int
    examples: int
    values: int
    depth: int
    text: bool

    def scalars(self) -> list[Any]:
        return [(1, "ab")[self.text]] * self.values

    def nested(self) -> Any:
        value: Any = self.scalars()
        for _ in range(self.depth):
            value = [value]
        return value

    def table(self) -> dict[str, Any]:
        return dict.fromkeys(self.some_names(), self.nested())

    def some_names(self) -> list[str]:
        # The first ones are inputs of the model.
        return ["user", "movie", "genres", "year", *map(hex, range(self.names))][: self.names]

    def listed(self, first: Any, further: Any) -> list[Any]:
        return [first, *[further] * (self.examples - 1)]

    def column(self) -> pb.Column:
        if self.text:
            return pb.Column(strings=pb.Strings(values=self.scalars()))
        return pb.Column(int64s=bytes(8 * self.values), offsets=bytes(4))

    def columns(self) -> dict[str, pb.Column]:
        return dict.fromkeys(self.some_names(), self.column())

    def example(self) -> serving_pb.Example:
        kind: dict[str, Any] = {"int64_list": {"value": [1] * self.values}}
        if self.text:
            kind = {"bytes_list": {"value": [b"ab"] * self.values}}
        feature = serving_pb.Feature(**kind)
        features = serving_pb.Features(feature=dict.fromkeys(self.some_names(), feature))
        return serving_pb.Example(features=features)

    def tensor(self) -> serving_pb.TensorProto:
        shape = {"dim": [{"size": self.examples}, {"size": self.values}]}
        # One value stands for all.
        if self.text:
            return serving_pb.TensorProto(dtype="DT_STRING", tensor_shape=shape, string_val=[b"ab"])
        return serving_pb.TensorProto(dtype="DT_INT64", tensor_shape=shape, int64_val=[1])

    def filter(self) -> Any:
        conditions: Any = {"year": {"allow": self.scalars()}}
        for _ in range(self.depth):
            conditions = {"any": [conditions]}
        return {"all": self.listed(conditions, {})}


SHAPES = st.builds(
    Shape,
    st.sampled_from([4, 900, 4_000]),
    st.sampled_from([1, 1_000, 20_000]),
    st.sampled_from([0, 1, 900, 20_000]),
    st.sampled_from([0, 1, 7, 60]),
    st.booleans(),
).filter(lambda shape: shape.names * (shape.values + 1) <= 20_000)

JSON: Mapping[str, Callable[[Shape], Any]] = {
    f"{MODEL}:rank": lambda shape: {
        "context": shape.table(),
        "candidate_ids": shape.listed(1000, 1001),
        "candidate_features": dict.fromkeys(shape.some_names()[:100], shape.listed([], [])),
    },
    f"{MODEL}:retrieve": lambda shape: {
        "requests": shape.listed({"context": shape.table()}, {"context": {}}),
        "filter": shape.filter(),
    },
    f"{MODEL}:recommend": lambda shape: {
        "context": shape.table(),
        "sources": shape.listed({"ids": shape.nested()}, {}),
        "attributes": shape.some_names(),
    },
    f"{MODEL}:embed": lambda shape: {
        "requests": shape.listed({"features": shape.table()}, {"features": {"user": []}})
    },
    f"{MODEL}:lookup": lambda shape: {"ids": shape.listed(shape.nested(), [])},
    f"{MODEL}/candidates/upsert": lambda shape: {
        "items": shape.listed(
            {name: shape.table() for name in ("features", "attributes", "vectors")} | {"id": 1},
            {"id": 2},
        )
    },
    f"{MODEL}:predict": lambda shape: {"instances": shape.listed(shape.table(), {})},
    f"{MODEL}:predict?columns": lambda shape: {"inputs": shape.table()},
    f"{MODEL}:classify": lambda shape: {
        "context": shape.table(),
        "examples": shape.listed(shape.table(), {}),
    },
    "/v2/models/movies/infer": lambda shape: {
        "inputs": [
            {
                "name": name,
                "datatype": ("INT64", "BYTES")[shape.text],
                "shape": [shape.examples, shape.values],
                "data": shape.nested(),
            }
            for name in shape.some_names()
        ],
        "outputs": shape.listed({"name": "score"}, {}),
    },
}
_SPEC = pb.ModelSpec(name="movies")
_SERVING_SPEC = serving_pb.ModelSpec(name="movies")
_SERVICE = "rowcast.embedding.v1.EmbeddingService"


def examples_of(shape: Shape) -> serving_pb.ExamplesRequest:
    examples = [serving_pb.Example()] * shape.examples
    listed = serving_pb.ExampleListWithContext(examples=examples, context=shape.example())
    return serving_pb.ExamplesRequest(
        model_spec=_SERVING_SPEC, input=serving_pb.Input(example_list_with_context=listed)
    )


def attribute_of(shape: Shape) -> pb.Attribute:
    lists = [pb.Strings(values=["ab"] * (shape.values % 100))] * shape.examples
    return pb.Attribute(lists=pb.Lists(values=lists), nulls=[0] * shape.values)


def inference_of(shape: Shape) -> inference_pb.ModelInferRequest:
    contents = {"int64_contents": [1] * shape.values}
    sizes = [shape.examples, shape.values]
    inputs = [
        {"name": name, "datatype": "INT64", "shape": sizes, "contents": contents}
        for name in shape.some_names()
    ]
    return inference_pb.ModelInferRequest(model_name="movies", inputs=inputs)


MESSAGES: Mapping[str, Callable[[Shape], Any]] = {
    f"{_SERVICE}/Rank": lambda shape: pb.RankRequest(
        model=_SPEC, context=shape.columns(), offsets=bytes(4 * shape.examples)
    ),
    f"{_SERVICE}/Retrieve": lambda shape: pb.RetrieveRequest(
        model=_SPEC, context=shape.columns(), query_offsets=bytes(4 * shape.examples)
    ),
    f"{_SERVICE}/Recommend": lambda shape: pb.RecommendRequest(
        model=_SPEC,
        context=shape.columns(),
        sources=[pb.Source()] * shape.examples,
        attributes=shape.some_names(),
    ),
    f"{_SERVICE}/Embed": lambda shape: pb.EmbedRequest(model=_SPEC, features=shape.columns()),
    f"{_SERVICE}/Lookup": lambda shape: pb.LookupRequest(model=_SPEC, ids=shape.column()),
    f"{_SERVICE}/Change": lambda shape: pb.ChangeRequest(
        model=_SPEC,
        kind="CHANGE_KIND_CANDIDATES",
        action="CHANGE_ACTION_UPSERT",
        ids=pb.Ids(int64s=bytes(8 * shape.examples)),
        features=shape.columns(),
        attributes=dict.fromkeys(shape.some_names()[:2], attribute_of(shape)),
        vectors=dict.fromkeys(shape.some_names(), bytes(4 * shape.values)),
    ),
    f"{PREDICTION_SERVICE}/Predict": lambda shape: serving_pb.PredictRequest(
        model_spec=_SERVING_SPEC, inputs=dict.fromkeys(shape.some_names(), shape.tensor())
    ),
    f"{PREDICTION_SERVICE}/Classify": examples_of,
    f"{INFERENCE}/ModelInfer": inference_of,
}
SHARD_MESSAGES: Mapping[str, Callable[[Shape], Any]] = {
    "rows": lambda shape: shard_pb.RowsRequest(
        rows=[shard_pb.Rows(tables=shape.some_names(), counts=bytes(4 * shape.names))]
        * (shape.examples // shape.names + 1)
    ),
    "search": lambda shape: shard_pb.SearchRequest(
        vectors=bytes(4 * shape.values),
        dim=1,
        excluded=[shard_pb.Excluded(positions=b"")] * shape.examples,
    ),
}


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, parts=True)
    tokens = root.parent / "decoding_tokens"
    tokens.write_text(f"writer {TOKEN}\n")
    running = RunningService(
        root,
        protocols=("tensorflow-serving", "open-inference"),
        tokens=tokens,
        changes_from="writer",
        poll_interval_s=3600,
    )
    yield running
    running.close()


def check_cost(send: Callable[[], object], size: int) -> None:
    tracemalloc.start()
    try:
        send()
        remaining, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES + MEMORY_PER_BYTE * size, f"{peak} bytes for {size}"
    assert remaining < MEMORY_BYTES, f"{remaining} bytes stay"


# Only a thorough run draws shapes.
phases = list(Phase)
if settings().derandomize:
    phases = [Phase.explicit]
bounded = settings(
    max_examples=30, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
)


def bodies(test: Any) -> Any:
    """Runs a test with many names and examples, with long and nested lists of texts, and with what
    a thorough run draws.
    """
    for shape in (Shape(4_000, 20_000, 1, 0, text=False), Shape(4, 1_000, 900, 7, text=True)):
        test = example(shape=shape)(test)
    return bounded(given(shape=SHAPES)(test))


@pytest.mark.parametrize("path", JSON)
@bodies
def test_json_costs_in_proportion_to_its_size(
    service: RunningService, path: str, shape: Shape
) -> None:
    body = json.dumps(JSON[path](shape), separators=(",", ":")).encode()
    compressed = gzip.compress(body)
    headers = {
        "authorization": f"Bearer {TOKEN}",
        "content-type": "application/json",
        "content-encoding": "gzip",
    }

    def send() -> None:
        url = service.http + path.partition("?")[0]
        response = httpx.post(
            url, content=compressed, headers=headers, timeout=WAIT_S, verify=False
        )
        assert response.status_code < 500, response.text

    check_cost(send, len(body))


@pytest.mark.slow
@pytest.mark.parametrize("method", MESSAGES)
@bodies
def test_message_costs_in_proportion_to_its_size(
    service: RunningService, method: str, shape: Shape
) -> None:
    body = MESSAGES[method](shape).SerializeToString()
    metadata = [("authorization", f"Bearer {TOKEN}")]

    def send() -> None:
        with grpc.insecure_channel(service.grpc, compression=grpc.Compression.Gzip) as channel:
            call = channel.unary_unary(f"/{method}").future(body, timeout=WAIT_S, metadata=metadata)
            assert call.code() != grpc.StatusCode.INTERNAL, call.details()

    check_cost(send, len(body))


@pytest.mark.parametrize("call", SHARD_MESSAGES)
@bodies
def test_message_to_a_shard_costs_in_proportion_to_its_size(call: str, shape: Shape) -> None:
    body = SHARD_MESSAGES[call](shape).SerializeToString()
    limits = ServiceSettings(root=Path.cwd())

    def read() -> None:
        with contextlib.suppress(ServiceError):
            SHARD_OPERATIONS[call].read(body, True, None, limits)

    check_cost(read, len(body))
