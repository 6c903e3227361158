"""Opens what the features of a bundle read, and joins each feature with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError
from bundle.features.dense import Dense
from bundle.features.input_lengths import with_fitted_defaults
from bundle.features.joint_lookup import JointLookup
from bundle.features.sources import Indicator, Ordinal, RemoteTable
from bundle.features.table_feature import TableFeature
from bundle.format.manifest import DenseFeature, Feature, Manifest, inputs_of
from bundle.storage import files
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary


class FeatureSources(NamedTuple):
    """What the features of a bundle read, by name."""

    tables: Mapping[str, TableReader | RemoteTable]
    vocabularies: Mapping[str, Vocabulary]
    keys: Mapping[str, KeyIndex]


class JoinedFeatures(NamedTuple):
    """Features that can be looked up.

    Attributes:
      features: The features by name.
      defaults: The values of each feature of which nothing was sent, flat; those that have no
        default, and those whose rows are remote, are missing.
    """

    features: dict[str, Dense | TableFeature]
    defaults: dict[str, NDArray[Any]]


def open_sources(
    root: Path,
    manifest: Manifest,
    pause: Callable[[], object],
    remote: Mapping[str, RemoteTable | TableReader],
    opened: ExitStack,
) -> FeatureSources:
    """Opens every table, vocabulary and key index of a bundle.

    Args:
      root: The directory of the bundle.
      manifest: The manifest of the bundle.
      pause: A function that is called after each table and vocabulary.
      remote: Tables, by name, that are used instead of those of the bundle.
      opened: Closes the tables of the bundle.

    Raises:
      BundleError: A file is missing, truncated, outside the bundle, or not what the manifest says.
    """
    tables: dict[str, TableReader | RemoteTable] = {}
    for name, table in manifest.tables.items():
        if name in remote:
            tables[name] = remote[name]
            continue
        tables[name] = reader = TableReader(root, table)
        opened.callback(reader.close)
        pause()
    vocabularies = {}
    for name, entry in manifest.vocabularies.items():
        vocabulary = Vocabulary.open(files.locate(root, entry.file))
        if (vocabulary.size, vocabulary.dtype) != (entry.size, entry.dtype):
            raise FormatError(
                f"vocabulary {name!r} holds {vocabulary.size} keys of {vocabulary.dtype}, "
                f"the manifest says {entry.size} of {entry.dtype}"
            )
        vocabularies[name] = vocabulary
        pause()
    keys = {
        name: KeyIndex(files.locate(root, entry.file), entry.size)
        for name, entry in manifest.keys.items()
    }
    return FeatureSources(tables, vocabularies, keys)


def join_features(features: Mapping[str, Feature], sources: FeatureSources) -> JoinedFeatures:
    """Joins the features of a manifest with what they read, and checks their defaults.

    Raises:
      FormatError: A default does not fit its feature, or a table, vocabulary or key index is
        missing.
    """
    weighted_inputs = {
        input_name
        for name, feature in features.items()
        if feature.weighted
        for input_name in inputs_of(name, feature)
    }
    joined = JoinedFeatures({}, {})
    # Equal indicators share one table, so that they are read together.
    indicators: dict[tuple[int, bool], Indicator] = {}
    for name, feature in features.items():
        inputs = inputs_of(name, feature)
        is_sent_with_weights = inputs[0] in weighted_inputs
        try:
            fitted = with_fitted_defaults(feature, inputs)
            if isinstance(fitted, DenseFeature):
                (input_name,) = inputs
                dense = Dense(input_name, fitted, is_sent_with_weights)
                joined.features[name] = dense
                if dense.has_default:
                    joined.defaults[name] = dense.activation({}, 1).values.reshape(-1)
                continue
            table: TableReader | RemoteTable | Indicator
            if fitted.indicator:
                kind = (fitted.indicator, fitted.ordinal)
                if kind not in indicators:
                    indicator_type = Ordinal if fitted.ordinal else Indicator
                    indicators[kind] = indicator_type(fitted.indicator)
                table = indicators[kind]
            else:
                table = sources.tables[fitted.table]
            drops_weights = is_sent_with_weights and not fitted.weighted
            embedded = TableFeature(
                name, fitted, table, sources.vocabularies, sources.keys, drops_weights
            )
            joined.features[name] = embedded
            # Looked up once now: a default that does not fit is an error of the bundle, not of the
            # first request that leaves the input out.
            if embedded.has_default and not embedded.is_remote:
                activations = JointLookup({name: embedded}, {}).activations({}, 1)
                joined.defaults[name] = activations[name].values.reshape(-1)
        except KeyError as problem:
            raise FormatError(f"features.{name} needs {problem}, which is not open") from problem
        # The last two are numpy's, of a strange default. Recipes name inputs, not features.
        except (FeatureError, ValueError, OverflowError) as problem:
            key = f"features.{' or '.join(inputs)}.default"
            raise FormatError(f"{key} does not fit: {problem}") from problem
    return joined
