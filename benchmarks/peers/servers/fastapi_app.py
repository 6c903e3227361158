"""FastAPI and pydantic around the model, as most tutorials have it: `uvicorn fastapi_app:app`."""

from __future__ import annotations

from fastapi import FastAPI
from model import load
from pydantic import BaseModel

score = load()
app = FastAPI()


class Request(BaseModel):
    context_ids: list[int]
    numbers: list[float]
    candidate_ids: list[list[int]]


@app.post("/rank")
def rank(request: Request) -> dict[str, list[float]]:
    return {"score": score(request.context_ids, request.numbers, request.candidate_ids).tolist()}
