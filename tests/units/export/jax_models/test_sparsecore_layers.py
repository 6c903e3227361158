"""Models that call `SparseCoreEmbed` themselves: the layer is given activations.

The real layer needs jax-tpu-embedding, and what contradicts it is tested on a library with its
names, which can be moved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bundle.storage.catalog import read_manifest
from export.errors import ExportError
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.models import sparsecore_ranker as ranker

pytest.importorskip("jax")

PACKAGE = "jax_tpu_embedding"
DENSE = ranker.recipe()["inputs"]["dense"]
UTILS = """
def num_sparsecores_per_device(device=None):
    raise ValueError("Unknown sparsecore count for device kind: cpu")
"""
LINEN = """
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
NNX = """
from jax_tpu_embedding.sparsecore.utils import utils


class SparseCoreEmbed:
    def __init__(self, feature_specs):
        self.feature_specs = feature_specs
        self.cores = utils.num_sparsecores_per_device(None)

    def __call__(self, embedding_lookup_inputs, step=None):
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


def build_nnx():
    from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed

    return build_with(embed, specs_of_objects(), specs_of_objects())


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
        "lib/flax/linen/embed.py": LINEN.replace("SparseCoreEmbed", layer),
        "lib/flax/nnx/embed.py": NNX.replace("SparseCoreEmbed", layer),
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


def job_of(factory: str, **changes: Any) -> ExportJob:
    return ExportJob.model_validate(
        ranker.recipe(code={"factory": f"model.py:{factory}"}, **changes)
    )


def rejected(folder: Path, job: ExportJob) -> str:
    with pytest.raises(ExportError) as caught:
        bundle_job.prepare(job, folder, ExportSettings())
    return str(caught.value)


@pytest.mark.parametrize("factory", ["build_linen", "build_nnx", "build_with_lookup"])
def test_layer_is_given_activations(folder: Path, factory: str) -> None:
    prepared = bundle_job.prepare(job_of(factory), folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    page = read_manifest(folder / "bundles" / "ranker" / "1")
    sources = {source for tensor in page.towers["ranking"].inputs for source in tensor.sources}
    assert sources == {*ranker.FEATURES, "dense"}
    assert set(page.tables) == set(ranker.TABLES)


def test_layer_whose_specifications_are_not_returned_is_rejected(folder: Path) -> None:
    inputs = {**{name: {"dtype": "int32"} for name in ranker.FEATURES}, "dense": DENSE}
    message = rejected(folder, job_of("build_without_specs", inputs=inputs))
    assert "the model calls SparseCoreEmbed, and the factory returned no feature_specs" in message


def test_lookup_whose_specifications_are_not_returned_is_rejected(folder: Path) -> None:
    inputs = {**{name: {"dtype": "int32"} for name in ranker.FEATURES}, "dense": DENSE}
    message = rejected(folder, job_of("build_with_lookup_alone", inputs=inputs))
    assert (
        "the model calls tpu_sparse_dense_matmul, and the factory returned no feature_s" in message
    )


def test_lookup_of_whole_stacks_is_rejected(folder: Path) -> None:
    message = rejected(folder, job_of("build_with_lookup_of_stacks"))
    assert "tpu_sparse_dense_matmul is called with perform_unstacking=False" in message
    assert "(model.py:" in message


def test_model_that_reads_the_cores_of_this_machine_is_rejected(folder: Path) -> None:
    message = rejected(folder, job_of("build_with_cores_of_this_machine"))
    assert "reads the number of SparseCores of a device, and this machine has none" in message
    assert "num_sc_per_device=4 (model.py:" in message


def test_layer_with_a_feature_that_is_not_returned_is_rejected(folder: Path) -> None:
    inputs = {**ranker.recipe()["inputs"], "liked": {"dtype": "int32"}}
    message = rejected(folder, job_of("build_with_fewer_specs", inputs=inputs))
    assert "SparseCoreEmbed looks up feature 'liked'" in message
    assert "let it return those that the model looks up" in message


def test_layer_with_another_combiner_is_rejected(folder: Path) -> None:
    message = rejected(folder, job_of("build_with_other_specs"))
    assert "between SparseCoreEmbed and feature_specs: combiner 'sum' and " in message


@pytest.mark.parametrize("specs", ["layer_alone_prepared", "layer_not_prepared"])
def test_layer_may_be_prepared_for_training_or_not(folder: Path, specs: str) -> None:
    (folder / "model.py").write_text(ranker.model_file(prepared=True, more=MODEL))
    job = job_of(f"build_with_{specs}")
    traced = bundle_job.prepare(job, folder, ExportSettings()).traced
    assert set(traced.spec.tables) == set(ranker.TABLES)


def test_layer_with_another_place_in_the_stack_is_rejected(folder: Path) -> None:
    (folder / "model.py").write_text(ranker.model_file(prepared=True, more=MODEL))
    message = rejected(folder, job_of("build_with_another_stack"))
    assert "between SparseCoreEmbed and feature_specs: the position in its stack" in message
    assert "stack_rows=512" in message


def test_feature_of_the_layer_that_the_recipe_lacks_is_named(folder: Path) -> None:
    inputs = ranker.recipe()["inputs"]
    del inputs["liked"]
    message = rejected(folder, job_of("build_linen", inputs=inputs))
    assert "SparseCoreEmbed looks up feature 'liked', which is no input of the call" in message
    assert "inputs.liked = {" in message


def test_layer_that_was_moved_is_rejected(folder: Path) -> None:
    write_library(folder, layer="Embed")
    page = (folder / "model.py").read_text()
    (folder / "model.py").write_text(page.replace("module.SparseCoreEmbed", "module.Embed"))
    message = rejected(folder, job_of("build_linen"))
    assert "linen.embed.SparseCoreEmbed" in message
    assert "is not in jax-tpu-embedding" in message
    assert "install 'jax-tpu-embedding>=0.1,<0.3'" in message


def test_moved_layer_does_not_matter_to_a_model_without_it(folder: Path) -> None:
    write_library(folder, layer="Embed")
    page = (folder / "model.py").read_text()
    imported = "\nimport jax_tpu_embedding.sparsecore.utils.utils\n"
    (folder / "model.py").write_text(page + imported)
    assert bundle_job.prepare(job_of("build"), folder, ExportSettings()).traced.towers


def test_error_of_the_model_is_told_though_a_layer_was_moved(folder: Path) -> None:
    write_library(folder, layer="Embed")
    page = (folder / "model.py").read_text()
    imported = "\nimport jax_tpu_embedding.sparsecore.utils.utils\n"
    failing = "\ndef build_failing():\n    raise ValueError('no such file')\n"
    (folder / "model.py").write_text(page + imported + failing)
    assert "calling it raised ValueError: no such file" in rejected(folder, job_of("build_failing"))


@pytest.mark.parametrize("imported", ["", "import jax_tpu_embedding.sparsecore.utils.utils\n"])
def test_failing_factory_is_called_once(
    folder: Path, capsys: pytest.CaptureFixture[str], imported: str
) -> None:
    page = (folder / "model.py").read_text()
    failing = "\ndef build_failing():\n    print('builds')\n    raise ValueError('no such file')\n"
    (folder / "model.py").write_text(f"{page}\n{imported}{failing}")
    assert "calling it raised ValueError: no such file" in rejected(folder, job_of("build_failing"))
    assert capsys.readouterr().out == "builds\n"
