"""Looks at all series of all places, for the lists: in a thread of its own, and only when somebody asks for them.

A look opens every place and reads every history, which takes as long as it takes; whoever asks meanwhile gets what the
look before has seen. The first look shows what it has so far.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.storage.url_secrets import text_without_secrets
from pykafka_ui.loads.places import LoadPlaces, read
from pykafka_ui.loads.series_health import Series

_FRESH_S, _SEEN_BESIDE_S = 5.0, 60.0
"""The pause between two looks, at least: for who waits for the loads, and for who shows them beside other things."""
_SHARE = 10
"""And the pause as a multiple of the time that the last look took."""
_FIRST_S, _A_MOMENT_S = 3.0, 0.5
"""So long the first look, and a later one, is waited for."""

logger = logging.getLogger("pykafka.ui")


@dataclass(frozen=True)
class Surveyed:
    """A place that cannot be read is a series without a group. `empty` are the places without loads. `is_whole`:
    whether a look has ended; else there may be more."""

    series: Sequence[Series] = ()
    empty: Sequence[str] = ()
    is_whole: bool = False


class Survey:
    """Thread-safe."""

    def __init__(self, places: LoadPlaces, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds."""
        self._places = places
        self._clock = clock
        self._looked = threading.Condition()
        self._seen = Surveyed()
        self._is_looking = False
        self._ended, self._pause_s = float("-inf"), 0.0

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def seen(self, *, wait: bool = True) -> Surveyed:
        """What was seen last. Begins a look if that is old, and waits a moment for it."""
        with self._looked:
            pause_s = max(self._pause_s, _FRESH_S if wait else _SEEN_BESIDE_S)
            if not self._is_looking and self._clock() - self._ended >= pause_s:
                self._is_looking = True
                threading.Thread(target=self._look, name="ui-loads", daemon=True).start()
            if wait:
                patience = _A_MOMENT_S if self._seen.is_whole else _FIRST_S
                self._looked.wait_for(lambda: not self._is_looking, patience)
            return self._seen

    def forget(self) -> None:
        """Look again when next asked: something was changed."""
        with self._looked:
            self._ended = float("-inf")

    def _look(self) -> None:
        began = self._clock()
        series: list[Series] = []
        empty: list[str] = []

        def show(*, is_whole: bool) -> None:
            self._seen = Surveyed(tuple(series), tuple(empty), is_whole)

        try:
            for url, targets, error in self._places.each():
                if error:
                    series.append(Series.unread(url, error))
                elif not targets:
                    empty.append(url)
                for target in targets:
                    series.append(Series.of(url, read(target), self.now_ms()))
                    if not self._seen.is_whole and len(series) % 50 == 0:
                        show(is_whole=False)
        except Exception as error:  # of whatever library is behind a place
            logger.exception("looking at the loads failed")
            series.append(Series.unread("the places of loads", text_without_secrets(str(error))))
        finally:
            with self._looked:
                show(is_whole=True)
                self._is_looking, self._ended = False, self._clock()
                self._pause_s = _SHARE * (self._ended - began)
                self._looked.notify_all()
