"""Tables brought into memory while their version is served already, at a bounded rate, for the rows not yet asked for.

A row that lies on the disk makes its call wait. Whole tables are read, the smallest first: of a small one every row is
soon asked for, of a large one few rows would be among those that fit.
"""

from __future__ import annotations

import threading
import time
from weakref import WeakSet

from service import logs
from service.generations.generation import Generation
from service.generations.switch import Switch
from service.metrics import Metrics

log = logs.logger(__name__)


class Warming:
    """Warms each generation once, in a thread of its own."""

    def __init__(self, switch: Switch, metrics: Metrics, bytes_max: int, bytes_per_s: int) -> None:
        """Warms nothing yet.

        Args:
          switch: whose generations they are.
          metrics: told of what is brought in.
          bytes_max: most bytes of tables that are brought in for one generation; 0: none.
          bytes_per_s: at most, of all.
        """
        self._switch, self._metrics = switch, metrics
        self._bytes_max, self._bytes_per_s = bytes_max, bytes_per_s
        self._warmed: WeakSet[Generation] = WeakSet()
        self._changed, self._stopping = threading.Event(), threading.Event()

    def start(self) -> None:
        """Begins, and goes on with each generation that comes."""
        if self._bytes_max:
            self._switch.subscribe(self._changed.set)
            threading.Thread(target=self._run, name="rowcast-warming", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after the piece it is at."""
        self._stopping.set()
        self._changed.set()

    def warm(self) -> None:
        """Warms every loaded generation that was not warmed yet."""
        for generation in self._switch.loaded():
            if generation not in self._warmed:
                self._warmed.add(generation)
                self._bring_in(generation)

    def _bring_in(self, generation: Generation) -> None:
        begun, done, left_out = time.monotonic(), 0, 0
        pages = generation.manifest.tables
        for name in sorted(pages, key=lambda name: pages[name].bytes):
            if done + pages[name].bytes > self._bytes_max:
                left_out += 1
                continue
            for size in generation.tables[name].warm():
                done += size
                self._metrics.warmed(generation.model, size)
                if self._stopping.wait(size / self._bytes_per_s) or generation not in self._switch.loaded():
                    return
        extra = logs.fields(
            model=generation.model,
            version=generation.version,
            seconds=round(time.monotonic() - begun, 3),
            mib=done >> 20,
            tables_left=left_out,
        )
        log.info("tables_warmed", extra=extra)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            try:
                self.warm()
            except Exception:
                log.exception("warming_failed")
            self._changed.wait()
