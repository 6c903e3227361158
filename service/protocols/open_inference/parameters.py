"""Parameters of requests, inputs and outputs. Each is obeyed, or rejected by its name: one that was
ignored would change what is returned without a sign.

Sources: docs/protocol of https://github.com/triton-inference-server/server for the extensions, and
mlserver/codecs of https://github.com/SeldonIO/MLServer for content types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.contract.columns import check_type, present_fields, shown
from service.errors import InvalidArgument, Unimplemented
from tensors.stubs import open_inference_pb2 as pb

Parameters = Mapping[str, Any]
"""The values of parameters by name."""
_Supported = Mapping[str, type | tuple[str, ...]]
"""For each parameter, the type of its values, or the only values that it may have. Integers are at
least 0.
"""

REQUEST: _Supported = {
    "signature_name": str,
    "binary_data_output": bool,
    "timeout": int,
    # As a model of Triton that states no levels of priority, all requests have one.
    "priority": int,
    "content_type": ("np", "pd", "str"),
}
INPUT: _Supported = {"binary_data_size": int, "content_type": ("np", "str")}
OUTPUT: _Supported = {"binary_data": bool, "content_type": ("np",)}

_SHARED_MEMORY = "shared memory is not provided; send the elements with the request"
_SEQUENCE = "sequences are not provided; send all inputs with each request"
_NOT_PROVIDED = {
    "shared_memory_region": _SHARED_MEMORY,
    "shared_memory_byte_size": _SHARED_MEMORY,
    "shared_memory_offset": _SHARED_MEMORY,
    "classification": "classification is not provided; request the output as it is",
    "sequence_id": _SEQUENCE,
    "sequence_start": _SEQUENCE,
    "sequence_end": _SEQUENCE,
}
"""Parameters by which Triton does more than inference."""


def read_parameters(value: object, supported: _Supported, field: str) -> Parameters:
    """Returns the parameters that a request, an input or an output has.

    Args:
      value: The value of the field.
      supported: The parameters that are obeyed there.
      field: The field, as errors name it.

    Raises:
      InvalidArgument: A parameter is unknown, or its value is none that it may have.
      Unimplemented: The protocol has the parameter, and the service does not provide it.
    """
    if value == {}:
        return {}
    for name, problem in _NOT_PROVIDED.items():
        rejected = check_type(value, dict, field).get(name)
        if rejected is not None:
            expected = "no such parameter"
            raise Unimplemented.of_field(f"{field}.{name}", shown(rejected), expected, hint=problem)

    parameters = present_fields(value, supported, field)
    for name, sent_value in parameters.items():
        accepted = supported[name]
        if isinstance(accepted, tuple):
            if sent_value not in accepted:
                expected = " or ".join(accepted)
                raise InvalidArgument.of_field(f"{field}.{name}", shown(sent_value), expected)
            continue
        check_type(sent_value, accepted, f"{field}.{name}")
        if accepted is int and sent_value < 0:
            raise InvalidArgument.of_field(f"{field}.{name}", shown(sent_value), "0 or more")
    return parameters


def parameter_values(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """Returns the parameters of a message as JSON has them; null: a parameter without a value."""
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        values[name] = None
        if kind is not None:
            values[name] = getattr(parameter, kind)
    return values
