"""MLServer: a runtime of its own over the V2 protocol; its workers are set in settings.json."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from model import load


class Ranker(MLModel):  # type: ignore[misc]  # untyped here
    async def load(self) -> bool:
        self.score = load()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        inputs = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        candidates = inputs["candidate_ids"]
        scores = self.score(
            inputs["context_ids"].reshape(-1),
            inputs["numbers"].reshape(-1),
            candidates.reshape(len(candidates), -1),
        )
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("score", scores)]
        )
