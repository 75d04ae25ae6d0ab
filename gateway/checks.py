"""What `evenhand doctor` finds out about a deployment: checks take values and return findings.

A check never raises for what it checks. It changes nothing, but for a file that it makes in the
data directory and removes at once.
"""

import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from gateway.engines.http import HttpEngine
from gateway.engines.port import EngineError, EngineRefused
from gateway.settings import Settings
from migrations.runner import check_async
from tenancy.datadir import DataDir
from tenancy.db import make_engine, parse_url
from tenancy.errors import DatabaseUrlError, DataDirError, KeyringError, TenancyError
from tenancy.keyring import NAMES, Keyring

GB: Final = 10**9
LOW_SPACE: Final = 1 * GB
"""Below this a pulled model or a day of usage may not fit any more."""
NO_SPACE: Final = GB // 10
MAX_CLOCK_RATE: Final = 0.05
"""How much faster or slower than the monotonic clock the wall clock may run."""
CLOCK_WATCH_S: Final = 0.2
SKEW_WARNED_S: Final = 1.0
MAX_SKEW_S: Final = 5.0
"""Keys expire and usage is booked by our clock, days are cut by the database's."""
PROBE_TIMEOUT_S: Final = 5.0


class Status(StrEnum):
    """How bad it is. Only what failed makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and in words what was seen or what to do."""

    check: str
    status: Status
    says: str


def ok(check: str, says: str) -> Finding:
    """All is well."""
    return Finding(check, Status.OK, says)


def warning(check: str, says: str) -> Finding:
    """It works, but not as it could, or not for long."""
    return Finding(check, Status.WARNING, says)


def failed(check: str, says: str) -> Finding:
    """It will not work."""
    return Finding(check, Status.FAILED, says)


# --- the data directory ---------------------------------------------------------------------------


def data_directory(root: Path) -> Finding:
    """Whether it is there, ours alone, writable, and has space left."""
    name = "data directory"
    if _missing(root):
        return warning(name, f"{root} is not there yet; `evenhand serve` makes it")
    try:
        mode = stat.S_IMODE(root.stat().st_mode)
        place = DataDir(root)
        _ = place.engine_socket, place.gateway_socket
        with tempfile.TemporaryFile(dir=root):
            pass
        free = shutil.disk_usage(root).free
    except DataDirError as error:
        return failed(name, str(error))
    except OSError as error:
        return failed(name, f"{root} cannot be written: {error.strerror}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return failed(name, f"{root}: mode is {mode:04o}: others may write there (chmod 0700)")
    return _with_space(name, root, free)


def _missing(path: Path) -> bool:
    """Whether it is not there; what may not be looked at is no such thing."""
    try:
        return not path.exists()
    except OSError:
        return False


def _with_space(name: str, root: Path, free: int) -> Finding:
    says = f"{root}, {free / GB:.1f} GB free"
    if free < NO_SPACE:
        return failed(name, f"{says}: the database is about to be refused its writes")
    if free < LOW_SPACE:
        return warning(name, f"{says}: too little for another model")
    return ok(name, says)


def keyring(path: Path, *, is_new: bool) -> Finding:
    """Whether it can be used; where nothing else is there yet (`is_new`), one will be made."""
    if is_new and _missing(path):
        return warning("keyring", f"{path} is not there yet; `evenhand migrate` makes it")
    try:
        found = Keyring.load(path)
    except KeyringError as error:
        return failed("keyring", str(error))
    return ok("keyring", f"{path}: {len(NAMES)} keys, epoch {found.epoch}, ours alone to read")


# --- the database ---------------------------------------------------------------------------------


async def database(url: str) -> list[Finding]:
    """Whether it answers, is at this program's schema, and agrees about the time."""
    try:
        target = parse_url(url)
        began = time.perf_counter()
        state = await check_async(url)
        took_ms = 1000 * (time.perf_counter() - began)
    except DatabaseUrlError as error:
        return [failed("database", str(error))]
    except TenancyError as error:
        return [failed("database", str(error)), failed("migrations", "unknown: no database")]
    kind = target.get_backend_name()
    if state.current is None:
        return [
            ok("database", f"{kind}, nothing in it yet"),
            warning("migrations", f"none yet; `evenhand migrate` takes it to {state.head}"),
        ]
    found = [ok("database", f"{kind}, answered in {took_ms:.0f} ms")]
    if state.is_current:
        found.append(ok("migrations", f"at {state.head}, as this program wants"))
    else:
        wanted = f"the schema is at {state.current}, this program's at {state.head}"
        found.append(failed("migrations", f"{wanted}: run `evenhand migrate`"))
    if kind == "postgresql":
        found.append(clock_skew(*await _database_time(url)))
    return found


async def _database_time(url: str) -> tuple[datetime, datetime]:
    """Its clock, and ours half-way through asking."""
    from sqlalchemy import text

    engine = make_engine(parse_url(url))
    try:
        async with engine.connect() as connection:
            before = datetime.now(UTC)
            theirs = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
            after = datetime.now(UTC)
    finally:
        await engine.dispose()
    return theirs, before + (after - before) / 2


def clock_skew(theirs: datetime, ours: datetime) -> Finding:
    """How far the database's clock is from this machine's."""
    skew_s = (theirs - ours).total_seconds()
    says = f"the database is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} us"
    if abs(skew_s) > MAX_SKEW_S:
        return failed("database clock", f"{says}: synchronise both (NTP)")
    if abs(skew_s) > SKEW_WARNED_S:
        return warning("database clock", says)
    return ok("database clock", says)


def is_new(found: Iterable[Finding]) -> bool:
    """Whether a reachable database holds no deployment yet."""
    return any(one.check == "migrations" and one.status is Status.WARNING for one in found)


# --- the clock ------------------------------------------------------------------------------------


def clock(newest: Sequence[Path]) -> Finding:
    """Whether the wall clock runs as the monotonic one does, and not before files of ours."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_WATCH_S)
    wall_s, steady_s = time.time() - wall, time.monotonic() - steady
    written = max(map(_last_written, newest), default=0.0)
    return clock_finding(wall_s, steady_s, now=time.time(), newest_file=written)


def _last_written(path: Path) -> float:
    """Seconds since 1970; 0 of what is not there or may not be looked at."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def clock_finding(wall_s: float, steady_s: float, *, now: float, newest_file: float) -> Finding:
    """The same from values: seconds that passed by both clocks, and seconds since 1970."""
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    if abs(wall_s - steady_s) > MAX_CLOCK_RATE * steady_s:
        return failed("clock", f"{at}; it went {wall_s:.2f} s in {steady_s:.2f} s: it is being set")
    if newest_file > now + SKEW_WARNED_S:
        behind = newest_file - now
        return failed("clock", f"{at}; files of ours were written {behind:.0f} s later than that")
    return ok("clock", f"{at}, running evenly")


# --- engines --------------------------------------------------------------------------------------


async def engines(settings: Settings) -> list[Finding]:
    """Whether each engine that is named, and the local one, answers."""
    named = settings.gateway.engines
    found = [await engine(address) for address in named]
    local = DataDir(settings.data_dir).root / "engine.sock"
    if not _missing(local) and str(local) not in named:
        found.append(await engine(str(local)))
    return found or [ok("engines", "none named; `evenhand serve` starts its own")]


async def engine(address: str) -> Finding:
    """Whether the engine at a unix socket or URL answers and can work."""
    name = f"engine {address}"
    client = HttpEngine(address, read_timeout_s=PROBE_TIMEOUT_S)
    try:
        await client.health()
        capacity = await client.capacity()
    except EngineRefused as error:
        return failed(name, f"answers {error.status}: {error.message}")
    except EngineError as error:
        return failed(name, f"{error}")
    finally:
        await client.close()
    slots, tokens = capacity.replica.slots, capacity.replica.kv_tokens
    return ok(name, f"{capacity.model}: {slots} slots, {tokens} tokens of KV memory")
