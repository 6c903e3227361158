"""Writes a tower of PyTorch to one file, which rowcast-export reads without PyTorch.

Copy this file into the training program, which needs torch 2.6 or later (tried: 2.13 and 2.15).

    from torch_tower import write_tower

    examples = {"user": torch.randn(8, 16), "item": torch.randn(8, 16)}
    write_tower(ranker.eval(), examples, "ranker.npz")

`ranker({"user": ..., "item": ...})` takes one dict: activations by the names of their features, and
other inputs by the names that the recipe declares. It returns a tensor, or a dict of tensors. The
first dimension of every tensor is the batch, which stays open. The file holds:

    graph        UTF-8 JSON: inputs, the operations in their order with the line of the module that
                 asks for each, outputs
    weights/     parameters, buffers and constants, by their names in the graph
    examples/    the examples
    results/     what PyTorch computed for them; rowcast-export compares its own results with it
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx.node import map_arg

_DTYPES = {torch.float32, torch.float64, torch.int64, torch.int32, torch.bool}
_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in ', re.MULTILINE)
_TORCH = Path(torch.__file__).parent
_STORAGE = {"device", "layout", "memory_format", "pin_memory"}
_WHOLE_OPERATIONS = (
    torch.ops.aten.einsum.default,
    torch.ops.aten.layer_norm.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.matmul.default,
    torch.ops.aten.scaled_dot_product_attention.default,
    torch.ops.aten.softmax.int,
)
"""Operations that are computed faster as a whole than from what PyTorch decomposes them to."""


def write_tower(
    module: torch.nn.Module, examples: Mapping[str, torch.Tensor], path: str | os.PathLike[str]
) -> None:
    """Writes a module that is ready for inference.

    Args:
      module: The tower, a function of one dict, in float32 and after `eval()`.
      examples: A few values of each input, by its name; at least two examples.
      path: The path of the file, which ends in `.npz`.

    Raises:
      ValueError: The module is in training mode, returns no tensors, or has tensors of other types.
    """
    if module.training:
        raise ValueError("the module is in training mode; call module.eval() before write_tower")
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    sizes = ({name: {0: batch} for name in examples},)
    decompositions = torch.export.default_decompositions()
    for operation in _WHOLE_OPERATIONS:
        decompositions.pop(operation)
    exported = torch.export.export(module, (dict(examples),), dynamic_shapes=sizes, strict=False)
    program = exported.run_decompositions(decompositions)

    with torch.no_grad():
        results = module(dict(examples))
        weights, operations = _fold_constants(program)
    if isinstance(results, torch.Tensor):
        results = {"": results}
    if not isinstance(results, Mapping):
        raise ValueError(
            f"the module returned a {type(results).__name__}; return a dict of tensors"
        )
    signature = program.graph_signature
    graph = {
        "weights": list(weights),
        "inputs": dict(zip(examples, signature.user_inputs, strict=True)),
        "operations": operations,
        "outputs": dict(zip(results, signature.user_outputs, strict=True)),
    }
    arrays = {"graph": np.frombuffer(json.dumps(graph).encode(), np.uint8)}
    for folder, tensors in (("weights", weights), ("examples", examples), ("results", results)):
        for name, tensor in tensors.items():
            arrays[f"{folder}/{name}"] = _array(name, tensor)
    np.savez(path, **arrays)


def _fold_constants(
    program: torch.export.ExportedProgram,
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Computes the operations that depend on weights and constants alone, such as masks and
    positions.

    Returns:
      The weights and results that the other operations read, by name, and a description of the
      other operations.
    """
    signature = program.graph_signature
    tensors = {**program.state_dict, **program.constants}
    keys = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    constants = {name: tensors[key] for name, key in keys.items()}
    read_names: set[str] = set(signature.user_outputs)
    operations = []
    for node in program.graph.nodes:
        if node.op != "call_function" or "_assert" in str(node.target):
            continue
        operands = {operand.name for operand in node.all_input_nodes}
        if operands <= constants.keys():
            arguments = map_arg(node.args, lambda operand: constants[operand.name])
            constants[node.name] = node.target(*arguments, **node.kwargs)
        else:
            read_names |= operands
            operations.append(_operation(node))
    weights = {name: tensor for name, tensor in constants.items() if name in read_names}
    return weights, operations


def _operation(node: torch.fx.Node) -> dict[str, Any]:
    """Describes an operation of ATen, or one of Python's operators on sizes."""
    if isinstance(node.target, torch._ops.OpOverload):
        operation = str(node.target).removeprefix("aten.").rpartition(".")[0]
    else:
        operation = f"operator.{node.target.__name__}"
    options = {key: _argument(value) for key, value in node.kwargs.items() if key not in _STORAGE}
    arguments = [_argument(value) for value in node.args]
    return {
        "name": node.name,
        "operation": operation,
        "arguments": arguments,
        "options": options,
        "line": _line(node),
    }


def _line(node: torch.fx.Node) -> str:
    """Returns `file.py:12`, the last line before those of PyTorch; "" where none is known."""
    line = ""
    for filename, number in _FRAME.findall(node.meta.get("stack_trace") or ""):
        path = Path(filename)
        if not path.is_absolute() or path.is_relative_to(_TORCH):
            continue
        # From its package on: several packages have a `core.py`.
        root = path.parent
        while (root / "__init__.py").is_file():
            root = root.parent
        line = f"{path.relative_to(root)}:{number}"
    return line


def _argument(value: Any) -> Any:
    """Returns an argument as JSON has it; results of other operations are {"result": name}."""
    if isinstance(value, torch.fx.Node):
        return {"result": value.name}
    if isinstance(value, (list, tuple)):
        return [_argument(element) for element in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value == sys.maxsize:  # a slice without an end
        return None
    return value


def _array(name: str, tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"{name!r} is {tensor.dtype}; convert the module with module.float()")
    return tensor.detach().cpu().numpy()
