"""Options of requests: fields with a plain default, whose names are the same in JSON, in messages
and in the engine.
"""

from __future__ import annotations

from dataclasses import fields

from service.engine.calls import Ranking, Recommendation, Retrieval

RETRIEVAL, RANKING, RECOMMENDATION = (
    {
        each.name: each.default
        for each in fields(request)
        if isinstance(each.default, str | int | float | tuple)
    }
    for request in (Retrieval, Ranking, Recommendation)
)
"""Defaults by name: "", 0, 0.0, False, or () of several names."""
