from . import embedding_service_pb2 as _embedding_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Bundle(_message.Message):
    __slots__ = ("model", "version", "fingerprint", "number", "total")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    fingerprint: int
    number: int
    total: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., fingerprint: _Optional[int] = ..., number: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("number", "total", "min_bytes", "bundles", "max_request_bytes", "max_response_bytes", "max_filter_terms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_FILTER_TERMS_FIELD_NUMBER: _ClassVar[int]
    number: int
    total: int
    min_bytes: int
    bundles: _containers.RepeatedCompositeFieldContainer[Bundle]
    max_request_bytes: int
    max_response_bytes: int
    max_filter_terms: int
    def __init__(self, number: _Optional[int] = ..., total: _Optional[int] = ..., min_bytes: _Optional[int] = ..., bundles: _Optional[_Iterable[_Union[Bundle, _Mapping]]] = ..., max_request_bytes: _Optional[int] = ..., max_response_bytes: _Optional[int] = ..., max_filter_terms: _Optional[int] = ...) -> None: ...

class RowsRequest(_message.Message):
    __slots__ = ("bundle", "rows")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("tables", "index", "counts", "positions")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[str]
    index: str
    counts: bytes
    positions: bytes
    def __init__(self, tables: _Optional[_Iterable[str]] = ..., index: _Optional[str] = ..., counts: _Optional[bytes] = ..., positions: _Optional[bytes] = ...) -> None: ...

class RowsResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[StoredRows]
    def __init__(self, rows: _Optional[_Iterable[_Union[StoredRows, _Mapping]]] = ...) -> None: ...

class StoredRows(_message.Message):
    __slots__ = ("values", "scales")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    scales: bytes
    def __init__(self, values: _Optional[bytes] = ..., scales: _Optional[bytes] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("bundle", "index", "vectors", "k", "exact", "recall", "filter", "excluded", "explain", "dim", "denied")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    index: str
    vectors: bytes
    k: int
    exact: bool
    recall: float
    filter: _embedding_service_pb2.Filter
    excluded: _containers.RepeatedCompositeFieldContainer[Excluded]
    explain: bool
    dim: int
    denied: bytes
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ..., index: _Optional[str] = ..., vectors: _Optional[bytes] = ..., k: _Optional[int] = ..., exact: _Optional[bool] = ..., recall: _Optional[float] = ..., filter: _Optional[_Union[_embedding_service_pb2.Filter, _Mapping]] = ..., excluded: _Optional[_Iterable[_Union[Excluded, _Mapping]]] = ..., explain: _Optional[bool] = ..., dim: _Optional[int] = ..., denied: _Optional[bytes] = ...) -> None: ...

class Excluded(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: bytes
    def __init__(self, positions: _Optional[bytes] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("positions", "scores", "counts", "explanations")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    positions: bytes
    scores: bytes
    counts: bytes
    explanations: _containers.RepeatedCompositeFieldContainer[_embedding_service_pb2.Explanation]
    def __init__(self, positions: _Optional[bytes] = ..., scores: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., explanations: _Optional[_Iterable[_Union[_embedding_service_pb2.Explanation, _Mapping]]] = ...) -> None: ...
