"""Finds the requests that a service computes before it serves a bundle, compares them with the
towers, and copies them into the bundle.

A service rejects a version whose requests it cannot compute. So whatever is known of a request
before is compared here: its signature, and its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from bundle.features.columns import Column
from bundle.format.features import input_facts, readers_of
from bundle.format.manifest import WARM_UP_REQUESTS_MAX, Feature
from bundle.shown_values import similar_file
from bundle.storage.tfrecords import framed
from export.checkpoint.reader import Checkpoint
from export.errors import UsageError
from export.front_end.specs import ModelSpec, TowerSpec
from export.recipe.schema import ExportJob, WarmUpSection
from export.row_errors import row_errors
from object_store.locations import Location
from object_store.remote_path import RemotePath
from rows.errors import ValueRejected
from rows.files import source_file
from rows.requests import (
    RecordedRequest,
    RequestReader,
    numbered_records,
    read_elwc,
    read_prediction_log,
)
from tensors import records
from tensors.signatures import (
    DEFAULT,
    WEIGHTS,
    K,
    find_tower,
    signature_names,
    unread_tensors,
)
from tensors.stubs import tensorflow_serving_pb2 as pb
from tensors.tensor_protos import fill_tensor

KEY = "warm_up.requests"
_IN_SAVED_MODEL = ("assets.extra", "tf_serving_warmup_requests")
"""Source: tensorflow_serving/servables/tensorflow/saved_model_warmup_util.h."""
_LEAVE_OUT = "; correct it, or leave the file out with warm_up.from_saved_model = false"


def locate_requests(job: ExportJob, base: Path, checkpoint: Checkpoint) -> Path | None:
    """Returns the file of requests that the recipe names, or that of the SavedModel whose variables
    are the checkpoint; None: there is none.

    Args:
      job: The recipe.
      base: Its folder.
      checkpoint: The checkpoint.

    Raises:
      UsageError: The file does not exist, or the SavedModel is in a store.
    """
    section = job.warm_up
    if section.requests is not None:
        path = base / section.requests
        if not path.is_file():
            raise UsageError(f"{KEY}: file {path} does not exist{similar_file(path)}")
        return path
    # A SavedModel in use by TensorFlow Serving has its requests beside its variables.
    file = _file_of_saved_model(checkpoint.prefix)
    if file is None or not section.from_saved_model:
        return None
    if isinstance(file, RemotePath):
        raise UsageError(
            f"{file} has requests for the warm-up, which are read from this machine's disks only: "
            f"copy the file and name it as {KEY}, or set warm_up.from_saved_model = false"
        )
    return file


def _file_of_saved_model(prefix: Location) -> Location | None:
    directory = prefix.parent.parent
    if prefix.parent.name != "variables" or not (directory / "saved_model.pb").is_file():
        return None
    file: Location = directory / _IN_SAVED_MODEL[0] / _IN_SAVED_MODEL[1]
    if not file.is_file():
        return None
    return file


class WarmUpWriter:
    """Writes the requests of a bundle."""

    def __init__(
        self,
        job: ExportJob,
        model: ModelSpec,
        entries: Mapping[str, Feature],
        unread: Collection[str],
    ) -> None:
        """Creates the writer.

        Args:
          job: The recipe.
          model: The towers.
          entries: The features of the manifest.
          unread: Inputs that no tower reads, and that a request may have.
        """
        self._job = job
        self._model = model
        self._entries = entries
        self._unread = unread
        # A model without towers is no model: "" is free for the reader of all inputs.
        self._readers = {"": RequestReader(entries, model.inputs)}
        for name, tower in model.towers.items():
            self._readers[name] = RequestReader(entries, model.read_by(tower))

    def key_parts(self) -> Any:
        """Returns all that requests are compared with, and how they are read."""
        job = self._job
        towers = {
            name: [tower.role, self._has_candidate(tower)]
            for name, tower in self._model.towers.items()
        }
        sections = [job.warm_up, job.indexes, job.stages]
        return [sections, towers, self._readers, self._unread]

    def write(self, source: Path, target: Path) -> int:
        """Writes the requests of a file, each once it was compared with its signature.

        Args:
          source: The file that the recipe or the SavedModel has.
          target: The file in the bundle.

        Returns:
          The number of requests.

        Raises:
          UsageError: The file cannot be read, or holds none or too many, or a request does not fit
            the model; names file, record and input.
        """
        section = self._job.warm_up
        count = 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with row_errors(KEY), target.open("wb") as file:
            for where, record in numbered_records(source_file(source, "tfrecord")):
                count += 1
                if count > WARM_UP_REQUESTS_MAX:
                    raise UsageError(
                        f"{KEY}: {source.name} has more than {WARM_UP_REQUESTS_MAX} records, which "
                        "is the maximum of TensorFlow Serving, too"
                    )
                log = record
                # A bundle has requests in one format, whatever the recipe's file has (ADR 68).
                if section.format == "elwc":
                    log = _as_log(record, where, section)
                try:
                    self._check(log, where)
                except ValueRejected as problem:
                    # The user did not name the file of a SavedModel, so the remedy must.
                    if section.requests is not None:
                        raise
                    raise ValueRejected(f"{problem}{_LEAVE_OUT}") from problem
                file.write(framed(log))
        if not count:
            raise UsageError(f"{KEY}: {source.name} has no records")
        return count

    def write_examples(self, columns: Mapping[str, Column], n: int, target: Path) -> int:
        """Writes a request for each tower, with the same examples.

        Args:
          columns: The values of the examples, by input; an input without a column takes its
            default.
          n: The number of examples.
          target: The file in the bundle.

        Returns:
          The number of requests.

        Raises:
          UsageError: A request does not fit the model.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with row_errors("warm_up.examples"), target.open("wb") as file:
            for tower in self._model.towers:
                log = pb.PredictionLog()
                request = log.predict_log.request
                request.model_spec.signature_name = tower
                for name, source in self._readers[tower].inputs.items():
                    if name in columns:
                        _fill_inputs(request.inputs, source.tensor, columns[name], n)
                record = bytes(log.SerializeToString(deterministic=True))
                self._check(record, f"the request for tower {tower!r}")
                file.write(framed(record))
        return len(self._model.towers)

    def _check(self, record: bytes, where: str) -> None:
        # The tower, and with it the inputs, is known only once the record was read.
        names = {source.tensor for source in self._readers[""].inputs.values()}
        request = read_prediction_log(record, where, names)
        tower, is_retrieval = self._tower_of(request.signature, where)
        self._check_call(request, tower, where, is_retrieval=is_retrieval)
        ignored = unread_tensors(self._unread)
        # A retrieval takes its number of neighbors as one more tensor.
        if is_retrieval:
            ignored.add(K)
        # The columns are made for their errors, which compare the record with the inputs.
        self._readers[tower.name].columns(request, ignored)

    def _check_call(
        self, request: RecordedRequest, tower: TowerSpec, where: str, *, is_retrieval: bool
    ) -> None:
        """Rejects what the service does not compute for a call."""
        if request.call == "predict" and request.are_features:
            raise ValueRejected(
                f"{where} holds serialized Examples in a predict request; a service takes a tensor "
                "for each input, and Examples in classify and regress requests"
            )
        is_ranking = not is_retrieval and tower.role == "ranking" and self._has_candidate(tower)
        is_computed = {
            "predict": True,
            "classify": is_ranking or is_retrieval,
            "regress": is_ranking,
        }
        if not is_computed[request.call]:
            raise ValueRejected(
                f"{where} holds a {request.call} request for signature "
                f"{request.signature or DEFAULT!r}; a ranking tower computes it"
            )

    def _has_candidate(self, tower: TowerSpec) -> bool:
        readers = readers_of(self._entries)
        return any(
            input_facts(name, self._entries[readers[name][0]]).role == "candidate"
            for name in self._model.read_by(tower)
        )

    def _tower_of(self, signature: str, where: str) -> tuple[TowerSpec, bool]:
        """Returns the tower that a signature runs, and whether it searches an index."""
        towers = self._model.towers
        indexes = self._job.indexes
        stage_towers = {stage.tower for stage in self._job.stages.values()}
        tower, index = find_tower(signature, self._model.roles, stage_towers, indexes)
        if tower:
            return towers[tower], False
        if index:
            return towers[indexes[index].query_tower], True
        names = ", ".join(signature_names(towers, indexes))
        raise ValueRejected(
            f"{where} is for signature {signature!r}; the bundle has {names}: name the towers as "
            "clients do"
        )


def _fill_inputs(
    tensors: MutableMapping[str, pb.TensorProto], name: str, column: Column, n: int
) -> None:
    """Adds the tensors of an input whose first tensor has a name."""
    if column.offsets is None:
        fill_tensor(tensors[name], column.values.reshape(n, -1))
    else:
        fill_tensor(tensors[name], column.values)
        fill_tensor(tensors[f"{name}_1"], column.offsets)
    if column.weights is not None:
        # In any form: only the order of weights counts.
        fill_tensor(tensors[f"{name}{WEIGHTS}"], column.weights)


def _as_log(record: bytes, where: str, section: WarmUpSection) -> bytes:
    """Returns an ELWC record as the PredictionLog of a request to classify its examples."""
    # For its errors, which name the record.
    read_elwc(record, where)
    request = records.ranking_request(records.read_elwc(record), section.signature)
    log = pb.PredictionLog(classify_log=pb.ClassifyLog(request=request))
    return bytes(log.SerializeToString())
