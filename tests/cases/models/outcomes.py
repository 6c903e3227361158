"""What the exporter says of models that it does not simply accept."""

from __future__ import annotations

from collections.abc import Mapping

REJECTED: Mapping[str, tuple[str, ...]] = {
    "either_keras.2-of_keras_3": ("CheckpointError", "items", "TF_USE_LEGACY_KERAS=0"),
    "either_keras.3-of_keras_2": ("CheckpointError", "items", "TF_USE_LEGACY_KERAS=1"),
    "ids.filled_beyond": ("NotConvertible", "default_id=20000", "20000 rows"),
    "ids.layer-rule_of_the_recipe": ("UsageError", "features.x.ids", "positions"),
    "ids.python": ("NotConvertible", "kept.python", "EagerPyFunc"),
    "ids.sine": ("NotConvertible", "kept.sine", "(Sin)"),
    "ids.unadapted": ("NotConvertible", "a vocabulary that is not there", "adapt()"),
    "ids.unguarded": ("NotConvertible", "kept.unguarded", "(Log)"),
    "ids.unmasked": ("NotConvertible", "ways/embedding/embeddings", "ResourceGather"),
    "ids.variable": ("NotConvertible", "kept.variable", "ReadVariableOp"),
    "ids.zeroed": ("NotConvertible", "ways/embedding/embeddings", "ResourceGather"),
    "keras_3.exchanged": ("NotConvertible", "twins/left", "twins/right", "[2, 3]"),
    "keras_3.function": ("CheckpointError", "a function", "return the keras.Model"),
    "keras_3.left": ("CheckpointError", "deep/vars/0", "not in the checkpoint"),
    "keras_3.query_layers": ("UsageError", "'query'", "dense_1"),
    "keras_3.shorter": ("CheckpointError", "candidate_layers/dense_1/vars/0", "fewer layers"),
    "keras_3.with_more": ("CheckpointError", "layers/dense_2/vars/0", "not in the checkpoint"),
    "lookups.partial-bags": ("NotConvertible", "small, large", "RaggedTensor"),
    "mid_level.ads-undeclared_weights": ("UsageError", "inputs.click_weights.weights_for"),
    "one_table.a_fixed_batch": ("NotConvertible", "(4, 2)", "towers.tower.call"),
    "one_table.computed_ids": ("NotConvertible", "feature 'item'", "PopulationCount"),
    "one_table.decides": ("NotConvertible", "OperatorNotAllowedInGraphError"),
    "one_table.in_a_condition": ("NotConvertible", "'item'", "tf.cond"),
    "one_table.plain-named_output": ("UsageError", "towers.tower.outputs", "'vector'"),
    "one_table.plain-no_checkpoint_of_it": ("CheckpointError", "'model'", "object_path"),
    "one_table.plain-of_matrices": ("NotConvertible", "'item'", "(None, 2, 2)"),
    "one_table.plain-of_numbers": ("NotConvertible", "'item'", "float32"),
    "one_table.plain-other_call": ("UsageError", "'score'", "tpu_embedding"),
    "one_table.plain-ranked_by_vectors": ("NotConvertible", "towers.ranking.outputs"),
    "one_table.plain-without_candidates": ("NotConvertible", "towers.ranking.outputs"),
    "one_table.raises": ("NotConvertible", "ValueError", "no such way"),
    "one_table.reads_a_hash_table": ("NotConvertible", "StaticHashTable"),
    "one_table.reads_the_table": ("NotConvertible", "table 'items' directly"),
    "one_table.runs_python": ("NotConvertible", "tf.py_function", "int64"),
    "one_table.takes_an_array": ("NotConvertible", "NotImplementedError", "NumPy"),
    "one_table.takes_values": ("NotConvertible", "'numpy'", "without values"),
    "one_table.terabyte": ("CheckpointError", "[68719476736, 4]", "[20, 4]"),
    "one_table.wants_another_input": ("NotConvertible", "'hour'", "declare every input"),
    "shapes.reads_early": ("NotConvertible", "'tower'", "while the model was made"),
    "shapes.unknown_shape": ("NotConvertible", "ValueError", "int64 [batch]"),
    "string_inputs.2-ids_for_strings": ("UsageError", "inputs.title.dtype"),
    "string_inputs.3-strings_for_ids": ("UsageError", "inputs.item.dtype"),
    "string_inputs.hashed-ids_for_strings": ("NotConvertible", "StringToHashBucketFast"),
    "two_towers.movies-matrices_of_users": ("NotConvertible", "'user_id'", "(None, 2, 2)"),
    "two_towers.movies_without_head": ("CheckpointError", "head.kernel", "[24, 3]", "[24, 1]"),
    "two_towers.two_layers": ("NotConvertible", "'things'", "tables.<new name>.key"),
    "two_towers.two_layers-tuple": ("UsageError", "towers.pair.outputs"),
    "two_towers.two_layers-two_arguments": ("UsageError", "'item'", "arguments"),
    "two_towers.two_layers-wrong_key": ("NotConvertible", "'wrong_key'", "two_towers.py"),
}
"""The error's type by the name of a plan, and what its message must name: the place, the value, and
what helps.
"""

NOTED: Mapping[str, tuple[str, ...]] = {
    "examples.ple": ("of the context by absence: 'hour'.",),
    "examples.sequence": ("of the context by absence: 'history', 'hour'.",),
    "examples.snap_tf1": ("of the context by absence: 'converted', ",),
    "ids.sine-within_limit": ("'kept.sine'", "inputs.item.dtype"),
    "normalizations.plain_3-of_integers": ("inputs.n.dtype",),
    "one_table.timed": ("reads the clock",),
    "training_script.class": ("left 8 statements, the first at line 16",),
    "training_script.notebook": ("left 8 statements, the first at cell 2, line 16",),
}
"""Words of each note by the name of an accepted plan, such as the table that stays in a tower.

No other model has a note, but for the one on inputs that a recipe declares and no tower reads.
"""
