"""Sources of a recommendation, as dicts with the fields of the JSON form."""

from __future__ import annotations

from typing import TypedDict

from rowcast_client.candidates import Candidates


class Source(TypedDict, total=False):
    """A source of candidates of a recommendation: exactly one of `index`, `ids` and `list`.

    Attributes:
      name: The name in the response; left out: the index's, the list's, or "ids".
      index: The name of an index, whose nearest candidates are taken; "": the only one.
      ids: Candidates, in their order: a list for all requests, or a list of lists, one per request.
        Unknown ids are left out.
      list: The name of a list of the bundle, whose first candidates are taken; "": the only one.
      pool_size: The maximum number of candidates for each request; left out or 0: the pool_size of
        the request, or all ids.
      min_count: The minimum number of recommendations of this source, if it has that many.
      max_count: The maximum number of recommendations of this source; left out or 0: any number.
      fallback: Whether it is used only for requests for which the other sources have fewer than k
        candidates.
    """

    name: str
    index: str
    ids: Candidates
    list: str
    pool_size: int
    min_count: int
    max_count: int
    fallback: bool
