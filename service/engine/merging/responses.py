"""Splits the result of a merged request into the results of the requests in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from service.contract.forms import IdLists
from service.contract.messages import (
    EmbeddingResult,
    LookupResult,
    Offsets,
    RankingResult,
    RetrievalResult,
)


def split(result: Any, ends: Offsets) -> list[Any]:
    """Returns the result of each request.

    Args:
      result: The result of the merged request.
      ends: [r + 1]; request i has the examples ends[i]:ends[i + 1].

    Raises:
      ValueError: The result is for another number of examples.
    """
    size, part_of = _PARTS[type(result)]
    # A wrong split would give a client the results of another one.
    count = size(result)
    if count != ends[-1]:
        raise ValueError(f"the response is for {count} examples, and the requests have {ends[-1]}")
    return [part_of(result, first, end) for first, end in pairwise(ends.tolist())]


def _retrieval_part(result: RetrievalResult, first: int, end: int) -> RetrievalResult:
    """Returns what was retrieved for the queries from `first` to `end`."""
    offsets = result.offsets[first : end + 1]
    begin = offsets[0]
    stop = offsets[-1]
    attributes = {}
    for name, values in result.attributes.items():
        attributes[name] = values[begin:stop]
    retrieval_scores = None
    if result.retrieval_scores is not None:
        retrieval_scores = result.retrieval_scores[begin:stop]
    sources = None
    if result.sources is not None:
        sources = result.sources[begin:stop]
    part = {
        "ids": result.ids[begin:stop],
        "scores": result.scores[begin:stop],
        "offsets": offsets - begin,
        "attributes": attributes,
        "explanations": result.explanations[first:end],
        "retrieval_scores": retrieval_scores,
        "sources": sources,
        "not_found": _lists_part(result.not_found, first, end),
    }
    # Not `replace`, which makes three times as many calls.
    return RetrievalResult(**{**vars(result), **part})


def _ranking_part(result: RankingResult, first: int, end: int) -> RankingResult:
    """Returns what was ranked for the contexts from `first` to `end`."""
    offsets = result.offsets[first : end + 1]
    candidates = slice(offsets[0], offsets[-1])
    ids = None
    if result.ids is not None:
        ids = result.ids[candidates]
    return replace(
        result,
        ids=ids,
        positions=result.positions[candidates],
        scores=result.scores[candidates],
        heads={name: scores[candidates] for name, scores in result.heads.items()},
        offsets=offsets - offsets[0],
        not_found=_lists_part(result.not_found, first, end),
    )


def _embedding_part(result: EmbeddingResult, first: int, end: int) -> EmbeddingResult:
    return replace(result, vectors=result.vectors[first:end])


def _lookup_part(result: LookupResult, first: int, end: int) -> LookupResult:
    """Returns what was looked up for the ids from `first` to `end`."""
    not_found = result.not_found
    if not_found is not None:
        missing_before = np.count_nonzero(~result.found[:first])
        missing_count = np.count_nonzero(~result.found[first:end])
        not_found = not_found[missing_before : missing_before + missing_count]
    return replace(
        result,
        vectors=result.vectors[first:end],
        found=result.found[first:end],
        not_found=not_found,
    )


def _lists_part(lists: IdLists | None, first: int, end: int) -> IdLists | None:
    """Returns the lists of the queries from `first` to `end`; None: there are none."""
    if lists is None or lists.offsets is None:
        return lists
    offsets = lists.offsets[first : end + 1]
    ids = lists.ids[offsets[0] : offsets[-1]]
    return IdLists(ids, offsets - offsets[0])


def _list_count(result: RetrievalResult | RankingResult) -> int:
    return result.offsets.size - 1


_PARTS: Mapping[type, tuple[Callable[[Any], int], Callable[[Any, int, int], Any]]] = {
    RetrievalResult: (_list_count, _retrieval_part),
    RankingResult: (_list_count, _ranking_part),
    EmbeddingResult: (lambda result: len(result.vectors), _embedding_part),
    LookupResult: (lambda result: len(result.vectors), _lookup_part),
}
