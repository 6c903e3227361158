"""What users import from `rowcast_client`."""

from importlib.metadata import version

from rowcast_client.calls import Call
from rowcast_client.client import AsyncClient, Client
from rowcast_client.columns import Column
from rowcast_client.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FieldViolation,
    Internal,
    InvalidArgument,
    InvalidResponse,
    NotFound,
    NotReady,
    Overloaded,
    PermissionDenied,
    RowcastError,
    TlsFailed,
    TooLarge,
    Unauthenticated,
    Unimplemented,
    Unreachable,
)
from rowcast_client.filters import near, where
from rowcast_client.model_details import AppliedChanges, ChangeResult, ModelDetails, ModelState
from rowcast_client.results import (
    EmbeddingResult,
    Explanation,
    FailedCandidate,
    LookupResult,
    Neighbor,
    Neighbors,
    RankedCandidate,
    RankedCandidates,
    RankingResult,
    RetrievalResult,
)
from rowcast_client.retries import Retries
from rowcast_client.sources import Source

__version__ = version("rowcast-client")

__all__ = [
    "AppliedChanges",
    "AsyncClient",
    "Call",
    "Cancelled",
    "ChangeResult",
    "Client",
    "Column",
    "DataLoss",
    "DeadlineExceeded",
    "EmbeddingResult",
    "Explanation",
    "FailedCandidate",
    "FieldViolation",
    "Internal",
    "InvalidArgument",
    "InvalidResponse",
    "LookupResult",
    "ModelDetails",
    "ModelState",
    "Neighbor",
    "Neighbors",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PermissionDenied",
    "RankedCandidate",
    "RankedCandidates",
    "RankingResult",
    "Retries",
    "RetrievalResult",
    "RowcastError",
    "Source",
    "TlsFailed",
    "TooLarge",
    "Unauthenticated",
    "Unimplemented",
    "Unreachable",
    "__version__",
    "near",
    "where",
]
