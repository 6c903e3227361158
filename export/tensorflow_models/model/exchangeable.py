"""Variables of one shape in lists without names: recorded outputs must show that each has its own
values.

Positions are those of the model's code. If it makes two layers of one shape in another order than
the code that was trained, their weights are exchanged, in the towers and in the reference model
alike, so that no comparison between these finds it. Outputs that training recorded
(`verify.expected`) find it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from export.checkpoint.reader import Checkpoint
from export.errors import NotConvertible
from export.front_end.interface import TracedTower
from export.front_end.specs import FeatureSpec
from export.graphs.internals import is_keras_3_layer
from export.graphs.walks import resource
from export.partition.tracing import TracedModel
from export.recipe.schema import ExportJob
from export.tensorflow_models.model.listed_variables import (
    find_listed_variables,
    holds_lists,
    is_random_state,
)


def check_exchangeable(
    traced: TracedModel, checkpoint: Checkpoint, job: ExportJob
) -> tuple[str, ...]:
    """Checks that training recorded the outputs of every tower that reads a variable which another
    one of the model may have been exchanged with.

    Args:
      traced: The model.
      checkpoint: Any checkpoint.
      job: The recipe.

    Returns:
      Notes on what recorded outputs do not show.

    Raises:
      NotConvertible: Training did not record them; names the tower, two variables, and what to
        record.
      CheckpointError: The lists are those of another model.
    """
    if not holds_lists(checkpoint) or not is_keras_3_layer(traced.root):
        return ()

    exchangeable = False
    twins = _twins(traced.root, checkpoint, job.checkpoint.object_path.replace("/", "."))
    for tower in traced.towers:
        missing = _not_recorded(tower, job.verify.expected)
        pairs = [twins[name] for name in _resources_read_by(tower, traced) if name in twins]
        exchangeable |= bool(pairs)
        if pairs and missing:
            shape, first, second = max(pairs, key=lambda pair: math.prod(pair[0]))
            tower_name = tower.spec.name
            raise NotConvertible(
                f"checkpoint {checkpoint.prefix} holds lists of variables without names, so they "
                f"are matched by their positions, and {first} and {second} of the model have one "
                f"shape, {list(shape)}: if the model makes them in another order than "
                "training did, they are exchanged, and only recorded outputs show it. Let the "
                f"trained model compute {missing!r} of tower {tower_name!r} for some examples, "
                "write both to a file, and name the file as verify.examples and the column of the "
                f'outputs as verify.expected."{tower_name}.{missing}"'
            )
    if not exchangeable:
        return ()
    return (
        f"the variables in checkpoint {checkpoint.name} are matched by their positions in lists: "
        "recorded outputs (verify.expected) show exchanged ones if that changes the outputs by "
        "more than a twentieth of their standard deviation",
    )


def _twins(
    root: Any, checkpoint: Checkpoint, object_path: str
) -> dict[str, tuple[tuple[int, ...], str, str]]:
    """Returns each variable that has the shape and dtype of another one in its list, by its
    resource: the shape, and the paths of both.
    """
    alike: dict[tuple[str, str, tuple[int, ...]], list[tuple[Any, str]]] = defaultdict(list)
    for variable, location in find_listed_variables(root, checkpoint, object_path):
        if is_random_state(location.path):
            continue
        entry = checkpoint.entries[location.key]
        path_of_list = location.key.rpartition(".")[0]
        alike[path_of_list, entry.dtype, entry.shape].append((variable, location.path))

    twins = {}
    for (_, _, shape), ((first, first_path), *following) in alike.items():
        # An error names one pair of variables, so one twin of each is enough.
        for variable, path in following:
            twins[resource(variable.handle)] = (shape, path, first_path)
            twins.setdefault(resource(first.handle), (shape, first_path, path))
    return twins


def _not_recorded(tower: TracedTower, expected: Mapping[str, str]) -> str:
    """Returns the first output of a tower that is not compared with a recorded one; "": none."""
    # It may be the only one that reads an exchanged variable.
    for output in tower.spec.paths:
        names = {output, f"{tower.spec.name}.{output}"}
        if not names & expected.keys():
            return output
    return ""


def _resources_read_by(tower: TracedTower, traced: TracedModel) -> list[str]:
    """Returns the resources of the variables that a tower reads, tables included."""
    sources = [source for tensor in tower.spec.inputs for source in tensor.sources]
    features = [traced.spec.features[source] for source in sources]
    tables = [spec.entry.table for spec in features if isinstance(spec, FeatureSpec)]
    variables = [*(traced.tables[name] for name in tables), *tower.variables]
    return [resource(variable.handle) for variable in variables]
