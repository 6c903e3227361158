"""The published recommenders of the zoo: where each is published, and how it is run.

To add one, write its recipe to `SOURCE/NAME/recipe.toml`, and to `SOURCE/train.py` a function NAME
that trains it for a few steps, saves it and records what it returns. If no published class or
function takes arguments that a recipe can state, construct the object in `SOURCE/factory.py`. Then
add a line here.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

ZOO = Path(__file__).resolve().parent
FACTORIES = "factory.py"
"""File of a source with the functions that construct its published objects."""
WRAPPER_MARK = "# wrapper"
"""The end of each line of such a function that does more than construct the published object."""


@dataclass(frozen=True)
class Source:
    """A repository, or a package of PyPI, that publishes recommenders.

    Attributes:
      url: The URL of its repository.
      folder: The name of its checkout; "" if the zoo uses the installed package.
      revision: The commit or version of the last run of the whole zoo.
      keras: The generation of Keras that `tf.keras` must be.
      packages: The packages that its models import beyond rowcast's environment, as pip names them.
      is_package: Whether its models are imported from the checkout.
    """

    url: str
    folder: str = ""
    revision: str = ""
    keras: int = 3
    packages: tuple[str, ...] = ()
    is_package: bool = False


@dataclass(frozen=True)
class Entry:
    """One published recommender.

    Attributes:
      name: `SOURCE/NAME`: its folder under examples/zoo.
      file: The file of its source that publishes it.
      checkpoint: The file of its source with the trained variables; "" for a model that the zoo
        trains.
      packages: The packages that it imports beyond those of its source.
      shared_recipe: The recipe in the folder of its source that several entries share, with NAME in
        the place of their names; "": it has its own, `recipe.toml` in its own folder.
      unseen: Whether the exporter was developed without it: it was tried afterwards.
      backend: The backend of Keras that trains it.
      rejected: A part of the message with which the export must end; "" for a model that is served.
    """

    name: str
    file: str
    checkpoint: str = ""
    packages: tuple[str, ...] = ()
    shared_recipe: str = ""
    unseen: bool = False
    backend: str = "tensorflow"
    rejected: str = ""

    @property
    def source(self) -> Source:
        """The repository or package."""
        return SOURCES[self.name.partition("/")[0]]

    @property
    def recipe(self) -> Path:
        """The file with its recipe."""
        if self.shared_recipe:
            return ZOO / self.name.partition("/")[0] / self.shared_recipe
        return ZOO / self.name / "recipe.toml"

    @property
    def recipe_text(self) -> str:
        """Its recipe, as a user would write it."""
        text = self.recipe.read_text(encoding="utf-8")
        if self.shared_recipe:
            return text.replace("NAME", self.name.partition("/")[2])
        return text

    @property
    def wrapper_lines(self) -> int:
        """The number of lines of its factory that do more than construct the published object."""
        code = tomllib.loads(self.recipe_text)["code"]
        file, _, name = code["factory"].rpartition(":")
        if file != FACTORIES:
            return 0
        text = (ZOO / self.name.partition("/")[0] / file).read_text(encoding="utf-8")
        lines: list[str] = []
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                lines = text.splitlines()[node.lineno : node.end_lineno]
        return sum(line.endswith(WRAPPER_MARK) for line in lines)


SOURCES = {
    "keras_rs": Source(
        "https://github.com/keras-team/keras-rs",
        folder="keras-rs",
        revision="812d35bf0cb2452e66433e52880eb892a99bb8c9",
    ),
    "tfrs": Source(
        "https://github.com/tensorflow/recommenders",
        folder="recommenders",
        revision="cf1dafa988f223ed5f30b68cb9aed518484b3a1d",
        keras=2,
    ),
    "recml": Source(
        "https://github.com/AI-Hypercomputer/RecML",
        folder="RecML",
        revision="c1d33cb79cdc044fc70c781bdc9c82119be85c0b",
        packages=("clu", "fiddle", "jaxtyping", "keras-hub", "libcst", "tensorflow-datasets"),
        is_package=True,
    ),
    "jax_tpu_embedding": Source(
        "https://github.com/jax-ml/jax-tpu-embedding",
        folder="jax-tpu-embedding",
        revision="566086da396606ee54df20e2e08c1d64749ae93c",
    ),
    "model_garden": Source(
        "https://github.com/tensorflow/models",
        revision="2.20.0",
        keras=2,
        packages=("tf-models-official", "gin-config"),
    ),
    "microsoft": Source(
        "https://github.com/recommenders-team/recommenders",
        revision="1.2.1",
        keras=2,
        packages=("recommenders",),
    ),
    "deepctr": Source(
        "https://github.com/shenweichen/DeepCTR",
        revision="0.9.4",
        keras=2,
        packages=("deepctr",),
    ),
    "reclearn": Source(
        "https://github.com/ZiyaoGeng/RecLearn",
        folder="RecLearn",
        revision="4bbfb492b872c5a3290a2bce1ed5c160162558a3",
        keras=2,
        packages=("pandas",),
        is_package=True,
    ),
    "deepmatch": Source(
        "https://github.com/shenweichen/DeepMatch",
        revision="0.3.2",
        keras=2,
        packages=("deepmatch",),
    ),
    "elliot": Source(
        "https://github.com/sisinflab/elliot",
        folder="elliot",
        revision="fc27efedaddf4a57294db14b4bcaa5553a0015d2",
        keras=2,
    ),
    "sparrow": Source(
        "https://github.com/wzhe06/SparrowRecSys",
        folder="SparrowRecSys",
        revision="579577c9a25f75fc6bbdfeb2f258f7c8a35833dd",
        keras=2,
    ),
    "herec": Source(
        "https://github.com/KaiSugahara/HERec",
        folder="HERec",
        revision="7f226475b48a83f12b792fdd4ae5a52d9ea6f8f9",
    ),
    "pair": Source(
        "https://github.com/PAIR-code/jax-recommenders",
        folder="jax-recommenders",
        revision="1eed8118e2c25912c30e3177634bff63666ba3d5",
    ),
    "phoenix": Source(
        "https://github.com/xai-org/x-algorithm",
        folder="x-algorithm",
        revision="aaa167b3de8a674587c53545a43c90eaad360010",
        packages=("dm-haiku",),
    ),
    "torch_rechub": Source(
        "https://github.com/datawhalechina/torch-rechub",
        revision="0.9.0",
        packages=("torch-rechub", "torch"),
    ),
    "recbole": Source(
        "https://github.com/RUCAIBox/RecBole",
        folder="RecBole",
        revision="7b02be5ec80a88310f2d04a27a82adfcbb5dc211",
        packages=("colorama", "colorlog", "pandas", "pyyaml", "texttable", "torch", "tqdm"),
        is_package=True,
    ),
    "bert4rec": Source(
        "https://github.com/jaywonchung/BERT4Rec-VAE-Pytorch",
        folder="BERT4Rec-VAE-Pytorch",
        revision="f66f2534ebfd937778c7174b5f9f216efdebe5de",
        packages=("torch",),
        is_package=True,
    ),
    "fuxictr": Source(
        "https://github.com/reczoo/FuxiCTR",
        folder="FuxiCTR",
        revision="0245987fdc1d43c36164ea496a02324885a8557a",
        packages=("keras_preprocessing", "pandas", "polars", "scikit-learn", "torch"),
        is_package=True,
    ),
}
ENTRIES = [
    Entry("keras_rs/basic_ranking", "examples/basic_ranking.py"),
    Entry("keras_rs/dcn", "examples/dcn.py"),
    Entry("keras_rs/multi_task", "examples/multi_task.py"),
    Entry("keras_rs/listwise_ranking", "examples/listwise_ranking.py"),
    Entry("keras_rs/basic_retrieval", "examples/basic_retrieval.py"),
    Entry("keras_rs/data_parallel_retrieval", "examples/data_parallel_retrieval.py", backend="jax"),
    Entry("keras_rs/scann", "examples/scann.py"),
    Entry("keras_rs/sequential_retrieval", "examples/sequential_retrieval.py"),
    Entry("keras_rs/sas_rec", "examples/sas_rec.py", packages=("keras-hub",)),
    Entry("keras_rs/deep_recommender", "examples/deep_recommender.py"),
    Entry("keras_rs/ml_perf", "examples/ml_perf/model.py"),
    Entry("tfrs/basic_ranking", "docs/examples/basic_ranking.ipynb"),
    Entry("tfrs/dcn", "docs/examples/dcn.ipynb"),
    Entry("tfrs/multitask", "docs/examples/multitask.ipynb"),
    Entry("tfrs/listwise_ranking", "docs/examples/listwise_ranking.ipynb"),
    Entry(
        "tfrs/basic_retrieval",
        "docs/examples/basic_retrieval.ipynb",
        shared_recipe="retrieval.toml",
    ),
    Entry("tfrs/context_features", "docs/examples/context_features.ipynb"),
    Entry("tfrs/deep_recommenders", "docs/examples/deep_recommenders.ipynb"),
    Entry("tfrs/tpu_embedding_layer", "docs/examples/tpu_embedding_layer.ipynb"),
    Entry("tfrs/sequential_retrieval", "docs/examples/sequential_retrieval.ipynb"),
    Entry("recml/sasrec", "recml/layers/keras/sasrec.py"),
    Entry("recml/bert4rec", "recml/layers/keras/bert4rec.py"),
    Entry("recml/hstu_keras", "recml/examples/train_hstu_keras.py"),
    Entry("recml/hstu_jax", "recml/examples/train_hstu_jax.py", backend="jax"),
    Entry("recml/dlrm", "recml/inference/models/jax/DLRM_DCNv2/dlrm_model.py", backend="jax"),
    Entry(
        "jax_tpu_embedding/shakespeare",
        "jax_tpu_embedding/sparsecore/examples/models/shakespeare/flax_nnx_model.py",
        checkpoint="jax_tpu_embedding/sparsecore/examples/shakespeare/testdata/checkpoint-2x2x2.tgz",
        backend="jax",
    ),
    Entry("model_garden/dlrm", "official/recommendation/ranking/task.py"),
    Entry("model_garden/dcn", "official/recommendation/ranking/task.py"),
    Entry("microsoft/sasrec", "recommenders/models/sasrec/model.py"),
    Entry("deepctr/deepfm", "deepctr/models/deepfm.py", shared_recipe="ranking.toml"),
    Entry("deepctr/xdeepfm", "deepctr/models/xdeepfm.py", shared_recipe="ranking.toml"),
    Entry("deepctr/dcnmix", "deepctr/models/dcnmix.py", shared_recipe="ranking.toml"),
    Entry("deepctr/autoint", "deepctr/models/autoint.py", shared_recipe="ranking.toml"),
    Entry("deepctr/din", "deepctr/models/sequence/din.py", shared_recipe="history.toml"),
    Entry("deepctr/bst", "deepctr/models/sequence/bst.py", shared_recipe="history.toml"),
    Entry("deepctr/mmoe", "deepctr/models/multitask/mmoe.py", shared_recipe="tasks.toml"),
    Entry("deepctr/ple", "deepctr/models/multitask/ple.py", shared_recipe="tasks.toml"),
    Entry("phoenix/ranking", "phoenix/recsys_model.py", backend="jax"),
    Entry("phoenix/retrieval", "phoenix/recsys_retrieval_model.py", backend="jax"),
    Entry("deepctr/ccpm", "deepctr/models/ccpm.py", shared_recipe="ranking.toml", unseen=True),
    Entry("deepctr/fgcnn", "deepctr/models/fgcnn.py", shared_recipe="ranking.toml", unseen=True),
    Entry(
        "deepctr/fibinet", "deepctr/models/fibinet.py", shared_recipe="ranking.toml", unseen=True
    ),
    Entry("deepctr/nfm", "deepctr/models/nfm.py", shared_recipe="ranking.toml", unseen=True),
    Entry("deepctr/pnn", "deepctr/models/pnn.py", shared_recipe="ranking.toml", unseen=True),
    Entry("deepctr/flen", "deepctr/models/flen.py", shared_recipe="ranking.toml", unseen=True),
    Entry(
        "deepctr/esmm", "deepctr/models/multitask/esmm.py", shared_recipe="tasks.toml", unseen=True
    ),
    Entry("deepctr/dsin", "deepctr/models/sequence/dsin.py", unseen=True),
    Entry(
        "reclearn/dcn", "reclearn/models/ranking/dcn.py", shared_recipe="ranking.toml", unseen=True
    ),
    Entry(
        "reclearn/deepfm",
        "reclearn/models/ranking/deepfm.py",
        shared_recipe="ranking.toml",
        unseen=True,
    ),
    Entry(
        "reclearn/xdeepfm",
        "reclearn/models/ranking/xdeepfm.py",
        shared_recipe="ranking.toml",
        unseen=True,
    ),
    Entry(
        "reclearn/bpr", "reclearn/models/matching/bpr.py", shared_recipe="pairs.toml", unseen=True
    ),
    Entry(
        "reclearn/ncf", "reclearn/models/matching/ncf.py", shared_recipe="pairs.toml", unseen=True
    ),
    Entry(
        "reclearn/gru4rec",
        "reclearn/models/matching/gru4rec.py",
        shared_recipe="sequence.toml",
        unseen=True,
    ),
    Entry(
        "reclearn/mind",
        "reclearn/models/matching/mind.py",
        shared_recipe="sequence.toml",
        unseen=True,
        rejected="draws random numbers in each call",
    ),
    Entry(
        "reclearn/sasrec",
        "reclearn/models/matching/sasrec.py",
        shared_recipe="sequence.toml",
        unseen=True,
    ),
    Entry(
        "reclearn/youtubednn",
        "reclearn/models/matching/youtubednn.py",
        shared_recipe="sequence.toml",
        unseen=True,
    ),
    Entry("deepmatch/ncf", "deepmatch/models/ncf.py", unseen=True),
    Entry(
        "deepmatch/mind",
        "deepmatch/models/mind.py",
        shared_recipe="retrieval.toml",
        unseen=True,
        rejected="draws random numbers in each call",
    ),
    Entry(
        "deepmatch/youtubednn",
        "deepmatch/models/youtubednn.py",
        shared_recipe="retrieval.toml",
        unseen=True,
    ),
    Entry(
        "microsoft/nrms",
        "recommenders/models/newsrec/models/nrms.py",
        packages=("retrying", "scikit-learn"),
        unseen=True,
    ),
    Entry("microsoft/ssept", "recommenders/models/sasrec/ssept.py", unseen=True),
    Entry(
        "elliot/neumf",
        "elliot/recommender/neural/NeuMF/neural_matrix_factorization_model.py",
        shared_recipe="ranking.toml",
        unseen=True,
    ),
    Entry(
        "elliot/deepfm",
        "elliot/recommender/neural/DeepFM/deep_fm_model.py",
        unseen=True,
    ),
    Entry(
        "elliot/gmf",
        "elliot/recommender/neural/GeneralizedMF/generalized_matrix_factorization_model.py",
        shared_recipe="ranking.toml",
        unseen=True,
    ),
    Entry(
        "elliot/nfm",
        "elliot/recommender/neural/NFM/neural_fm_model.py",
        shared_recipe="ranking.toml",
        unseen=True,
    ),
    Entry(
        "sparrow/neural_cf",
        "TFRecModel/src/com/sparrowrecsys/offline/tensorflow/NeuralCF.py",
        unseen=True,
    ),
    Entry("sparrow/din", "TFRecModel/src/com/sparrowrecsys/offline/tensorflow/DIN.py", unseen=True),
    Entry(
        "sparrow/wide_n_deep",
        "TFRecModel/src/com/sparrowrecsys/offline/tensorflow/WideNDeep.py",
        unseen=True,
    ),
    Entry(
        "tfrs/quickstart",
        "docs/examples/quickstart.ipynb",
        shared_recipe="retrieval.toml",
        unseen=True,
    ),
    Entry("tfrs/uet_hashed", "docs/examples/uet.ipynb", unseen=True),
    Entry("tfrs/uet_unified", "docs/examples/uet.ipynb", unseen=True),
    Entry("model_garden/ncf", "official/recommendation/neumf_model.py", unseen=True),
    Entry(
        "herec/neumf",
        "herec/model/NeuMF.py",
        shared_recipe="ranking.toml",
        unseen=True,
        backend="jax",
    ),
    Entry(
        "herec/protomf",
        "herec/model/ProtoMF.py",
        shared_recipe="ranking.toml",
        unseen=True,
        backend="jax",
    ),
    Entry("deepctr/onn", "deepctr/models/onn.py", shared_recipe="ranking.toml", unseen=True),
    Entry("reclearn/fm", "reclearn/models/ranking/fm.py", unseen=True),
    Entry(
        "deepmatch/dssm", "deepmatch/models/dssm.py", shared_recipe="retrieval.toml", unseen=True
    ),
    Entry("pair/cf_dnn", "recommenders/cfdnn/model_cfdnn.py", unseen=True, backend="jax"),
    Entry("torch_rechub/bst", "torch_rechub/models/ranking/bst.py", unseen=True),
    Entry("torch_rechub/gru4rec", "torch_rechub/models/matching/gru4rec.py", unseen=True),
    Entry(
        "recbole/sasrec",
        "recbole/model/sequential_recommender/sasrec.py",
        shared_recipe="sequence.toml",
        unseen=True,
    ),
    Entry(
        "recbole/gru4rec",
        "recbole/model/sequential_recommender/gru4rec.py",
        shared_recipe="sequence.toml",
        unseen=True,
    ),
    Entry("bert4rec/bert4rec", "models/bert.py", unseen=True),
    Entry("fuxictr/bst", "model_zoo/BST/src/BST.py", unseen=True),
]


def entries_of(names: list[str]) -> list[Entry]:
    """Returns the entries of names, each `SOURCE/NAME` or `SOURCE`; all of them without names.

    Raises:
      ValueError: there is no entry of a name.
    """
    for name in names:
        if not any(_matches(entry, name) for entry in ENTRIES):
            entry_names = ", ".join(entry.name for entry in ENTRIES)
            raise ValueError(f"the zoo has no {name!r}; it has {entry_names}")
    if not names:
        return list(ENTRIES)
    return [entry for entry in ENTRIES if any(_matches(entry, name) for name in names)]


def _matches(entry: Entry, name: str) -> bool:
    return name in (entry.name, entry.name.partition("/")[0])
