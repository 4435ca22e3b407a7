"""Where tasks write their files. Pickled to the executors."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.storage.storage import open_storage
from broker.storage.url_secrets import without_secrets
from spark_connector.loads.record import LoadError
from spark_connector.loads.shared_path import SHARED, is_local
from spark_connector.outages import heals_by_waiting


class TaskOutput(Protocol):
    """The place of one load."""

    def open(self, name: str) -> Any:
        """A binary file object for a new file of this name. Raises OSError."""

    def open_input(self, name: str) -> Any:
        """A seekable binary file object of a file that is there, as readers open it. Raises OSError."""

    def url_of(self, name: str) -> str:
        """The file's URL, for messages."""


@dataclass(frozen=True)
class StorageOutput:
    """A directory of any file system that storage.py knows."""

    url: str
    options: Mapping[str, str] = field(repr=False)
    directory: str

    def open(self, name: str) -> Any:
        return open_storage(self.url, self.options).open_output(f"{self.directory}/{name}")

    def open_input(self, name: str) -> Any:
        return open_storage(self.url, self.options).open_input(f"{self.directory}/{name}")

    def url_of(self, name: str) -> str:
        return f"{without_secrets(self.url)}/{self.directory}/{name}"


def told_by_tasks(output: TaskOutput) -> TaskOutput:
    """The output for tasks that may run on other hosts than this one, the driver's."""
    return LocalOutput(output) if is_local(output.url_of("")) else output


@dataclass(frozen=True)
class LocalOutput:
    """An output in a path of the driver's host: a task on another host that cannot write there says why that may be."""

    output: TaskOutput
    driver: str = field(default_factory=socket.gethostname)

    def open(self, name: str) -> Any:
        try:
            return self.output.open(name)
        except Exception as error:  # of whatever library writes there
            here = socket.gethostname()
            if here == self.driver or heals_by_waiting(error):
                raise
            raise LoadError(
                f"a task on host {here} cannot write {self.url_of(name)}: {type(error).__name__}: {error}. The "
                f"executors may not share this path with the driver on host {self.driver}. {SHARED}. What tasks of "
                f"this load have made at {self.url_of('')} on other hosts is left there"
            ) from error

    def open_input(self, name: str) -> Any:
        return self.output.open_input(name)

    def url_of(self, name: str) -> str:
        return self.output.url_of(name)
