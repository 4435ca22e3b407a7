"""A broker that stands still at a chosen step of a copy to its archive, so that a test can kill it there.

`python -m tests.support.held_broker start …` is `python -m broker start …`, but for this: while the file `hold` in the
directory above `log.dirs` names a step, the thread that reaches it writes `held` beside it and waits for ever. All
other threads go on, as in a process that is killed at this moment.
"""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from typing import Any

from broker.archive.archive_manager import ArchiveManager
from broker.tools.main import main
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

STEPS = ("put", "block", "put aux", "commit", "committed")


class HeldBroker(BrokerProcess):
    """The broker as a test sees it."""

    module = "tests.support.held_broker"

    def hold(self, step: str) -> None:
        """Let the next thread stand still that reaches this step."""
        self._held.unlink(missing_ok=True)
        self._hold.write_text(step)

    def wait_until_held(self) -> None:
        eventually(self._held.exists, timeout=60.0, interval=0.01)

    def release(self) -> None:
        """A process that starts from now on is not held."""
        self._hold.unlink(missing_ok=True)

    @property
    def _hold(self) -> Path:
        return self.data_dir / "hold"

    @property
    def _held(self) -> Path:
        return self.data_dir / "held"


def _stand_still(hold: Path, step: str) -> None:
    try:
        chosen = hold.read_text()
    except FileNotFoundError:
        return
    if chosen == step:
        hold.with_name("held").touch()
        threading.Event().wait()


def _directory() -> Path:
    settings = dict(word.split("=", 1) for word in sys.argv if "=" in word)
    return Path(settings["log.dirs"]).parent


if __name__ == "__main__":
    made: Any = ArchiveManager.__init__
    on_step = functools.partial(_stand_still, _directory() / "hold")
    ArchiveManager.__init__ = functools.partialmethod(made, on_step=on_step)  # type: ignore[assignment,method-assign]
    main(["broker", *sys.argv[1:]])
