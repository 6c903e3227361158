"""`python -m examples.stream TOPIC... --url URL --model MODEL --brokers HOST:PORT`

Applies topics of Kafka to a served model until it gets SIGTERM or SIGINT. The token of the service
is read from the environment variable ROWCAST_TOKEN.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from rowcast_client import Client, RowcastError

from examples.stream.consumer import Options, StreamConsumer, StreamError

RESETS = {"stop": "error", "skip": "earliest"}
"""The action of librdkafka where the next message of a partition no longer exists."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the consumer; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.stream", description="Apply topics of Kafka to a served model."
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--url", default="grpc://localhost:9090", help="address of the service")
    parser.add_argument("--ca-file", type=Path, help="authorities trusted over TLS, PEM")
    parser.add_argument("--model", required=True, help="name of the model")
    parser.add_argument("--brokers", default="localhost:9092", help="HOST:PORT,... of Kafka")
    parser.add_argument(
        "--kafka-config", type=Path, help="file of librdkafka's properties, a key=value per line"
    )
    parser.add_argument(
        "--kind",
        choices=["candidates", "contexts"],
        default="candidates",
        help="what a message changes that does not say it",
    )
    parser.add_argument("--rejected", metavar="TOPIC", help="default: the first TOPIC.rejected")
    parser.add_argument("--batch", type=int, default=500, help="maximum messages in a request")
    parser.add_argument(
        "--lost", choices=[*RESETS], default="stop", help="what to do if Kafka has lost messages"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        _run(options, stopping)
    except (StreamError, RowcastError, KafkaException, OSError, ValueError) as problem:
        logging.getLogger("stream").error("%s", problem)
        return 1
    return 0


def _run(options: argparse.Namespace, stopping: threading.Event) -> None:
    kafka: dict[str, Any] = {"bootstrap.servers": options.brokers}
    if options.kafka_config is not None:
        kafka |= _properties(options.kafka_config)
    # The service keeps the offsets, and they are committed by hand behind it. Messages of aborted
    # transactions are left out.
    consumer = Consumer(
        {
            "group.id": f"rowcast-{options.model}",
            "enable.auto.commit": False,
            "auto.offset.reset": RESETS[options.lost],
            "isolation.level": "read_committed",
            **kafka,
        }
    )
    producer = Producer({"enable.idempotence": True, **kafka})
    rejected = options.rejected or f"{options.topics[0]}.rejected"
    stream_options = Options(options.topics, options.model, options.kind, rejected, options.batch)
    token = os.environ.get("ROWCAST_TOKEN")
    try:
        with Client(options.url, token=token, ca_file=options.ca_file) as client:
            StreamConsumer(client, consumer, producer, stream_options, stopping).run()
    finally:
        consumer.close()


def _properties(file: Path) -> dict[str, str]:
    """Reads a file of properties.

    Raises:
      ValueError: A line is not `key=value`.
    """
    properties = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{file}:{number}: key=value was expected")
        properties[name.strip()] = value.strip()
    return properties


if __name__ == "__main__":
    sys.exit(main())
