"""Writes a tower of PyTorch to one file, which rowcast-export reads without PyTorch.

Copy this file into the training program: it needs torch (2.6 or later) and numpy.

    from torch_tower import write_tower

    examples = {"user": torch.randn(8, 16), "item": torch.randn(8, 16)}
    write_tower(ranker.eval(), examples, "ranker.npz")

`ranker(user=..., item=...)` takes activations by the names of their features, and other inputs by
the names that the recipe declares; it returns a tensor, or a dict of tensors. The first dimension
of everything is the batch, which stays open. The file holds:

    graph        UTF-8 JSON: inputs, the operations in their order, outputs
    weights/     parameters, buffers and constants, by the names of PyTorch
    examples/    the examples
    results/     what PyTorch computed for them; rowcast-export compares its own results with it
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_DTYPES = {torch.float32, torch.int64, torch.int32, torch.bool}


def write_tower(
    module: torch.nn.Module, examples: Mapping[str, torch.Tensor], path: str | os.PathLike[str]
) -> None:
    """Writes a module that is ready for inference.

    Args:
      module: the tower, in float32 and after `eval()`.
      examples: a few values of each input, by the names of the arguments; at least two examples.
      path: of the file, which ends in `.npz`.
    """
    if module.training:
        raise ValueError("the module is in training mode; call module.eval() before write_tower")
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    sizes = {name: {0: batch} for name in examples}
    exported = torch.export.export(module, (), dict(examples), dynamic_shapes=sizes, strict=False)
    program = exported.run_decompositions()
    with torch.no_grad():
        found = module(**examples)
    results = {"": found} if isinstance(found, torch.Tensor) else dict(found)

    signature = program.graph_signature
    held = {**program.state_dict, **program.constants}
    stored = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    graph = {
        "weights": stored,
        "inputs": dict(zip(signature.user_inputs, examples, strict=True)),
        "operations": [_operation(node) for node in program.graph.nodes if _computes(node)],
        "outputs": dict(zip(results, signature.user_outputs, strict=True)),
    }
    arrays = {"graph": np.frombuffer(json.dumps(graph).encode(), np.uint8)}
    arrays |= {f"weights/{name}": _array(name, held[name]) for name in stored.values()}
    arrays |= {f"examples/{name}": _array(name, value) for name, value in examples.items()}
    arrays |= {f"results/{name}": _array(name, value) for name, value in results.items()}
    np.savez(path, **arrays)


def _computes(node: torch.fx.Node) -> bool:
    checks = ("_assert", "sym_constrain")
    return node.op == "call_function" and not any(word in str(node.target) for word in checks)


def _operation(node: torch.fx.Node) -> dict[str, Any]:
    """Describes an operation: of ATen with its arguments by name, or of Python."""
    if isinstance(node.target, torch._ops.OpOverload):
        schema = node.target._schema
        name = schema.name.removeprefix("aten::")
        names = [argument.name for argument in schema.arguments]
    else:
        module = "operator." if node.target.__module__ == operator.neg.__module__ else ""
        name = f"{module}{node.target.__name__}"
        names = ["values", "other"]
    arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    described = {
        "values" if key in ("self", "input") else key: _argument(value)
        for key, value in arguments.items()
    }
    return {"name": node.name, "operation": name, "arguments": described}


def _argument(value: Any) -> Any:
    """Returns an argument as JSON has it; results of other operations are {"result": name}."""
    if isinstance(value, torch.fx.Node):
        return {"result": value.name}
    if isinstance(value, (list, tuple)):
        return [_argument(each) for each in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)  # a device or a memory format, which changes no value


def _array(name: str, tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"{name!r} is {tensor.dtype}; convert the module with module.float()")
    return tensor.detach().cpu().numpy()
