"""BentoML: one worker with two threads, which share the tables."""

from __future__ import annotations

import os
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType
from model import load

Ids = Annotated[np.ndarray, DType("int64")]
Numbers = Annotated[np.ndarray, DType("float32")]


@bentoml.service(workers=1, threads=int(os.environ.get("PEER_CORES", "2")), traffic={"timeout": 30})
class Ranker:
    def __init__(self) -> None:
        self.score = load()

    @bentoml.api
    def rank(self, context_ids: Ids, numbers: Numbers, candidate_ids: Ids) -> np.ndarray:
        return self.score(context_ids, numbers, candidate_ids)
