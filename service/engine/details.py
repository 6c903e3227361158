"""What callers are told of models: states of versions, the signature of every call, and what becomes of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bundle.manifest import (
    ArithmeticIds,
    ComputedIds,
    Corpus,
    DenseFeature,
    EmbeddedFeature,
    HashIds,
    IdentityIds,
    KeyedIds,
    Manifest,
    SeveralIds,
    Table,
    TextIds,
    TowerForm,
    TowerInput,
    TowerOutput,
    VocabularyIds,
    first_of,
    inputs_of,
)
from service.engine.descriptions import (
    CallSignature,
    CorpusDetails,
    EffectDetails,
    FeatureDetails,
    FormDetails,
    IndexDetails,
    ModelDetails,
    ModelState,
    PartDetails,
    ReaderDetails,
    TableDetails,
    TensorDetails,
    TowerDetails,
)
from service.generations.generation import Generation
from service.generations.loaded_towers import LoadedTower
from service.generations.shelf import VersionState
from service.generations.switch import Switch


def states(switch: Switch) -> tuple[ModelState, ...]:
    """Returns every model and its versions, newest first."""
    return tuple(ModelState(name, versions) for name, versions in switch.models().items())


def placed(found: ModelDetails, versions: Sequence[VersionState]) -> ModelDetails:
    """Returns a version's details with what stands for it now: its labels, and whether it is current."""
    for each in versions:
        if each.version == found.version:
            return replace(found, current=each.current, labels=each.labels)
    return found


def describe(generation: Generation) -> ModelDetails:
    """Returns all that a caller needs to write a request for one version, and what becomes of it."""
    manifest = generation.manifest
    return ModelDetails(
        model=generation.model,
        version=generation.version,
        created=manifest.created,
        calls=tuple(_calls(generation)),
        tables=tuple(
            TableDetails(name, page.rows, page.dim, page.dtype, _table_bytes(page))
            for name, page in manifest.tables.items()
        ),
        indexes=tuple(
            IndexDetails(
                name=name,
                corpus=page.corpus,
                kind=page.kind,
                distance=page.distance,
                dim=page.dim,
                size=manifest.candidates[page.corpus].size,
                recall_k=page.recall.k,
                recall=page.recall.value,
            )
            for name, page in manifest.indexes.items()
        ),
        corpora=_stores(manifest.candidates),
        contexts=_stores(manifest.contexts),
        readers=tuple(_reader(manifest, name) for name in manifest.features),
        towers=tuple(map(_tower, generation.towers.values())),
    )


def _calls(generation: Generation) -> Iterable[CallSignature]:
    towers, indexes, manifest = generation.towers, generation.manifest.indexes, generation.manifest
    ranking = {name: tower for name, tower in towers.items() if tower.page.role == "ranking"}
    for index in indexes.values():
        query = towers[index.query_tower]
        yield CallSignature("retrieve", index.query_tower, _features(manifest, query.inputs), (query.page.result,))
    for name, tower in ranking.items():
        yield CallSignature("rank", name, _features(manifest, tower.inputs), _outputs(tower))
    for index in indexes.values():
        for name, tower in ranking.items():
            sent = dict.fromkeys((*towers[index.query_tower].inputs, *tower.by_role["context"]))
            yield CallSignature("recommend", name, _features(manifest, sent), (tower.page.result,))
    for name, tower in towers.items():
        yield CallSignature("embed", name, _features(manifest, tower.inputs, stored=False), (tower.page.result,))


def _outputs(tower: LoadedTower) -> tuple[str, ...]:
    return tuple(output.name for output in tower.page.outputs)


def _features(manifest: Manifest, inputs: Iterable[str], *, stored: bool = True) -> tuple[FeatureDetails, ...]:
    in_store = {
        role: {name for store in stores.values() for name in store.features} if stored else set()
        for role, stores in (("candidate", manifest.candidates), ("context", manifest.contexts))
    }
    return tuple(_feature(manifest, name, name in in_store[manifest.role_of(name)]) for name in inputs)


def _feature(manifest: Manifest, name: str, stored: bool) -> FeatureDetails:
    """Tells of one input what the first of the features that read it tells."""
    readers, role, default = manifest.inputs[name], manifest.role_of(name), manifest.default_of(name)
    feature = manifest.features[readers[0]]
    required = default is None and not stored
    if isinstance(feature, DenseFeature):
        every = [manifest.features[reader] for reader in readers]
        bag = next((each for each in every if isinstance(each, DenseFeature) and each.take == "padded"), None)
        return FeatureDetails(
            name=name,
            kind=feature.kind if bag is None else "bag",
            type=(bag or feature).dtype,
            role=role,
            required=required,
            shape=feature.shape if bag is None else (),
            length=0 if bag is None else bag.shape[0],
            weighted=any(each.weighted for each in every),
            default=default,
            stored=stored,
            readers=readers,
        )
    if feature.places is not None:  # a list of just so many
        return FeatureDetails(
            name=name,
            kind="dense",
            type=_type(manifest, feature, name),
            role=role,
            required=required,
            shape=(feature.places,),
            unknown=_unknown(feature),
            default=default,
            stored=stored,
            readers=readers,
        )
    return FeatureDetails(
        name=name,
        kind="single" if feature.one_each else feature.kind,
        type=_type(manifest, feature, name),
        role=role,
        required=required,
        length=0 if feature.split else feature.length or 0,
        combiner="" if feature.split else feature.combiner or "",
        weighted=feature.weighted,
        unknown=_unknown(feature),
        table=feature.table,
        default=default,
        stored=stored,
        readers=readers,
    )


def _type(manifest: Manifest, feature: EmbeddedFeature, name: str) -> str:
    """Returns the type of an input's values."""
    if feature.cast is not None or isinstance(feature.ids, TextIds):
        return "string" if feature.cast is None else feature.cast.of
    rule = first_of(feature.ids)
    if isinstance(rule, IdentityIds | ArithmeticIds | ComputedIds | KeyedIds):
        return "int64"
    if isinstance(feature.ids, SeveralIds):
        key = feature.ids.keys[feature.inputs.index(name)]
        return key.dtype if key.boundaries is None else "float32"
    if isinstance(rule, HashIds):
        return "int64 or string"
    if isinstance(rule, VocabularyIds):
        return manifest.vocabularies[rule.vocabulary].dtype
    return "float32"


def _unknown(feature: EmbeddedFeature) -> str:
    return f"row {feature.unknown.row}" if feature.unknown.rule == "row" else feature.unknown.rule


def _reader(manifest: Manifest, name: str) -> ReaderDetails:
    feature = manifest.features[name]
    inputs = inputs_of(name, feature)
    if isinstance(feature, DenseFeature):
        return ReaderDetails(
            name=name,
            inputs=inputs,
            kind=feature.kind,
            role=feature.role,
            shape=feature.shape,
            dtype=feature.dtype,
            take=feature.take,
            below=feature.below,
        )
    return ReaderDetails(
        name=name,
        inputs=inputs,
        kind=feature.kind,
        role=feature.role,
        shape=() if feature.indicator is None else (feature.indicator,),
        table=feature.table,
        ids=feature.ids.model_dump(mode="json"),
        unknown=_unknown(feature),
        combiner=feature.combiner or "",
        encoding=feature.encoding if feature.kind == "bag" else "",
        weighted=feature.weighted,
        length=feature.length or 0,
        place=feature.place,
        places=feature.places,
        max_norm=feature.max_norm,
        empty_row=feature.empty_row,
        padding=feature.padding,
        cast=None if feature.cast is None else feature.cast.model_dump(mode="json"),
    )


def _stores(pages: Mapping[str, Corpus]) -> tuple[CorpusDetails, ...]:
    return tuple(
        CorpusDetails(name, page.size, page.id_dtype, tuple(page.attributes), page.features)
        for name, page in pages.items()
    )


def _table_bytes(page: Table) -> int:
    return sum(size for _, size in page.extents())


def _tower(tower: LoadedTower) -> TowerDetails:
    page, running = tower.page, [part.form for part in tower.parts]
    return TowerDetails(
        name=tower.name,
        role=page.role,
        inputs=_tensors(page.inputs),
        outputs=_tensors(page.outputs),
        result=page.result,
        formula=page.formula or "",
        forms=_forms(page.forms, running),
        parts=tuple(
            PartDetails(part.name, part.per, _tensors(part.inputs), _tensors(part.outputs), _forms(part.forms, running))
            for part in page.parts
        ),
        device=tower.device,
    )


def _tensors(told: Sequence[TowerInput | TowerOutput]) -> tuple[TensorDetails, ...]:
    return tuple(
        TensorDetails(
            name=one.name,
            dtype=one.dtype,
            shape=tuple(-1 if size is None else size for size in one.shape),
            readers=one.sources if isinstance(one, TowerInput) else (),
            tensor=one.tensor if isinstance(one, TowerInput) else "",
        )
        for one in told
    )


def _forms(forms: Iterable[TowerForm], running: Iterable[TowerForm]) -> tuple[FormDetails, ...]:
    paths = {form.path for form in running}
    return tuple(
        FormDetails(
            kind=form.kind,
            precision=form.precision,
            max_abs_error=form.max_abs_error,
            effects={name: EffectDetails(**effect.model_dump()) for name, effect in form.effect.items()},
            runs=form.path in paths,
        )
        for form in forms
    )
