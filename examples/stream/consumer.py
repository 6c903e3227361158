"""Reads the partitions of topics and applies them to a model.

The service stores the offset of each partition in the record of the change, so that no message is
applied twice, whenever this program ends. Offsets are committed to Kafka as well, behind the
service's, for tools that show the lag of a consumer.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from rowcast_client import (
    Client,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    RowcastError,
    TooLarge,
)

from examples.stream.messages import Item, Kind, UnreadableMessage, read_item
from examples.stream.requests import Batch, batches, send

log = logging.getLogger("stream")

POLL_S = 0.5
"""Time for which the program waits for messages before it checks whether it should end."""
BACKOFF_S = 0.5
"""Time before the second attempt while the service is overloaded, loads a model, or cannot be
reached. It doubles with each attempt.
"""
BACKOFF_MAX_S = 30.0
"""Maximum time between two attempts."""
PARTITIONS_S = 60.0
"""Time between two looks for partitions that were added to the topics."""


class Stopped(Exception):
    """The program should end."""


class StreamError(Exception):
    """The program cannot continue; the message says why, and what to do."""


@dataclass(frozen=True)
class Options:
    """The topics, and the model that they change.

    Attributes:
      topics: The names of the topics.
      model: The name of the model.
      kind: The kind of change of messages that name none.
      rejected_topic: The topic to which rejected messages are sent.
      batch_size: The maximum number of messages in a request.
    """

    topics: Sequence[str]
    model: str
    kind: Kind
    rejected_topic: str
    batch_size: int


class StreamConsumer:
    """Applies topics to a model until it is stopped."""

    def __init__(
        self,
        client: Client,
        consumer: Consumer,
        producer: Producer,
        options: Options,
        stopping: threading.Event,
    ) -> None:
        """Begins without partitions.

        Args:
          client: The client of the service that serves the model.
          consumer: The consumer that reads the topics; it has no subscription.
          producer: The producer that sends rejected messages.
          options: The topics, and the model that they change.
          stopping: An event that is set when the program should end.
        """
        self._client = client
        self._consumer = consumer
        self._producer = producer
        self._options = options
        self._stopping = stopping
        self._offsets: dict[tuple[str, int], int] = {}
        self._next_look_s = 0.0

    def run(self) -> None:
        """Applies messages until the program should end.

        Raises:
          StreamError: The program cannot continue.
        """
        try:
            while True:
                self._check_stopping()
                self._assign_new_partitions()
                messages = self._consumer.consume(self._options.batch_size, POLL_S)
                for partition, partition_messages in _by_partition(messages).items():
                    self._apply(partition, partition_messages)
        except Stopped:
            log.info("stopped")

    def _assign_new_partitions(self) -> None:
        """Reads partitions that are not read yet from the offset up to which they are applied."""
        if time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + PARTITIONS_S
        partitions = []
        for topic in self._options.topics:
            numbers = self._partitions_of(topic)
            partitions += [(topic, number) for number in numbers]
        partitions = [partition for partition in partitions if partition not in self._offsets]
        if not partitions:
            return

        streams = self._applied_streams()
        assigned = []
        for topic, number in partitions:
            # Not from Kafka's offset: a change may be applied whose commit failed.
            offset = streams.get(_stream(topic, number))
            self._offsets[topic, number] = offset or 0
            if offset is None:
                offset = OFFSET_BEGINNING
            assigned.append(TopicPartition(topic, number, offset))
            log.info("%s is read from %s", _stream(topic, number), _position(offset))
        self._consumer.incremental_assign(assigned)

    def _partitions_of(self, topic: str) -> Sequence[int]:
        metadata = self._consumer.list_topics(topic, timeout=30).topics[topic]
        if metadata.error is not None:
            raise StreamError(f"topic {topic!r} cannot be read: {metadata.error}")
        return sorted(metadata.partitions)

    def _applied_streams(self) -> Mapping[str, int]:
        for _ in self._attempts():
            try:
                return self._client.changes(self._options.model).streams
            except RowcastError as problem:
                self._wait_after(problem)
        raise Stopped

    def _apply(self, partition: tuple[str, int], messages: Sequence[Message]) -> None:
        """Applies messages of one partition; returns when all are on the service's disk, or in the
        topic of rejected messages.
        """
        items: list[Item] = []
        by_offset = {message.offset(): message for message in messages}
        for message in messages:
            try:
                items.append(self._read(message))
            except UnreadableMessage as problem:
                # What was read before it is applied first, in the order of the partition.
                self._apply_items(partition, items, by_offset)
                items = []
                self._reject(message, str(problem))
        self._apply_items(partition, items, by_offset)
        committed = TopicPartition(*partition, messages[-1].offset() + 1)
        self._consumer.commit(offsets=[committed], asynchronous=True)

    def _read(self, message: Message) -> Item:
        return read_item(message.offset(), message.key(), message.value(), self._options.kind)

    def _apply_items(
        self, partition: tuple[str, int], items: Sequence[Item], messages: Mapping[int, Message]
    ) -> None:
        """Sends items; divides a rejected request until it is known which message is at fault."""
        queue = list(batches(items))
        while queue:
            self._check_stopping()
            # Another consumer may have applied the first items meanwhile.
            batch = queue.pop(0).from_offset(self._offsets[partition])
            if batch is None:
                continue
            try:
                is_applied = self._send(partition, batch)
            except (InvalidArgument, NotFound, TooLarge) as problem:
                if len(batch.items) > 1:
                    queue[:0] = batch.halves()
                    continue
                self._check_rejection(partition, batch, problem)
                self._reject(messages[batch.end - 1], problem.message)
                continue
            if not is_applied:
                queue.insert(0, batch)

    def _send(self, partition: tuple[str, int], batch: Batch) -> bool:
        """Sends a batch until the service applies or rejects it; returns whether all of it is
        applied. A part of it may have been applied by another consumer.
        """
        stream = _stream(*partition)
        for _ in self._attempts():
            offset = self._offsets[partition]
            try:
                result = send(self._client, self._options.model, stream, offset, batch)
            except (InvalidArgument, NotFound, TooLarge):
                raise
            except RowcastError as problem:
                self._wait_after(problem)
                continue
            self._offsets[partition] = result.stream_offset
            return result.stream_offset >= batch.end
        raise Stopped

    def _check_rejection(
        self, partition: tuple[str, int], batch: Batch, problem: RowcastError
    ) -> None:
        """Checks that a message is rejected for its content, and that not every message would be.

        Raises:
          StreamError: The program cannot continue.
        """
        if isinstance(problem, TooLarge):
            raise StreamError(
                f"offset {batch.end - 1} of {_stream(*partition)}: {problem}; publish a version "
                "with the changes, or raise the limit, and start again"
            )
        if isinstance(problem, NotFound):
            # Raises if the model is missing, instead of a table or an id.
            self._applied_streams()

    def _reject(self, message: Message, reason: str) -> None:
        """Sends a message to the topic of rejected messages, and waits until it is delivered."""
        stream = _stream(message.topic(), message.partition())
        log.warning("offset %d of %s is rejected: %s", message.offset(), stream, reason)
        headers = {
            "reason": reason.encode(),
            "topic": message.topic().encode(),
            "partition": str(message.partition()).encode(),
            "offset": str(message.offset()).encode(),
        }
        problems: list[KafkaError] = []

        def delivered(problem: KafkaError | None, _: Message) -> None:
            if problem is not None:
                problems.append(problem)

        topic = self._options.rejected_topic
        self._producer.produce(
            topic, message.value(), message.key(), headers=list(headers.items()), callback=delivered
        )
        while self._producer.flush(POLL_S):
            self._check_stopping()
        if problems:
            raise StreamError(
                f"offset {message.offset()} of {stream} is rejected, and cannot be sent to topic "
                f"{topic!r}: {problems[0].str()}"
            )

    def _attempts(self) -> Iterator[int]:
        """Counts attempts until the program should end."""
        self._backoff_s = BACKOFF_S
        attempt = 0
        while not self._stopping.is_set():
            attempt += 1
            yield attempt

    def _wait_after(self, problem: RowcastError) -> None:
        """Waits before the next attempt.

        Raises:
          StreamError: Another attempt would fail in the same way.
        """
        if not problem.retryable and not isinstance(problem, DeadlineExceeded):
            raise StreamError(f"{problem.code}: {problem}") from problem
        # At random, so that consumers that failed together do not return together.
        wait_s = problem.retry_after_s or self._backoff_s * random.uniform(0.5, 1)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
        log.warning("the next attempt follows in %.1f s: %s: %s", wait_s, problem.code, problem)
        self._stopping.wait(wait_s)

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopped


def _stream(topic: str, partition: int) -> str:
    """Returns the name under which the service keeps the offset of a partition."""
    return f"{topic}/{partition}"


def _position(offset: int) -> str:
    if offset == OFFSET_BEGINNING:
        return "its beginning"
    return f"offset {offset}"


def _by_partition(messages: Sequence[Message]) -> dict[tuple[str, int], list[Message]]:
    """Returns messages by topic and partition, in their order.

    Raises:
      StreamError: A partition cannot be read.
    """
    by_partition: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        problem = message.error()
        if problem is None:
            partition = (message.topic(), message.partition())
            by_partition.setdefault(partition, []).append(message)
        elif problem.code() == KafkaError._AUTO_OFFSET_RESET:
            raise StreamError(
                f"{_stream(message.topic(), message.partition())} has lost the messages behind the "
                f"offset up to which it was applied: {problem.str()}; to go on with what is left, "
                "start with --lost skip"
            )
        elif problem.retriable():
            log.warning("a partition cannot be read for now: %s", problem.str())
        else:
            raise StreamError(str(KafkaException(problem)))
    return by_partition
