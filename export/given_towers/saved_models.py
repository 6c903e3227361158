"""Towers as SavedModels: the one signature becomes part of the trace, its variables constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from export.errors import NotConvertible
from export.front_end.finite_weights import check_finite_weights
from export.graphs.internals import frozen_graph
from export.graphs.loading import tf


class SavedModelTower:
    """The signature `serving_default` of a SavedModel, or its only one. Implements `GivenTower`."""

    def __init__(self, path: Path, not_finite: Collection[str] = ()) -> None:
        """Loads the SavedModel.

        Args:
          path: The path of its directory.
          not_finite: Names of variables that may hold NaN or infinities.

        Raises:
          NotConvertible: The SavedModel is damaged, has no such signature, or holds a variable that
            is not finite.
        """
        try:
            loaded = tf.saved_model.load(str(path))
        except (OSError, ValueError, KeyError, tf.errors.OpError) as problem:
            reason = " ".join(str(problem).split())[:300]
            raise NotConvertible(f"tower {path} cannot be read: {reason}") from problem
        signatures = dict(loaded.signatures)
        signature = signatures.get("serving_default")
        if signature is None and len(signatures) == 1:
            (signature,) = signatures.values()
        if signature is None:
            names = ", ".join(sorted(signatures)) or "none"
            raise NotConvertible(
                f"tower {path} has no signature 'serving_default'; it has {names}: save it with "
                "tf.saved_model.save(module, path, signatures=function)"
            )
        variables = ((variable.name, variable.numpy()) for variable in signature.variables)
        check_finite_weights(f"tower {path}", variables, not_finite)
        self.inputs = dict(signature.structured_input_signature[1])
        for name, spec in self.inputs.items():
            if spec.shape.rank and spec.shape[0] is not None:
                raise NotConvertible(
                    f"tower {path}: input {name!r} has a fixed batch of {spec.shape[0]}; save it "
                    "with None as the first dimension"
                )
        # The loaded object holds the variables of the signature.
        self._loaded = loaded
        self._signature = signature
        self._frozen = frozen_graph(signature)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """See GivenTower.__call__."""
        tensors = {name: inputs[name] for name in self.inputs}
        if tf.executing_eagerly():
            return dict(self._signature(**tensors))
        graph, input_names, output_names = self._frozen
        outputs = tf.graph_util.import_graph_def(
            graph,
            input_map={input_names[name]: tensor for name, tensor in tensors.items()},
            return_elements=list(output_names.values()),
            name="",
        )
        return dict(zip(output_names, outputs, strict=True))
