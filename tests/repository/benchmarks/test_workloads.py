"""The workloads at 1/5000 of their size, so that they never rot."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import workload_towers
from benchmarks.workloads import RECALL, RankingWorkload, RetrievalWorkload
from bundle.features.reader import Column, open_features
from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_files
from runtime.scann import ScannIndex
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower

pytestmark = pytest.mark.slow


def test_workload_ranking_is_a_whole_bundle_that_scores_as_dcn_does(
    ranking: RankingWorkload,
) -> None:
    manifest = read_manifest(ranking.directory)
    check_files(ranking.directory, manifest, "full")
    assert len(manifest.tables) == 26
    assert manifest.tables["c00"].rows == 1_000

    reader = open_features(ranking.directory, manifest)
    sent = {name: Column(np.repeat(ids[5], 200)) for name, ids in ranking.context.items()}
    sent |= {name: Column(ids[5]) for name, ids in ranking.candidates.items()}
    sent["numbers"] = Column(np.tile(ranking.numbers[5], 200))
    inputs = {name: reader.activation(name, sent, 200).values for name, column in sent.items()}
    tower = manifest.towers["ranking"]
    scores = open_tower(ranking.directory, tower).run(tower_inputs(tower.inputs, inputs, 200))[
        "score"
    ]

    weights = {
        name: values.astype(np.float64)
        for name, values in workload_towers.ranking_weights().items()
    }
    context = [inputs[name] for name in workload_towers.CONTEXT]
    x = first = np.hstack(
        [
            *context,
            np.log1p(inputs["numbers"]),
            *(inputs[name] for name in workload_towers.CANDIDATE),
        ]
    ).astype(np.float64)
    for layer in range(3):
        x = first * (x @ weights[f"down{layer}"] @ weights[f"up{layer}"]) + x
    for layer in range(2):
        x = np.maximum(x @ weights[f"dense{layer}"], 0)
    wanted = 1 / (1 + np.exp(-(x @ weights["dense2"])[:, 0]))
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-5)
    assert len(np.unique(scores)) > 10


def test_workload_ranking_forms_have_their_errors(ranking: RankingWorkload) -> None:
    forms = {
        (form.kind, form.precision): form
        for form in read_manifest(ranking.directory).towers["ranking"].forms
    }

    assert set(forms) == {("saved_model", "f32"), ("litert", "f32"), ("litert", "int8")}
    assert forms["litert", "f32"].max_abs_error["score"] < 1e-5
    assert 1e-5 < forms["litert", "int8"].max_abs_error["score"] < 0.1


def test_workload_retrieval_is_a_whole_bundle_with_a_tree(retrieval: RetrievalWorkload) -> None:
    manifest = read_manifest(retrieval.directory)
    check_files(retrieval.directory, manifest, "full")

    index = manifest.indexes["items"]
    assert (index.kind, index.recall.k) == ("tree_ah", 100)
    assert index.recall.value >= RECALL
    assert manifest.corpora["items"].size == 10_000
    items = np.fromfile(retrieval.directory / index.vectors, "<f4").reshape(10_000, 64)
    actual, scores = ScannIndex.load(
        retrieval.directory / index.directory, "dot_product", items
    ).search(retrieval.vectors[:1], 100)
    np.testing.assert_allclose(scores[0], items[actual[0]] @ retrieval.vectors[0], rtol=1e-4)


def test_workload_retrieval_queries_lie_among_the_items(retrieval: RetrievalWorkload) -> None:
    np.testing.assert_allclose(np.linalg.norm(retrieval.vectors, axis=1), 1, rtol=1e-4)
    items = np.fromfile(
        retrieval.directory / read_manifest(retrieval.directory).indexes["items"].vectors, "<f4"
    )
    means = items.reshape(10_000, 64)[retrieval.histories].mean(axis=1)
    directions = means / np.linalg.norm(means, axis=1, keepdims=True)
    assert np.einsum("ij,ij->i", directions, retrieval.vectors).mean() > 0.8
