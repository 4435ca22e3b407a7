"""The imports within functions that tests/test_layers.py lets be, each with its reason."""

from __future__ import annotations

# (file, imported module): why this import waits until the function is called.
IMPORT_IN_FUNCTION = {
    ("broker/client/tcp_connect.py", "python_socks.sync.Proxy"): "the library of the extra [proxy]",
    ("spark_connector/options/read_options.py", "spark_connector.formats.record_decoder.column_decoder"): (
        "fastavro, fsspec and an HTTP client behind it, for reads with formats only"
    ),
    ("spark_connector/options/read_options.py", "spark_connector.formats.schema_text.parse_registry_url"): "the same",
    ("spark_connector/options/read_options.py", "spark_connector.formats.schema_text.parse_schema_text"): "the same",
    ("spark_connector/formats/record_decoder.py", "spark_connector.formats.protobuf_decoder"): (
        "the library of the extra [protobuf]"
    ),
    ("spark_connector/formats/record_encoder.py", "spark_connector.formats.protobuf_encoder"): "the same",
    ("spark_connector/options/typed_write_options.py", "spark_connector.formats.schema_text.parse_registry_url"): (
        "the same, for writes"
    ),
    ("spark_connector/options/typed_write_options.py", "spark_connector.formats.schema_text.parse_schema_text"): (
        "the same"
    ),
    ("spark_connector/options/typed_write_options.py", "spark_connector.formats.schema_text.parse_json_text"): (
        "the same"
    ),
    ("spark_connector/write/rows_writer.py", "spark_connector.formats.record_encoder.RecordEncoder"): "the same",
    ("spark_connector/formats/record_encoder.py", "spark_connector.formats.avro_encoder.AvroEncoder"): "the same",
    ("spark_connector/formats/record_encoder.py", "spark_connector.formats.json_check.CheckedJson"): "the same",
    (
        "spark_connector/formats/record_encoder.py",
        "spark_connector.formats.registered_schema.SinkColumn",
    ): "the same",
    ("spark_connector/formats/record_encoder.py", "spark_connector.formats.registered_schema.registered_avro"): (
        "the same"
    ),
    ("spark_connector/formats/record_encoder.py", "spark_connector.formats.registered_schema.registered_json"): (
        "the same"
    ),
    ("spark_connector/formats/record_encoder.py", "spark_connector.formats.registries.registry_of"): "the same",
    ("spark_connector/read/fetch.py", "spark_connector.formats.bad_records.BadRecordsTopic"): "the same",
    ("spark_connector/read/offset_reader.py", "spark_connector.formats.bad_records.BadRecordsTopic"): "the same",
    ("spark_connector/read/fetch.py", "spark_connector.formats.record_decoder.RecordDecoder"): "the same",
    ("spark_connector/read/schema.py", "spark_connector.formats.record_decoder.decoded_schema"): "the same",
    ("spark_connector/read/schema.py", "spark_connector.formats.record_decoder.loaded"): "the same",
    ("spark_connector/loads/write.py", "spark_connector.formats.record_decoder.decoded_schema"): "the same",
    ("spark_connector/loads/tasks/task_job.py", "spark_connector.formats.bad_record_rows.BadRecordRows"): "the same",
    ("spark_connector/formats/field_presence.py", "spark_connector.formats.avro_decoder.AvroDecoder"): "the same",
    ("spark_connector/loads/tasks/file_formats.py", "spark_connector.loads.tasks.avro_rows"): (
        "each task of a load pays for the format of its files"
    ),
    ("spark_connector/loads/tasks/file_formats.py", "spark_connector.loads.tasks.json_rows"): "the same",
    ("spark_connector/loads/tasks/file_formats.py", "spark_connector.loads.tasks.sql_rows"): "the same",
    ("spark_connector/loads/tasks/task_job.py", "spark_connector.delegation.lent_to_tasks"): (
        "the admin client behind it, for the driver of a load only"
    ),
    ("spark_connector/loads/tasks/task_job.py", "spark_connector.read.offset_readers.open_offset_reader"): "the same",
    ("pykafka_demo/lake.py", "pyiceberg.catalog.load_catalog"): "an extra; the demo says how to install it",
    ("spark_connector/source.py", "spark_connector.read.readers.KafkaBatchReader"): (
        "Spark asks for schema, partitions and rows in processes of their own: each pays for what it needs"
    ),
    ("spark_connector/source.py", "spark_connector.read.readers.make_reader"): "the same",
    ("spark_connector/read/readers.py", "spark_connector.delegation.executors_settings"): "the same",
    ("spark_connector/read/readers.py", "spark_connector.delegation.without_secrets"): "the same",
    ("spark_connector/source.py", "spark_connector.read.readers.RefusedStreamReader"): "the same",
    ("spark_connector/source.py", "spark_connector.history_and_tail.readers.HistoryBatchReader"): "the same",
    ("spark_connector/source.py", "spark_connector.history_and_tail.fitted_read.fit_read"): "the same",
    (
        "spark_connector/history_and_tail/readers.py",
        "spark_connector.history_and_tail.plan.plan_history",
    ): "the same",
    (
        "spark_connector/history_and_tail/readers.py",
        "spark_connector.history_and_tail.plan.share_files",
    ): "the same",
    (
        "spark_connector/history_and_tail/readers.py",
        "spark_connector.history_and_tail.batches.HistoryBatches",
    ): ("the same"),
    ("spark_connector/source.py", "spark_connector.history_and_tail.readers.HistoryStreamReader"): "the same",
    ("spark_connector/source.py", "spark_connector.history_and_tail.fitted_read.for_query"): "the same",
    (
        "spark_connector/history_and_tail/fitted_read.py",
        "spark_connector.formats.record_decoder.decoded_schema",
    ): "the same",
    ("spark_connector/source.py", "spark_connector.write.writers.KafkaBatchWriter"): "the same",
    ("spark_connector/source.py", "spark_connector.write.write_plan.plan_write"): "the same",
    ("spark_connector/source.py", "spark_connector.write.writers.KafkaStreamWriter"): "the same",
    ("spark_connector/source.py", "spark_connector.options.write_options.parse_write_options"): "the same",
    ("spark_connector/source.py", "spark_connector.write.column_choice.check_columns"): "the same",
    ("spark_connector/source.py", "spark_connector.write.column_choice.chosen_columns"): "the same",
    ("spark_connector/source.py", "spark_connector.formats.record_encoder.loaded"): "the same",
    (
        "spark_connector/spark_versions.py",
        "pyspark.sql.pandas.types.to_arrow_schema",
    ): "pandas, for typed writes only",
    ("spark_connector/read/readers.py", "spark_connector.read.offset_readers.open_offset_reader"): (
        "each process of Spark pays for what it needs"
    ),
    ("spark_connector/write/writers.py", "spark_connector.write.attempt.run_attempt"): "the same",
    ("spark_connector/write/writers.py", "spark_connector.pandas_later.next_array_without_pandas"): "the same",
    ("spark_connector/write/writers.py", "spark_connector.pandas_later.without_pandas"): "the same",
    ("spark_connector/write/writers.py", "spark_connector.write.commit_protocol.abort_batch"): "the same",
    ("spark_connector/write/writers.py", "spark_connector.write.commit_protocol.abort_batch_write"): "the same",
    ("spark_connector/write/writers.py", "spark_connector.write.commit_protocol.commit_batch"): "the same",
    ("spark_connector/write/writers.py", "spark_connector.write.commit_protocol.commit_batch_write"): "the same",
    ("spark_connector/write/write_plan.py", "broker.client.admin.Admin"): "the same",
    ("spark_connector/write/attempt.py", "broker.client.admin.Admin"): "the same",
    ("spark_connector/write/write_plan.py", "broker.client.admin.ResourceType"): "the same",
    ("spark_connector/write/write_plan.py", "spark_connector.delegation.executors_settings"): "the same",
    ("spark_connector/worker_clients.py", "pyarrow"): "the same",
    ("spark_connector/options/selection.py", "spark_connector.options.where.parse_where"): "the same",
    ("broker/records/columns.py", "broker.records.column_encoder.EncodeOptions"): "the same: a read encodes nothing",
    ("broker/records/columns.py", "broker.records.column_encoder.encode"): "the same",
    ("broker/client/client_settings.py", "broker.client.logins.login_of"): "the same: only some clients log in",
    ("broker/client/sasl_settings.py", "broker.security.foreign_logins.class_complaint"): "the same",
    ("broker/security/token_providers/aws_msk.py", "aws_msk_iam_sasl_signer.MSKAuthTokenProvider"): (
        "the libraries of the extra [msk]"
    ),
    ("broker/security/token_providers/aws_msk.py", "botocore.credentials.CredentialProvider"): "the same",
    ("broker/security/token_providers/aws_msk.py", "botocore.credentials.ReadOnlyCredentials"): "the same",
    ("broker/security/token_providers/aws_msk.py", "botocore.exceptions"): "the same",
    ("broker/security/token_providers/aws_msk.py", "botocore.session"): "the same",
    ("broker/security/token_providers/azure.py", "azure.core.exceptions"): "the libraries of the extra [azure]",
    ("broker/security/token_providers/azure.py", "azure.identity"): "the same",
    ("broker/security/token_providers/google_cloud.py", "google.auth"): "the libraries of the extra [gcp]",
    ("broker/security/token_providers/google_cloud.py", "google.auth.exceptions"): "the same",
    ("broker/security/token_providers/google_cloud.py", "google.auth.transport.requests"): "the same",
    ("broker/client/authentication.py", "broker.protocol.sasl_login.sasl_login"): "the same",
    ("broker/client/denials.py", "broker.protocol.permissions.lacking"): "the same: only for errors",
    ("broker/client/denials.py", "broker.security.acl_types.AclOperation"): "the same",
    ("broker/client/denials.py", "broker.security.acl_types.AclResourceType"): "the same",
    ("spark_connector/read/readers.py", "spark_connector.read.fetch.read_ranges"): "the same",
    ("spark_connector/read/readers.py", "spark_connector.pandas_later.each_without_pandas"): "the same",
    ("spark_connector/read/fetch.py", "spark_connector.read.archive_reader.StoredBatches"): (
        "fsspec and a store's library behind it, for reads from an archive only"
    ),
    ("spark_connector/read/fetch.py", "spark_connector.read.archive_plan.StoredRange"): "the same",
    ("spark_connector/read/offset_reader.py", "spark_connector.read.archive_plan.StoredRange"): "the same",
    ("spark_connector/read/offset_reader.py", "spark_connector.read.archive_plan.stored_bytes_per_offset"): "the same",
    ("spark_connector/read/offset_reader.py", "spark_connector.read.archive_lookup.ArchiveLookup"): "the same",
    ("spark_connector/read/offset_reader.py", "spark_connector.read.archive_lookup.BrokersArchive"): "the same",
    ("spark_connector/read/offset_readers.py", "spark_connector.read.archive_topics.ArchiveOffsetReader"): "the same",
    ("spark_connector/read/readers.py", "spark_connector.read.micro_batches.MicroBatches"): "the same",
    ("spark_connector/read/readers.py", "spark_connector.read.fetch.prefetch"): "the same",
    ("spark_connector/read/fetch.py", "spark_connector.read.row_filter.RowFilter"): (
        "pyarrow.compute behind it, a fifth of what a new worker imports"
    ),
    ("broker/records/column_encoder.py", "pyarrow.compute"): "the same, for headers only",
    ("spark_connector/read/schema.py", "pyspark.sql.pandas.types.from_arrow_schema"): "the same",
    ("spark_connector/read/schema.py", "spark_connector.read.arrow_batches.arrow_schema"): "the same",
    ("pykafka_ui/command.py", "pykafka_ui.serve.serve"): "the libraries of the extra [ui]",
    ("broker/records/crc32c.py", "crc32c.crc32c"): "optional: the hardware checksum, where it has a wheel",
    ("broker/records/crc32c.py", "crcmod.predefined.mkPredefinedCrcFun"): "for processes without crc32c",
    ("broker/tools/main.py", "broker.tools.console.build"): "typer behind it: 9 MB that a broker has no use for",
    ("broker/tools/main.py", "broker.tools.console.fail"): "the same",
    ("broker/tools/main.py", "broker.tools.run_broker.BrokerOptions"): "a server behind it, for `broker start` only",
    ("broker/tools/main.py", "broker.tools.run_broker.run_broker"): "the same",
    ("broker/tools/main.py", "broker.errors.PykafkaError"): "kio behind it would double the time of `pykafka --help`",
    ("broker/tools/main.py", "broker.errors.ConnectionFailed"): "the same",
    ("broker/tools/main.py", "broker.verdict.CheckFailed"): "the same",
    ("broker/tools/main.py", "broker.tools.spelling.spoken"): "the same",
    ("broker/security/stores.py", "cryptography.hazmat.primitives.serialization"): "optional: for PKCS12 files only",
    ("broker/security/stores.py", "cryptography.hazmat.primitives.serialization.pkcs12"): "the same",
    ("broker/net/token_verifier.py", "broker.security.signed_tokens.SigningKeys"): (
        "the libraries of the extra [oauth], for listeners with signed tokens only"
    ),
    ("broker/security/kerberos.py", "gssapi"): "the library of the extra [kerberos], for logins by it only",
    ("broker/security/token_providers/provider_table.py", "importlib.metadata.entry_points"): (
        "the package email behind it, for providers of others only"
    ),
    ("broker/security/identity_provider.py", "http.client"): "600 KB, for listeners and clients with tokens only",
    ("broker/security/identity_provider.py", "urllib.error"): "the same",
    ("broker/security/identity_provider.py", "urllib.request"): "the same",
    ("broker/server.py", "broker.archive.broker_archive.open_archive"): (
        "fsspec and the libraries of the stores behind it, for brokers with archive.url"
    ),
    (
        "broker/zookeeper/opened_store.py",
        "broker.zookeeper.client.ZooKeeper",
    ): "kazoo behind it, which a standalone broker never needs",
    (
        "broker/server.py",
        "broker.cluster.archive_upkeep.ArchiveUpkeep",
    ): "fsspec behind it, for an archive only",
    ("broker/server.py", "broker.cluster.archived_topics.ArchivedTopics"): "the same",
    ("broker/tools/restore_command.py", "broker.storage.storage.open_storage"): "the same, for `log restore` only",
    ("broker/tools/restore_command.py", "broker.tools.cluster_restoration.restore_data"): "the same",
    ("broker/tools/restore_command.py", "broker.tools.cluster_restoration.restore_zookeeper"): "the same",
    ("broker/tools/restore_command.py", "broker.tools.restored_topics.TopicChoice"): "the same",
    ("broker/tools/restore_command.py", "broker.tools.restored_topics.restore_topics"): "the same",
    ("broker/tools/archive_command.py", "broker.archive.contents.archived_topics"): (
        "fsspec behind it, for the commands of `log archive` only"
    ),
    ("broker/tools/archive_command.py", "broker.archive.verify.verify_partition"): "the same",
    ("broker/tools/archive_command.py", "broker.archive.prune.delete"): "the same",
    ("broker/tools/archive_command.py", "broker.archive.prune.leftovers"): "the same",
    ("broker/tools/archive_command.py", "broker.storage.storage.open_storage"): "the same",
    ("broker/web/http_listener.py", "broker.web.app.make_server"): (
        "starlette, uvicorn and prometheus-client behind it: 23 MB and 0.15 s, only for metrics.listener"
    ),
    ("broker/records/compression.py", "pyarrow"): "heavy: 40 MB and 0.15 s that a broker has no use for",
    ("broker/records/compression.py", "cramjam"): "2 MB that a broker needs only for compressed batches",
    ("broker/records/compression.py", "snappy"): "the same: it stands on cramjam",
    ("broker/records/lz4_frame.py", "cramjam"): "the same",
    ("broker/log/compaction_process.py", "pickle"): "0.3 MB that a broker needs only for compacted topics",
    ("broker/settings.py", "difflib"): "0.2 MB, for a wrong name of a setting",
    ("broker/tools/logging_setup.py", "logging.config.fileConfig"): "0.4 MB, for a logging configuration",
    ("broker/patterns/re2.py", "re2"): "4 MB, for the few who send a pattern",
    ("spark_connector/progress/lag_bar.py", "IPython.display.display"): "only there in a notebook, and loaded by then",
    ("spark_connector/cli/session.py", "pyspark.sql.SparkSession"): "half a second --help and --recover need not pay",
    ("spark_connector/cli/load_command.py", "spark_connector.load.run_load"): "the same",
    ("spark_connector/cli/load_command.py", "spark_connector.cli.service.serve"): "the same",
    ("spark_connector/destinations.py", "spark_connector.loads.files.zookeeper_log.ZooKeeperCommitLog"): (
        "kazoo behind it, for those who keep offsets in ZooKeeper"
    ),
    ("spark_connector/destinations.py", "spark_connector.offset_store.zookeeper.ZooKeeperOffsetStore"): "the same",
    ("spark_connector/destinations.py", "spark_connector.loads.delta.delta_table.open_delta"): (
        "optional: the extra `delta`"
    ),
    ("spark_connector/destinations.py", "spark_connector.loads.iceberg.iceberg_table.open_iceberg"): (
        "optional: the extra `iceberg`"
    ),
    ("spark_connector/destinations.py", "spark_connector.loads.iceberg.iceberg_listing.list_tables"): "the same",
    ("spark_connector/destinations.py", "spark_connector.loads.database.database_table.open_database"): (
        "optional: the extra `sql`"
    ),
    ("spark_connector/maintenance.py", "pyspark.sql.SparkSession"): "half a second, for a recount of orc and json only",
}
