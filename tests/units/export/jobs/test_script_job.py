"""A whole job of a model whose code is a script that trains: from the script and a recipe to a
bundle, without a factory file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bundle.storage import catalog
from bundle.tables.reader import TableReader
from export.graphs.loading import load_tensorflow, tf
from tests.cases.models.script_plans import write_script
from tests.units.export.commands import Command


def test_class_of_a_script_that_trains_is_published(command: Command, tmp_path: Path) -> None:
    load_tensorflow()
    project = write_script(tmp_path)
    report = command("run", tmp_path / "recipe.toml", "--json").json
    (note, *_) = report["notes"]
    assert note.startswith("training_script.py: took 2 classes, 1 function, 2 imports and 3 const")
    directory = tmp_path / "bundles" / "ranking" / "1"
    page = catalog.read_manifest(directory)
    # The model brings the keys of its lookup; the vocabulary of the recipe was for its code alone.
    assert list(page.vocabularies) == ["genre"]
    saved = tf.train.load_checkpoint(str(tmp_path / project.job.checkpoint.path / "model"))
    key = "model/user_embedding/_embeddings/.ATTRIBUTES/VARIABLE_VALUE"
    rows = TableReader(directory, page.tables["user_embedding"]).gather(np.arange(20))
    assert rows.tobytes() == saved.get_tensor(key).tobytes()
