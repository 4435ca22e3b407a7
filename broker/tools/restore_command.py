"""`pykafka log restore`: bring topics back from the archive, into a running cluster or as a whole lost cluster.

Without a broker (`--data`, `--zookeeper`) it writes the metadata of a lost cluster where the first broker will find
them. With one it makes deleted topics again, which go on with their archives. No record is copied in either case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from broker.errors import ConfigError
from broker.tools.archive_command import ArchiveOptions, store_options
from broker.tools.client_options import (
    BootstrapServer,
    ConfigFile,
    JsonOutput,
    administration,
    flag,
    option,
    parse_time,
)


def restore(
    archive: Annotated[str, option("The archive: archive.url of the brokers.", "URL")],
    archive_option: ArchiveOptions = None,
    data: Annotated[
        Path | None,
        option(
            "Restore a lost cluster for a broker whose first directory of log.dirs this is: an empty one. The broker "
            "takes the cluster into its ZooKeeper when it starts, or keeps it with --standalone.",
            "DIR",
        ),
    ] = None,
    zookeeper: Annotated[
        str | None, option("Restore a lost cluster into this ZooKeeper, an empty one.", "HOST:PORT[/CHROOT]")
    ] = None,
    cluster_id: Annotated[
        str | None, option("Which lost cluster, if the archive has several.", "ID", "--cluster-id")
    ] = None,
    topic: Annotated[
        list[str] | None,
        option(
            "A deleted topic to restore into the running cluster; may be repeated. Default: all that were deleted.",
            "NAME",
            "--topic",
            "-t",
        ),
    ] = None,
    topic_id: Annotated[str | None, option("Which of several topics that had this name.", "ID")] = None,
    as_name: Annotated[str | None, option("Another name for the topic.", "NAME", "--as")] = None,
    until: Annotated[
        str | None,
        option("Only what was written before this time. The archive forgets the records after it, for good.", "TIME"),
    ] = None,
    dry_run: Annotated[bool, flag("Say what would be restored, and change nothing.", "--dry-run")] = False,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Restore deleted topics, or a lost cluster, from the archive.

    \b
    Examples:
      pykafka log restore --archive s3://bucket/kafka --topic flights
      pykafka log restore --archive s3://bucket/kafka --topic flights --as flights-old --until 2026-01-31T12:00:00
      pykafka log restore --archive s3://bucket/kafka --data data/broker
    """
    # fsspec behind them, which the other commands of `log` have no use for
    from broker.storage.storage import open_storage
    from broker.tools.cluster_restoration import restore_data, restore_zookeeper
    from broker.tools.restored_topics import TopicChoice, restore_topics

    storage = open_storage(archive, store_options(archive_option))
    of_topics = {"--topic": topic, "--topic-id": topic_id, "--as": as_name, "--until": until}
    if data is None and zookeeper is None:
        if cluster_id is not None:
            raise ConfigError("--cluster-id is for a lost cluster: give --data or --zookeeper, too")
        choice = TopicChoice(topic or [], topic_id, as_name, None if until is None else parse_time("--until", until))
        with administration(bootstrap_server, config_file) as admin:
            restore_topics(admin, storage, choice, dry_run=dry_run, as_json=as_json)
        return
    if data is not None and zookeeper is not None:
        raise ConfigError("give --data or --zookeeper, not both")
    if given := [name for name, value in of_topics.items() if value]:
        raise ConfigError(f"{given[0]} is for a running cluster; --data and --zookeeper restore a whole one")
    if data is not None:
        restore_data(storage, cluster_id, data, dry_run=dry_run, as_json=as_json)
    else:
        restore_zookeeper(storage, cluster_id, str(zookeeper), dry_run=dry_run, as_json=as_json)
