"""Calls of named tensors: the same results as rowcast's own calls, whatever form an input is sent
in, and errors that name the tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.tensor_columns import Arrays
from service.codec.tensor_signatures import find_signature, signature_names
from service.codec.tensors import ReturnedTensors, SentTensors, TensorExchange
from service.engine.calls import EmbeddingRequest, RankingRequest, RetrievalRequest, Target
from service.engine.context import RequestContext
from service.errors import InvalidArgument, ServiceError
from service.request_log.record import read_newest, record_directory
from tests.units.service.running import RunningService, column

TARGET = Target("movies")
QUERIES = {
    "user": np.array([5, 7, 9]),
    "city": np.array([b"Oslo", "Wien", b"nowhere"], object),
    "history": np.array([1000, 1007, 1014, 1000]),
    "history_1": np.array([0, 2, 2, 4]),
    "hour": np.array([1, 2, 3], np.float64),
}
QUERY_COLUMNS = {
    "user": column(5, 7, 9),
    "city": column("Oslo", "Wien", "nowhere"),
    "history": column(1000, 1007, 1014, 1000, offsets=[0, 2, 2, 4]),
    "hour": column(1.0, 2.0, 3.0),
}
PAIRS = {
    "user": np.array([5, 7], np.int32),
    "mood": np.array([[0.5, -1.0], [2.0, 0.25]], np.float32),
    "liked": np.array([1000, 1007, 1014]),
    "liked_1": np.array([0, 2, 3], np.int32),
    "liked_weights": np.array([0.5, 2.0, 1.0]),
    "movie": np.array([1000, 1007]),
    "genres": np.array(["comedy", "drama", "drama"], object),
    "genres_1": np.array([0, 1, 3]),
    "year": np.array([0.5, 0.25], np.float32),
}


class Tensors:
    """Sends tensors to a service, as an adapter of a protocol does."""

    def __init__(self, service: RunningService) -> None:
        self.service = service

    def __call__(self, signature: str, arrays: Arrays) -> Arrays:
        returned: list[ReturnedTensors] = []

        def write(tensors: ReturnedTensors) -> bytes:
            returned.append(tensors)
            return b"written"

        context = RequestContext("predict", "test-request", time.monotonic() + 10)
        exchange = TensorExchange(
            context,
            self.service.dataplane.engine,
            lambda *_: SentTensors(TARGET, signature, arrays),
            write,
            lambda _: "",
        )
        call = self.service.dataplane.call(exchange, b"", True, TARGET, context)
        assert self.service.call(call) == [b"written"]
        assert returned[0].model == "movies"
        return returned[0].arrays


@pytest.fixture
def service(write: Callable[..., Any], serve: Callable[..., RunningService]) -> RunningService:
    write(parts=True, unread_inputs=("old input",))
    return serve()


def test_query_tower_returns_what_embed_returns(service: RunningService) -> None:
    expected = service.execute(EmbeddingRequest(TARGET, "query", QUERY_COLUMNS), "embed")
    assert np.array_equal(Tensors(service)("query", QUERIES)["vector"], expected.vectors)


def test_ranking_tower_returns_what_rank_returns_for_each_row(service: RunningService) -> None:
    returned = Tensors(service)("serving_default", PAIRS)
    assert set(returned) == {"score", "watch", "rating"}
    for row in range(2):
        mood = PAIRS["mood"][row]
        context = {"user": column(int(PAIRS["user"][row])), "mood": Column(mood)}
        first, end = PAIRS["liked_1"][[row, row + 1]]
        weights = PAIRS["liked_weights"][first:end].astype(np.float32)
        context["liked"] = Column(PAIRS["liked"][first:end], np.array([0, end - first]), weights)
        first, end = PAIRS["genres_1"][[row, row + 1]]
        candidate = {
            "movie": column(int(PAIRS["movie"][row])),
            "genres": Column(PAIRS["genres"][first:end], np.array([0, end - first])),
            "year": Column(PAIRS["year"][row : row + 1]),
        }
        expected = service.execute(
            RankingRequest(TARGET, context, candidate_features=candidate, heads=("watch", "rating"))
        )
        assert returned["score"][row] == expected.scores[0]
        assert returned["watch"][row] == expected.heads["watch"][0]
        assert returned["rating"][row] == expected.heads["rating"][0]


def test_retrieval_is_filled_up_to_k(service: RunningService) -> None:
    tensors = QUERIES | {"k": np.array(50)}
    returned = Tensors(service)("retrieve", tensors)
    expected = service.execute(RetrievalRequest(TARGET, context=QUERY_COLUMNS, k=50), "retrieve")
    assert returned["counts"].tolist() == [40, 40, 40]
    assert returned["ids"].shape == returned["scores"].shape == (3, 50)
    assert np.array_equal(returned["ids"][:, :40].ravel(), expected.ids)
    assert np.array_equal(returned["scores"][:, :40].ravel(), expected.scores)
    assert (returned["ids"][:, 40:] == -1).all()
    assert (returned["scores"][:, 40:] == np.finfo(np.float32).min).all()
    assert Tensors(service)("retrieve:movies", QUERIES)["ids"].shape == (3, 10)


@pytest.mark.parametrize(
    "history",
    [
        {
            "history": np.array([[0, 0], [0, 1], [2, 0], [2, 1]]),
            "history_1": np.array([1000, 1007, 1014, 1000]),
            "history_2": np.array([3, 2]),
        },
        {"history": np.array([[1000, 1007], [-1, -1], [1014, 1000]])},
    ],
    ids=["sparse", "dense"],
)
def test_list_is_read_in_each_form(
    service: RunningService, history: dict[str, NDArray[Any]]
) -> None:
    tensors = {name: array for name, array in QUERIES.items() if "history" not in name}
    expected = Tensors(service)("query", QUERIES)["vector"]
    assert np.array_equal(Tensors(service)("query", tensors | history)["vector"], expected)


def test_inputs_with_a_default_and_inputs_without_a_reader_may_be_left_out(
    service: RunningService,
) -> None:
    tensors = {"user": np.array([5, 7]), "old_input": np.array([1, 2])}
    expected = service.execute(EmbeddingRequest(TARGET, "query", {"user": column(5, 7)}), "embed")
    assert np.array_equal(Tensors(service)("query", tensors)["vector"], expected.vectors)


def test_rows_that_share_a_context_of_defaults_are_ranked(service: RunningService) -> None:
    pairs = {name: array for name, array in PAIRS.items() if name == "user"}
    candidates = {name: array for name, array in PAIRS.items() if name[:5] in {"movie", "genre"}}
    tensors = pairs | candidates | {"year": PAIRS["year"]}
    assert Tensors(service)("ranking", tensors)["score"].shape == (2,)


BAD: dict[str, tuple[str, Arrays, str]] = {
    "signature": ("querry", QUERIES, "has no signature 'querry'; did you mean 'query'?"),
    "missing": ("query", {"hour": np.zeros(1)}, "input 'user' of signature 'query' is missing"),
    "unknown": ("query", {"user": np.ones(1, int), "usr": np.ones(1)}, "did you mean 'user'?"),
    "dtype": ("query", {"user": np.array([1.5])}, "'user' is float64; int64 was expected"),
    "bool": ("query", {"user": np.array([True])}, "'user' is bool; int64 was expected"),
    "text": ("query", {"user": np.array(["7"], object)}, "'user' is string; int64 was expected"),
    "no id": ("query", QUERIES | {"city": np.zeros(3)}, "float64; int64_or_string was expected"),
    "utf-8": ("query", QUERIES | {"city": np.array([b"\xff"] * 3, object)}, "not UTF-8"),
    "uint64": ("query", {"user": np.array([2**63], np.uint64)}, "does not fit int64"),
    "float": ("query", QUERIES | {"hour": np.full(3, 1e300)}, "1e+300, which exceeds float32"),
    "scalar": ("query", {"user": np.array(7)}, "'user' is int64 of shape []"),
    "shape": (
        "query",
        {"user": np.ones((2, 3), int)},
        "int64 of shape [2, 3]; int64 of shape [-1]",
    ),
    "rows": ("query", QUERIES | {"hour": np.zeros(2)}, "'hour' has 2 rows and 'user' has 3"),
    "no rows": ("query", {"user": np.empty(0, int)}, "the request has no query"),
    "dense": (
        "ranking",
        PAIRS | {"mood": np.zeros((2, 3))},
        "float32 of shape [-1, 2] was expected",
    ),
    "splits": ("query", QUERIES | {"history_1": np.array([0, 2, 2, 9])}, "history_1 is [0 2 2 9]"),
    "splits fall": ("query", QUERIES | {"history_1": np.array([0, 3, 2, 4])}, "never decrease"),
    "splits dtype": ("query", QUERIES | {"history_1": np.zeros(4)}, "'history_1' is float64"),
    "splits empty": ("query", QUERIES | {"history_1": np.empty(0, int)}, "history_1 has 0 values"),
    "values": ("query", QUERIES | {"history": np.zeros((2, 2), int)}, "flat values were expected"),
    "weights": ("ranking", PAIRS | {"liked_weights": np.ones(2)}, "one weight for each value"),
    "sparse": ("query", QUERIES | {"history_2": np.array([3, 2])}, "'history' is int64 of shape"),
    "half sparse": (
        "query",
        {"user": QUERIES["user"], "history": np.zeros((1, 2), int), "history_2": np.array([3, 1])},
        "its values 'history_1' are missing",
    ),
    "sparse rows": (
        "query",
        QUERIES
        | {
            "history": np.array([[4, 0]]),
            "history_1": np.array([1000]),
            "history_2": np.array([3, 1]),
        },
        "an index outside of its 3 rows",
    ),
    "sparse order": (
        "query",
        QUERIES
        | {
            "history": np.array([[1, 0], [0, 0]]),
            "history_1": np.array([1000, 1000]),
            "history_2": np.array([3, 1]),
        },
        "in the order of the rows",
    ),
    "sparse size": (
        "query",
        {
            "user": np.array([1]),
            "history": np.empty((0, 2), int),
            "history_1": np.empty(0, int),
            "history_2": np.array([1 << 60, 1]),
        },
        "max_queries",
    ),
    "k": ("retrieve", QUERIES | {"k": np.array([3, 4])}, "one integer, or the same for each row"),
    "k of 0": ("retrieve", QUERIES | {"k": np.array(0)}, "'k' is 0; 1 or more was expected"),
    "k elsewhere": ("query", QUERIES | {"k": np.array(3)}, "'k' is unknown to signature 'query'"),
}


def test_bad_tensors_are_rejected_by_name(service: RunningService) -> None:
    send = Tensors(service)
    for case, (signature, arrays, text) in BAD.items():
        problem = ""
        fields = []
        try:
            send(signature, arrays)
        except ServiceError as raised:
            problem = str(raised)
            fields = [violation.field.removeprefix("inputs.") for violation in raised.violations]
        assert text in problem, case
        assert len(fields) == 1, case
        assert fields[0] in problem or fields[0] in {"inputs", "signature_name"}, case


def test_candidate_that_cannot_be_ranked_fails_its_request(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write(lost_rows={"movies": 2})
    with pytest.raises(ServiceError, match="the row of id 1007 in table 'movies' holds NaN"):
        Tensors(serve())("ranking", PAIRS)


def test_signatures_of_a_version_are_listed_and_described(service: RunningService) -> None:
    version = service.current()
    names = list(signature_names(version))
    assert names == [
        "serving_default", "query", "candidate", "ranking", "retrieve", "retrieve:movies",
    ]  # fmt: skip
    signature = find_signature(version, "")
    assert (signature.name, signature.computed_by) == ("serving_default", "ranking")
    tensors = {tensor.name: (tensor.dtype, tensor.shape) for tensor in signature.tensors}
    assert tensors == {
        "user": ("int64", (-1,)),
        "liked": ("int64", (-1,)),
        "liked_1": ("int64", (-1,)),
        "recent": ("int64", (-1,)),
        "recent_1": ("int64", (-1,)),
        "hour": ("float32", (-1,)),
        "mood": ("float32", (-1, 2)),
        "movie": ("int64", (-1,)),
        "genres": ("string", (-1,)),
        "genres_1": ("int64", (-1,)),
        "year": ("float32", (-1,)),
    }
    outputs = [(output.name, output.shape) for output in find_signature(version, "query").outputs]
    assert outputs == [("vector", (-1, 8))]
    with pytest.raises(InvalidArgument):
        find_signature(version, "retrieve:books")


def test_requests_are_recorded_as_messages_of_the_contract(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(record_rate=1.0)
    Tensors(service)("ranking", PAIRS)
    Tensors(service)("query", QUERIES)
    Tensors(service)("retrieve", QUERIES)
    service.close()
    recorded = read_newest(record_directory(service.settings) / "movies", 10)
    assert [request.call for request in recorded] == ["retrieve", "embed", "rank"]
    message = pb.RankRequest.FromString(recorded[2].body)
    assert sorted(message.candidate_features) == ["genres", "movie", "year"]
