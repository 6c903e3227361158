"""Services on hosts of their own, some of which copy the changes of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.bundles.small import SmallBundle
from tests.units.service.changes.wire import Wire
from tests.units.service.running import RunningService


@pytest.fixture
def start(
    write: Callable[..., SmallBundle],
    serve: Callable[..., RunningService],
    hosted: Callable[..., dict[str, Any]],
) -> Callable[..., RunningService]:
    """Starts services with changes files of their own, over one root that has a version."""
    write()

    def start(
        host: str, writer: RunningService | Wire | None = None, **options: Any
    ) -> RunningService:
        followed = ""
        if writer is not None:
            followed = writer.http
        return serve(**{**hosted(host, followed), **options})

    return start
