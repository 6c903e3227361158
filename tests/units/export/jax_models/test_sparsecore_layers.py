"""Models that call `SparseCoreEmbed` themselves and contradict it: on a library with the names of
jax-tpu-embedding, which can be moved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import sparsecore_ranker as ranker
from tests.units.export.job_runs import assert_refused, prepare

pytest.importorskip("jax")

PACKAGE = "jax_tpu_embedding"
UTILS = """
def num_sparsecores_per_device(device=None):
    raise ValueError("Unknown sparsecore count for device kind: cpu")
"""
LAYER = """
import dataclasses
from typing import Any

from jax_tpu_embedding.sparsecore.utils import utils


@dataclasses.dataclass
class SparseCoreEmbed:
    feature_specs: Any

    def __post_init__(self):
        self.cores = utils.num_sparsecores_per_device(None)

    def __call__(self, embedding_lookup_inputs):
        raise RuntimeError("there is no SparseCore")
"""
LOOKUP = """
def tpu_sparse_dense_matmul(
    preprocessed_inputs,
    embedding_variables,
    feature_specs,
    *,
    global_device_count,
    perform_unstacking=True,
):
    raise RuntimeError("there is no SparseCore")
"""
MODEL = """

from types import SimpleNamespace


def specs_of_objects(**changes):
    made = {}
    for name, spec in feature_specs().items():
        table = SimpleNamespace(**{**spec["table_spec"], **changes})
        shape = (4, table.embedding_dim)
        made[name] = SimpleNamespace(name=name, table_spec=table, output_shape=shape)
    return made


def build_with(module, own, returned, nested=False):
    tree = {"all": [own]} if nested else own

    def layered(parameters, inputs):
        rows = module.SparseCoreEmbed(feature_specs=tree)(None)
        rows = rows["all"][0] if nested else rows
        return score(parameters, {**rows, "dense": inputs["dense"]})

    built = module.SparseCoreEmbed(feature_specs=tree)(None)
    shapes_of_rows = jax.tree.map(jnp.shape, built)
    assert "(4, 4)" in str(shapes_of_rows), shapes_of_rows
    return (shapes(), {"score": layered}, *([] if returned is None else [returned]))


def build_linen():
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    return build_with(embed, specs_of_objects(), feature_specs(), nested=True)


def build_without_specs():
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    return build_with(embed, specs_of_objects(), None)


def build_with_fewer_specs():
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    fewer = {name: spec for name, spec in feature_specs().items() if name != "liked"}
    return build_with(embed, specs_of_objects(), fewer)


def build_with_other_specs():
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    return build_with(embed, specs_of_objects(combiner="sum"), feature_specs())


def build_with_lookup(returned=True, **how):
    from jax_tpu_embedding.sparsecore.lib.nn import embedding

    own = specs_of_objects()

    def looked_up(parameters, inputs):
        rows = embedding.tpu_sparse_dense_matmul(None, {}, own, global_device_count=1, **how)
        return score(parameters, {**rows, "dense": inputs["dense"]})

    return (shapes(), {"score": looked_up}, *([own] if returned else []))


def build_with_lookup_alone():
    return build_with_lookup(returned=False)


def build_with_lookup_of_stacks():
    return build_with_lookup(perform_unstacking=False)


def build_with_cores_of_this_machine():
    from jax_tpu_embedding.sparsecore.utils import utils

    return utils.num_sparsecores_per_device()


def build_with_layer_alone_prepared():
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    return build_with(embed, specs_of_objects(), specs_of_objects(stacked_table_spec=None))


def build_with_layer_not_prepared():
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    return build_with(embed, specs_of_objects(stacked_table_spec=None), feature_specs())


def build_with_another_stack():
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    own = specs_of_objects(stacked_table_spec={"stack_vocab_size": 512})
    return build_with(embed, own, feature_specs())
"""


def write_library(folder: Path, layer: str = "SparseCoreEmbed") -> None:
    """Writes a library with the names of jax-tpu-embedding, whose layer may have another one."""
    files = {
        "utils/utils.py": UTILS,
        "lib/flax/linen/embed.py": LAYER.replace("SparseCoreEmbed", layer),
        "lib/flax/nnx/embed.py": LAYER.replace("SparseCoreEmbed", layer),
        "lib/nn/embedding.py": LOOKUP,
    }
    for name, text in files.items():
        path = folder / PACKAGE / "sparsecore" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / PACKAGE / "__init__.py").touch()  # which hides an installed one


def forget_library() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    ranker.write(tmp_path, more=MODEL)
    write_library(tmp_path)
    modules = {name: module for name, module in sys.modules.items() if name.startswith(PACKAGE)}
    forget_library()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget_library()
    sys.modules.update(modules)


def page_of(factory: str, **changes: Any) -> dict[str, Any]:
    return ranker.recipe(code={"factory": f"model.py:{factory}"}, **changes)


INPUTS = ranker.recipe()["inputs"]
WITHOUT_LIKED = {name: part for name, part in INPUTS.items() if name != "liked"}
NUMBERS = {**{name: {"dtype": "int32"} for name in ranker.FEATURES}, "dense": INPUTS["dense"]}
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "build_without_specs": (NUMBERS, ("SparseCoreEmbed", "feature_specs")),
    "build_with_lookup_alone": (NUMBERS, ("tpu_sparse_dense_matmul", "feature_specs")),
    "build_with_lookup_of_stacks": (INPUTS, ("perform_unstacking=False", "(model.py:")),
    "build_with_cores_of_this_machine": (INPUTS, ("num_sc_per_device=4", "(model.py:")),
    "build_with_fewer_specs": ({**INPUTS, "liked": {"dtype": "int32"}}, ("'liked'",)),
    "build_with_other_specs": (INPUTS, ("combiner 'sum'",)),
    "build_linen": (WITHOUT_LIKED, ("'liked'", "inputs.liked = {")),
}


@pytest.mark.parametrize("factory", REFUSED)
def test_layer_that_contradicts_the_model_is_rejected(folder: Path, factory: str) -> None:
    inputs, words = REFUSED[factory]
    assert_refused(page_of(factory, inputs=inputs), folder, *words)


@pytest.mark.parametrize("specs", ["layer_alone_prepared", "layer_not_prepared"])
def test_layer_may_be_prepared_for_training_or_not(folder: Path, specs: str) -> None:
    (folder / "model.py").write_text(ranker.model_file(prepared=True, more=MODEL))
    traced = prepare(page_of(f"build_with_{specs}"), folder).traced
    assert set(traced.spec.tables) == set(ranker.TABLES)
    assert_refused(page_of("build_with_another_stack"), folder, "stack_rows=512")


def test_layer_that_was_moved_matters_to_a_model_that_has_it(folder: Path) -> None:
    write_library(folder, layer="Embed")
    page = (folder / "model.py").read_text().replace("module.SparseCoreEmbed", "module.Embed")
    (folder / "model.py").write_text(page)
    words = ("linen.embed.SparseCoreEmbed", "install 'jax-tpu-embedding")
    assert_refused(page_of("build_linen"), folder, *words)
    (folder / "model.py").write_text(f"{page}\nimport {PACKAGE}.sparsecore.utils.utils\n")
    assert prepare(page_of("build"), folder).traced.towers
