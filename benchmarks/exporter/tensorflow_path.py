"""The way without rowcast: TensorFlow restores the table and saves a SavedModel.

`python -m benchmarks.exporter.tensorflow_path write|zeros|uninitialized DIRECTORY ROWS` writes a
checkpoint, or restores it into a variable made as users make it (zeros) or as cheaply as can be
(uninitialized), and saves the model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.exporter.big_checkpoints import DIM

os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def main(step: str, directory: Path, rows: int) -> None:
    """Does one of them."""
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    class Model(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self, table: object) -> None:
            self.table = table

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
        def rows(self, ids: object) -> object:
            return tf.gather(self.table, ids)

    if step == "write":
        table = tf.Variable(tf.random.stateless_normal([rows, DIM], [1, 2]))
        tf.train.Checkpoint(model=Model(table)).write(str(directory / "ckpt"))
        return
    variables = (
        tf.Variable(tf.zeros([rows, DIM]))
        if step == "zeros"
        else UninitializedVariable(shape=[rows, DIM], dtype=tf.float32)
    )
    model = Model(variables)
    tf.train.Checkpoint(model=model).read(str(directory / "ckpt")).assert_existing_objects_matched()
    tf.saved_model.save(model, str(directory / "saved"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
