"""What no check of a bundle could tell, so that its reports say so.

A report that lists only what agreed reads as if everything had been compared. Three things cannot
be: which row training gave to an id, if no output of training is at hand; what lies outside of a
sample; and what a check has to take from the same statement or library as what it checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from bundle.format.features import inputs_of
from bundle.format.manifest import EmbeddedFeature, Feature, Manifest
from export.front_end.specs import TowerSpec

NAMES_SHOWN = 8


def features_behind(expected: Collection[str], towers: Mapping[str, TowerSpec]) -> set[str]:
    """Returns the features that a tower with a recorded output reads.

    Args:
      expected: keys of `verify.expected`: an output, or `tower.output`.
      towers: of the model.
    """
    features: set[str] = set()
    for name, tower in towers.items():
        keys = {key for output in tower.keys for key in (output, f"{name}.{output}")}
        if keys.intersection(expected):
            features.update(source for tensor in tower.inputs for source in tensor.sources)
    return features


def tables_behind(
    expected: Collection[str], towers: Mapping[str, TowerSpec], features: Mapping[str, Feature]
) -> set[str]:
    """Returns the tables that a tower with a recorded output reads.

    Args:
      expected: keys of `verify.expected`: an output, or `tower.output`.
      towers: of the model.
      features: of the manifest.
    """
    read = (features[name] for name in features_behind(expected, towers))
    return {feature.table for feature in read if isinstance(feature, EmbeddedFeature)}


def unverified(manifest: Manifest, recorded: Collection[str] = ()) -> tuple[str, ...]:
    """Returns what was not verified of a bundle, each with the reason or the remedy.

    Args:
      manifest: of the bundle, with what was compared of its tables.
      recorded: features whose towers were compared with outputs that training recorded.
    """
    accepted = [
        name
        for name, check in manifest.verification.tables.items()
        if check.stated_layout == "accepted"
    ]
    return (
        # Without towers, an id is the number of a row.
        *(unverified_ids(manifest.features, recorded) if manifest.towers else ()),
        *unverified_layouts(accepted),
        *_rows(manifest),
        *_decoding(manifest),
        *_recall(manifest),
        *_stages(manifest),
    )


def unverified_ids(features: Mapping[str, Feature], recorded: Collection[str]) -> Iterator[str]:
    """Yields whose ids may read other rows than in training: towers and the original model read
    the ids of examples by the same model code and recipe.

    Args:
      features: by name.
      recorded: those whose towers were compared with outputs that training recorded.
    """
    inputs = [
        name
        for feature, entry in features.items()
        if isinstance(entry, EmbeddedFeature) and feature not in recorded
        for name in inputs_of(feature, entry)
    ]
    if inputs:
        names = _names(dict.fromkeys(inputs))
        yield f"how ids become rows ({names}): no recorded outputs (verify.expected)"


def unverified_layouts(accepted: Collection[str]) -> Iterator[str]:
    """Yields the tables whose stated layout was accepted without a proof."""
    if accepted:
        yield f"the order of the rows of {_names(accepted)}: its statement was accepted"


def _rows(manifest: Manifest) -> Iterator[str]:
    sampled = [
        name
        for name, check in manifest.verification.tables.items()
        if check.rows_compared < check.rows
    ]
    if sampled:
        yield f"rows outside of the samples ({_names(sampled)}): --full compares all"


def _decoding(manifest: Manifest) -> Iterator[str]:
    decoders = {
        check.decoder
        for check in manifest.verification.tables.values()
        if check.decoder is not None
    }
    if decoders:
        yield f"the decoding of rows: trusted to {_names(sorted(decoders))}"


def _recall(manifest: Manifest) -> Iterator[str]:
    invented = [name for name, index in manifest.indexes.items() if not index.recall.representative]
    if invented:
        reason = "no real examples (verify.examples)"
        yield f"the recall for real queries ({_names(invented)}): {reason}"


def _stages(manifest: Manifest) -> Iterator[str]:
    """Yields the stages of which nothing, or nothing about real contexts, was measured."""
    unmeasured = [stage.tower for stage in manifest.stages.values() if not stage.recall]
    if unmeasured:
        yield (
            f"what stages drop of the best candidates ({_names(unmeasured)}): no index has pools "
            "of which they keep a part"
        )
    invented = [
        stage.tower
        for stage in manifest.stages.values()
        if any(not recall.representative for recall in stage.recall.values())
    ]
    if invented:
        reason = "no real examples (verify.examples)"
        yield f"what stages keep for real contexts ({_names(invented)}): {reason}"


def _names(names: Iterable[str]) -> str:
    """Returns names for reading, the first ones of many."""
    listed = list(names)
    more = len(listed) - NAMES_SHOWN
    shown = ", ".join(listed[:NAMES_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
