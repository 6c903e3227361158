"""Properties are drawn from fixed seeds, so that a run is repeatable, and not timed, since machines differ."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100, database=None)
settings.load_profile("fixed")
