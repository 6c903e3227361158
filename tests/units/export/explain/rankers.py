"""Manifests of rankers of any size."""

from __future__ import annotations

from typing import Any

from bundle.format import manifest
from bundle.format.manifest import Manifest
from tests.id_graphs import hash_ids

HOSTILE = "<script>alert(1)</script>\"'&\u202e"


def ranker(features: int, tables: int) -> Manifest:
    """A page of a ranker in parts over many features, each of which reads one of some tables, and
    some numbers.
    """
    source = manifest.TableSource(layout="plain", key="model/table/.ATTRIBUTES/VARIABLE_VALUE")
    pages: dict[str, manifest.Feature] = {
        f"f{number}": manifest.EmbeddedFeature(
            kind="single",
            table=f"t{number % tables}",
            role="candidate" if number % 3 == 0 else "context",
            ids=hash_ids(1000 + number % tables),
        )
        for number in range(features)
    }
    pages[HOSTILE] = manifest.DenseFeature(
        kind="dense", role="candidate", shape=(3,), default=[0, 0, 0]
    )
    pages["hour"] = manifest.DenseFeature(kind="dense", role="context", dtype="int64", below=24)
    inputs = tuple(
        manifest.TowerInput(name=name, feature=name, dtype="float32", shape=(None, 4))
        for name in pages
    )
    outputs = tuple(
        manifest.TowerOutput(name=f"head{number}", dtype="float32", shape=(None,))
        for number in range(2)
    )
    inner = {"name": "trunk_0", "dtype": "float32", "shape": (None, 8)}
    parts = [("trunk", inputs, (manifest.TowerOutput(**inner),))]
    parts += [
        (f"head-{output.name}", (manifest.TowerInput(**inner, tensor="trunk_0"),), (output,))
        for output in outputs
    ]
    tower = manifest.Tower(
        role="ranking",
        inputs=inputs,
        outputs=outputs,
        result="head0",
        forms=(),
        formula="head0^0.7 * head1",
        parts=tuple(
            manifest.TowerPart(name=name, per="candidate", inputs=takes, outputs=gives, forms=())
            for name, takes, gives in parts
        ),
    )
    tables_by_name = {
        f"t{number}": manifest.Table.model_construct(
            rows=1000 + number, dim=16, dtype="float32", segments=(), source=source
        )
        for number in range(tables)
    }
    nothing: dict[str, Any] = {"corpora": {}, "contexts": {}, "indexes": {}, "files": ()}
    return Manifest.model_construct(
        model="wide",
        version=3,
        tables=tables_by_name,
        features=pages,
        towers={"ranking": tower},
        **nothing,
    )
