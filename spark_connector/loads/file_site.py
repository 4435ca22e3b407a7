"""A directory as the destination of loads: what load.py and its helpers ask of it.

Opened by loads/planner.py's `open_site`. The protocol is loads/commit.py, the directories of earlier loads are
loads/file_history.py's `Outputs`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from broker.errors import ConfigError
from spark_connector.loads.commit import MANIFEST, LoadCommitter, published_directory
from spark_connector.loads.file_history import Outputs, read_history
from spark_connector.loads.file_holdings import FileHoldings
from spark_connector.loads.groups import topics_by_group
from spark_connector.loads.history import History
from spark_connector.loads.holdings import Holdings
from spark_connector.loads.layout import check_topics
from spark_connector.loads.log import LoadLog
from spark_connector.loads.record import LoadError, LoadId, LoadRecord
from spark_connector.storage import Storage

__all__ = ["LoadSite"]


@dataclass(frozen=True)
class LoadSite:
    """Where the loads of a group go, what has been committed there, and who commits."""

    output: Storage
    log: LoadLog
    committer: LoadCommitter
    group: str
    outputs: Outputs

    @property
    def url(self) -> str:
        return self.output.url

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Any directory takes any rows; but all loads of a directory must be laid out alike to be read as one."""
        check_topics(record.partition_by, {range.topic for range in record.ranges})
        number = self.log.newest().sequence
        before = self.log.record(number) if number else None
        if before is None or before.output != self.url or before.rewind is not None or before.rows == 0:
            return
        if before.format != record.format:
            raise ConfigError(
                f"{self.url} holds loads in {before.format} so far, not in {record.format}, and nobody could read both "
                "as one: keep the format, or use another directory"
            )
        if before.partition_by != record.partition_by:
            raise ConfigError(
                f"{self.url} is partitioned by {', '.join(before.partition_by) or 'nothing'} so far, not by "
                f"{', '.join(record.partition_by) or 'nothing'}: keep partition_by, or use another directory"
            )

    def published(self, group: str) -> list[str]:
        """Load ids of the group that are visible in the output."""
        return [str(load_id) for load_id in self._visible() if load_id.group == group]

    def plain_error(self, error: Exception) -> LoadError | None:
        return None  # OSErrors are seen to by `open_site`

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """By the manifests that lie with the data: of each group the newest, and those before it while they name no
        topics but their own."""
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

    def _visible(self) -> list[LoadId]:
        prefix = published_directory("")
        names = (name.removeprefix(prefix) for name in self.output.names("") if name.startswith(prefix))
        return [load_id for load_id in map(LoadId.parse, names) if load_id is not None]

    def path_of(self, load_id: str) -> str:
        return self.output.url_of(published_directory(load_id))

    def history(self) -> History:
        return read_history(self.group, self.output, self.log, self.outputs)

    def holdings(self, history: History) -> Holdings:
        return FileHoldings(self.output, self.outputs, history)

    def check_rewind(self, rewind: LoadRecord) -> None:
        """Directories can always be moved aside; the history has told of those that should not be there."""
