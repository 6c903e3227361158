"""Table rows by id, and contexts by id: what is stored, defaults for what neither has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature, InputLength, Unknown
from tests.bundles.small import SmallBundle, feature_entries
from tests.id_graphs import hash_ids, word_ids
from tests.units.service.changes.making import Rejected, responds
from tests.units.service.running import RunningService

WORDS = word_ids(hash_ids(50))
Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        ({"table": "users", "place": 1, "places": 3}, "several values"),
        ({"table": "", "indicator": 8}, "no table"),
        ({"table": "users", "kind": "bag", "combiner": "mean", "ids": WORDS}, "words"),
    ],
)
def test_lookup_of_a_feature_without_a_row_for_an_id_alone_is_rejected(
    feature: dict[str, Any], reason: str, write: Write, serve: Serve
) -> None:
    fields = {"kind": "single", "role": "context"} | feature
    write(features={"user": EmbeddedFeature.model_validate(fields)})
    with pytest.raises(Rejected, match=f"INVALID_ARGUMENT: .*'user'.*{reason}"):
        responds(serve(), "lookup", feature="user", ids=[1])


USER_OR_0 = {
    "user": EmbeddedFeature(
        kind="single", table="users", role="context", unknown=Unknown(rule="row", row=0), default=0
    )
}


def test_rank_of_an_unknown_context_takes_the_defaults_and_counts_it(
    write: Write, serve: Serve
) -> None:
    movies = write(users=True, features=USER_OR_0).ids[[1, 2, 3, 4]].tolist()
    service = serve()

    def scores(*contexts: dict[str, Any]) -> list[float]:
        pairs = zip(contexts, movies, strict=True)
        requests = [{**context, "candidate_ids": [movie]} for context, movie in pairs]
        results = responds(service, "rank", requests=requests)["results"]
        return [score for result in results for score in result["scores"]]

    ranked = scores(*[{"context_id": key} for key in (7, 999, 3, 998)])
    stored = scores(*[{"context_id": key} for key in (7, 7, 3, 3)])
    default = scores(*[{"context": {"user": 0}}] * 4)
    expected = [stored[0], default[1], stored[2], default[3]]
    np.testing.assert_allclose(ranked, expected, 1e-6)
    assert service.value("rowcast_missing_contexts_total", model="movies", store="users") == 2


def test_lists_that_were_cut_or_padded_are_counted_once_by_model_and_input(
    write: Write, serve: Serve
) -> None:
    length = InputLength(values=3, pad=1000, keep="last")
    recent = feature_entries()["recent"].model_copy(update={"input_length": length})
    ids = write(features={"recent": recent}).ids.tolist()
    service = serve()
    labels = {"model": "movies", "input": "recent"}
    names = ("rowcast_cut_lists_total", "rowcast_padded_lists_total")
    before = [service.value(name, **labels) for name in names]
    responds(service, "recommend", context={"user": 7, "recent": ids[:4]}, k=2)
    context = {"user": 7, "recent": [1000]}
    responds(service, "rank", context=context, candidate_ids=ids[:2])
    counts = [service.value(name, **labels) for name in names]
    assert counts == [count + 1 for count in before]
