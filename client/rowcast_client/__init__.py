"""Typed client of a rowcast service: HTTP and gRPC, sync and async.

`Client` and `AsyncClient` have the same calls; `errors` lists what they raise; answers are iterated as `results` tells.
"""

from rowcast_client.calls import Call
from rowcast_client.client import AsyncClient, Client
from rowcast_client.columns import Column
from rowcast_client.details import (
    CallSignature,
    CorpusDetails,
    FeatureDetails,
    IndexDetails,
    ModelDetails,
    ModelState,
    TableDetails,
    VersionState,
)
from rowcast_client.errors import (
    BadAnswer,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    NotReady,
    Overloaded,
    RowcastError,
    TlsFailed,
    TooLarge,
    Unimplemented,
    Unreachable,
)
from rowcast_client.results import (
    Embedded,
    LookedUp,
    Neighbor,
    Neighbors,
    Ranked,
    RankedCandidate,
    RankedCandidates,
    Retrieved,
)
from rowcast_client.retries import Retries

__all__ = [
    "AsyncClient",
    "BadAnswer",
    "Call",
    "CallSignature",
    "Cancelled",
    "Client",
    "Column",
    "CorpusDetails",
    "DataLoss",
    "DeadlineExceeded",
    "Embedded",
    "FeatureDetails",
    "IndexDetails",
    "Internal",
    "InvalidArgument",
    "LookedUp",
    "ModelDetails",
    "ModelState",
    "Neighbor",
    "Neighbors",
    "NotFound",
    "NotReady",
    "Overloaded",
    "Ranked",
    "RankedCandidate",
    "RankedCandidates",
    "Retries",
    "Retrieved",
    "RowcastError",
    "TableDetails",
    "TlsFailed",
    "TooLarge",
    "Unimplemented",
    "Unreachable",
    "VersionState",
]
