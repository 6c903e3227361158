"""Loaded versions over `root` without an engine: manager, loader and poller, driven by tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.units.service.versions.driven import Driven


@pytest.fixture
def drive(root: Path) -> Iterator[Callable[..., Driven]]:
    """Starts to serve versions from `root`; ends that after the test."""
    started: list[Driven] = []

    def begin(**options: object) -> Driven:
        started.append(Driven(root, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for driven in started:
        driven.manager.close()
