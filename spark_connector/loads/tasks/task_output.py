"""Where tasks write their files. Pickled to the executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.storage.storage import open_storage
from broker.storage.url_secrets import without_secrets


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
