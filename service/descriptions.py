"""What clients can read about models: the states of versions, and all that a version takes,
computes and holds.

A version is described as it works: inputs -> readers -> tables -> towers -> outputs. A description
is built once, as the message of the contract; JSON has its fields (`codec/message_values.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from bundle.features.ids.expressions import expression
from bundle.format.features import sent_dtype
from bundle.format.manifest import (
    Corpus,
    DenseFeature,
    EmbeddedFeature,
    IdRule,
    KeyedIds,
    Manifest,
    Tower,
    TowerInput,
    TowerOutput,
    TowerPart,
    inputs_of,
)
from service.codec.message_values import number_of, value_of
from service.codec.stubs import embedding_service_pb2 as pb
from service.contract import columns
from service.contract.messages import Target
from service.contract.packed import fill_column
from service.engine.engine import Engine
from service.versions.version import LoadedTower, ModelVersion


class Description(NamedTuple):
    """What a client needs to write requests for a version.

    Attributes:
      message: The message.
      value: Its fields, as JSON has them.
    """

    message: pb.GetModelResponse
    value: dict[str, Any]


class Descriptions:
    """The models of an engine as messages. Any thread may call it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_version: WeakKeyDictionary[ModelVersion, Description] = WeakKeyDictionary()

    def models(self) -> pb.ListModelsResponse:
        """Returns every model with the states of its versions, newest first."""
        response = pb.ListModelsResponse()
        for name, states in self._engine.models().items():
            model = response.models.add(name=name)
            for state in states:
                names = ("version", "state", "problem", "current", "labels", "memory_bytes")
                _set(model.versions.add(), state, *names)
        return response

    def model(self, target: Target) -> Description:
        """Returns what a client needs to write requests for one version.

        Raises:
          ServiceError: An error of the calls: NotFound, NotReady, InvalidArgument, DataLoss or
            Unimplemented.
        """
        with self._engine.lease_for_client(target) as version:
            description = self._by_version.get(version)
            if description is None:  # takes a while for thousands of features
                message = describe(version)
                description = self._by_version[version] = Description(message, value_of(message))
            message = pb.GetModelResponse()
            message.CopyFrom(description.message)
            for state in self._engine.models().get(version.model, ()):
                if state.version == version.version:
                    message.current = state.current
                    message.labels.extend(state.labels)
            changing = {"current": message.current, "labels": [*message.labels]}
            return Description(message, description.value | changing)


def describe(version: ModelVersion) -> pb.GetModelResponse:
    """Returns all that a client needs to write a request for a version.

    `current` and `labels` are not known here: they are false and empty.
    """
    manifest = version.manifest
    response = pb.GetModelResponse(
        model=pb.ModelSpec(name=version.model, version=version.version),
        calls=_calls(version),
        corpora=_stores(manifest.corpora),
        contexts=_stores(manifest.contexts),
        readers=[_reader(manifest, name) for name in manifest.features],
        towers=[_tower(tower) for tower in version.towers.values()],
    )
    response.created.FromJsonString(manifest.created)
    for name, table in manifest.tables.items():
        _set(response.tables.add(name=name), table, "rows", "dim", "dtype", "bytes")
    for name, index in manifest.indexes.items():
        message = response.indexes.add(
            name=name,
            size=manifest.corpora[index.corpus].size,
            recall_k=index.recall.k,
            recall=index.recall.value,
        )
        _set(message, index, "corpus", "kind", "distance", "dim")
    for name, candidates in manifest.lists.items():
        _set(response.lists.add(name=name), candidates, "corpus", "size", "by")
    for name, stage in manifest.stages.items():
        message = response.stages.add(before=name, tower=stage.tower, keep=stage.keep)
        if stage.recall:
            lowest = min(stage.recall.values(), key=lambda recall: recall.value)
            message.recall_k = lowest.k
            message.recall = lowest.value
    return response


def _set(message: Any, entry: object, *names: str) -> Any:
    """Sets the fields of a message that an object has under the same names; None leaves one out.
    Enumerated values are the names in lower case, without their prefix; "" is unspecified.
    """
    for name in names:
        value = getattr(entry, name)
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.is_repeated:
            getattr(message, name).extend(value)
            continue
        if field.enum_type is not None:
            value = number_of(field.enum_type, value)
        setattr(message, name, value)
    return message


def _calls(version: ModelVersion) -> Iterator[pb.CallSignature]:
    manifest = version.manifest
    towers = version.towers
    indexes = manifest.indexes
    ranking = {name: tower for name, tower in towers.items() if tower.entry.role == "ranking"}

    def signature(
        call: pb.Call,
        name: str,
        inputs: Iterable[str],
        outputs: Sequence[str] = (),
        stores: bool = True,
    ) -> pb.CallSignature:
        features = [_feature(manifest, name, stores) for name in inputs]
        returned = outputs or (towers[name].entry.result,)
        return pb.CallSignature(call=call, tower=name, features=features, outputs=returned)

    for index in indexes.values():
        yield signature(pb.CALL_RETRIEVE, index.query_tower, towers[index.query_tower].inputs)
    for name, tower in ranking.items():
        outputs = [output.name for output in tower.entry.outputs]
        yield signature(pb.CALL_RANK, name, tower.inputs, outputs)
    for index in indexes.values():
        for name in ranking:
            context = version.ranking_inputs(name, "context")
            inputs = dict.fromkeys((*towers[index.query_tower].inputs, *context))
            yield signature(pb.CALL_RECOMMEND, name, inputs)
    for name, tower in towers.items():
        yield signature(pb.CALL_EMBED, name, tower.inputs, stores=False)


def _feature(manifest: Manifest, name: str, stores: bool) -> pb.FeatureDetails:
    """Describes an input by the first of the features that read it.

    Args:
      manifest: The manifest.
      name: The name of the input.
      stores: Whether a client may leave the input to a store.
    """
    readers = manifest.inputs[name]
    role = manifest.role_of(name)
    default = manifest.default_of(name)
    every = [manifest.features[reader] for reader in readers]
    feature = every[0]
    if isinstance(feature, DenseFeature):
        # A padded list is described as a bag: a client sends as many values as it has.
        padded = [reader for reader in every if getattr(reader, "take", "") == "padded"]
        feature = (padded or every)[0]
    entries: Mapping[str, Corpus] = manifest.contexts
    if role == "candidate":
        entries = manifest.corpora
    stored = stores and any(name in store.features for store in entries.values())
    message = pb.FeatureDetails(
        name=name,
        type=number_of(pb.DataType.DESCRIPTOR, sent_dtype(feature, name)),
        role=number_of(pb.Role.DESCRIPTOR, role),
        # A client may leave out what has a default, or what a store has by id.
        required=default is None and not stored,
        default=_column(default),
        stored=stored,
        readers=readers,
        unknown=_unknown(feature),
    )
    if (length := manifest.length_of(name)) is not None:
        described = pb.InputLength(pad=_column(length.pad))
        message.input_length.CopyFrom(_set(described, length, "values", "pad_side", "keep"))

    if isinstance(feature, DenseFeature):
        message.weighted = any(reader.weighted for reader in every)
        if feature.take == "padded":
            message.kind = pb.FEATURE_KIND_BAG
            message.length = feature.shape[0]
        else:
            _set(message, feature, "kind", "shape")
    elif feature.places is not None:  # a list of exactly as many values
        message.kind = pb.FEATURE_KIND_DENSE
        message.shape.append(feature.places)
    else:
        _set(message, feature, "kind", "weighted", "table")
        if feature.one_each:
            message.kind = pb.FEATURE_KIND_SINGLE
        if not feature.split:
            _set(message, feature, "length", "combiner")
    return message


def _unknown(feature: EmbeddedFeature | DenseFeature) -> pb.Unknown:
    message = pb.Unknown()
    if isinstance(feature, EmbeddedFeature):
        _set(message, feature.unknown, "rule")
        if feature.unknown.rule == "row":
            _set(message, feature.unknown, "row")
    return message


def _column(value: Any) -> pb.Column | None:
    """Returns the value of one example, which is written as in a request; None: there is none."""
    if value is None:
        return None
    message = pb.Column()
    fill_column(message, columns.column([value], "default"))
    return message


def _id(value: int | str | None) -> pb.Id | None:
    if value is None:
        return None
    if isinstance(value, str):
        return pb.Id(string=value)
    return pb.Id(int64=value)


def _reader(manifest: Manifest, name: str) -> pb.ReaderDetails:
    feature = manifest.features[name]
    inputs = inputs_of(name, feature)
    message = pb.ReaderDetails(name=name, inputs=inputs, unknown=_unknown(feature))
    _set(message, feature, "kind", "role", "weighted")
    if isinstance(feature, DenseFeature):
        _set(message, feature, "shape", "dtype", "take", "below")
        return message
    _set(message, feature, "table", "combiner", "length", "place", "places", "max_norm")
    _set(message, feature, "empty_row")
    if feature.kind == "bag":
        _set(message, feature, "encoding")
    if feature.indicator is not None:
        message.shape.append(feature.indicator)
    for entry in feature.joint or ():
        joint_input = pb.JointInput(default=_column(entry.default), padding=_id(entry.padding))
        message.joint.append(_set(joint_input, entry, "role"))
    ids = rule_message(feature.ids, inputs)
    message.MergeFrom(pb.ReaderDetails(padding=_id(feature.padding), ids=ids))
    return message


def rule_message(rule: IdRule, inputs: Sequence[str]) -> pb.IdRule:
    """Returns a rule as the manifest has it, but with its graph as an expression of the inputs."""
    if isinstance(rule, KeyedIds):
        return pb.IdRule(keyed=pb.KeyedIds(keys=rule.keys))
    dtypes = [number_of(pb.DataType.DESCRIPTOR, node.dtype) for node in rule.inputs]
    return pb.IdRule(graph=pb.GraphIds(dtypes=dtypes, expression=expression(rule, *inputs)))


def _stores(entries: Mapping[str, Corpus]) -> Iterator[pb.CorpusDetails]:
    for name, entry in entries.items():
        yield pb.CorpusDetails(
            name=name,
            size=entry.size,
            id_type=number_of(pb.DataType.DESCRIPTOR, entry.id_dtype),
            attributes=tuple(entry.attributes),
            features=entry.features,
        )


def _tower(tower: LoadedTower) -> pb.TowerDetails:
    running = {part.form.path for part in tower.parts}
    message = pb.TowerDetails()
    _network(message, tower.entry, running)
    for part in tower.entry.parts:
        _set(_network(message.parts.add(), part, running), part, "name", "per")
    _set(message, tower, "name", "device")
    _set(message, tower.entry, "role", "result", "formula")
    return message


def _network(message: Any, entry: Tower | TowerPart, running: set[str]) -> Any:
    """Describes what a tower and a part of one have; `running`: paths of the forms that run."""
    message.inputs.extend(map(_tensor, entry.inputs))
    message.outputs.extend(map(_tensor, entry.outputs))
    for form in entry.forms:
        described = message.forms.add(max_abs_error=form.max_abs_error, runs=form.path in running)
        _set(described, form, "kind", "precision")
        for output, effect in form.effect.items():
            _set(described.effects[output], effect, *type(effect).model_fields)
    return message


def _tensor(entry: TowerInput | TowerOutput) -> pb.TensorDetails:
    shape = [-1 if size is None else size for size in entry.shape]
    message = pb.TensorDetails(name=entry.name, shape=shape)
    # Outputs have neither readers nor an earlier tensor: no feature is written into them.
    if isinstance(entry, TowerInput):
        message.readers.extend(entry.sources)
        message.tensor = entry.tensor
    _set(message, entry, "dtype")
    return message
