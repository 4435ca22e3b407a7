"""What `pykafka doctor --master` says of what the executors' hosts have told (cli/host_probe.py): findings, each of
which names its host. Pure.

A time is compared by its bounds: a task ran between the sending of its job and the answer, so a host's clock that lies
outside is wrong by at least as much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.tools.checkup import PACKAGE, Finding, State
from broker.tools.output import counted
from spark_connector.loads.shared_path import SHARED

SKEW_S = 1.0
LARGE_SKEW_S = 60.0
_PACK = "pykafka pack makes what executors need; ways to bring it there: docs/how-to/executors.md"
_SAME_PYTHON = "export PYSPARK_PYTHON to an interpreter that all hosts have; pykafka pack makes one that goes with jobs"
_EXCEPTION = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception): .+)$", re.MULTILINE)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)".*?(?:error=\d+, ([^\n]+))?$', re.MULTILINE)


@dataclass
class HostSeen:
    """One host. `told`: what its first task has found; `skew_s`: (least, most) by which its clock is ahead."""

    name: str
    told: Mapping[str, Any] = field(default_factory=dict)
    skew_s: tuple[float, float] = (float("-inf"), float("inf"))

    def timed(self, began: float, ended: float, sent: float, received: float) -> None:
        """A task ran there from `began` to `ended`, by its clock, within a job from `sent` to `received` by ours."""
        least, most = self.skew_s
        self.skew_s = (max(least, ended - received), min(most, began - sent))


def findings_of(host: HostSeen, here: Mapping[str, Any], to: str, seen_here: Iterable[str]) -> Iterator[Finding]:
    """`here`: what the driver's own look has told; `to`: the destination in words; `seen_here`: the probe files that
    the driver sees there."""
    yield _python(host, here["package"]["version"])
    yield _libraries(host, here["libraries"])
    yield _brokers(host)
    if host.told["place"] is not None:
        yield _destination(host, to, set(seen_here))
    yield _clock(host, here["host"])


def failed_host(name: str, reason: str) -> Finding:
    """A host on which no task could run, for what Spark says."""
    program = _NO_PROGRAM.search(reason)
    if program:
        says = f"Spark cannot start {program[1]} there: {program[2] or 'it is not there'}"
        return Finding("executor", "error", f"{name}: {says}", _SAME_PYTHON)
    if "PYTHON_VERSION_MISMATCH" in reason:
        sentence = reason.partition("PYTHON_VERSION_MISMATCH]")[2].partition("\n")[0].strip()
        return Finding("executor", "error", f"{name}: {sentence or 'another Python than the driver has'}", _SAME_PYTHON)
    sentences = _EXCEPTION.findall(reason)
    says = sentences[0] if sentences else reason.strip().partition("\n")[0] or "Spark does not say why"
    return Finding("executor", "error", f"{name}: a Python task fails there: {says}", _PACK)


def _python(host: HostSeen, ours: str) -> Finding:
    """`ours`: the driver's version of pykafka."""
    package, python = host.told["package"], f"{host.told['executable']} (Python {host.told['python']})"
    version = package["version"]
    if package["lacks"] is not None:
        says = f"pykafka {version} cannot be imported by" if version else f"no pykafka {ours} for"
        return Finding("executor", "error", f"{host.name}: {says} {python}: {package['lacks']}", _PACK)
    says = f"{host.name}: {python} has pykafka {version or 'in an unknown version'}"
    if version is None:
        says += f" in {package['where']}, and the driver {ours}"
        return Finding("executor", "unknown", says, f"bring it there with its metadata ({PACKAGE}-….dist-info)")
    if version != ours:
        return Finding("executor", "error", f"{says}, and the driver {ours}", f"the same version on both: {_PACK}")
    if not package["kernel"]:
        mend = "pykafka pack on a machine with the system and processor of the hosts, or install it there with gcc"
        return Finding("executor", "warning", f"{says}, without the kernel in C: slow", mend)
    return Finding("executor", "ok", f"{says} and the kernel in C")


def _libraries(host: HostSeen, here: Mapping[str, str | None]) -> Finding:
    """Compared with those that the driver has."""
    there = host.told["libraries"]
    wanted = {name: version for name, version in here.items() if version is not None}
    missing = [name for name in wanted if there.get(name) is None]
    others = [f"{name} {there[name]} (the driver: {wanted[name]})" for name in wanted if _differs(there, wanted, name)]
    if not missing and not others:
        return Finding("libraries", "ok", f"{host.name}: {', '.join(wanted) or 'none'}, as on the driver")
    parts = [f"lacks {', '.join(missing)}, which the driver has"] if missing else []
    parts += [f"has {', '.join(others)}"] if others else []
    mend = "one environment for all hosts; needed there is what the formats and stores of your jobs use"
    return Finding("libraries", "warning", f"{host.name}: {'; '.join(parts)}", mend)


def _differs(there: Mapping[str, Any], wanted: Mapping[str, str], name: str) -> bool:
    return there.get(name) not in (None, wanted[name])


def _brokers(host: HostSeen) -> Finding:
    told: Mapping[str, Mapping[str, Any]] = host.told["brokers"]
    if not told:
        return Finding("brokers", "unknown", f"{host.name}: not tried", "name a broker: --bootstrap-server HOST:PORT")
    errors = [f"{name}: {one['error']}" for name, one in told.items() if "error" in one]
    unknown = [f"{name}: {one['unknown']}" for name, one in told.items() if "unknown" in one]
    if errors:
        mend = "have advertised.listeners name an address that executors reach, and the network let them"
        return Finding("brokers", "error", f"{host.name}: {'; '.join(errors)}", mend)
    if unknown:
        return Finding("brokers", "unknown", f"{host.name}: {'; '.join(unknown)}", _PACK)
    slowest = max(one["ms"] for one in told.values())
    answer = "answers" if len(told) == 1 else "answer"
    says = f"{counted(len(told), 'broker')} {answer} by the advertised name, within {max(1, round(slowest)):,} ms"
    return Finding("brokers", "ok", f"{host.name}: {says}")


def _destination(host: HostSeen, to: str, seen_here: set[str]) -> Finding:
    told: Mapping[str, Any] = host.told["place"]
    if "unknown" in told:
        return Finding("destination", "unknown", f"{host.name}: {to}: {told['unknown']}", _PACK)
    if "error" in told:
        mend = "give the user of the executors this right, or the library or --storage-option that the message names"
        return Finding("destination", "error", f"{host.name}: {to}: {told['error']}", mend)
    if not told["is_shared"]:
        says = f"{host.name}: {to} is another place there: the driver's file is not in it"
        return Finding("destination", "error", says, SHARED)
    if told["left"] not in seen_here:
        says = f"{host.name}: {to}: the driver does not see its file {told['left']}, which stays there"
        return Finding("destination", "error", says, SHARED)
    return Finding("destination", "ok", f"{host.name}: reads, writes and deletes in {to}, which the driver shares")


def _clock(host: HostSeen, drivers_host: str) -> Finding:
    if host.told["host"] == drivers_host:
        return Finding("clock", "ok", f"{host.name}: its clock is the driver's")
    least, most = host.skew_s
    skew = max(least, 0.0) + min(most, 0.0)
    within = max(abs(least), abs(most))
    if abs(skew) >= SKEW_S:
        side = "ahead of" if skew > 0 else "behind"
        says = f"{host.name}: its clock is at least {abs(skew):,.1f} s {side} the driver's"
        state: State = "error" if abs(skew) >= LARGE_SKEW_S else "warning"
        return Finding("clock", state, says, f"timedatectl set-ntp true, on {host.name} and here")
    if within > SKEW_S:
        return Finding(
            "clock", "unknown", f"{host.name}: its answers took {within:,.1f} s, too long to compare the clocks"
        )
    return Finding("clock", "ok", f"{host.name}: its clock agrees with the driver's within {within:,.2f} s")
