"""A directory as the destination of loads: every load is a directory `load=<load id>` of data files.

The protocol is committer.py. Opened by spark_connector/destinations.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from broker.errors import ConfigError
from spark_connector.loads.commit_log import CommitLog
from spark_connector.loads.destination import Holdings, NewSession
from spark_connector.loads.files.committer import FilesCommitter
from spark_connector.loads.files.history import Outputs, read_history
from spark_connector.loads.files.holdings import FileHoldings
from spark_connector.loads.history import MANIFEST, History, topics_by_group
from spark_connector.loads.layout import check_topics
from spark_connector.loads.record import LoadError, LoadId, LoadRecord, published_directory
from spark_connector.storage import Storage

__all__ = ["FilesDestination"]


class FilesDestination:
    """The output directory of a group's loads, its commit log, and its committer."""

    def __init__(self, output: Storage, log: CommitLog, group: str, open_output: Callable[[str], Storage]) -> None:
        """`open_output` opens the output directory of an earlier load by its URL: the group may have changed it."""
        self.output = output
        self.log = log
        self.committer = FilesCommitter(output, log, group, open_output)
        self._group = group
        self._outputs = Outputs(output, open_output)

    @property
    def url(self) -> str:
        return self.output.url

    def plain_error(self, error: Exception) -> LoadError | None:
        return None  # OSErrors are made plain for all destinations

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Check that this load has the format and layout of the load before, so that all can be read as one."""
        check_topics(record.partition_by, {range.topic for range in record.ranges})
        number = self.log.newest().sequence
        before = self.log.record(number) if number else None
        if before is None or before.output != self.url or before.rewind is not None or before.rows == 0:
            return
        if before.format != record.format:
            raise ConfigError(
                f"{self.url} holds loads in {before.format} so far, not in {record.format}, and they could not be read "
                "as one: keep the format, or use another directory"
            )
        if before.partition_by != record.partition_by:
            raise ConfigError(
                f"{self.url} is partitioned by {', '.join(before.partition_by) or 'nothing'} so far, not by "
                f"{', '.join(record.partition_by) or 'nothing'}: keep partition_by, or use another directory"
            )

    def published(self, group: str) -> list[str]:
        return [str(load_id) for load_id in self._visible() if load_id.group == group]

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """From the manifests beside the data: of each group the newest, and older ones until one has topic ids."""
        found: list[LoadRecord] = []
        complete: set[str] = set()
        for load_id in sorted(self._visible(), key=lambda load_id: load_id.sequence, reverse=True):
            path = f"{published_directory(str(load_id))}/{MANIFEST}"
            if load_id.group in complete:
                continue
            with contextlib.suppress(FileNotFoundError, LoadError):
                found.append(LoadRecord.from_bytes(self.output.read(path), self.output.url_of(path)))
                complete |= {load_id.group} if found[-1].topic_ids else set()
        return topics_by_group(found)

    def path_of(self, load_id: str) -> str:
        return self.output.url_of(published_directory(load_id))

    def history(self) -> History:
        return read_history(self._group, self.output, self.log, self._outputs)

    def holdings(self, history: History, session: NewSession) -> Holdings:
        return FileHoldings(self.output, self._outputs, history, session)

    def check_rewind(self, rewind: LoadRecord) -> None:
        """Directories can always be moved aside."""

    def _visible(self) -> list[LoadId]:
        prefix = published_directory("")
        names = (name.removeprefix(prefix) for name in self.output.names("") if name.startswith(prefix))
        return [load_id for load_id in map(LoadId.parse, names) if load_id is not None]
