"""Typed client of a rowcast service: HTTP and gRPC, sync and async.

`Client` and `AsyncClient` have the same calls. `where` and `near` make filters. The module
`errors` lists the exceptions, `results` describes the responses, and `model_details` what a service
reports about its models and changes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowcast_client.exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Imports the client when it is used: the command line prints its help without NumPy."""
    # An import of a module looks for it here first, also one that `exports` makes.
    if Path(__file__).with_name(f"{name}.py").exists():
        raise AttributeError(name)
    from rowcast_client import exports

    return getattr(exports, name)
