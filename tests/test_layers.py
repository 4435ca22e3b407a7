"""The layering rule of docs/architecture.md, checked on the source text.

A package imports only what stands to its right, a few libraries only where one file hides them, and the
size limits hold. A failure names file and line; the rule is the thing to obey, not the thing to widen.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support.late_imports import IMPORT_IN_FUNCTION
from tests.support.source_tree import ROOT, Import, Module, cycles, modules_under

PRODUCT = modules_under("broker", "spark_connector", "pykafka_demo", "pykafka_ui", "pyspark_pykafka.py")
EVERYTHING = PRODUCT + modules_under("tests", "bench")
NAMES = {module.name for module in EVERYTHING}

# Left to right; a layer imports what stands in a later row. Those that share a row do not know each other.
ROWS: list[set[str]] = [
    {"__main__"},
    {"tools"},
    {"server", "embedded"},
    {"api", "web"},
    {"share"},
    {"coordinator"},
    {"cluster"},
    {"zookeeper"},
    {"replica"},
    {"archive"},
    {"log", "mirror"},
    {"net", "client"},
    {"records"},
    {"protocol"},
    {
        *("errors", "clock", "config", "settings", "security", "meta_properties", "boot_id", "metrics"),
        *("durable_files", "held_port", "quotas", "background_tasks", "control_characters", "storage", "verdict"),
        *("patterns", "stored_names", "keep_alive", "freed_memory"),
    },
]
RANK = {layer: rank for rank, row in enumerate(ROWS) for layer in row}
BASE = ROWS[-1]

# What the rows alone would allow: storage knows no wire, the wire no storage and no handler, ZooKeeper neither.
FORBIDDEN = {
    "log": {"broker.net", "broker.client", "asyncio", "socket", "selectors", "kazoo"},
    "zookeeper": {"broker.log", "broker.mirror", "broker.net", "broker.client", "broker.records"},
    "net": {"broker.api", "broker.log", "broker.cluster", "broker.replica", "broker.zookeeper", "broker.client"},
    "client": {"broker.log", "broker.net", "asyncio", "kazoo"},
}

# The same within the connector.
CONNECTOR_ROWS: list[set[str]] = [
    {"cli"},
    {"watch"},
    {"load", "source"},
    {"maintenance", "history_and_tail"},
    {"destinations"},
    {"loads", "listener"},
    {"progress"},
    {"read", "write", "registry"},
    {"delegation"},
    {"options"},
    {"formats", "offset_store"},
    {
        *("errors", "outages", "worker_clients", "spark_versions", "entry_point", "first_contact", "stored_json"),
        *("broker_needs", "shipped", "pandas_later"),
    },
    {"spark_worker"},
]
# Within `loads`: the protocol knows no destination, and no destination knows another; spark_connector/destinations.py
# and spark_connector/load.py choose one.
LOADS_ROWS: list[set[str]] = [{"files", "delta", "iceberg", "database", "audit"}, {"protocol", "tasks"}]
LOADS_RANK = {layer: rank for rank, row in enumerate(LOADS_ROWS) for layer in row}

CONNECTOR_RANK = {layer: rank for rank, row in enumerate(CONNECTOR_ROWS) for layer in row}

UI_MAY_IMPORT = (
    *("broker.client", "broker.records", "broker.protocol", "broker.errors", "broker.tools", "broker.verdict"),
    *("broker.security.http_credentials", "broker.security.http_access"),
    *("spark_connector.formats", "spark_connector.errors", "spark_connector.loads", "spark_connector.maintenance"),
    *("spark_connector.cli.session", "spark_connector.cli.load_options", "broker.storage"),
)
CONNECTOR_MAY_IMPORT = (
    *("broker.client", "broker.records", "broker.protocol", "broker.errors", "broker.storage", "broker.verdict"),
    *("broker.control_characters", "broker.freed_memory", "broker.patterns", "broker.stored_names"),
    *("broker.security.token_source", "broker.security.oauthbearer"),  # tokens for schema registries
    # What readers of an archive need.
    *("broker.archive.layout", "broker.archive.manifest", "broker.archive.manifest_store", "broker.archive.aux_file"),
    "broker.archive.open_transactions",
    "broker.security.http_access",
)
# Its commands have the options of all others, and find Java for Spark as a broker does for ZooKeeper.
CONNECTOR_PART_MAY_IMPORT = {"spark_connector.cli": ("broker.tools", "broker.zookeeper.java")}

# The one place (or two) of each library that is hidden behind our own names.
ONLY_IN = {
    "kio": {"broker/errors.py", "broker/protocol/"},
    "deltalake": {
        "spark_connector/loads/delta/",
    },
    "pyiceberg": {"spark_connector/loads/iceberg/", "pykafka_demo/lake.py"},
    "sqlalchemy": {"spark_connector/loads/database/"},
    "python_socks": {"broker/client/tcp_connect.py"},
    "kazoo": {
        "broker/zookeeper/client.py",
        "broker/zookeeper/session_login.py",
        "spark_connector/offset_store/zookeeper.py",
    },
    "pyspark": {
        "pyspark_pykafka.py",
        "spark_connector/read/readers.py",
        "spark_connector/source.py",
        "spark_connector/read/schema.py",
        "spark_connector/read/spark_private.py",
        "spark_connector/history_and_tail/readers.py",
        "spark_connector/spark_versions.py",
        "spark_connector/shipped.py",
        "spark_connector/write/writers.py",
        "spark_connector/listener.py",
        "spark_connector/load.py",
        "spark_connector/watch.py",
        "spark_connector/loads/destination.py",
        "spark_connector/loads/orc_files.py",
        "spark_connector/loads/tasks/task_job.py",
        "spark_connector/maintenance.py",
        "spark_connector/cli/",
        "pykafka_demo/",
    },
    "typer": {"broker/tools/", "spark_connector/cli/", "pykafka_demo/", "pykafka_ui/command.py"},
    "prometheus_client": {
        "broker/web/app.py",
        "spark_connector/progress/prometheus.py",
        "pykafka_ui/app.py",
    },
    "starlette": {"broker/web/", "pykafka_ui/"},
    "fastapi": {"pykafka_ui/"},
    "jinja2": {"pykafka_ui/render.py"},
    "jsonpath_rfc9535": {"pykafka_ui/records/filters.py"},
    "re2": {"broker/patterns/re2.py"},
    "uvicorn": {"broker/web/", "pykafka_ui/serve.py"},
    "aws_msk_iam_sasl_signer": {"broker/security/token_providers/aws_msk.py"},
    "boto3": {"spark_connector/formats/glue_registry.py"},
    "botocore": {"broker/security/token_providers/aws_msk.py", "spark_connector/formats/glue_registry.py"},
    "azure": {"broker/security/token_providers/azure.py"},
    "google": {
        "broker/security/token_providers/google_cloud.py",
        "spark_connector/formats/protobuf_descriptors.py",
        "spark_connector/formats/protobuf_rows.py",
    },
    "jwt": {"broker/security/signed_tokens.py"},
    "rich": {"broker/tools/", "spark_connector/cli/", "pykafka_demo/", "spark_connector/progress/lag_bar.py"},
}

# A pure state machine gets time and events as arguments.
IMPURE = (
    "asyncio",
    "kazoo",
    "time",
    "datetime",
    "socket",
    "threading",
    "random",
    "broker.clock",
    "broker.zookeeper.client",
)

# A hint: 100 to 400 lines is usual. A class is never cut in two to fit; from here on a file needs a second look.
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def layer_of(module: str) -> str | None:
    """`broker.log.segment` → `log`; None for what lies outside broker or is `broker` itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "broker" and len(parts) > 1 else None


def part_of_loads(module: str) -> str:
    """`spark_connector.loads.delta.delta_log` → `delta`; `protocol` for a module of `loads` itself."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and (ROOT / "spark_connector" / "loads" / parts[2]).is_dir() else "protocol"


def place(module: Module, imported: Import) -> str:
    return f"{module.relative}:{imported.line} imports {imported.module}"


def may_import(layer: str, target: str) -> bool:
    return layer == target or RANK[target] > RANK[layer] or (layer in BASE and target in BASE)


def test_broker_packages_import_only_to_their_right() -> None:
    wrong = []
    for module in PRODUCT:
        layer = layer_of(module.name)
        if layer is None:
            continue
        assert layer in RANK, f"{module.relative}: layer {layer!r} has no row in tests/test_layers.py"
        for imported in module.imports:
            target = layer_of(imported.module)
            if target is not None and not (target in RANK and may_import(layer, target)):
                wrong.append(place(module, imported))
            if within(imported.module, *FORBIDDEN.get(layer, ())):
                wrong.append(place(module, imported))
    assert not wrong, "\n".join(wrong)


def test_zookeeper_takes_of_replica_only_the_types_of_the_metadata() -> None:
    wrong = [
        place(module, imported)
        for module in PRODUCT
        if within(module.name, "broker.zookeeper")
        for imported in module.imports
        if within(imported.module, "broker.replica") and not within(imported.module, "broker.replica.cluster_metadata")
    ]
    assert not wrong, "\n".join(wrong)


def test_connector_packages_import_only_downward() -> None:
    wrong = []
    for module in PRODUCT:
        package, _, rest = module.name.partition(".")
        if package != "spark_connector" or not rest:
            continue
        layer = rest.split(".")[0]
        assert layer in CONNECTOR_RANK, f"{module.relative}: {layer!r} has no row in tests/test_layers.py"
        for imported in module.imports:
            if within(imported.module, "pyspark_pykafka"):  # it is Spark's door, and stands above all
                wrong.append(place(module, imported))
            if not within(imported.module, "spark_connector") or imported.module == "spark_connector":
                continue
            target = imported.module.split(".")[1]
            if layer != target and CONNECTOR_RANK[target] <= CONNECTOR_RANK[layer] and target not in CONNECTOR_ROWS[-1]:
                wrong.append(place(module, imported))
    assert not wrong, "\n".join(wrong)


def test_destinations_of_loads_do_not_know_each_other() -> None:
    """`loads/` itself is the protocol: it never imports a destination or the audit, and these never each other."""
    wrong = []
    for module in PRODUCT:
        if not within(module.name, "spark_connector.loads"):
            continue
        layer = part_of_loads(module.name)
        assert layer in LOADS_RANK, f"{module.relative}: {layer!r} has no row in LOADS_ROWS"
        for imported in module.imports:
            if within(imported.module, "spark_connector.loads") and imported.module != "spark_connector.loads":
                target = part_of_loads(imported.module)
                if layer != target and target in LOADS_ROWS[0]:
                    wrong.append(place(module, imported))
    assert not wrong, "\n".join([*wrong, "put what two destinations need into loads/ itself, or into offset_store/"])


def test_no_two_files_of_loads_share_a_name() -> None:
    """A name in a traceback or a tab says which file it is."""
    homes: dict[str, list[str]] = {}
    for module in PRODUCT:
        parent, _, name = module.name.rpartition(".")
        in_loads = parent == "spark_connector" or within(parent, "spark_connector.loads", "spark_connector.cli")
        if in_loads and not module.is_package:
            homes.setdefault(name, []).append(module.relative)
    assert [files for files in homes.values() if len(files) > 1] == []


def test_broker_never_imports_the_connector() -> None:
    wrong = [
        place(module, imported)
        for module in PRODUCT
        if within(module.name, "broker")
        for imported in module.imports
        if within(imported.module, "spark_connector", "pyspark_pykafka", "tests", "bench")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["pykafka_demo", "pykafka_ui"])
def test_nothing_imports_the_demo_and_the_console_in_the_browser(package: str) -> None:
    """They are found by their entry points; the product stands without them."""
    wrong = [
        place(module, imported)
        for module in PRODUCT
        if not within(module.name, package)
        for imported in module.imports
        if within(imported.module, package)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_console_in_the_browser_is_a_client() -> None:
    """So it works on any Kafka."""
    wrong = [
        place(module, imported)
        for module in PRODUCT
        if within(module.name, "pykafka_ui")
        for imported in module.imports
        if within(imported.module, "broker", "spark_connector") and not within(imported.module, *UI_MAY_IMPORT)
    ]
    assert not wrong, "\n".join(wrong)


def test_connector_imports_only_the_client_side_of_the_broker() -> None:
    wrong = [
        place(module, imported)
        for module in PRODUCT
        if within(module.name, "spark_connector", "pyspark_pykafka")
        for imported in module.imports
        if within(imported.module, "broker", "tests", "bench")
        and not within(imported.module, *CONNECTOR_MAY_IMPORT)
        and not any(
            within(module.name, part) and within(imported.module, *more)
            for part, more in CONNECTOR_PART_MAY_IMPORT.items()
        )
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", sorted(ONLY_IN))
def test_library_is_imported_only_where_it_is_hidden(library: str) -> None:
    wrong = [
        place(module, imported)
        for module in PRODUCT
        for imported in module.imports
        if within(imported.module, library)
        and not any(module.relative == home or module.relative.startswith(home) for home in ONLY_IN[library])
    ]
    assert not wrong, "\n".join([*wrong, f"use the module that hides {library}, or add this file to ONLY_IN"])


def test_state_machines_are_pure() -> None:
    wrong = [
        place(module, imported)
        for module in PRODUCT
        if module.name.endswith("_state") or within(module.name, "broker.quotas")
        for imported in module.imports
        if within(imported.module, *IMPURE)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_is_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for module in EVERYTHING:
        targets = graph.setdefault(module.name, set())
        for imported in module.imports:
            if imported.type_checking:
                continue
            # `from a.b import c`: the module a.b.c if there is one, else a.b.
            owner = imported.module if imported.module in NAMES else imported.module.rpartition(".")[0]
            if owner in NAMES:
                targets.add(owner)
    assert cycles(graph) == []


def test_imports_stand_at_the_top() -> None:
    seen = {
        (module.relative, imported.module): place(module, imported)
        for module in PRODUCT
        for imported in module.imports
        if imported.in_function
    }
    unnamed = [where for key, where in seen.items() if key not in IMPORT_IN_FUNCTION]
    assert not unnamed, "\n".join([*unnamed, "import at the top, or say in IMPORT_IN_FUNCTION why not"])
    assert [key for key in IMPORT_IN_FUNCTION if key not in seen] == [], "no longer needed"


def test_every_module_opens_with_a_docstring() -> None:
    silent = [module.relative for module in EVERYTHING if not ast.get_docstring(module.tree)]
    assert silent == []


def test_package_init_files_hold_a_docstring_only() -> None:
    busy = [module.relative for module in PRODUCT if module.is_package and len(module.tree.body) != 1]
    assert busy == []


def test_no_file_is_longer_than_the_limit() -> None:
    long = [f"{module.relative}: {module.line_count} lines" for module in EVERYTHING]
    assert [entry for entry, module in zip(long, EVERYTHING, strict=True) if module.line_count > MAX_FILE_LINES] == []


def test_no_function_is_longer_than_the_limit() -> None:
    long = []
    for module in PRODUCT:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                # Without the signature, which in a console command is the table of its options.
                first = node.body[0].lineno
                lines = (node.end_lineno or first) - first + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{module.relative}:{node.lineno} {node.name} has {lines} lines")
    assert long == []


def test_an_executor_loads_no_server_and_no_kazoo() -> None:
    """What a Spark task imports to fetch and decode stays small: no log, no server, no ZooKeeper, no JVM gateway."""
    program = (
        "import sys, spark_connector.read.fetch, spark_connector.read.arrow_batches\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in "
        "{'kazoo', 'typer', 'py4j'} or '.'.join(name.split('.')[:2]) in "
        "{'broker.log', 'broker.net', 'broker.api', 'broker.zookeeper', 'broker.replica', 'broker.cluster', "
        "'broker.coordinator', 'broker.server'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_broker_loads_neither_numpy_nor_pyarrow_nor_a_file_system() -> None:
    """40 MB that all it serves does without, zstd left aside; stores are for brokers with archive.url.

    Nor the 2 MB of snappy and lz4, before a compressed batch comes.
    """
    program = (
        "import sys, broker.server; "
        "print(*sorted({'numpy', 'pyarrow', 'fsspec', 'hdfs_native', 'cramjam', 'snappy', 'broker.archive.manifest'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


class TestTheRuleItself:
    """The checker sees what it is meant to see."""

    def test_a_left_import_is_refused(self) -> None:
        assert not may_import("log", "cluster")
        assert not may_import("net", "client")
        assert may_import("tools", "client")
        assert may_import("config", "errors")

    def test_imports_are_found_in_functions_and_type_checking_blocks(self) -> None:
        module = Module("tests.sample", ROOT / "tests" / "sample.py")
        source = (
            "import a.b\n"
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from c import d\n"
            "def f():\n    import e\n"
        )
        object.__setattr__(module, "text", source)
        found = {(one.module, one.in_function, one.type_checking) for one in module.imports}
        assert found == {
            ("a.b", False, False),
            ("typing.TYPE_CHECKING", False, False),
            ("c.d", False, True),
            ("e", True, False),
        }

    def test_cycles_are_found(self) -> None:
        assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
        assert cycles({"a": {"b"}, "b": set()}) == []
