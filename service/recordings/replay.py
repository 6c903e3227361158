"""Recorded calls asked of a version before it is served: they warm it up as real calls do, and show what it breaks.

A version is refused for a recorded call only if the version that answers now still answers that call: what both refuse
tells of the call. Ids that a version's corpora or vocabularies no longer hold are data, as they are to callers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from bundle.errors import UnknownRefused
from service import logs
from service.engine import embedding, lookup, ranking, recommendation, retrieval
from service.engine.candidates import NoSuchCandidate
from service.engine.requests import Target
from service.engine.steps import Steps
from service.generations.generation import Generation
from service.generations.loader import LoadRefused
from service.recordings.files import Recorded
from service.settings import ServiceSettings
from service.wire import json_bodies
from service.wire.operations import OPERATIONS

_log = logs.logger(__name__)

CALLS_MAX = 256
SECONDS_MAX = 30.0
"""Pauses included: beside calls, time for all of them if each computes for less than 2 ms."""
_WORKS: dict[str, Callable[..., Any]] = {
    "retrieve": retrieval.retrieve,
    "rank": ranking.rank,
    "recommend": recommendation.recommend,
    "embed": embedding.embed,
    "lookup": lookup.look_up,
}


def replay(
    generation: Generation,
    before: Generation | None,
    recorded: Sequence[Recorded],
    settings: ServiceSettings,
    pause: Callable[[], object],
) -> None:
    """Asks a version what others were asked, the newest first, for a bounded time.

    Args:
      before: the version that answers now; None: there is none, and no call is held against the new one.
      pause: called after each call.
    Raises:
      LoadRefused: it fails a call that the version before it answers.
    """
    end = time.monotonic() + SECONDS_MAX
    asked, problems = 0, list[tuple[Recorded, Exception]]()
    for each in recorded[:CALLS_MAX]:
        if time.monotonic() > end:
            break
        asked += 1
        problem = _problem(generation, each, settings)
        if problem is not None and before is not None and _problem(before, each, settings) is None:
            problems.append((each, problem))
        pause()
    extra = logs.fields(model=generation.model, version=generation.version, calls=asked, failed=len(problems))
    _log.info("recordings_replayed", extra=extra)
    if problems and before is not None:
        worst, problem = problems[0]
        raise LoadRefused(
            f"{len(problems)} of {asked} recorded calls that version {before.version} answers fail; a {worst.call}: "
            f"{type(problem).__name__}: {problem}"
        )


def _problem(generation: Generation, recorded: Recorded, settings: ServiceSettings) -> Exception | None:
    """What keeps a version from answering a call; None: nothing, or ids that it does not know."""
    operation = OPERATIONS[recorded.call]
    steps = Steps("replay", math.inf, None)
    try:
        if recorded.protobuf:
            request = operation.read_message(recorded.body, None)
        else:
            request, _ = operation.read_json(json_bodies.parse(recorded.body), Target())
        _WORKS[recorded.call](generation, request, settings, steps)
    except (NoSuchCandidate, UnknownRefused):
        return None
    except Exception as problem:  # noqa: BLE001 - whatever it is, a caller would be told of it
        return problem
    return None
