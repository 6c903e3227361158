"""Lists what no check of a bundle could verify, for its reports.

A report of agreements alone reads as if everything had been compared. Three things cannot be
compared: which row training gave to an id, if no output of training is at hand; rows outside of a
sample; and facts that a check takes from the same statement or library as the bundle does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from bundle.format.features import inputs_of
from bundle.format.manifest import EmbeddedFeature, Feature, Manifest
from export.front_end.specs import TowerSpec

NAMES_SHOWN = 8
"""The number of names that one line of the report lists."""


def features_behind(expected: Collection[str], towers: Mapping[str, TowerSpec]) -> set[str]:
    """Returns the features that a tower with a recorded output reads.

    Args:
      expected: The keys of `verify.expected`: an output, or `tower.output`.
      towers: The towers of the model.
    """
    features: set[str] = set()
    for name, tower in towers.items():
        keys = {key for output in tower.paths for key in (output, f"{name}.{output}")}
        if keys.intersection(expected):
            features.update(source for tensor in tower.inputs for source in tensor.sources)
    return features


def tables_behind(
    expected: Collection[str], towers: Mapping[str, TowerSpec], features: Mapping[str, Feature]
) -> set[str]:
    """Returns the tables that a tower with a recorded output reads.

    Args:
      expected: The keys of `verify.expected`: an output, or `tower.output`.
      towers: The towers of the model.
      features: The features of the manifest.
    """
    tower_features = (features[name] for name in features_behind(expected, towers))
    return {feature.table for feature in tower_features if isinstance(feature, EmbeddedFeature)}


def unverified(manifest: Manifest, recorded: Collection[str] = ()) -> tuple[str, ...]:
    """Returns what was not verified of a bundle, each with the reason or the remedy.

    Args:
      manifest: The bundle's manifest, with what was compared of its tables.
      recorded: The features whose towers were compared with outputs that training recorded.
    """
    accepted = [
        name
        for name, check in manifest.verification.tables.items()
        if check.stated_layout == "accepted"
    ]
    lines: list[str] = []
    # Without towers, an id is the number of a row.
    if manifest.towers:
        lines += unverified_ids(manifest.features, recorded)
    lines += unverified_layouts(accepted)
    lines += _rows(manifest)
    lines += _decoding(manifest)
    lines += _recall(manifest)
    lines += _stages(manifest)
    return tuple(lines)


def unverified_ids(features: Mapping[str, Feature], recorded: Collection[str]) -> Iterator[str]:
    """Yields the inputs whose ids may read other rows than in training: towers and the original
    model read the ids of examples by the same model code and recipe.

    Args:
      features: The features of the manifest by name.
      recorded: The features whose towers were compared with outputs that training recorded.
    """
    inputs = [
        name
        for feature, entry in features.items()
        if isinstance(entry, EmbeddedFeature) and feature not in recorded
        for name in inputs_of(feature, entry)
    ]
    if inputs:
        # Several features may read one input.
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
    synthetic = [
        name for name, index in manifest.indexes.items() if not index.recall.representative
    ]
    if synthetic:
        reason = "no real examples (verify.examples)"
        yield f"the recall for real queries ({_names(synthetic)}): {reason}"


def _stages(manifest: Manifest) -> Iterator[str]:
    """Yields the stages of which nothing, or nothing about real contexts, was measured."""
    unmeasured = [stage.tower for stage in manifest.stages.values() if not stage.recall]
    if unmeasured:
        yield (
            f"what stages drop of the best candidates ({_names(unmeasured)}): no index has pools "
            "of which they keep a part"
        )
    synthetic = [
        stage.tower
        for stage in manifest.stages.values()
        if any(not recall.representative for recall in stage.recall.values())
    ]
    if synthetic:
        reason = "no real examples (verify.examples)"
        yield f"what stages keep for real contexts ({_names(synthetic)}): {reason}"


def _names(names: Iterable[str]) -> str:
    """Returns names for reading, the first ones of many."""
    all_names = list(names)
    text = ", ".join(all_names[:NAMES_SHOWN])
    omitted_count = len(all_names) - NAMES_SHOWN
    if omitted_count > 0:
        text += f" and {omitted_count} more"
    return text
