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
QUERY = {"signature_name": "query"}
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
        self._as_json: dict[str, Any] = {}
        if transport == "grpc":
            self._as_json = {"as_json": True}

    def infer(self, arrays: dict[str, Any], *, binary: bool = True, **options: Any) -> Any:
        """Sends an inference."""
        form: dict[str, Any] = {}
        if self._transport == "http":
            form = {"binary_data": binary}
        inputs = []
        for name, array in arrays.items():
            tensor = self._library.InferInput(name, array.shape, DATATYPES[array.dtype.name])
            tensor.set_data_from_numpy(array, **form)
            inputs.append(tensor)
        return self.client.infer(self._model, inputs, **options)

    def inferences(self) -> dict[str, Any]:
        """Returns what inferences in several forms return."""
        by_signature = self.infer(USERS, parameters=QUERY, request_id="42")
        compression: dict[str, Any] = {COMPRESSION[self._transport]: "gzip"}
        compressed = self.infer(USERS, parameters=QUERY, **compression)
        in_json = self.infer(USERS, parameters=QUERY, binary=False)
        chosen = self.infer(RANKED, outputs=[self._library.InferRequestedOutput("rating")])
        neighbors = self.infer(RETRIEVED, parameters={"signature_name": "retrieve"})
        return {
            "response": self._head(by_signature),
            "vectors": by_signature.as_numpy("vector").tolist(),
            "vectors of a compressed request": compressed.as_numpy("vector").tolist(),
            "vectors of a request in JSON": in_json.as_numpy("vector").tolist(),
            "all outputs": self._outputs(self.infer(RANKED)),
            "chosen outputs": self._outputs(chosen),
            "ids": [text.decode() for text in neighbors.as_numpy("ids").reshape(-1)],
            "counts": neighbors.as_numpy("counts").tolist(),
        }

    def descriptions(self) -> dict[str, Any]:
        """Returns what the client finds out about the service and its models."""
        index = self.client.get_model_repository_index(**self._as_json)
        if isinstance(index, dict):
            index = index["models"]
        return {
            "live": self.client.is_server_live(),
            "ready": self.client.is_server_ready(),
            "model ready": self.client.is_model_ready(self._model),
            "version ready": self.client.is_model_ready(self._model, "7"),
            "server": self.client.get_server_metadata(**self._as_json)["name"],
            "model": self.client.get_model_metadata(self._model, **self._as_json),
            "index": [[entry["name"], entry["version"], entry["state"]] for entry in index],
        }

    def error(self) -> dict[str, str]:
        """Returns what the client raises for a request that is rejected."""
        exception = import_module("tritonclient.utils").InferenceServerException
        try:
            self.infer(USERS, parameters={"signature_name": "qery"})
        except exception as problem:
            return {"message": problem.message(), "status": problem.status()}
        return {}

    def _head(self, result: Any) -> list[str]:
        response = result.get_response(**self._as_json)
        return [response[name] for name in ("id", "model_name", "model_version")]

    def _outputs(self, result: Any) -> dict[str, Any]:
        response = result.get_response(**self._as_json)
        names = [output["name"] for output in response["outputs"]]
        return {name: result.as_numpy(name).tolist() for name in names}


def main() -> None:
    """Sends all requests over both transports."""
    model, http_address, grpc_address = sys.argv[1:]
    returned = {}
    for transport, address in (("http", http_address), ("grpc", grpc_address)):
        triton = TritonClient(transport, address, model)
        returned[transport] = (
            triton.inferences() | triton.descriptions() | {"error": triton.error()}
        )
        triton.client.close()
    sys.stdout.write(json.dumps(returned))


if __name__ == "__main__":
    main()
