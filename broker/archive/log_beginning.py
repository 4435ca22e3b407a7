"""What a log needs to begin without the records that are archived: the leader's that lost its disk, and a follower's.

Blocks on the store, so it belongs in a thread.
"""

from __future__ import annotations

from broker.archive.aux_file import BrokenAux, decode_aux
from broker.archive.manifest import BrokenManifest
from broker.archive.manifest_store import ManifestStore
from broker.errors import BrokerError, ErrorCode
from broker.log.archived_log import ArchivedState
from broker.storage.url_secrets import text_without_secrets


def state_from(store: ManifestStore, offset: int) -> ArchivedState:
    """The state at the first end of an archived segment at or after `offset`, by the newest manifest.

    Raises BrokerError `kafka_storage_error`, also when the archive ends before `offset`.
    """
    try:
        return _state_from(store, offset)
    except (OSError, BrokenManifest, BrokenAux) as error:
        text = f"the archive {store.place.directory} cannot be read: {text_without_secrets(str(error))}"
        raise BrokerError(ErrorCode.kafka_storage_error, text) from error


def _state_from(store: ManifestStore, offset: int) -> ArchivedState:
    manifest = store.load()
    segment = next((one for one in manifest.segments if one.end >= offset), None)
    if segment is None:
        if offset == manifest.end:
            return ArchivedState(offset, manifest.start, (), b"")  # all its records were deleted
        text = f"the archive {store.place.directory} ends at {manifest.end}, before {offset}"
        raise BrokerError(ErrorCode.kafka_storage_error, text)
    aux = decode_aux(store.storage.read(store.place.aux(segment.name)))
    # Where a truncation has cut the segment, the state behind it is that of records that never were.
    producers = aux.producer_snapshot if aux.end == segment.end else b""
    epochs = tuple((epoch, start) for epoch, start in manifest.epochs if start < segment.end)
    return ArchivedState(segment.end, manifest.start, epochs, producers)
