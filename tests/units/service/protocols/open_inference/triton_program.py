"""`python triton_program.py MODEL HTTP_ADDRESS GRPC_ADDRESS`: sends requests with Triton's clients,
and prints what they return as JSON, by transport.

It runs in an environment of its own: the clients need an older protobuf than the service.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np

DATATYPES = {"int64": "INT64", "float32": "FP32", "object": "BYTES"}
COMPRESSION = {"http": "request_compression_algorithm", "grpc": "compression_algorithm"}
USERS = {
    "user": np.array([5, 6]),
    "city": np.array(["oslo", "são paulo"], object),
    "history": np.array(["m-0", "m-1", "m-2"], object),
    "history_1": np.array([0, 2, 3]),
    "hour": np.array([0.5, 2.0], np.float32),
}
RANKED = {
    "user": np.array([5]),
    "movie": np.array(["m-0"], object),
    "genres": np.array(["drama"], object),
    "genres_1": np.array([0, 1]),
    "year": np.array([0.5], np.float32),
}
RETRIEVED = {"user": np.array([5]), "k": np.array([3])}


class TritonClient:
    """The client of one transport, with the arrays of numpy as inputs and outputs."""

    def __init__(self, transport: str, address: str, model: str) -> None:
        self._library: Any = import_module(f"tritonclient.{transport}")
        self._transport = transport
        self._model = model
        self.client = self._library.InferenceServerClient(address)

    def infer(self, arrays: dict[str, Any], signature: str, **options: Any) -> Any:
        """Sends an inference."""
        inputs = []
        for name, array in arrays.items():
            tensor = self._library.InferInput(name, array.shape, DATATYPES[array.dtype.name])
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        parameters = {"signature_name": signature}
        return self.client.infer(self._model, inputs, parameters=parameters, **options)

    def returned(self) -> dict[str, Any]:
        """Returns what the client reads of responses, descriptions and an error."""
        compression: dict[str, Any] = {COMPRESSION[self._transport]: "gzip"}
        chosen = [self._library.InferRequestedOutput("rating")]
        neighbors = self.infer(RETRIEVED, "retrieve")
        return {
            "vectors": self.infer(USERS, "query").as_numpy("vector").tolist(),
            "compressed": self.infer(USERS, "query", **compression).as_numpy("vector").tolist(),
            "rating": self.infer(RANKED, "ranking", outputs=chosen).as_numpy("rating").tolist(),
            "ids": [text.decode() for text in neighbors.as_numpy("ids").reshape(-1)],
            "ready": self.client.is_server_ready() and self.client.is_model_ready(self._model),
            "another version ready": self.client.is_model_ready(self._model, "7"),
            "error": self._error(),
        }

    def _error(self) -> str:
        """Returns what the client raises for a request that is rejected."""
        exception = import_module("tritonclient.utils").InferenceServerException
        try:
            self.infer(USERS, "qery")
        except exception as problem:
            return str(problem.message())
        return ""


def main() -> None:
    """Sends all requests over both transports."""
    model, http_address, grpc_address = sys.argv[1:]
    returned = {}
    for transport, address in (("http", http_address), ("grpc", grpc_address)):
        triton = TritonClient(transport, address, model)
        returned[transport] = triton.returned()
        triton.client.close()
    sys.stdout.write(json.dumps(returned))


if __name__ == "__main__":
    main()
