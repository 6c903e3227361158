"""Pings over idle gRPC connections, at the real intervals."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest
from rowcast_client import Client

from tests.e2e.process import WAIT_S, until
from tests.e2e.valve import Valve
from tests.units.client.conftest import Service

IDLE_S = 70.0
"""Three pings, of which the last is one more than a service tolerates if they come too often. It is
less than the time after which services close idle connections.
"""


@pytest.mark.nightly
def test_pings_keep_an_idle_connection_and_notice_a_silent_loss(service: Service) -> None:
    _, _, port = service.running.grpc.rpartition(":")
    with Valve(int(port)) as valve:
        valve.open()
        target = urlsplit(valve.url).netloc
        with Client(f"grpc://{target}", timeout_s=10) as client:
            assert len(client.models()) == 1
            valve.open()  # counts anew
            time.sleep(IDLE_S)
            assert valve.sent > 0
            assert len(client.models()) == 1
            assert valve.connections == 1

            # The connection is lost without a word: the next ping does not arrive.
            valve.stop_at(sent=1)
            assert valve.reached.wait(WAIT_S)
            until(lambda: valve.connections == 2)
            valve.open()
            assert len(client.models()) == 1
