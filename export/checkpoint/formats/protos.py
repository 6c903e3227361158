"""The protobuf messages of checkpoints, as far as they are read, in a descriptor pool of their own.

TensorFlow registers its messages in the process-wide pool, and its import fails where it finds them
there already.

Source: TensorFlow, tensorflow/core/protobuf/{tensor_bundle,trackable_object_graph}.proto,
core/framework/ {tensor_shape,tensor_slice,versions}.proto,
core/tpu/kernels/sparse_core_layout.proto, python/training/ checkpoint_state.proto;
jax-tpu-embedding, sparsecore/lib/proto/embedding_spec.proto; tf-keras,
protobuf/saved_metadata.proto. `upstreams.py` names the releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.upstreams import (
    JAX_TPU_EMBEDDING,
    TENSORFLOW,
    TF_KERAS,
    UnknownFields,
)

_MESSAGES = {
    "BundleHeaderProto": "int32 num_shards = 1; int32 endianness = 2; VersionDef version = 3",
    "VersionDef": "int32 producer = 1; int32 min_consumer = 2; repeated int32 bad_consumers = 3",
    "BundleEntryProto": "int32 dtype = 1; TensorShapeProto shape = 2; int32 shard_id = 3; int64 "
    "offset = 4; int64 size = 5; fixed32 crc32c = 6; repeated TensorSliceProto slices = 7",
    "TensorShapeProto": "repeated Dim dim = 2; bool unknown_rank = 3",
    "Dim": "int64 size = 1; string name = 2",
    "TensorSliceProto": "repeated Extent extent = 1",
    # `length` is optional because an extent without one spans its whole axis.
    "Extent": "int64 start = 1; optional int64 length = 2",
    "TrackableObjectGraph": "repeated TrackableObject nodes = 1",
    "TrackableObject": "repeated ObjectReference children = 1; repeated SerializedTensor "
    "attributes = 2; repeated SlotVariableReference slot_variables = 3; "
    "RegisteredSaver registered_saver = 4; BoolValue has_checkpoint_values = 5",
    "RegisteredSaver": "string name = 1; string object_name = 2",
    "BoolValue": "bool value = 1",
    "ObjectReference": "int32 node_id = 1; string local_name = 2",
    # Until 2.8, TensorFlow wrote `optional_restore` of the attributes that are no variables.
    "SerializedTensor": "string name = 1; string full_name = 2; string checkpoint_key = 3; "
    "bool optional_restore = 4",
    "SlotVariableReference": "int32 original_variable_node_id = 1; string slot_name = 2; "
    "int32 slot_variable_node_id = 3",
    "SparseCoreTableLayouts": "repeated SparseCoreTableLayout tables = 1",
    "SparseCoreTableLayout": "string table_name = 1; string stacked_table_name = 2; int64 "
    "num_sparse_cores = 3; int64 num_partitions = 4; "
    "int64 total_rows_per_sparse_core_shard = 5; repeated int64 unsharded_shape = 6; "
    "repeated int64 unsharded_padded_shape = 7; "
    "int64 sparse_core_shard_row_offset = 8; int64 sparse_core_shard_rotation = 9; "
    "int64 per_sparse_core_batch_size = 10; int64 num_features = 11",
    "CheckpointState": "bytes model_checkpoint_path = 1; repeated bytes "
    "all_model_checkpoint_paths = 2; repeated double all_model_checkpoint_timestamps = 3; "
    "double last_preserved_timestamp = 4",
    "EmbeddingSpecProto": "repeated StackedTableSpecProto stacked_table_specs = 1",
    "StackedTableSpecProto": "string stack_name = 1; int64 stack_vocab_size = 2; "
    "int64 stack_embedding_dim = 3; int64 total_sample_count = 6; int64 max_ids_per_partition = 7; "
    "int64 max_unique_ids_per_partition = 8; int64 num_sparsecores = 9; "
    "repeated TableSpecProto table_specs = 10; int64 activation_mem_bytes_limit = 11",
    "TableSpecProto": "string table_name = 1; int64 vocab_size = 2; int64 embedding_dim = 3; "
    "int64 max_ids_per_partition = 5; int64 max_unique_ids_per_partition = 6; "
    "int64 padded_vocab_size = 7; int64 padded_embedding_dim = 8; "
    "int64 row_offset_in_shard = 9; int64 shard_rotation = 10; "
    "repeated FeatureSpecProto feature_specs = 11; string combiner = 12; "
    "OptimizerSpecProto optimizer = 13",
    # How rows are trained, which says nothing of where they lie: none of it is read.
    "OptimizerSpecProto": "",
    "FeatureSpecProto": "string feature_name = 1; repeated int64 input_shape = 2; "
    "repeated int64 output_shape = 3; int64 row_offset = 4; int64 col_offset = 5; "
    "int64 col_shift = 6",
    "SavedMetadata": "repeated SavedLayer nodes = 1",
    "SavedLayer": "int32 node_id = 2; string node_path = 3; string identifier = 4; "
    "string metadata = 5; VersionDef version = 6",
}
"""The fields of each message, in the language of .proto files: all fields, whether they are read or
not, or those that are read if the message may have others.
"""
_MAY_HAVE_OTHERS = frozenset({"CheckpointState", "OptimizerSpecProto"})
"""Messages that may have unknown fields, as the order of rows does not depend on them: the state
file of checkpoints, and optimizers.
"""
_WRITERS = {"EmbeddingSpecProto": JAX_TPU_EMBEDDING, "SavedMetadata": TF_KERAS}
"""The writers of the messages that TensorFlow does not write."""
_TOKEN = re.compile(
    rb"""#[^\n]*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|([{<])|([}>])|(\w+)\s*(?=[:{<\[])"""
)
"""What opens a message in protobuf's text format, what closes it, or the name of a field; comments
and texts, which may have such characters, are matched first.
"""


def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="rowcast/checkpoint.proto", package="rowcast", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message_type = file.message_type.add(name=name)
        for text in filter(None, fields.split("; ")):
            *label, kind, field_name, _, number = text.split()
            field = message_type.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_OPTIONAL
            if "repeated" in label:
                field.label = field.LABEL_REPEATED
            if kind in _MESSAGES:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".rowcast.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            if "optional" in label:
                # In proto3, presence of a scalar is stored as a oneof with one field.
                message_type.oneof_decl.add(name=f"_{field_name}")
                field.oneof_index = len(message_type.oneof_decl) - 1
                field.proto3_optional = True
    pool = DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()
_CLASSES = {
    name: GetMessageClass(_POOL.FindMessageTypeByName(f"rowcast.{name}")) for name in _MESSAGES
}


def message(kind: str, **fields: Any) -> Any:
    """Returns a message of a kind, with these fields."""
    return _CLASSES[kind](**fields)


def decode(kind: str, data: bytes) -> Any:
    """Returns a message of a kind from its bytes.

    Raises:
      UnknownFields: A message of a checkpoint has unknown fields, by which a newer release may
        state the order of rows.
      Malformed: The bytes are no such message.
    """
    try:
        decoded = _CLASSES[kind].FromString(data)
    except DecodeError as problem:
        raise Malformed(f"{len(data)} bytes that are no {kind}") from problem
    if kind not in _MAY_HAVE_OTHERS:
        # protobuf lists the unknown fields of one message, and not those of the messages in it; the
        # size of a message counts them all.
        known_and_unknown = decoded.ByteSize()
        decoded.DiscardUnknownFields()
        if decoded.ByteSize() != known_and_unknown:
            _reject(kind, _unknown_numbers(kind, _CLASSES[kind].FromString(data)))
    return decoded


def parse_text(kind: str, data: bytes) -> Any:
    """Returns a message of a kind from protobuf's text format.

    Raises:
      UnknownFields: A message of a checkpoint has unknown fields.
      Malformed: The text is no such message.
    """
    try:
        parsed = text_format.Parse(data, message(kind), allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as problem:
        raise Malformed(f"no {kind} in protobuf's text format ({problem})") from problem
    _reject(kind, _unknown_names(kind, data))
    return parsed


def _reject(kind: str, unknown_fields: Iterable[str]) -> None:
    fields = list(dict.fromkeys(unknown_fields))
    if fields:
        raise UnknownFields(_WRITERS.get(kind, TENSORFLOW), fields)


def _unknown_numbers(kind: str, decoded: Any) -> Iterator[str]:
    """Yields the unknown fields of a message and of those in it, as their kind and number."""
    if kind in _MAY_HAVE_OTHERS:
        return
    for unknown in UnknownFieldSet(decoded):
        yield f"{kind}.{unknown.field_number}"
    for field, value in decoded.ListFields():
        if field.message_type is not None:
            children = [value]
            if field.is_repeated:
                children = value
            for child in children:
                yield from _unknown_numbers(field.message_type.name, child)


def _unknown_names(kind: str, text: bytes) -> Iterator[str]:
    """Yields the unknown fields of a message in text format and of those in it, as their kind and
    name. protobuf itself stops at the first, and knows no message that may have others.
    """
    # The kinds of the messages around a token, "" within an unknown one.
    kinds = [kind]
    field_kind = ""
    for opening, closing, name in _TOKEN.findall(text):
        if opening:
            kinds.append(field_kind)
        elif closing:
            # Another message of a repeated field may follow, without the name.
            field_kind = kinds.pop()
        elif name and kinds[-1] and kinds[-1] not in _MAY_HAVE_OTHERS:
            field = _CLASSES[kinds[-1]].DESCRIPTOR.fields_by_name.get(name.decode())
            field_kind = ""
            if field is None:
                yield f"{kinds[-1]}.{name.decode()}"
            elif field.message_type is not None:
                field_kind = field.message_type.name
