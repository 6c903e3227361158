"""Attribute indexes beside a store that a test wrote."""

from __future__ import annotations

from pathlib import Path

from bundle.format import manifest, paths
from bundle.stores.attribute_index import write_attribute_index


def with_filters(
    place: Path, name: str, corpus: manifest.Corpus, *attributes: str
) -> manifest.Corpus:
    """Writes the indexes of some attributes of a corpus; returns the corpus' entry with them."""
    filters = {}
    for number, attribute in enumerate(attributes):
        filters[attribute] = manifest.AttributeIndex(
            values=paths.attribute_values(name, number), rows=paths.attribute_rows(name, number)
        )
        write_attribute_index(place / corpus.file, attribute, place, filters[attribute])
    return corpus.model_copy(update={"filters": filters})
