"""The event log as its writer leaves it on disk, whatever happens to the process or the disk."""

import asyncio
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairness import checkpoint
from fairness.codec import is_input
from fairness.events import (
    Emitted,
    Enqueued,
    Finished,
    Granted,
    Headed,
    ReplicaUp,
    Restarted,
    Ticked,
)
from fairness.journal import read_entries, read_header
from fairness.policy import FcfsPolicy, VtcPolicy
from fairness.replay import Replay
from fairness.types import PoolConfig, Prices, ReplicaCapacity, TenantTerms
from gateway import eventfiles, eventlog, eventsync
from gateway.auditing import audit_log
from gateway.eventfiles import (
    PART,
    EventLogError,
    begin,
    pool_directory,
    segment_path,
    segments,
)
from gateway.eventlog import EventLog
from gateway.settings import ConfigurationError
from tests.fairness.recorded import opened, sealed

POOL = "org/model"
TERMS = TenantTerms(1000, 2, 100, 100)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No test waits for a real disk or a real second."""
    monkeypatch.setattr(eventlog, "RETRY_S", 0.01)
    monkeypatch.setattr(eventlog, "SYNC_INTERVAL_S", 0.001)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


class Gateway:
    """One incarnation: a pool over its log, with a clock that ticks at every event."""

    def __init__(self, root, name="a", config=None, policy=None, **options):
        self.health = []
        self.log = EventLog.open(
            root,
            POOL,
            config or PoolConfig(),
            policy or VtcPolicy(),
            now=1000.0,
            wall=lambda: 1000.0,
            incarnation=name,
            on_health=self.health.append,
            **options,
        )
        self.now = self.log.last_now
        self.name = name
        self.flying = deque()
        self.numbers = itertools.count()

    def apply(self, make, *fields):
        self.now += 0.01
        event = make(self.now, *fields)
        effects = self.log.dispatcher.apply(event)
        self.log.append(event, effects)
        self.flying += [one.request for one in effects if isinstance(one, Granted)]

    def up(self):
        self.apply(ReplicaUp, "r", ReplicaCapacity(4, 4096))

    def ask(self):
        number = next(self.numbers)
        self.apply(Enqueued, f"{self.name}{number}", "fg"[number % 2], TERMS, 10, 20)

    def serve(self):
        request = self.flying.popleft()
        self.apply(Emitted, request, 5)
        self.apply(Finished, request, 5)

    async def work(self, rounds):
        for _ in range(rounds):
            self.ask()
            if len(self.flying) > 2:
                self.serve()
            await asyncio.sleep(0)

    def state(self):
        return json.loads(json.dumps(checkpoint.dump(self.log.dispatcher)))


async def settled(log):
    """Until everything appended is written and every rotation is over."""
    for _ in range(2000):
        await asyncio.sleep(0.002)
        if not log.backlog and log.healthy and not segments(log_directory(log), PART):
            return
    raise AssertionError(f"the log does not settle: {log.reason}, {log.backlog}")


def log_directory(log):
    return log._directory


def own(root):
    return pool_directory(root, POOL)


def counters(state):
    return {one["tenant"]: (one["raw"], one["service"]) for one in state["accounts"]}


def events_of(root):
    found = []
    for segment in segments(own(root)):
        lines = segment.lines()
        _, digest = read_header(next(lines))
        found += [entry.event for entry in read_entries(digest, lines)]
    return found


async def recorded(root, rounds=20, **options):
    """One incarnation's log; what the pool was when it was closed."""
    gateway = Gateway(root, **options)
    gateway.up()
    await gateway.work(rounds)
    state = gateway.state()
    gateway.log.close()
    return state


# --- an ordinary life ----------------------------------------------------------------------------


async def test_a_restart_keeps_counters_and_ends_what_was_in_flight(tmp_path):
    before = await recorded(tmp_path)
    again = Gateway(tmp_path, "b")
    after = again.state()
    assert again.log.epoch == 2
    assert again.log.last_now >= before["now"]
    assert after["tickets"] == after["replicas"] == []
    unstarted = {}
    for ticket in before["tickets"]:
        if not ticket["output_tokens"]:
            refund = ticket["charged"] or 0
            unstarted[ticket["tenant"]] = unstarted.get(ticket["tenant"], 0) + refund
    for tenant, (raw, service) in counters(before).items():
        refund = unstarted.get(tenant, 0)
        assert counters(after)[tenant] == (raw - 1000 * refund, service - refund)
    again.up()
    await again.work(5)
    again.log.close()
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert (report.segments, report.incarnations) == ([1, 2], 2)


async def test_every_event_is_written_by_the_end_of_its_turn(tmp_path):
    gateway = Gateway(tmp_path)
    gateway.up()
    gateway.ask()
    assert gateway.log.backlog == 4  # up, enqueued, headed, granted
    await asyncio.sleep(0)
    assert gateway.log.backlog == 0
    assert isinstance(events_of(tmp_path)[-1], Granted)
    size = sum(segment.size for segment in segments(own(tmp_path)))
    assert gateway.log.bytes_written == size
    gateway.log.close()


async def test_files_are_for_their_owner_only(tmp_path):
    await recorded(tmp_path / "logs")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "logs").rglob("*")]
    assert sorted(modes) == [0o600, 0o700]


async def test_segments_rotate_and_the_oldest_go(tmp_path):
    gateway = Gateway(tmp_path, segment_bytes=5000, keep_bytes=30_000)
    gateway.up()
    for _ in range(40):
        await gateway.work(8)
        await settled(gateway.log)
    gateway.log.close()
    known = segments(own(tmp_path))
    assert known[0].number > 1
    assert [one.number for one in known] == list(range(known[0].number, known[-1].number + 1))
    assert 20_000 < sum(one.size for one in known) <= 30_000
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert report.last_sequence > 3 * report.events
    again = Gateway(tmp_path, "b")
    assert again.log.epoch == 2
    again.log.close()


async def test_a_checkpoint_larger_than_a_segment_is_not_written_at_every_turn(tmp_path):
    gateway = Gateway(tmp_path, segment_bytes=5000)
    gateway.up()
    for number in range(50):
        gateway.apply(Enqueued, f"held{number}", f"tenant{number}", TERMS, 10, 20)
    await settled(gateway.log)
    for _ in range(40):
        await gateway.work(1)
        await settled(gateway.log)
    gateway.log.close()
    known = segments(own(tmp_path))
    headers = sum(len(next(one.lines())) for one in known[1:])
    assert headers > 5000 * (len(known) - 1) > 0
    events = sum(one.size for one in known) - headers
    assert len(known) <= 1 + events / 5000
    assert audit_log(own(tmp_path)).breaches == []


async def test_after_an_orderly_end_there_is_nothing_to_replay(tmp_path, monkeypatch):
    """So other rules than those of the program that wrote the log can go on from it."""
    gateway = Gateway(tmp_path)
    gateway.up()
    await gateway.work(20)
    before = gateway.state()
    gateway.ask()
    gateway.log.rest()
    gateway.log.close()
    asked = gateway.state()

    def other_rules(_replay, event):
        raise AssertionError(f"{event} is replayed")

    with monkeypatch.context() as patched:
        patched.setattr(Replay, "take", other_rules)
        again = Gateway(tmp_path, "b")
    again.log.close()
    assert asked["arrivals"] == before["arrivals"] + 1
    assert again.state()["arrivals"] == asked["arrivals"]
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert report.segments == [1, 2, 3]


async def test_a_full_disk_at_the_end_only_costs_the_checkpoint(tmp_path, monkeypatch, caplog):
    gateway = Gateway(tmp_path)
    gateway.up()
    await gateway.work(5)

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(eventlog, "begin", full)
        gateway.log.rest()
    gateway.log.close()
    assert "does not end with a checkpoint: No space left" in caplog.text
    Gateway(tmp_path, "b").log.close()
    assert audit_log(own(tmp_path)).breaches == []


async def test_settings_may_change_from_one_start_to_the_next(tmp_path):
    before = await recorded(tmp_path)
    dear = PoolConfig(prices=Prices(5000, 500, 9000), ttl_s=7.0)
    gateway = Gateway(tmp_path, "b", config=dear, policy=FcfsPolicy())
    assert counters(gateway.state()).keys() == counters(before).keys()
    gateway.up()
    await gateway.work(10)
    gateway.log.close()
    back = Gateway(tmp_path, "c")
    back.log.close()
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert report.segments == [1, 2, 3]


async def test_a_second_gateway_is_refused(tmp_path):
    first = Gateway(tmp_path)
    with pytest.raises(ConfigurationError, match="open in another gateway"):
        Gateway(tmp_path)
    first.log.close()
    second = Gateway(tmp_path)
    assert second.log.epoch == 2
    second.log.close()


@given(st.lists(st.text(min_size=1, max_size=20), min_size=2, max_size=2, unique=True))
def test_every_pool_has_a_directory_of_its_own(names):
    root = Path("logs")
    try:
        one, other = (pool_directory(root, name) for name in names)
    except (EventLogError, UnicodeEncodeError):
        return
    assert one != other
    assert one.parent == other.parent == root
    assert not one.name.startswith(".")


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 100])
def test_a_name_that_makes_no_directory_is_refused(name):
    with pytest.raises(EventLogError, match="cannot name a directory"):
        pool_directory(Path("logs"), name)


# --- killed ------------------------------------------------------------------------------------


async def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path, caplog):
    """Whatever of the last input and its effects was written: the pool is that of whole inputs."""
    gateway = Gateway(tmp_path / "whole")
    gateway.up()
    await gateway.work(3)
    gateway.ask()
    gateway.log.close()
    content = segment_path(own(tmp_path / "whole"), 1).read_bytes()
    ends = list(itertools.accumulate(len(line) for line in content.splitlines(keepends=True)))
    before, after = ends[-4], ends[-3]
    assert [type(event) for event in events_of(tmp_path / "whole")[-3:]] == [
        *(Enqueued, Headed, Granted)
    ]
    states = {False: [], True: []}
    for cut in range(before, ends[-1] + 1):
        root = tmp_path / "torn"
        own(root).mkdir(parents=True)
        segment_path(own(root), 1).write_bytes(content[:cut])
        caplog.clear()
        again = Gateway(root, "b")
        again.log.close()
        assert ("half a line" in caplog.text) == (cut not in ends)
        states[cut >= after].append(again.state()["accounts"])
        if cut % 10 == 0 or cut in ends:
            assert audit_log(own(root)).breaches == []
        shutil.rmtree(root)
    for same in states.values():
        assert all(one == same[0] for one in same)
    assert states[False] != states[True]


async def rotated(root):
    """A log of two segments, as it is when its last segment was only begun."""
    gateway = Gateway(root, segment_bytes=6000)
    gateway.up()
    while len(segments(own(root))) < 2:
        await gateway.work(1)
        await settled(gateway.log)
    await gateway.work(3)
    gateway.log.close()
    segment_path(own(root), 2).rename(segment_path(own(root), 2, PART))
    return gateway.state()


async def test_killed_while_a_segment_is_begun(tmp_path):
    state = await rotated(tmp_path)
    begun = audit_log(own(tmp_path))
    assert begun.breaches == []
    assert begun.segments == [1, 2]
    gateway = Gateway(tmp_path, "b")
    last = checkpoint.load(PoolConfig(), VtcPolicy(), state)
    last.apply(Restarted(gateway.log.last_now, 2))
    assert counters(gateway.state()) == counters(checkpoint.dump(last))
    gateway.log.close()
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert report.segments == [1, 2, 3]


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
async def test_power_lost_while_a_segment_is_begun(tmp_path, kept, caplog):
    """Its header is not on disk whole: what was before it is."""
    await rotated(tmp_path)
    part = segment_path(own(tmp_path), 2, PART)
    header = part.read_bytes().splitlines(keepends=True)[0]
    part.write_bytes(header[:kept])
    gateway = Gateway(tmp_path, "b")
    gateway.log.close()
    assert "never on disk whole" in caplog.text
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert report.segments == [1, 2]
    assert not part.exists()


async def test_power_lost_before_the_full_segment_was_on_disk(tmp_path, caplog):
    await rotated(tmp_path)
    full = segment_path(own(tmp_path), 1)
    full.write_bytes(full.read_bytes()[:-300])
    gateway = Gateway(tmp_path, "b")
    gateway.log.close()
    assert "never on disk whole" in caplog.text
    assert audit_log(own(tmp_path)).breaches == []


async def test_killed_after_the_end_of_an_incarnation_was_noted(tmp_path):
    """The last process had noted the end of the one before, and begun no segment of its own."""
    await recorded(tmp_path)
    Gateway(tmp_path, "b").log.close()
    segment_path(own(tmp_path), 2).unlink()
    gateway = Gateway(tmp_path, "c")
    assert gateway.log.epoch == 3
    gateway.log.close()
    assert [e.epoch for e in events_of(tmp_path) if isinstance(e, Restarted)] == [2, 3]
    assert audit_log(own(tmp_path)).breaches == []


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.gateway.test_eventlog import Gateway

async def main():
    gateway = Gateway(Path(sys.argv[1]), sys.argv[2], segment_bytes=20_000)
    gateway.up()
    while True:
        await gateway.work(1)
        await asyncio.sleep(0)
        assert not gateway.log.backlog
        print(gateway.log._sealer.sequence - 1, flush=True)

asyncio.run(main())
"""


def test_killed_again_and_again(tmp_path):
    """What a process had told anybody of is in the log after SIGKILL, and the audit passes."""
    for attempt in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), f"child{attempt}."],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        told = 0
        for line in itertools.islice(child.stdout, 150 + 77 * attempt):
            told = int(line)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines()
        child.wait()
        child.stdout.close()
        told = max([told, *(int(line) for line in rest[:-1])])
        report = audit_log(own(tmp_path))
        assert report.breaches == []
        assert report.last_sequence >= told
        assert report.incarnations == attempt + 1


# --- a disk that refuses -------------------------------------------------------------------------


class Disk:
    """Writes `room` bytes more, the last call perhaps in part, then fails."""

    def __init__(self, monkeypatch, error=errno.ENOSPC):
        self.room = 1 << 40
        self.error = error
        self._write = os.write
        monkeypatch.setattr(eventfiles.os, "write", self.write)

    def write(self, descriptor, data):
        if not self.room:
            raise OSError(self.error, os.strerror(self.error))
        written = self._write(descriptor, data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 150, 700])
async def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, room):
    disk = Disk(monkeypatch)
    gateway = Gateway(tmp_path)
    gateway.up()
    await gateway.work(5)
    disk.room = room
    await gateway.work(20)
    assert not gateway.log.healthy
    assert "No space left" in gateway.log.reason
    assert gateway.health == [gateway.log.reason]
    backlog = gateway.log.backlog
    assert backlog > 20
    await asyncio.sleep(0.03)
    assert gateway.log.backlog == backlog
    disk.room = 1 << 40
    await settled(gateway.log)
    assert gateway.health[1:] == [None]
    await gateway.work(5)
    written = gateway.log._sealer.sequence - 1
    gateway.log.close()
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert report.last_sequence == report.events == written


async def test_a_write_that_fails_halfway_is_cut_off_before_the_next(tmp_path, monkeypatch):
    """An error may leave bytes that nobody counted."""
    gateway = Gateway(tmp_path)
    gateway.up()
    await gateway.work(3)
    real = os.write

    def half(descriptor, data):
        real(descriptor, data[:40])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(eventfiles.os, "write", half)
        await gateway.work(3)
        await asyncio.sleep(0.05)
        assert "Input/output error" in gateway.log.reason
    await settled(gateway.log)
    gateway.log.close()
    assert audit_log(own(tmp_path)).breaches == []


async def test_a_disk_too_full_to_begin_a_segment_goes_on_in_the_old_one(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    gateway = Gateway(tmp_path, segment_bytes=3000)
    gateway.up()
    begun = eventlog.begin
    monkeypatch.setattr(eventlog, "begin", lambda path, first: refuse(disk, begun, path, first))
    disk.refusing = True
    await gateway.work(60)
    await asyncio.sleep(0.05)
    assert not gateway.log.healthy
    assert not segments(own(tmp_path), PART)
    disk.refusing = False
    await settled(gateway.log)
    await gateway.work(5)
    await settled(gateway.log)
    gateway.log.close()
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert len(report.segments) > 1


def refuse(disk, begun, path, first):
    """Begin a segment on a disk that has room for half of its header."""
    room = disk.room
    disk.room = len(first) // 2 if disk.refusing else room
    try:
        return begun(path, first)
    finally:
        disk.room = room


async def test_after_a_failed_sync_a_new_segment_is_begun(tmp_path, monkeypatch):
    broken = True

    def sync(_descriptor):
        if broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    gateway = Gateway(tmp_path)
    monkeypatch.setattr(eventsync, "monotonic", lambda: 1.0)
    monkeypatch.setattr(eventsync.os, "fsync", sync)
    gateway.up()
    for _ in range(200):
        await gateway.work(1)
        await asyncio.sleep(0.002)
        if not gateway.log.healthy:
            break
    assert "not synced" in gateway.log.reason
    assert len(segments(own(tmp_path))) == 1
    broken = False
    await settled(gateway.log)
    await gateway.work(1)
    await settled(gateway.log)
    assert len(segments(own(tmp_path))) == 2
    assert [reason is None for reason in gateway.health] == [False, True]
    gateway.log.close()
    assert audit_log(own(tmp_path)).breaches == []


async def test_closing_on_a_full_disk_says_what_is_lost(tmp_path, monkeypatch, caplog):
    disk = Disk(monkeypatch)
    gateway = Gateway(tmp_path)
    disk.room = 0
    gateway.up()
    gateway.log.close()
    assert "1 events are lost: No space left on device" in caplog.text
    disk.room = 1 << 40
    Gateway(tmp_path, "b").log.close()


LIMITED = """
import asyncio, resource, signal, sys
from pathlib import Path
from gateway import eventlog
from tests.gateway.test_eventlog import Gateway, settled

async def main():
    eventlog.RETRY_S = 0.05
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    gateway = Gateway(Path(sys.argv[1]), "limited.")
    gateway.up()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, most))
    await gateway.work(100)
    await asyncio.sleep(0.1)
    assert not gateway.log.healthy, gateway.log.bytes_written
    print(gateway.log.reason, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    await settled(gateway.log)
    gateway.log.close()

asyncio.run(main())
"""


def test_a_real_limit_of_the_file_size(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    report = audit_log(own(tmp_path))
    assert report.breaches == []
    assert report.events > 200


# --- damage ------------------------------------------------------------------------------------


def assert_refused(root, *words):
    """The gateway does not start, says where the damage is, and leaves the log as it was."""
    before = {one.path: one.path.read_bytes() for one in segments(own(root))}
    with pytest.raises(EventLogError) as refused:
        Gateway(root, "b")
    for word in (str(own(root)), "move", "away", *words):
        assert word in str(refused.value)
    assert {one.path: one.path.read_bytes() for one in segments(own(root))} == before


async def test_a_changed_line_is_refused_by_name(tmp_path):
    await recorded(tmp_path)
    path = segment_path(own(tmp_path), 1)
    lines = path.read_bytes().splitlines(keepends=True)
    index = next(i for i, line in enumerate(lines) if b'"Granted"' in line)
    lines[index] = lines[index].replace(b'"turn"', b'"pass"')
    path.write_bytes(b"".join(lines))
    assert_refused(tmp_path, f"00000001.log, line {index + 1}: Granted", "digest")


async def test_a_missing_line_is_refused_by_name(tmp_path):
    await recorded(tmp_path)
    path = segment_path(own(tmp_path), 1)
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[5]
    path.write_bytes(b"".join(lines))
    assert_refused(tmp_path, "line 6", "number")


@pytest.mark.parametrize("at", ["header", "middle", "last"])
async def test_a_line_of_junk_is_refused_wherever_it_is(tmp_path, at):
    await recorded(tmp_path)
    path = segment_path(own(tmp_path), 1)
    lines = path.read_bytes().splitlines(keepends=True)
    index = {"header": 0, "middle": 9, "last": len(lines) - 1}[at]
    lines[index] = b"junk\n"
    path.write_bytes(b"".join(lines))
    assert_refused(tmp_path, f"line {index + 1}: no JSON")


async def test_a_last_segment_without_a_header_is_refused(tmp_path):
    await recorded(tmp_path)
    segment_path(own(tmp_path), 1).write_bytes(b"")
    assert_refused(tmp_path, "line 1")


async def test_an_effect_that_does_not_follow_is_refused_by_name(tmp_path):
    """It was sealed again, so its digests are right."""
    await recorded(tmp_path)
    path = segment_path(own(tmp_path), 1)
    contents = opened([path.read_bytes().splitlines(keepends=True)])
    events = contents[0][1]
    index = next(i for i, event in enumerate(events) if isinstance(event, Granted))
    events[index] = replace(events[index], charge_milli=1)
    path.write_bytes(b"".join(sealed(contents)[0]))
    assert_refused(tmp_path, f"line {index + 2}: Granted", "another effect")


async def test_a_missing_effect_is_refused(tmp_path):
    await recorded(tmp_path)
    path = segment_path(own(tmp_path), 1)
    contents = opened([path.read_bytes().splitlines(keepends=True)])
    events = contents[0][1]
    index = next(i for i, event in enumerate(events) if isinstance(event, Granted))
    following = next(i for i in range(index, len(events)) if is_input(events[i]))
    del events[index]
    path.write_bytes(b"".join(sealed(contents)[0]))
    assert_refused(tmp_path, f"line {following + 1}", "missing: Granted")


async def test_the_log_of_another_pool_is_refused(tmp_path):
    await recorded(tmp_path)
    own(tmp_path).rename(pool_directory(tmp_path, "other"))
    with pytest.raises(EventLogError, match="is the log of the pool 'org/model'"):
        EventLog.open(
            tmp_path,
            "other",
            PoolConfig(),
            VtcPolicy(),
            now=0.0,
            wall=lambda: 0.0,
            incarnation="x",
        )


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EventLogError, match="Not a directory"):
        Gateway(tmp_path / "file")


def test_a_file_that_could_not_be_begun_is_not_left(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.room = 3
    with pytest.raises(OSError, match="No space"):
        begin(tmp_path / "x", b"12345")
    assert not (tmp_path / "x").exists()


async def test_nothing_is_written_once_it_is_closed(tmp_path):
    gateway = Gateway(tmp_path, segment_bytes=100)
    gateway.up()
    gateway.log.close()
    with pytest.raises(ValueError, match="closed"):
        gateway.ask()
    await asyncio.sleep(0.01)
    assert [segment.number for segment in segments(own(tmp_path))] == [1]
    assert len(events_of(tmp_path)) == 1


async def test_ticks_alone_make_a_log_too(tmp_path):
    gateway = Gateway(tmp_path)
    gateway.apply(Ticked)
    await asyncio.sleep(0)
    gateway.log.close()
    assert [type(event) for event in events_of(tmp_path)] == [Ticked]
