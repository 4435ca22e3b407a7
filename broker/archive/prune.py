"""Deletes what interrupted copies left in the archive of a partition: objects that no manifest names.

`pykafka log archive prune` calls it. An object without a name in the manifest may be a copy that is under way, or
belong to a deleted segment that readers still have in their plans; so it is deleted only when it has had no name for
long. That is by the clock of the store, which is why it is counted in hours, not seconds.

**Without a manifest nothing is deleted**: if somebody lost it, the objects are all that is left of the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from broker.archive.contents import is_named, objects_of, unnamed_since_ms
from broker.archive.layout import PartitionPlace
from broker.archive.manifest import Manifest
from broker.archive.manifest_store import ManifestStore
from broker.storage.storage import Storage


class Orphan(NamedTuple):
    """A file that nobody needs."""

    path: str
    size: int
    """Bytes; 0 if it is not known."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What of a partition may be deleted."""

    orphans: list[Orphan]
    young: int
    """Objects that no manifest names, but not for long enough."""
    has_manifest: bool


def leftovers(storage: Storage, place: PartitionPlace, before_ms: int) -> Leftovers:
    """Files that no manifest has named since before that time. Raises BrokenManifest, OSError."""
    objects = objects_of(storage, place)
    manifest = ManifestStore(storage, place.cluster_id, place.topic_id, place.partition).load()
    if not manifest.next_number:
        return Leftovers([], len(objects.sizes), has_manifest=False)
    named = {segment.name for segment in manifest.segments}
    candidates = [
        (f"{place.directory}/{file}", size) for file, size in objects.sizes.items() if not is_named(file, named)
    ]
    candidates += [(path, 0) for path in objects.temporary]
    old = [Orphan(path, size) for path, size in candidates if _is_old(storage, place, manifest, path, before_ms)]
    return Leftovers(old, len(candidates) - len(old), has_manifest=True)


def delete(storage: Storage, orphans: list[Orphan]) -> None:
    """Raises OSError; what was not deleted then is found again."""
    for orphan in orphans:
        storage.remove(orphan.path)


def _is_old(storage: Storage, place: PartitionPlace, manifest: Manifest, path: str, before_ms: int) -> bool:
    try:
        return unnamed_since_ms(storage, place, manifest, path) <= before_ms
    except FileNotFoundError:
        return False
