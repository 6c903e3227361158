"""The consumer of Kafka's topics, in processes of its own that are killed. The brokers are
librdkafka's own, in this process, and so is the service.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rowcast_client import Client

from examples.stream.messages import UnreadableMessage, read_item
from examples.stream.requests import batches
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.running import RunningService

kafka = pytest.importorskip("confluent_kafka")
kafka_admin = pytest.importorskip("confluent_kafka.admin")

TOKEN = "0123456789abcdef-of-the-stream"
TOPIC = "catalog"
MESSAGES = 150
CANDIDATES = 30


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """The address of librdkafka's brokers, which end with the client that began them."""
    cluster = kafka_admin.AdminClient({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = cluster.list_topics(timeout=WAIT_S).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del cluster


@pytest.fixture
def service(root: Path, small_towers: Path, tmp_path: Path) -> Iterator[RunningService]:
    write_small_bundle(root, small_towers, users=True)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"stream {TOKEN}\n")
    service = RunningService(root, tokens=tokens, changes_from="stream")
    yield service
    service.close()


class Topic:
    """Sends random messages to a topic, and knows what the model should be behind them.

    Attributes:
      years: The attribute of the candidates that exist behind all messages, by id.
      ends: The offset behind the last message of each stream that the model can apply.
      rejected: Partition and offset of the others.
    """

    def __init__(self, brokers: str, seed: int) -> None:
        self.years: dict[int, int] = {}
        self.ends: dict[str, int] = {}
        self.rejected: set[tuple[int, int]] = set()
        self._random = random.Random(seed)
        self._producer = kafka.Producer({"bootstrap.servers": brokers})
        self._brokers = brokers

    def send(self, count: int) -> None:
        """Sends messages, and returns when the brokers have them; good ones are the last."""
        for number in range(count):
            key = 5000 + self._random.randrange(CANDIDATES)
            if self._random.random() < 0.05 and number < count - CANDIDATES:
                self._produce(key, self._random.choice(BAD), is_good=False)
            else:
                self._produce(key, self._next_state(key, number), is_good=True)
        for key in range(5000, 5000 + CANDIDATES):
            self._produce(key, upsert(key), is_good=True)
            self.years[key] = key
        for key in range(5000, 5000 + CANDIDATES // 3):
            self._produce(key, None, is_good=True)
            del self.years[key]
        self._producer.flush()

    def _next_state(self, key: int, number: int) -> bytes | None:
        action = self._random.choice(["upsert", "attributes", "delete"])
        if key not in self.years or action == "upsert":
            self.years[key] = number
            return upsert(number)
        if action == "attributes":
            self.years[key] = number
            return json.dumps({"action": action, "attributes": {"year": number}}).encode()
        del self.years[key]
        return None

    def _produce(self, key: int, value: bytes | None, is_good: bool) -> None:
        def delivered(problem: Any, message: Any) -> None:
            assert problem is None
            if is_good:
                self.ends[f"{TOPIC}/{message.partition()}"] = message.offset() + 1
            else:
                self.rejected.add((message.partition(), message.offset()))

        self._producer.produce(TOPIC, value, str(key).encode(), callback=delivered)


def upsert(year: int) -> bytes:
    features = {"movie": 1007, "genres": ["drama"], "year": 0.5}
    return json.dumps({"features": features, "attributes": {"year": year}}).encode()


BAD = [
    b"{",
    b"[]",
    b'{"action": "rename"}',
    b'{"features": {"movie": 1007}}',
    b'{"action": "attributes", "attributes": {"colour": 1}}',
    b'{"action": "attributes", "attributes": {"year": "soon"}}',
    b'{"kind": "contexts", "features": {"user": 7}}',
    b'{"kind": "candidates", "target": "films", "action": "delete"}',
]


def start(service: RunningService, brokers: str, *options: str, model: str = "movies") -> Any:
    """Starts the consumer."""
    command = [sys.executable, "-m", "examples.stream", TOPIC, "--model", model, "--batch", "8"]
    command += ["--url", f"grpc://{service.grpc}", "--brokers", brokers, *options]
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = {**os.environ, "PYTHONPATH": paths, "ROWCAST_TOKEN": TOKEN}
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)


def stop(consumer: Any) -> str:
    """Ends a consumer as operators do; returns what it logged."""
    consumer.send_signal(signal.SIGTERM)
    _, log = consumer.communicate(timeout=WAIT_S)
    assert consumer.returncode == 0, log
    return str(log)


def test_every_message_is_applied_once_when_the_consumer_is_killed(
    service: RunningService, brokers: str
) -> None:
    topic = Topic(brokers, seed=7)
    topic.send(MESSAGES)
    changes = service.worker.changes
    consumer = start(service, brokers)
    until(lambda: changes.applied("movies").sequence >= 5)
    consumer.kill()
    consumer.communicate()
    consumer = start(service, brokers)
    until(lambda: dict(changes.applied("movies").streams) == topic.ends)
    stop(consumer)

    assert years(service) == topic.years
    reasons = dict(rejected(brokers))
    assert set(reasons) == topic.rejected
    assert all(reasons.values())


def years(service: RunningService) -> dict[int, int]:
    """Returns the attribute of the candidates that were added, as a client is sent it."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    with Client(f"grpc://{service.grpc}", headers=headers, timeout_s=WAIT_S) as client:
        neighbors = client.retrieve({"user": 3}, k=500, attributes=["year"])[0]
    all_years = {int(neighbor.id): neighbor.attributes["year"] for neighbor in neighbors}
    return {key: year for key, year in all_years.items() if key >= 5000}


def rejected(brokers: str) -> list[tuple[tuple[int, int], str]]:
    """Returns partition, offset and reason of the messages that were rejected."""
    consumer = kafka.Consumer({"bootstrap.servers": brokers, "group.id": "test"})
    name = f"{TOPIC}.rejected"
    partitions = consumer.list_topics(name, timeout=WAIT_S).topics[name].partitions
    messages = []
    for number in partitions:
        begin = kafka.TopicPartition(name, number, kafka.OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(begin, timeout=WAIT_S)
        consumer.assign([begin])
        part: list[Any] = []
        while len(part) < end:
            part += consumer.consume(end - len(part), 1)
        messages += part
    consumer.close()
    headers = [dict(message.headers()) for message in messages]
    return [
        ((int(values["partition"]), int(values["offset"])), values["reason"].decode())
        for values in headers
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], f"{TOPIC}/3 is read from"),
        (["--url", "grpc://127.0.0.1:9"], "the next attempt follows in"),
    ],
    ids=["reading", "unreachable"],
)
def test_consumer_ends_without_an_error_on_sigterm(
    service: RunningService, brokers: str, options: list[str], expected: str
) -> None:
    consumer = start(service, brokers, *options)
    lines = iter(consumer.stderr.readline, "")
    assert any(expected in line for line in lines)
    assert "stopped" in stop(consumer)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, b"{}", "the message has no key"),
        (b"1.5", b"{}", "the key is '1.5'; an id was expected"),
        (b"true", b"{}", "the key is 'true'"),
        (b"movie", b"{}", "the key is 'movie'; an id was expected, as a JSON number or string"),
        (b"1", b"{", "the value: Invalid JSON"),
        (b"1", b'{"kind": "films"}', "kind: Input should be 'candidates' or 'contexts'"),
        (b"1", b'{"attribute": {}}', "attribute: Extra inputs are not permitted"),
        (
            b"1",
            b'{"kind": "contexts", "vectors": {}}',
            "vectors was sent, which upsert of contexts does not have",
        ),
        (b"1", b'{"action": "delete", "features": {}}', "features was sent, which delete of"),
    ],
)
def test_message_that_changes_nothing_is_told_why(
    key: bytes | None, value: bytes | None, message: str
) -> None:
    with pytest.raises(UnreadableMessage, match=re.escape(message)):
        read_item(0, key, value, "candidates")


def test_messages_of_one_shape_are_sent_together() -> None:
    messages = [
        (b"1", b'{"features": {"movie": 1}}'),
        (b"2", b'{"features": {"movie": 2}}'),
        (b"1", b'{"features": {"movie": 3}}'),  # again
        (b'"1"', b'{"features": {"movie": 3}}'),  # another type of ids
        (b"2", b'{"features": {"year": 3}}'),  # other features
        (b"3", None),
        (b"4", b'{"action": "delete"}'),
        (b"5", b'{"kind": "contexts", "action": "delete"}'),
    ]
    items = [read_item(n, key, value, "candidates") for n, (key, value) in enumerate(messages)]
    ends = [batch.end for batch in batches(items)]
    assert ends == [2, 3, 4, 5, 7, 8]
