"""Services on hosts of their own, some of which copy the changes of another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundles.small import SmallBundle
from tests.service.running import RunningService

TOKEN = "secret-of-copies"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file with the token by which followers copy."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return path


@pytest.fixture
def hosted(token: Path) -> Callable[..., dict[str, Any]]:
    """Returns the settings of a service on a host of its own."""
    tokens = token.with_name("tokens-of-copies")
    tokens.write_text(f"copies {TOKEN}\nreader {TOKEN}-of-a-reader\n")

    def hosted(host: str, followed: str = "") -> dict[str, Any]:
        directory = token.parent / host
        settings = {"changes_dir": directory, "tokens": tokens, "changes_from": ("copies",)}
        if followed:
            settings |= {"follow_changes": followed, "follow_changes_token": token}
        return settings

    return hosted


@pytest.fixture
def start(
    write: Callable[..., SmallBundle],
    serve: Callable[..., RunningService],
    hosted: Callable[..., dict[str, Any]],
) -> Callable[..., RunningService]:
    """Starts services with logs of their own, over one root that has a version."""
    write()

    def start(host: str, writer: RunningService | None = None, **options: Any) -> RunningService:
        followed = ""
        if writer is not None:
            followed = writer.http
        return serve(**hosted(host, followed), **options)

    return start
