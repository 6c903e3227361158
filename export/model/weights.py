"""Dense weights of towers from a checkpoint, by its object graph or by names; never a live value, never a table.

The user's model and the checkpoint's object graph are walked together by attribute names, as TensorFlow's own restore
does, but only the variables that a tower reads are read and checked: so tables cost nothing, and what the towers do not
need may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from export.checkpoint.formats.object_graph import ObjectGraph
from export.checkpoint.inventory.name_tables import is_partitioned
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.frameworks.named_graphs import NamedGraph
from export.frameworks.placeholders import line_of_variable
from export.graph.origins import resource
from export.model.object_walk import LeftOver, Walked, left_over, walk
from export.user_lines import at_line

_SHOWN = 5
_UNSEEN = (
    "tf.train.Checkpoint passes over what the model holds otherwise than as its attributes, as layers that Keras 3 has "
    "in lists and dicts. Let an attribute hold them, where the model is made for training and in the factory: "
    "`model.saved = tf.train.Checkpoint(layers=model.layers)`, or `block.saved` of the layer whose list it is; and "
    "write the checkpoint anew"
)


@dataclass(frozen=True)
class Place:
    """Where a variable sits: `path` of attributes from the model, and its `key` in the checkpoint ("": not there)."""

    path: str
    key: str


@dataclass(frozen=True)
class TrainedModel:
    """The user's model beside its checkpoint.

    Attributes:
      root: the model.
      checkpoint: what was trained.
      object_path: attribute path of the model in the checkpoint, the recipe's `checkpoint.object_path`.
    """

    root: Any
    checkpoint: Checkpoint
    object_path: str

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """Assigns each variable its value in the checkpoint; errors as of `find_weights`."""
        for variable, key in self.find_weights(variables):
            variable.assign(self.checkpoint.read_all(key))
            if hasattr(variable, "restored"):
                variable.restored = True  # a matrix that is no table, whatever its size: TensorFlow saves it

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """Finds the key of each variable of the model, as a tower reads them, in the checkpoint; reads none.

        Raises:
          CheckpointError: the checkpoint has no object graph or no object there, or variables are missing or of another
            shape or dtype, or it has more layers in a list of which the tower reads some; names them.
        """
        variables, places = list(variables), self.places
        problems, found, lines = [], [], {}
        for variable in variables:
            place = places.get(resource(variable.handle)) or Place(variable.name, "")
            lines[place.path] = made = at_line(line_of_variable(variable))
            if problem := _problem(variable, place, made, self.checkpoint):
                problems.append(problem)
            found.append((variable, place.key))
        for left in self.left_over:
            read = [line for path, line in lines.items() if path.startswith(f"{left.owner}." if left.owner else "")]
            if left.counted and read:
                held = _shapes(left.keys, self.checkpoint)
                problems.append(f"{left.owner or 'the model'}{read[0]} has no {left.name}, but there is {held}")
        if problems:
            more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            why = "The model code is not the one that was saved"
            if not isinstance(self.root, NamedGraph):
                why += f", or checkpoint.object_path ({self.object_path!r}) is not where the model sits"
                why = next(filter(None, map(self.why_missing, variables)), why)
            raise CheckpointError(f"checkpoint {self.checkpoint.prefix}: {'; '.join(problems[:_SHOWN])}{more}. {why}")
        return found

    def why_missing(self, variable: Any) -> str:
        """Returns why the checkpoint lacks a variable that TensorFlow could not have saved, and the cure; else ""."""
        seen = isinstance(self.root, NamedGraph) or resource(variable.handle) in self.places
        return "" if seen else _UNSEEN

    @cached_property
    def places(self) -> dict[str, Place]:
        """Every variable of the model in the checkpoint, tables included, by the name of its resource.

        Raises:
          CheckpointError: the checkpoint has no object graph, or no object at `object_path`.
        """
        checkpoint = self.checkpoint
        if isinstance(self.root, NamedGraph):
            return {
                resource(variable.handle): Place(name, self.root.key(name, checkpoint.entries))
                for name, variable in self.root.variables.items()
            }
        graph = checkpoint.graph
        if graph is None:
            kind = checkpoint.storage.kind
            how = "by variable names" if kind == "TensorFlow" else f"by {kind}"
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} was saved {how}, without an object graph, by which a model's weights "
                "are found; load it into the model and save that with tf.train.Checkpoint, or export its tables alone "
                "(rowcast-export tables); where code of TF1 builds the graph, let the factory return a function that "
                "does"
            )
        places: dict[str, Place] = {}
        for each in self._walked(graph):
            known = places.get(each.resource)
            if each.resource and (known is None or not known.key):
                key = graph.nodes[each.node].key if each.node is not None else ""
                key = checkpoint.storage.averages.get(key, key)
                places[each.resource] = Place(each.path, key if key in checkpoint.entries else "")
        return places

    def _walked(self, graph: ObjectGraph) -> list[Walked]:
        """Walks the model and the checkpoint's graph together."""
        node = 0
        for step in path_steps(self.object_path):
            children = graph.nodes[node].children
            if step not in children:
                raise CheckpointError(
                    f"checkpoint {self.checkpoint.prefix} has no object {self.object_path!r} (checkpoint.object_path): "
                    f"there is no {step!r} among {', '.join(sorted(children)) or 'no attributes'}"
                )
            node = children[step]
        return walk(self.root, graph, node)

    def holder_of(self, variable: Any) -> str:
        """Returns the object at the top of the checkpoint that holds the model with a variable; "": there is none."""
        graph = self.checkpoint.graph
        if graph is None or isinstance(self.root, NamedGraph):
            return ""
        for child in sorted(graph.nodes[0].children):
            place = replace(self, object_path=child).places.get(resource(variable.handle))
            if place is not None and place.key:
                return child
        return ""

    @cached_property
    def left_over(self) -> list[LeftOver]:
        """What the checkpoint holds of the model's objects beyond those that the model has; nothing by names."""
        graph = self.checkpoint.graph
        if graph is None or isinstance(self.root, NamedGraph):
            return []
        return left_over(self._walked(graph), graph, self.checkpoint.entries)

    def trained_beside(self, dense: Collection[str]) -> tuple[str, ...]:
        """Returns a note where the checkpoint holds matrices of the model that its code has not, by objects or by name.

        Args:
          dense: keys of what is neither a table nor an optimizer's.
        """
        checkpoint = self.checkpoint
        found = {key for key in dense if len(checkpoint.entries[key].shape) > 1}
        if isinstance(self.root, NamedGraph):
            known = {place.key for place in self.places.values()} | {*self.root.variables}
            matrices = {key: key for key in sorted(found - known)}  # averages stand beside their values
        else:
            beyond = [left.keys for left in self.left_over if not found.isdisjoint(left.keys.values())]
            matrices = {path: key for keys in beyond for path, key in keys.items()}
        if not matrices:
            return ()
        return (
            f"checkpoint {checkpoint.name} also holds {_shapes(matrices, checkpoint)}, of which the model code has "
            "nothing; where that is part of what was trained to give these outputs, the code is another",
        )

    def table_keys(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Returns the checkpoint's key of each of the model's tables, given by name.

        A table that the checkpoint stores otherwise than as a variable of its own (a stack of a SparseCore) is left
        out: it is known there by its name.
        """
        found = {name: self.places.get(resource(variable.handle)) for name, variable in tables.items()}
        return {name: place.key for name, place in found.items() if place is not None and place.key}


def _problem(variable: Any, place: Place, made: str, checkpoint: Checkpoint) -> str:
    """Returns what keeps a variable from its value in the checkpoint; "" if nothing does."""
    path, shape, dtype = place.path, tuple(variable.shape.as_list()), variable.dtype.name
    if not place.key:
        return f"{path} {list(shape)}{made} is not in the checkpoint"
    entry = checkpoint.entries[place.key]
    if tuple(entry.shape) != shape or entry.dtype != dtype:
        return f"{path} is {dtype} {list(shape)} in the model{made} and {entry.dtype} {list(entry.shape)} there"
    spread = getattr(variable, "mod", False) and is_partitioned(entry)
    where = "saved in partitions that the `mod` strategy looks up, and stays inside a tower as a whole, where its rows"
    return f"{path} was {where} are others" if spread else ""


def _shapes(keys: Mapping[str, str], checkpoint: Checkpoint) -> str:
    shown = [f"{path} {list(checkpoint.entries[key].shape)}" for path, key in keys.items()]
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def path_steps(object_path: str) -> list[str]:
    """Returns the attributes of an object path: `a.b` or `a/b`."""
    return [step for step in re.split(r"[./]", object_path) if step]
