import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NotFoundRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_FOUND_RULE_UNSPECIFIED: _ClassVar[NotFoundRule]
    NOT_FOUND_RULE_ERROR: _ClassVar[NotFoundRule]
    NOT_FOUND_RULE_SKIP: _ClassVar[NotFoundRule]

class SearchPath(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEARCH_PATH_UNSPECIFIED: _ClassVar[SearchPath]
    SEARCH_PATH_INDEX: _ClassVar[SearchPath]
    SEARCH_PATH_EXACT: _ClassVar[SearchPath]
    SEARCH_PATH_NONE: _ClassVar[SearchPath]

class ChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_KIND_UNSPECIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_CANDIDATES: _ClassVar[ChangeKind]
    CHANGE_KIND_CONTEXTS: _ClassVar[ChangeKind]

class ChangeAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_ACTION_UNSPECIFIED: _ClassVar[ChangeAction]
    CHANGE_ACTION_UPSERT: _ClassVar[ChangeAction]
    CHANGE_ACTION_DELETE: _ClassVar[ChangeAction]
    CHANGE_ACTION_ATTRIBUTES: _ClassVar[ChangeAction]

class LoadState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOAD_STATE_UNSPECIFIED: _ClassVar[LoadState]
    LOAD_STATE_LOADING: _ClassVar[LoadState]
    LOAD_STATE_AVAILABLE: _ClassVar[LoadState]
    LOAD_STATE_KEPT: _ClassVar[LoadState]
    LOAD_STATE_RETIRING: _ClassVar[LoadState]
    LOAD_STATE_FAILED: _ClassVar[LoadState]

class Call(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_UNSPECIFIED: _ClassVar[Call]
    CALL_RETRIEVE: _ClassVar[Call]
    CALL_RANK: _ClassVar[Call]
    CALL_RECOMMEND: _ClassVar[Call]
    CALL_EMBED: _ClassVar[Call]

class FeatureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_KIND_UNSPECIFIED: _ClassVar[FeatureKind]
    FEATURE_KIND_SINGLE: _ClassVar[FeatureKind]
    FEATURE_KIND_BAG: _ClassVar[FeatureKind]
    FEATURE_KIND_SEQUENCE: _ClassVar[FeatureKind]
    FEATURE_KIND_DENSE: _ClassVar[FeatureKind]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_CONTEXT: _ClassVar[Role]
    ROLE_CANDIDATE: _ClassVar[Role]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_FLOAT64: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_STRING: _ClassVar[DataType]
    DATA_TYPE_BOOL: _ClassVar[DataType]
    DATA_TYPE_INT64_OR_STRING: _ClassVar[DataType]

class Combiner(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMBINER_UNSPECIFIED: _ClassVar[Combiner]
    COMBINER_SUM: _ClassVar[Combiner]
    COMBINER_MEAN: _ClassVar[Combiner]
    COMBINER_SQRTN: _ClassVar[Combiner]

class PadSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAD_SIDE_UNSPECIFIED: _ClassVar[PadSide]
    PAD_SIDE_START: _ClassVar[PadSide]
    PAD_SIDE_END: _ClassVar[PadSide]

class Keep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEEP_UNSPECIFIED: _ClassVar[Keep]
    KEEP_FIRST: _ClassVar[Keep]
    KEEP_LAST: _ClassVar[Keep]

class BagEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BAG_ENCODING_UNSPECIFIED: _ClassVar[BagEncoding]
    BAG_ENCODING_SPARSE: _ClassVar[BagEncoding]
    BAG_ENCODING_RAGGED: _ClassVar[BagEncoding]

class Take(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TAKE_UNSPECIFIED: _ClassVar[Take]
    TAKE_VALUES: _ClassVar[Take]
    TAKE_LENGTHS: _ClassVar[Take]
    TAKE_PADDED: _ClassVar[Take]
    TAKE_WEIGHTS: _ClassVar[Take]

class UnknownRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_RULE_UNSPECIFIED: _ClassVar[UnknownRule]
    UNKNOWN_RULE_ZEROS: _ClassVar[UnknownRule]
    UNKNOWN_RULE_ROW: _ClassVar[UnknownRule]
    UNKNOWN_RULE_REFUSE: _ClassVar[UnknownRule]

class TowerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOWER_ROLE_UNSPECIFIED: _ClassVar[TowerRole]
    TOWER_ROLE_QUERY: _ClassVar[TowerRole]
    TOWER_ROLE_CANDIDATE: _ClassVar[TowerRole]
    TOWER_ROLE_RANKING: _ClassVar[TowerRole]

class Device(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_UNSPECIFIED: _ClassVar[Device]
    DEVICE_CPU: _ClassVar[Device]
    DEVICE_GPU: _ClassVar[Device]

class FormKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORM_KIND_UNSPECIFIED: _ClassVar[FormKind]
    FORM_KIND_LITERT: _ClassVar[FormKind]
    FORM_KIND_SAVED_MODEL: _ClassVar[FormKind]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_F32: _ClassVar[Precision]
    PRECISION_INT8: _ClassVar[Precision]
    PRECISION_BF16: _ClassVar[Precision]

class IndexKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INDEX_KIND_UNSPECIFIED: _ClassVar[IndexKind]
    INDEX_KIND_BRUTE_FORCE: _ClassVar[IndexKind]
    INDEX_KIND_TREE_AH: _ClassVar[IndexKind]

class Distance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISTANCE_UNSPECIFIED: _ClassVar[Distance]
    DISTANCE_DOT_PRODUCT: _ClassVar[Distance]
    DISTANCE_SQUARED_L2: _ClassVar[Distance]
    DISTANCE_COSINE: _ClassVar[Distance]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_PERMISSION_DENIED: _ClassVar[ErrorCode]
    ERROR_CODE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_OVERLOADED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_READY: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE: _ClassVar[ErrorCode]
    ERROR_CODE_CANCELLED: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_LOSS: _ClassVar[ErrorCode]
    ERROR_CODE_UNIMPLEMENTED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
NOT_FOUND_RULE_UNSPECIFIED: NotFoundRule
NOT_FOUND_RULE_ERROR: NotFoundRule
NOT_FOUND_RULE_SKIP: NotFoundRule
SEARCH_PATH_UNSPECIFIED: SearchPath
SEARCH_PATH_INDEX: SearchPath
SEARCH_PATH_EXACT: SearchPath
SEARCH_PATH_NONE: SearchPath
CHANGE_KIND_UNSPECIFIED: ChangeKind
CHANGE_KIND_CANDIDATES: ChangeKind
CHANGE_KIND_CONTEXTS: ChangeKind
CHANGE_ACTION_UNSPECIFIED: ChangeAction
CHANGE_ACTION_UPSERT: ChangeAction
CHANGE_ACTION_DELETE: ChangeAction
CHANGE_ACTION_ATTRIBUTES: ChangeAction
LOAD_STATE_UNSPECIFIED: LoadState
LOAD_STATE_LOADING: LoadState
LOAD_STATE_AVAILABLE: LoadState
LOAD_STATE_KEPT: LoadState
LOAD_STATE_RETIRING: LoadState
LOAD_STATE_FAILED: LoadState
CALL_UNSPECIFIED: Call
CALL_RETRIEVE: Call
CALL_RANK: Call
CALL_RECOMMEND: Call
CALL_EMBED: Call
FEATURE_KIND_UNSPECIFIED: FeatureKind
FEATURE_KIND_SINGLE: FeatureKind
FEATURE_KIND_BAG: FeatureKind
FEATURE_KIND_SEQUENCE: FeatureKind
FEATURE_KIND_DENSE: FeatureKind
ROLE_UNSPECIFIED: Role
ROLE_CONTEXT: Role
ROLE_CANDIDATE: Role
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_FLOAT64: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_STRING: DataType
DATA_TYPE_BOOL: DataType
DATA_TYPE_INT64_OR_STRING: DataType
COMBINER_UNSPECIFIED: Combiner
COMBINER_SUM: Combiner
COMBINER_MEAN: Combiner
COMBINER_SQRTN: Combiner
PAD_SIDE_UNSPECIFIED: PadSide
PAD_SIDE_START: PadSide
PAD_SIDE_END: PadSide
KEEP_UNSPECIFIED: Keep
KEEP_FIRST: Keep
KEEP_LAST: Keep
BAG_ENCODING_UNSPECIFIED: BagEncoding
BAG_ENCODING_SPARSE: BagEncoding
BAG_ENCODING_RAGGED: BagEncoding
TAKE_UNSPECIFIED: Take
TAKE_VALUES: Take
TAKE_LENGTHS: Take
TAKE_PADDED: Take
TAKE_WEIGHTS: Take
UNKNOWN_RULE_UNSPECIFIED: UnknownRule
UNKNOWN_RULE_ZEROS: UnknownRule
UNKNOWN_RULE_ROW: UnknownRule
UNKNOWN_RULE_REFUSE: UnknownRule
TOWER_ROLE_UNSPECIFIED: TowerRole
TOWER_ROLE_QUERY: TowerRole
TOWER_ROLE_CANDIDATE: TowerRole
TOWER_ROLE_RANKING: TowerRole
DEVICE_UNSPECIFIED: Device
DEVICE_CPU: Device
DEVICE_GPU: Device
FORM_KIND_UNSPECIFIED: FormKind
FORM_KIND_LITERT: FormKind
FORM_KIND_SAVED_MODEL: FormKind
PRECISION_UNSPECIFIED: Precision
PRECISION_F32: Precision
PRECISION_INT8: Precision
PRECISION_BF16: Precision
INDEX_KIND_UNSPECIFIED: IndexKind
INDEX_KIND_BRUTE_FORCE: IndexKind
INDEX_KIND_TREE_AH: IndexKind
DISTANCE_UNSPECIFIED: Distance
DISTANCE_DOT_PRODUCT: Distance
DISTANCE_SQUARED_L2: Distance
DISTANCE_COSINE: Distance
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_PERMISSION_DENIED: ErrorCode
ERROR_CODE_TOO_LARGE: ErrorCode
ERROR_CODE_NOT_FOUND: ErrorCode
ERROR_CODE_OVERLOADED: ErrorCode
ERROR_CODE_NOT_READY: ErrorCode
ERROR_CODE_DEADLINE: ErrorCode
ERROR_CODE_CANCELLED: ErrorCode
ERROR_CODE_DATA_LOSS: ErrorCode
ERROR_CODE_UNIMPLEMENTED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode

class Strings(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class Ids(_message.Message):
    __slots__ = ("int64s", "strings")
    INT64S_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    int64s: bytes
    strings: Strings
    def __init__(self, int64s: _Optional[bytes] = ..., strings: _Optional[_Union[Strings, _Mapping]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("int64s", "int32s", "float32s", "strings", "offsets", "weights")
    INT64S_FIELD_NUMBER: _ClassVar[int]
    INT32S_FIELD_NUMBER: _ClassVar[int]
    FLOAT32S_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    int64s: bytes
    int32s: bytes
    float32s: bytes
    strings: Strings
    offsets: bytes
    weights: bytes
    def __init__(self, int64s: _Optional[bytes] = ..., int32s: _Optional[bytes] = ..., float32s: _Optional[bytes] = ..., strings: _Optional[_Union[Strings, _Mapping]] = ..., offsets: _Optional[bytes] = ..., weights: _Optional[bytes] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("name", "version", "label")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    label: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., label: _Optional[str] = ...) -> None: ...

class RetrieveRequest(_message.Message):
    __slots__ = ("model", "index", "k", "context", "vectors", "ids", "exclude_ids", "exclude_offsets", "attributes", "exact", "filter", "context_ids", "query_offsets", "recall", "pool_size", "formula", "crowding", "diversity", "min_score", "explain", "negative_ids", "negative_offsets", "offset", "not_found")
    class ContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    class CrowdingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_IDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_IDS_FIELD_NUMBER: _ClassVar[int]
    QUERY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    POOL_SIZE_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    CROWDING_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_IDS_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    index: str
    k: int
    context: _containers.MessageMap[str, Column]
    vectors: bytes
    ids: Ids
    exclude_ids: Ids
    exclude_offsets: bytes
    attributes: _containers.RepeatedScalarFieldContainer[str]
    exact: bool
    filter: Filter
    context_ids: Ids
    query_offsets: bytes
    recall: float
    pool_size: int
    formula: str
    crowding: _containers.ScalarMap[str, int]
    diversity: float
    min_score: float
    explain: bool
    negative_ids: Ids
    negative_offsets: bytes
    offset: int
    not_found: NotFoundRule
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., index: _Optional[str] = ..., k: _Optional[int] = ..., context: _Optional[_Mapping[str, Column]] = ..., vectors: _Optional[bytes] = ..., ids: _Optional[_Union[Ids, _Mapping]] = ..., exclude_ids: _Optional[_Union[Ids, _Mapping]] = ..., exclude_offsets: _Optional[bytes] = ..., attributes: _Optional[_Iterable[str]] = ..., exact: _Optional[bool] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., context_ids: _Optional[_Union[Ids, _Mapping]] = ..., query_offsets: _Optional[bytes] = ..., recall: _Optional[float] = ..., pool_size: _Optional[int] = ..., formula: _Optional[str] = ..., crowding: _Optional[_Mapping[str, int]] = ..., diversity: _Optional[float] = ..., min_score: _Optional[float] = ..., explain: _Optional[bool] = ..., negative_ids: _Optional[_Union[Ids, _Mapping]] = ..., negative_offsets: _Optional[bytes] = ..., offset: _Optional[int] = ..., not_found: _Optional[_Union[NotFoundRule, str]] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("conditions", "all", "any", "none", "near")
    class ConditionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Condition
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Condition, _Mapping]] = ...) -> None: ...
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    NEAR_FIELD_NUMBER: _ClassVar[int]
    conditions: _containers.MessageMap[str, Condition]
    all: _containers.RepeatedCompositeFieldContainer[Filter]
    any: _containers.RepeatedCompositeFieldContainer[Filter]
    none: _containers.RepeatedCompositeFieldContainer[Filter]
    near: _containers.RepeatedCompositeFieldContainer[Circle]
    def __init__(self, conditions: _Optional[_Mapping[str, Condition]] = ..., all: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ..., any: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ..., none: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ..., near: _Optional[_Iterable[_Union[Circle, _Mapping]]] = ...) -> None: ...

class Circle(_message.Message):
    __slots__ = ("latitude", "longitude", "radius_m", "latitude_attribute", "longitude_attribute")
    LATITUDE_FIELD_NUMBER: _ClassVar[int]
    LONGITUDE_FIELD_NUMBER: _ClassVar[int]
    RADIUS_M_FIELD_NUMBER: _ClassVar[int]
    LATITUDE_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    LONGITUDE_ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    latitude: float
    longitude: float
    radius_m: float
    latitude_attribute: str
    longitude_attribute: str
    def __init__(self, latitude: _Optional[float] = ..., longitude: _Optional[float] = ..., radius_m: _Optional[float] = ..., latitude_attribute: _Optional[str] = ..., longitude_attribute: _Optional[str] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("allow", "deny", "ge", "gt", "le", "lt", "is_null")
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    DENY_FIELD_NUMBER: _ClassVar[int]
    GE_FIELD_NUMBER: _ClassVar[int]
    GT_FIELD_NUMBER: _ClassVar[int]
    LE_FIELD_NUMBER: _ClassVar[int]
    LT_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    allow: Ids
    deny: Ids
    ge: Number
    gt: Number
    le: Number
    lt: Number
    is_null: bool
    def __init__(self, allow: _Optional[_Union[Ids, _Mapping]] = ..., deny: _Optional[_Union[Ids, _Mapping]] = ..., ge: _Optional[_Union[Number, _Mapping]] = ..., gt: _Optional[_Union[Number, _Mapping]] = ..., le: _Optional[_Union[Number, _Mapping]] = ..., lt: _Optional[_Union[Number, _Mapping]] = ..., is_null: _Optional[bool] = ...) -> None: ...

class Number(_message.Message):
    __slots__ = ("int64", "float64")
    INT64_FIELD_NUMBER: _ClassVar[int]
    FLOAT64_FIELD_NUMBER: _ClassVar[int]
    int64: int
    float64: float
    def __init__(self, int64: _Optional[int] = ..., float64: _Optional[float] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("path", "matches", "selectivity", "scored", "search_ms", "shortfall", "unmatched")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    SELECTIVITY_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    SEARCH_MS_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    path: SearchPath
    matches: int
    selectivity: float
    scored: int
    search_ms: float
    shortfall: str
    unmatched: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, path: _Optional[_Union[SearchPath, str]] = ..., matches: _Optional[int] = ..., selectivity: _Optional[float] = ..., scored: _Optional[int] = ..., search_ms: _Optional[float] = ..., shortfall: _Optional[str] = ..., unmatched: _Optional[_Iterable[str]] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("int64s", "float64s", "strings", "lists", "bools", "nulls")
    INT64S_FIELD_NUMBER: _ClassVar[int]
    FLOAT64S_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    BOOLS_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIELD_NUMBER: _ClassVar[int]
    int64s: bytes
    float64s: bytes
    strings: Strings
    lists: Lists
    bools: bytes
    nulls: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, int64s: _Optional[bytes] = ..., float64s: _Optional[bytes] = ..., strings: _Optional[_Union[Strings, _Mapping]] = ..., lists: _Optional[_Union[Lists, _Mapping]] = ..., bools: _Optional[bytes] = ..., nulls: _Optional[_Iterable[int]] = ...) -> None: ...

class Lists(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Strings]
    def __init__(self, values: _Optional[_Iterable[_Union[Strings, _Mapping]]] = ...) -> None: ...

class RetrieveResponse(_message.Message):
    __slots__ = ("model", "ids", "scores", "offsets", "attributes", "searched", "explanations", "coverage", "not_found", "not_found_offsets")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Attribute, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    SEARCHED_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    ids: Ids
    scores: bytes
    offsets: bytes
    attributes: _containers.MessageMap[str, Attribute]
    searched: int
    explanations: _containers.RepeatedCompositeFieldContainer[Explanation]
    coverage: float
    not_found: Ids
    not_found_offsets: bytes
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., ids: _Optional[_Union[Ids, _Mapping]] = ..., scores: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., attributes: _Optional[_Mapping[str, Attribute]] = ..., searched: _Optional[int] = ..., explanations: _Optional[_Iterable[_Union[Explanation, _Mapping]]] = ..., coverage: _Optional[float] = ..., not_found: _Optional[_Union[Ids, _Mapping]] = ..., not_found_offsets: _Optional[bytes] = ...) -> None: ...

class RankRequest(_message.Message):
    __slots__ = ("model", "tower", "context", "candidate_ids", "candidate_features", "offsets", "heads", "k", "formula", "context_ids", "not_found", "min_score")
    class ContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    class CandidateFeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOWER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_IDS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FEATURES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_IDS_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    tower: str
    context: _containers.MessageMap[str, Column]
    candidate_ids: Ids
    candidate_features: _containers.MessageMap[str, Column]
    offsets: bytes
    heads: _containers.RepeatedScalarFieldContainer[str]
    k: int
    formula: str
    context_ids: Ids
    not_found: NotFoundRule
    min_score: float
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., tower: _Optional[str] = ..., context: _Optional[_Mapping[str, Column]] = ..., candidate_ids: _Optional[_Union[Ids, _Mapping]] = ..., candidate_features: _Optional[_Mapping[str, Column]] = ..., offsets: _Optional[bytes] = ..., heads: _Optional[_Iterable[str]] = ..., k: _Optional[int] = ..., formula: _Optional[str] = ..., context_ids: _Optional[_Union[Ids, _Mapping]] = ..., not_found: _Optional[_Union[NotFoundRule, str]] = ..., min_score: _Optional[float] = ...) -> None: ...

class RankResponse(_message.Message):
    __slots__ = ("model", "ids", "positions", "scores", "heads", "offsets", "coverage", "failed", "not_found", "not_found_offsets")
    class HeadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    ids: Ids
    positions: bytes
    scores: bytes
    heads: _containers.ScalarMap[str, bytes]
    offsets: bytes
    coverage: float
    failed: _containers.RepeatedCompositeFieldContainer[FailedCandidate]
    not_found: Ids
    not_found_offsets: bytes
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., ids: _Optional[_Union[Ids, _Mapping]] = ..., positions: _Optional[bytes] = ..., scores: _Optional[bytes] = ..., heads: _Optional[_Mapping[str, bytes]] = ..., offsets: _Optional[bytes] = ..., coverage: _Optional[float] = ..., failed: _Optional[_Iterable[_Union[FailedCandidate, _Mapping]]] = ..., not_found: _Optional[_Union[Ids, _Mapping]] = ..., not_found_offsets: _Optional[bytes] = ...) -> None: ...

class FailedCandidate(_message.Message):
    __slots__ = ("context", "position", "message")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    context: int
    position: int
    message: str
    def __init__(self, context: _Optional[int] = ..., position: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class RecommendRequest(_message.Message):
    __slots__ = ("model", "context", "k", "pool_size", "exclude_ids", "exclude_offsets", "attributes", "index", "tower", "formula", "context_ids", "filter", "recall", "crowding", "diversity", "min_score", "explain", "negative_ids", "negative_offsets", "offset", "sources", "keep", "skip_stage")
    class ContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    class CrowdingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    POOL_SIZE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_IDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOWER_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    CROWDING_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_IDS_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SKIP_STAGE_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    context: _containers.MessageMap[str, Column]
    k: int
    pool_size: int
    exclude_ids: Ids
    exclude_offsets: bytes
    attributes: _containers.RepeatedScalarFieldContainer[str]
    index: str
    tower: str
    formula: str
    context_ids: Ids
    filter: Filter
    recall: float
    crowding: _containers.ScalarMap[str, int]
    diversity: float
    min_score: float
    explain: bool
    negative_ids: Ids
    negative_offsets: bytes
    offset: int
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    keep: int
    skip_stage: bool
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., context: _Optional[_Mapping[str, Column]] = ..., k: _Optional[int] = ..., pool_size: _Optional[int] = ..., exclude_ids: _Optional[_Union[Ids, _Mapping]] = ..., exclude_offsets: _Optional[bytes] = ..., attributes: _Optional[_Iterable[str]] = ..., index: _Optional[str] = ..., tower: _Optional[str] = ..., formula: _Optional[str] = ..., context_ids: _Optional[_Union[Ids, _Mapping]] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., recall: _Optional[float] = ..., crowding: _Optional[_Mapping[str, int]] = ..., diversity: _Optional[float] = ..., min_score: _Optional[float] = ..., explain: _Optional[bool] = ..., negative_ids: _Optional[_Union[Ids, _Mapping]] = ..., negative_offsets: _Optional[bytes] = ..., offset: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., keep: _Optional[int] = ..., skip_stage: _Optional[bool] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("name", "index", "ids", "list", "offsets", "pool_size", "min_count", "max_count", "fallback")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    POOL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    name: str
    index: str
    ids: Ids
    list: str
    offsets: bytes
    pool_size: int
    min_count: int
    max_count: int
    fallback: bool
    def __init__(self, name: _Optional[str] = ..., index: _Optional[str] = ..., ids: _Optional[_Union[Ids, _Mapping]] = ..., list: _Optional[str] = ..., offsets: _Optional[bytes] = ..., pool_size: _Optional[int] = ..., min_count: _Optional[int] = ..., max_count: _Optional[int] = ..., fallback: _Optional[bool] = ...) -> None: ...

class RecommendResponse(_message.Message):
    __slots__ = ("model", "ids", "scores", "offsets", "attributes", "retrieval_scores", "explanations", "degraded", "degraded_reason", "coverage", "source_names", "sources")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Attribute, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    RETRIEVAL_SCORES_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NAMES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    ids: Ids
    scores: bytes
    offsets: bytes
    attributes: _containers.MessageMap[str, Attribute]
    retrieval_scores: bytes
    explanations: _containers.RepeatedCompositeFieldContainer[Explanation]
    degraded: bool
    degraded_reason: str
    coverage: float
    source_names: _containers.RepeatedScalarFieldContainer[str]
    sources: bytes
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., ids: _Optional[_Union[Ids, _Mapping]] = ..., scores: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., attributes: _Optional[_Mapping[str, Attribute]] = ..., retrieval_scores: _Optional[bytes] = ..., explanations: _Optional[_Iterable[_Union[Explanation, _Mapping]]] = ..., degraded: _Optional[bool] = ..., degraded_reason: _Optional[str] = ..., coverage: _Optional[float] = ..., source_names: _Optional[_Iterable[str]] = ..., sources: _Optional[bytes] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model", "tower", "features")
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOWER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    tower: str
    features: _containers.MessageMap[str, Column]
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., tower: _Optional[str] = ..., features: _Optional[_Mapping[str, Column]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("model", "vectors", "dim", "coverage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    vectors: bytes
    dim: int
    coverage: float
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., vectors: _Optional[bytes] = ..., dim: _Optional[int] = ..., coverage: _Optional[float] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("model", "feature", "ids", "not_found")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    feature: str
    ids: Column
    not_found: NotFoundRule
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., feature: _Optional[str] = ..., ids: _Optional[_Union[Column, _Mapping]] = ..., not_found: _Optional[_Union[NotFoundRule, str]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("model", "vectors", "dim", "found", "table", "coverage", "lost", "not_found")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    vectors: bytes
    dim: int
    found: bytes
    table: str
    coverage: float
    lost: bytes
    not_found: Column
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., vectors: _Optional[bytes] = ..., dim: _Optional[int] = ..., found: _Optional[bytes] = ..., table: _Optional[str] = ..., coverage: _Optional[float] = ..., lost: _Optional[bytes] = ..., not_found: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("model", "kind", "action", "target", "ids", "features", "attributes", "vectors", "sequences", "expires_s", "stream", "offset", "from_offset")
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Attribute, _Mapping]] = ...) -> None: ...
    class VectorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    kind: ChangeKind
    action: ChangeAction
    target: str
    ids: Ids
    features: _containers.MessageMap[str, Column]
    attributes: _containers.MessageMap[str, Attribute]
    vectors: _containers.ScalarMap[str, bytes]
    sequences: bytes
    expires_s: bytes
    stream: str
    offset: int
    from_offset: int
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., kind: _Optional[_Union[ChangeKind, str]] = ..., action: _Optional[_Union[ChangeAction, str]] = ..., target: _Optional[str] = ..., ids: _Optional[_Union[Ids, _Mapping]] = ..., features: _Optional[_Mapping[str, Column]] = ..., attributes: _Optional[_Mapping[str, Attribute]] = ..., vectors: _Optional[_Mapping[str, bytes]] = ..., sequences: _Optional[bytes] = ..., expires_s: _Optional[bytes] = ..., stream: _Optional[str] = ..., offset: _Optional[int] = ..., from_offset: _Optional[int] = ...) -> None: ...

class ChangeResponse(_message.Message):
    __slots__ = ("model", "sequence", "changed", "outdated", "unknown", "outdated_count", "unknown_count", "is_repeated", "stream_offset")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OUTDATED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    OUTDATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_REPEATED_FIELD_NUMBER: _ClassVar[int]
    STREAM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    sequence: int
    changed: int
    outdated: Ids
    unknown: Ids
    outdated_count: int
    unknown_count: int
    is_repeated: bool
    stream_offset: int
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., sequence: _Optional[int] = ..., changed: _Optional[int] = ..., outdated: _Optional[_Union[Ids, _Mapping]] = ..., unknown: _Optional[_Union[Ids, _Mapping]] = ..., outdated_count: _Optional[int] = ..., unknown_count: _Optional[int] = ..., is_repeated: _Optional[bool] = ..., stream_offset: _Optional[int] = ...) -> None: ...

class GetChangesRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ...) -> None: ...

class GetChangesResponse(_message.Message):
    __slots__ = ("model", "sequence", "streams")
    class StreamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    sequence: int
    streams: _containers.ScalarMap[str, int]
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., sequence: _Optional[int] = ..., streams: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("name", "versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    versions: _containers.RepeatedCompositeFieldContainer[VersionState]
    def __init__(self, name: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[VersionState, _Mapping]]] = ...) -> None: ...

class VersionState(_message.Message):
    __slots__ = ("version", "state", "problem", "current", "labels", "memory_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: LoadState
    problem: str
    current: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    memory_bytes: int
    def __init__(self, version: _Optional[int] = ..., state: _Optional[_Union[LoadState, str]] = ..., problem: _Optional[str] = ..., current: _Optional[bool] = ..., labels: _Optional[_Iterable[str]] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model", "created", "calls", "tables", "indexes", "corpora", "contexts", "readers", "towers", "current", "labels", "lists", "stages")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    CORPORA_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    TOWERS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    created: _timestamp_pb2.Timestamp
    calls: _containers.RepeatedCompositeFieldContainer[CallSignature]
    tables: _containers.RepeatedCompositeFieldContainer[TableDetails]
    indexes: _containers.RepeatedCompositeFieldContainer[IndexDetails]
    corpora: _containers.RepeatedCompositeFieldContainer[CorpusDetails]
    contexts: _containers.RepeatedCompositeFieldContainer[CorpusDetails]
    readers: _containers.RepeatedCompositeFieldContainer[ReaderDetails]
    towers: _containers.RepeatedCompositeFieldContainer[TowerDetails]
    current: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    lists: _containers.RepeatedCompositeFieldContainer[ListDetails]
    stages: _containers.RepeatedCompositeFieldContainer[StageDetails]
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., calls: _Optional[_Iterable[_Union[CallSignature, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[TableDetails, _Mapping]]] = ..., indexes: _Optional[_Iterable[_Union[IndexDetails, _Mapping]]] = ..., corpora: _Optional[_Iterable[_Union[CorpusDetails, _Mapping]]] = ..., contexts: _Optional[_Iterable[_Union[CorpusDetails, _Mapping]]] = ..., readers: _Optional[_Iterable[_Union[ReaderDetails, _Mapping]]] = ..., towers: _Optional[_Iterable[_Union[TowerDetails, _Mapping]]] = ..., current: _Optional[bool] = ..., labels: _Optional[_Iterable[str]] = ..., lists: _Optional[_Iterable[_Union[ListDetails, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[StageDetails, _Mapping]]] = ...) -> None: ...

class CallSignature(_message.Message):
    __slots__ = ("call", "tower", "features", "outputs")
    CALL_FIELD_NUMBER: _ClassVar[int]
    TOWER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    call: Call
    tower: str
    features: _containers.RepeatedCompositeFieldContainer[FeatureDetails]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, call: _Optional[_Union[Call, str]] = ..., tower: _Optional[str] = ..., features: _Optional[_Iterable[_Union[FeatureDetails, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ...) -> None: ...

class Unknown(_message.Message):
    __slots__ = ("rule", "row")
    RULE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    rule: UnknownRule
    row: int
    def __init__(self, rule: _Optional[_Union[UnknownRule, str]] = ..., row: _Optional[int] = ...) -> None: ...

class Id(_message.Message):
    __slots__ = ("int64", "string")
    INT64_FIELD_NUMBER: _ClassVar[int]
    STRING_FIELD_NUMBER: _ClassVar[int]
    int64: int
    string: str
    def __init__(self, int64: _Optional[int] = ..., string: _Optional[str] = ...) -> None: ...

class FeatureDetails(_message.Message):
    __slots__ = ("name", "kind", "type", "role", "shape", "length", "combiner", "weighted", "unknown", "table", "required", "default", "stored", "readers", "input_length")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMBINER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    INPUT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: FeatureKind
    type: DataType
    role: Role
    shape: _containers.RepeatedScalarFieldContainer[int]
    length: int
    combiner: Combiner
    weighted: bool
    unknown: Unknown
    table: str
    required: bool
    default: Column
    stored: bool
    readers: _containers.RepeatedScalarFieldContainer[str]
    input_length: InputLength
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[FeatureKind, str]] = ..., type: _Optional[_Union[DataType, str]] = ..., role: _Optional[_Union[Role, str]] = ..., shape: _Optional[_Iterable[int]] = ..., length: _Optional[int] = ..., combiner: _Optional[_Union[Combiner, str]] = ..., weighted: _Optional[bool] = ..., unknown: _Optional[_Union[Unknown, _Mapping]] = ..., table: _Optional[str] = ..., required: _Optional[bool] = ..., default: _Optional[_Union[Column, _Mapping]] = ..., stored: _Optional[bool] = ..., readers: _Optional[_Iterable[str]] = ..., input_length: _Optional[_Union[InputLength, _Mapping]] = ...) -> None: ...

class InputLength(_message.Message):
    __slots__ = ("values", "pad", "pad_side", "keep")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    PAD_SIDE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    values: int
    pad: Column
    pad_side: PadSide
    keep: Keep
    def __init__(self, values: _Optional[int] = ..., pad: _Optional[_Union[Column, _Mapping]] = ..., pad_side: _Optional[_Union[PadSide, str]] = ..., keep: _Optional[_Union[Keep, str]] = ...) -> None: ...

class ReaderDetails(_message.Message):
    __slots__ = ("name", "inputs", "kind", "role", "table", "ids", "unknown", "combiner", "encoding", "weighted", "length", "shape", "dtype", "take", "place", "places", "max_norm", "empty_row", "padding", "below", "joint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    COMBINER_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    WEIGHTED_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    MAX_NORM_FIELD_NUMBER: _ClassVar[int]
    EMPTY_ROW_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    JOINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    kind: FeatureKind
    role: Role
    table: str
    ids: IdRule
    unknown: Unknown
    combiner: Combiner
    encoding: BagEncoding
    weighted: bool
    length: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: DataType
    take: Take
    place: int
    places: int
    max_norm: float
    empty_row: int
    padding: Id
    below: int
    joint: _containers.RepeatedCompositeFieldContainer[JointInput]
    def __init__(self, name: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., kind: _Optional[_Union[FeatureKind, str]] = ..., role: _Optional[_Union[Role, str]] = ..., table: _Optional[str] = ..., ids: _Optional[_Union[IdRule, _Mapping]] = ..., unknown: _Optional[_Union[Unknown, _Mapping]] = ..., combiner: _Optional[_Union[Combiner, str]] = ..., encoding: _Optional[_Union[BagEncoding, str]] = ..., weighted: _Optional[bool] = ..., length: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., take: _Optional[_Union[Take, str]] = ..., place: _Optional[int] = ..., places: _Optional[int] = ..., max_norm: _Optional[float] = ..., empty_row: _Optional[int] = ..., padding: _Optional[_Union[Id, _Mapping]] = ..., below: _Optional[int] = ..., joint: _Optional[_Iterable[_Union[JointInput, _Mapping]]] = ...) -> None: ...

class JointInput(_message.Message):
    __slots__ = ("role", "default", "padding")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    role: Role
    default: Column
    padding: Id
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., default: _Optional[_Union[Column, _Mapping]] = ..., padding: _Optional[_Union[Id, _Mapping]] = ...) -> None: ...

class IdRule(_message.Message):
    __slots__ = ("graph", "keyed")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    graph: GraphIds
    keyed: KeyedIds
    def __init__(self, graph: _Optional[_Union[GraphIds, _Mapping]] = ..., keyed: _Optional[_Union[KeyedIds, _Mapping]] = ...) -> None: ...

class GraphIds(_message.Message):
    __slots__ = ("dtypes", "expression")
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    dtypes: _containers.RepeatedScalarFieldContainer[DataType]
    expression: str
    def __init__(self, dtypes: _Optional[_Iterable[_Union[DataType, str]]] = ..., expression: _Optional[str] = ...) -> None: ...

class KeyedIds(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: str
    def __init__(self, keys: _Optional[str] = ...) -> None: ...

class TowerDetails(_message.Message):
    __slots__ = ("name", "role", "inputs", "outputs", "result", "formula", "forms", "parts", "device")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: TowerRole
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDetails]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDetails]
    result: str
    formula: str
    forms: _containers.RepeatedCompositeFieldContainer[FormDetails]
    parts: _containers.RepeatedCompositeFieldContainer[PartDetails]
    device: Device
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[TowerRole, str]] = ..., inputs: _Optional[_Iterable[_Union[TensorDetails, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorDetails, _Mapping]]] = ..., result: _Optional[str] = ..., formula: _Optional[str] = ..., forms: _Optional[_Iterable[_Union[FormDetails, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartDetails, _Mapping]]] = ..., device: _Optional[_Union[Device, str]] = ...) -> None: ...

class TensorDetails(_message.Message):
    __slots__ = ("name", "readers", "tensor", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    readers: _containers.RepeatedScalarFieldContainer[str]
    tensor: str
    dtype: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., readers: _Optional[_Iterable[str]] = ..., tensor: _Optional[str] = ..., dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class FormDetails(_message.Message):
    __slots__ = ("kind", "precision", "max_abs_error", "effects", "runs")
    class MaxAbsErrorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class EffectsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: EffectDetails
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[EffectDetails, _Mapping]] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MAX_ABS_ERROR_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    kind: FormKind
    precision: Precision
    max_abs_error: _containers.ScalarMap[str, float]
    effects: _containers.MessageMap[str, EffectDetails]
    runs: bool
    def __init__(self, kind: _Optional[_Union[FormKind, str]] = ..., precision: _Optional[_Union[Precision, str]] = ..., max_abs_error: _Optional[_Mapping[str, float]] = ..., effects: _Optional[_Mapping[str, EffectDetails]] = ..., runs: _Optional[bool] = ...) -> None: ...

class EffectDetails(_message.Message):
    __slots__ = ("kendall_tau", "overlap", "k", "auc", "auc_original")
    KENDALL_TAU_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    AUC_FIELD_NUMBER: _ClassVar[int]
    AUC_ORIGINAL_FIELD_NUMBER: _ClassVar[int]
    kendall_tau: float
    overlap: float
    k: int
    auc: float
    auc_original: float
    def __init__(self, kendall_tau: _Optional[float] = ..., overlap: _Optional[float] = ..., k: _Optional[int] = ..., auc: _Optional[float] = ..., auc_original: _Optional[float] = ...) -> None: ...

class PartDetails(_message.Message):
    __slots__ = ("name", "per", "inputs", "outputs", "forms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PER_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    per: Role
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDetails]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDetails]
    forms: _containers.RepeatedCompositeFieldContainer[FormDetails]
    def __init__(self, name: _Optional[str] = ..., per: _Optional[_Union[Role, str]] = ..., inputs: _Optional[_Iterable[_Union[TensorDetails, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorDetails, _Mapping]]] = ..., forms: _Optional[_Iterable[_Union[FormDetails, _Mapping]]] = ...) -> None: ...

class TableDetails(_message.Message):
    __slots__ = ("name", "rows", "dim", "dtype", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    dim: int
    dtype: DataType
    bytes: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., dim: _Optional[int] = ..., dtype: _Optional[_Union[DataType, str]] = ..., bytes: _Optional[int] = ...) -> None: ...

class IndexDetails(_message.Message):
    __slots__ = ("name", "corpus", "kind", "distance", "dim", "size", "recall_k", "recall")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RECALL_K_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    name: str
    corpus: str
    kind: IndexKind
    distance: Distance
    dim: int
    size: int
    recall_k: int
    recall: float
    def __init__(self, name: _Optional[str] = ..., corpus: _Optional[str] = ..., kind: _Optional[_Union[IndexKind, str]] = ..., distance: _Optional[_Union[Distance, str]] = ..., dim: _Optional[int] = ..., size: _Optional[int] = ..., recall_k: _Optional[int] = ..., recall: _Optional[float] = ...) -> None: ...

class CorpusDetails(_message.Message):
    __slots__ = ("name", "size", "id_type", "attributes", "features")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ID_TYPE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    id_type: DataType
    attributes: _containers.RepeatedScalarFieldContainer[str]
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., id_type: _Optional[_Union[DataType, str]] = ..., attributes: _Optional[_Iterable[str]] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class ListDetails(_message.Message):
    __slots__ = ("name", "corpus", "size", "by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    corpus: str
    size: int
    by: str
    def __init__(self, name: _Optional[str] = ..., corpus: _Optional[str] = ..., size: _Optional[int] = ..., by: _Optional[str] = ...) -> None: ...

class StageDetails(_message.Message):
    __slots__ = ("before", "tower", "keep", "recall_k", "recall")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    TOWER_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    RECALL_K_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    before: str
    tower: str
    keep: int
    recall_k: int
    recall: float
    def __init__(self, before: _Optional[str] = ..., tower: _Optional[str] = ..., keep: _Optional[int] = ..., recall_k: _Optional[int] = ..., recall: _Optional[float] = ...) -> None: ...

class ErrorDetails(_message.Message):
    __slots__ = ("code", "message", "request_id", "violations")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    request_id: str
    violations: _containers.RepeatedCompositeFieldContainer[FieldViolation]
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., request_id: _Optional[str] = ..., violations: _Optional[_Iterable[_Union[FieldViolation, _Mapping]]] = ...) -> None: ...

class FieldViolation(_message.Message):
    __slots__ = ("field", "value", "expected")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    field: str
    value: str
    expected: str
    def __init__(self, field: _Optional[str] = ..., value: _Optional[str] = ..., expected: _Optional[str] = ...) -> None: ...
