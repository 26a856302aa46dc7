"""Folders of steps: one writer, many readers, and kills at any moment."""

from __future__ import annotations

import errno
import io
import itertools
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl.dataset import Episode, FIFOBuffer, InfiniteBuffer, PrioritizedSampler, ReplayBuffer, Signature, folders
from birl.dataset import journal as journals
from birl.dataset.arrays import FolderPlace, MemoryPlace, TorchPlace
from birl.dataset.lane_views import LaneView
from birl.dataset.storage import Storage
from birl.dataset.views import TransitionView
from birl.errors import CorruptFileError, DataError, FileError, WriteError
from birl.run import fingerprint
from birl.types import ActionSpace
from tests.tiers import slow_but

WIDTH, LENGTH = 3, 7


def observed(number: float, width: int = WIDTH) -> Any:
    return np.full(width, number, np.float32)


def new(folder: Path, limit: int = 0, lanes: int = 1, width: int = WIDTH, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        FIFOBuffer(limit) if limit else InfiniteBuffer(),
        observation_signature=Signature([np.float32], [(width,)]),
        action_signature=Signature([np.float32], [(1,)]),
        action_space=ActionSpace.CONTINUOUS, action_size=1, storage=folder, lanes=lanes, **options
    )  # fmt: skip


def write(buffer: ReplayBuffer, number: int, width: int = WIDTH) -> None:
    """Step ``number`` of every lane; episodes have seven steps, every second one is cut."""
    lanes = np.arange(buffer.storage.lanes)
    now, after = (np.stack([observed(1000 * lane + number + ahead, width) for lane in lanes]) for ahead in (0, 1))
    ends = number % LENGTH == LENGTH - 1
    terminated = np.full(len(lanes), ends and number % (2 * LENGTH) == LENGTH - 1)
    extra = {"mark": np.full((len(lanes), 1), number, np.float32)}
    buffer.append_batch(now, now[:, :1], now[:, 0], terminated, np.full(len(lanes), ends) & ~terminated, after, extra)


def check(buffer: ReplayBuffer, count: int, limit: int = 0, width: int = WIDTH) -> int:
    """Check all that is there, ``count`` steps of each lane or one more; returns the number of steps of a lane."""
    lanes = buffer.storage.lanes
    found: dict[int, list[int]] = {lane: [] for lane in range(lanes)}
    for each in buffer.episodes:
        lane, numbers = int(each.rewards[0, 0]) // 1000, (each.rewards[:, 0] % 1000).astype(int).tolist()
        found[lane] += numbers
        np.testing.assert_array_equal(each.observations, np.repeat(each.rewards, width, 1))
        np.testing.assert_array_equal(each.actions, each.rewards)
        assert each.extra is not None and each.extra["mark"][:, 0].tolist() == numbers
        last, ends = numbers[-1], [number % LENGTH == LENGTH - 1 for number in numbers]
        assert not any(ends[:-1])
        assert each.terminated == (last % (2 * LENGTH) == LENGTH - 1)
        assert each.truncated == (ends[-1] and not each.terminated)
        if each.final_observation is not None:
            np.testing.assert_array_equal(each.final_observation, observed(1000 * lane + last + 1, width))
    known = {len(numbers) for numbers in found.values()}
    for numbers in found.values():
        if numbers:
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert numbers[-1] + 1 in (count, count + 1) and (numbers[0] == 0 or limit)
    if limit:
        assert limit - lanes <= sum(map(len, found.values())) or count * lanes < limit
    elif known:
        assert count == 0 or min(known) >= count
    storage = buffer.storage
    assert storage.transition_count >= storage.steps.sum() - lanes
    if storage.transition_count:
        batch = buffer.sample_transition_batch(8)
        np.testing.assert_array_equal(batch.next_observations, batch.observations + 1)
    return max((numbers[-1] + 1 for numbers in found.values() if numbers), default=0)


# -- every point -------------------------------------------------------------------------------------------------------


class Crash(Exception):
    """The process ends here."""


class Points:
    """Ends the process at one of the points at which it writes; a half of what it was to write is there then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        put, flags, note = FolderPlace.put, Storage.set_flags, journals.Journal.write

        def at(write: Any, half: Any) -> Any:
            def point(own: Any, *given: Any) -> None:
                self.left -= 1
                if self.left == 0:
                    half(own, *given)
                    raise Crash
                if self.left < -1 or self.left > 0:
                    write(own, *given)

            return point

        def half_put(own: Any, array: Any, rows: Any, values: Any) -> None:
            count = len(rows) // 2
            put(own, array, rows[:count], values if isinstance(values, int) else values[:count])
            if array.ndim > 1 and rows.ndim == 1 and not isinstance(values, int) and len(rows):
                array[rows[count], : array.shape[1] // 2] = values[count][: array.shape[1] // 2]

        def half_flags(own: Any, rows: Any, values: Any) -> None:
            count = len(rows) // 2
            flags(own, rows[:count], values if np.ndim(values) == 0 else values[:count])

        def half_note(own: Any, *given: Any) -> None:
            before = own._records[(own.sequence + 1) % 2].copy()
            note(own, *given)
            own._records[own.sequence % 2][len(before) // 2 :] = before[len(before) // 2 :]

        patch.setattr(FolderPlace, "put", at(put, half_put))
        patch.setattr(Storage, "set_flags", at(flags, half_flags))
        patch.setattr(journals.Journal, "write", at(note, half_note))
        patch.setattr(folders, "_clean_flags", at(folders._clean_flags, folders._clean_flags))


def die(buffer: ReplayBuffer) -> None:
    """What the system does when a process ends."""
    place: Any = buffer.storage.place
    place.lock._lock.release()
    (place.folder / ".storage.holder").unlink()  # it is there, but names a process that is gone


@pytest.mark.parametrize(("limit", "lanes"), slow_but([(0, 2)], [(0, 2), (10, 1), (0, 1), (11, 2)]))
def test_a_step_that_was_stored_survives_an_end_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, lanes: int
) -> None:
    points = Points(monkeypatch)
    for point in range(1, 10_000):
        folder = tmp_path / str(point)
        points.left = -1
        buffer, number = new(folder, limit, lanes), 0
        buffer.storage.resize(13)
        for number in range(4):  # where the folder begins: an episode is running
            write(buffer, number)
        first, number = number + 1, number + 1
        points.left = point
        try:
            for number in range(first, first + 10 + 5 * bool(limit)):
                write(buffer, number)
        except Crash:
            points.left = -1
            die(buffer)
            check(ReplayBuffer.open(folder), number, limit)
            again = ReplayBuffer.open(folder)
            number = max(check(again, number, limit), number)
            lengths = set(again.storage.end - again.storage.start)
            if lanes == 1 or len(lengths) == 1:
                for more in range(number, number + 9):
                    write(again, more)
                check(again, number + 9, limit)
            again.close()
        else:
            break
    assert point > 20


@pytest.mark.parametrize("limit", [0, 10])
def test_a_folder_that_was_just_opened_or_made_survives_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The first write takes the lock, and notes of a ring that it is about to be overwritten."""
    die(new(tmp_path / "made", limit))
    assert ReplayBuffer.open(tmp_path / "made").step_count == 0
    points = Points(monkeypatch)
    for point in range(1, 1000):
        points.left, folder = -1, tmp_path / str(point)
        buffer = new(folder, limit)
        for number in range(12):
            write(buffer, number)
        buffer.close()
        again = ReplayBuffer.open(folder)
        points.left = point
        try:
            write(again, 12)
        except Crash:
            points.left = -1
            if again.storage.journal is not None:
                die(again)
            check(ReplayBuffer.open(folder), 12, limit)
        else:
            break
    assert point > 4


@pytest.mark.parametrize("limit", [0, 10])
def test_a_checkpoint_that_was_half_restored_is_restored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    points, counts = Points(monkeypatch), set()
    buffer = new(tmp_path / "0", limit)
    for number in range(20):
        write(buffer, number)
    state = buffer.get_state()
    for point in range(1, 1000):
        points.left = -1
        buffer = new(tmp_path / str(point), limit)
        for number in range(31):
            write(buffer, number)
        points.left = point
        try:
            buffer.set_state(state)
        except Crash:
            points.left = -1
            die(buffer)
            again = ReplayBuffer.open(tmp_path / str(point))
            counts.add(again.step_count)
            check(again, max(map(_last, again.episodes), default=0), limit)
            again.set_state(state)
            assert check(again, 20, limit) == 20
        else:
            break
    assert check(buffer, 20, limit) == 20
    assert counts == ({0, 10} if limit else {20, 31})  # nothing of both


def test_an_observation_that_is_replaced_leaves_its_step_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a step's observation is not the one that was to follow, the one before never gets a mixture of both."""
    points, seen = Points(monkeypatch), set()
    for point in range(1, 1000):
        points.left = -1
        buffer = new(tmp_path / str(point))
        flag = np.array([False])
        buffer.append_batch(observed(1)[None], [[0]], [0], flag, flag, observed(2)[None])
        points.left = point
        try:
            buffer.append_batch(observed(7)[None], [[0]], [1], flag, flag, observed(8)[None])
        except Crash:
            points.left = -1
            die(buffer)
            one, *others = ReplayBuffer.open(tmp_path / str(point)).episodes
            following = one.observations[1] if len(one) > 1 else one.final_observation
            value = None if following is None else float(following[0])
            assert not others and one.rewards[0] == 0 and (following is None or (following == value).all())
            seen.add(value)
        else:
            break
    assert seen == {2.0, None}


# -- real kills --------------------------------------------------------------------------------------------------------


def killed_writer(folder: Path, width: int, limit: int, lanes: int, moment: random.Random) -> int:
    """Let another process write to a folder and kill it; returns how many stored steps it had reported."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            there = (folder / "storage.json").exists()
            buffer = ReplayBuffer.open(folder) if there else new(folder, limit, lanes, width)
            first = _next(buffer)
            for number in range(first, first + 17):  # numbers stay below 1,000 in fifty lives, however late the kill
                write(buffer, number, width)
                os.write(writing, struct.pack("q", number + 1))
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    wanted, reported = moment.randrange(1, 12), b""
    while len(reported) < 8 * wanted:
        more = os.read(reading, 8)
        assert more, "the writer has ended by itself"
        reported += more
    time.sleep(moment.random() * 0.002)
    os.kill(process, signal.SIGKILL)
    while more := os.read(reading, 1 << 16):
        reported += more
    os.close(reading)
    os.waitpid(process, 0)
    return int(struct.unpack("q", reported[-8:])[0])


def _last(episode: Any) -> int:
    return int(episode.rewards[-1, 0]) % 1000 + 1


def _next(buffer: ReplayBuffer) -> int:
    return max(map(_last, buffer.episodes), default=0)


def kills(folder: Path, count: int, limit: int, lanes: int, seed: int = 0) -> None:
    moment, width = random.Random(seed), 20_000
    for _ in range(count):
        reported = killed_writer(folder, width, limit, lanes, moment)
        check(ReplayBuffer.open(folder), reported, limit, width)


@pytest.mark.parametrize(("limit", "lanes"), [(0, 1), (15, 2)])
def test_reported_steps_of_a_killed_writer_are_stored(tmp_path: Path, limit: int, lanes: int) -> None:
    kills(tmp_path / "data", 3, limit, lanes)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "lanes"), [(0, 1), (15, 2)])
def test_reported_steps_of_a_writer_killed_fifty_times_are_stored(tmp_path: Path, limit: int, lanes: int) -> None:
    kills(tmp_path / "data", 50, limit, lanes, 1)


# -- writers and readers -----------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Iterator[ReplayBuffer]:
    buffer = new(tmp_path / "data")
    for number in range(9):
        write(buffer, number)
    yield buffer
    buffer.close()


def test_a_second_writer_gets_an_error_that_names_the_first(written: ReplayBuffer, tmp_path: Path) -> None:
    other = ReplayBuffer.open(tmp_path / "data")
    before = [each.rewards.tolist() for each in other.episodes]
    with pytest.raises(WriteError, match=rf"is being written \(process {os.getpid()} on .*, since .*close\(\)"):
        write(other, 9)
    assert [each.rewards.tolist() for each in other.episodes] == before
    written.close()
    write(other, 9)  # nothing was written meanwhile
    with pytest.raises(WriteError, match="is being written"):
        write(written, 9)
    other.close()
    with pytest.raises(WriteError, match="has been written to since it was opened"):
        write(written, 9)
    assert written.step_count == 9
    third = ReplayBuffer.open(tmp_path / "data")
    assert check(third, 10) == 10


def test_many_read_while_one_writes(written: ReplayBuffer, tmp_path: Path) -> None:
    readers = [ReplayBuffer.open(tmp_path / "data") for _ in range(3)]
    for number in range(9, 200):  # grows, and ends the episode that was running
        write(written, number)
    written.flush()
    for reader in readers:
        assert check(reader, 9) == 9
        assert reader.episodes[-1].size() == 2 and not reader.episodes[-1].truncated
    assert check(ReplayBuffer.open(tmp_path / "data"), 200) == 200
    for path in (tmp_path / "data").iterdir():
        path.chmod(0o444)
    assert check(ReplayBuffer.open(tmp_path / "data"), 200) == 200


def test_what_a_reader_does_stays_in_memory(written: ReplayBuffer, tmp_path: Path) -> None:
    written.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    reader = ReplayBuffer.open(tmp_path / "data")
    with pytest.raises(ValueError, match="read-only"):
        reader.episodes[0].observations[:] = 5
    reader.sample_transition_batch(3)
    reader.flush()
    reader.get_state()
    reader.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


def test_a_ring_is_read_until_its_rows_are_overwritten(tmp_path: Path) -> None:
    writer = new(tmp_path / "data", 20)
    for number in range(30):
        write(writer, number)
    reader = ReplayBuffer.open(tmp_path / "data")
    check(reader, 30, 20)
    write(writer, 30)
    check(reader, 30, 20)
    for number in range(31, 60):
        write(writer, number)
    with pytest.raises(DataError, match="overwritten: open it again"):
        reader.sample_transition_batch(3)
    check(ReplayBuffer.open(tmp_path / "data"), 60, 20)


READS: dict[str, Any] = {
    "episodes": lambda reader: reader.episodes[0],
    "list": lambda reader: list(reader.episodes),
    "transition": lambda reader: reader.sample_transition(),
    "trajectory": lambda reader: reader.sample_trajectory(3),
    "transitions": lambda reader: reader.sample_transition_batch(3),
    "trajectories": lambda reader: reader.sample_trajectory_batch(3, 2),
    "sequences": lambda reader: reader.sample_sequence_batch(3, 2),
    "tails": lambda reader: reader.sample_tail_batch(3),
    "all": lambda reader: list(reader.all_transitions()),
    "bounds": lambda reader: reader.action_bounds(),
    "state": lambda reader: reader.get_state(),
    "digest": lambda reader: fingerprint.digest(reader.reader.storages),
    "returns": lambda reader: reader.reader.episode_returns(),
    "dump": lambda reader: reader.dump(io.BytesIO()),
    "mirror": lambda reader: reader.reader.mirrored(TorchPlace(torch.device("cpu"))),
    "pinned": lambda reader: reader.reader.mirrored(MemoryPlace()).sample(TransitionView(), 3),
    "lanes": lambda reader: list(LaneView(reader.storage, 0, 1).changes(whole=True)),
}


@pytest.mark.parametrize("read", READS)
def test_every_way_of_reading_an_overwritten_ring_raises(read: str, tmp_path: Path) -> None:
    """Also if the writer overwrites the rows while they are read: the check follows the read."""
    writer = new(tmp_path / "data", 20)
    for number in range(60):
        write(writer, number)
    reader = ReplayBuffer.open(tmp_path / "data")
    held, episodes = reader.episodes[0], reader.episodes
    before = held.observations.copy()
    READS[read](ReplayBuffer.open(tmp_path / "data"))
    for number in range(60, 120):
        write(writer, number)
    with pytest.raises(DataError, match="overwritten: open it again"):
        READS[read](reader)
    with pytest.raises(DataError, match="overwritten"):
        episodes[0]
    np.testing.assert_array_equal(held.observations, before)  # a copy


def test_rows_that_a_long_write_is_replacing_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of a whole episode is recorded at its end."""
    writer = new(tmp_path / "data", 60)
    for _ in range(6):
        writer.append_episode(Episode(np.zeros((12, WIDTH), "f4"), np.zeros((12, 1), "f4"), np.zeros(12), False))
    reader = ReplayBuffer.open(tmp_path / "data")
    assert not reader.episodes[0].rewards.any()
    found: list[Any] = []

    def end_write(self: Storage, in_journal: bool = False) -> None:
        try:
            found.append(reader.episodes[0].rewards)
        except DataError as error:
            found.append(str(error))

    monkeypatch.setattr(Storage, "end_write", end_write)
    writer.append_episode(Episode(np.ones((50, WIDTH), "f4"), np.ones((50, 1), "f4"), np.ones(50), False))
    assert len(found) == 1 and "overwritten" in found[0]


def test_a_ring_whose_rows_were_replaced_is_not_read(tmp_path: Path) -> None:
    """The writer returns to a checkpoint, and writes other steps to the same rows, up to the same position."""
    writer = new(tmp_path / "data", 20)
    for number in range(30):
        write(writer, number)
    state = writer.get_state()
    for number in range(30, 35):
        write(writer, number)
    reader = ReplayBuffer.open(tmp_path / "data")
    check(reader, 35, 20)
    writer.set_state(state)
    for number in range(130, 135):
        write(writer, number)
    with pytest.raises(DataError, match="overwritten"):
        reader.sample_transition_batch(3)
    writer.set_state(state)
    check(ReplayBuffer.open(tmp_path / "data"), 30, 20)


@pytest.mark.parametrize("closed", [False, True])
def test_a_folder_without_a_limit_whose_writer_returned_to_a_checkpoint_is_not_read(
    closed: bool, tmp_path: Path
) -> None:
    """The writer replaces steps that readers know, and then grows beyond them."""
    writer = new(tmp_path / "data")
    for number in range(30):
        write(writer, number)
    state, early = writer.get_state(), ReplayBuffer.open(tmp_path / "data")
    for number in range(30, 35):
        write(writer, number)
    reader = ReplayBuffer.open(tmp_path / "data")
    if closed:  # a resumed run opens the folder, and returns to the checkpoint before it writes
        writer.close()
        writer = ReplayBuffer.open(tmp_path / "data")
    reader.sample_transition_batch(3)
    held = reader.episodes[-1]
    before = np.array(held.observations)
    writer.set_state(state)
    for number in range(130, 145):
        write(writer, number)
    np.testing.assert_array_equal(held.observations, before)  # no view of the folder
    for stale, name in itertools.product((reader, early), READS.keys() - {"state"}):  # which is a position only
        with pytest.raises(DataError, match="has returned to a checkpoint, .* open it again"):
            READS[name](stale)
    again = ReplayBuffer.open(tmp_path / "data")
    assert again.transition_count == writer.transition_count
    for number in range(145, 160):  # no step is replaced
        write(writer, number)
    again.sample_transition_batch(3)


def test_single_items_are_no_views_of_a_ring(tmp_path: Path) -> None:
    buffer = ReplayBuffer(
        FIFOBuffer(20),
        observation_signature=Signature([np.float32], [(WIDTH,)]),
        action_signature=Signature([np.float32], [(1,)]),
        action_space=ActionSpace.CONTINUOUS,
        action_size=1,
    )
    for number in range(20):
        write(buffer, number)
    item, window = buffer.sample_transition(), buffer.sample_trajectory(2)
    before = item.observation.copy(), window.rewards.copy()
    for number in range(200, 260):
        write(buffer, number)
    np.testing.assert_array_equal(item.observation, before[0])
    np.testing.assert_array_equal(window.rewards, before[1])


def test_priorities_are_saved_by_a_writer(written: ReplayBuffer, tmp_path: Path) -> None:
    reader = ReplayBuffer.open(tmp_path / "data", sampler=PrioritizedSampler())
    reader.sample_transition_batch(3)
    with pytest.raises(WriteError, match="is being written"):
        reader.flush()
    written.close()
    reader.flush()
    reader.close()
    assert (tmp_path / "data" / "sampler.safetensors").exists()


# -- tails and other formats -------------------------------------------------------------------------------------------


def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_boot", lambda: (1, 2))


def test_after_a_restart_of_the_machine_what_was_flushed_is_there(
    written: ReplayBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.flush()
    for number in range(9, 40):
        write(written, number)
    die(written)
    restarted(monkeypatch)
    again = ReplayBuffer.open(tmp_path / "data")
    assert check(again, 9) == 9
    for number in range(9, 13):
        write(again, number)
    die(again)
    assert check(ReplayBuffer.open(tmp_path / "data"), 13) == 13


@pytest.mark.parametrize("damage", ["cut", "noise", "gone", "longer"])
def test_a_damaged_journal_leaves_what_was_flushed(written: ReplayBuffer, tmp_path: Path, damage: str) -> None:
    written.flush()
    write(written, 9)
    die(written)
    file = tmp_path / "data" / "journal.bin"
    content = file.read_bytes()
    spoiled = {"cut": content[:-8], "noise": bytes(byte ^ 0xFF for byte in content), "longer": content * 2}
    file.unlink() if damage == "gone" else file.write_bytes(spoiled[damage])
    again = ReplayBuffer.open(tmp_path / "data")
    assert check(again, 9) == 9
    write(again, 9)
    again.close()
    assert check(ReplayBuffer.open(tmp_path / "data"), 10) == 10


def test_one_damaged_record_leaves_the_other(written: ReplayBuffer, tmp_path: Path) -> None:
    records = np.memmap(tmp_path / "data" / "journal.bin", np.int64, "r+", shape=(2, 12))
    records[np.argmax(records[:, 0]), 5] += 1
    assert check(ReplayBuffer.open(tmp_path / "data"), 8) == 8


def test_a_ring_without_its_journal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, damage in (("one", lambda file: file.unlink()), ("two", lambda file: restarted(monkeypatch))):
        buffer = new(tmp_path / where, 20)
        for number in range(30):
            write(buffer, number)
        die(buffer)
        damage(tmp_path / where / "journal.bin")
        with pytest.raises(CorruptFileError, match="its oldest steps are partly overwritten"):
            ReplayBuffer.open(tmp_path / where)


def test_folders_of_earlier_versions_are_opened(written: ReplayBuffer, tmp_path: Path) -> None:
    written.close()
    (tmp_path / "data" / "journal.bin").unlink()
    file = tmp_path / "data" / "storage.json"
    text = file.read_text().replace('"version": 2', '"version": 1')
    begin = text.index('"sequence"')
    file.write_text(text[:begin] + text[text.index(", ", begin) + 2 :])
    again = ReplayBuffer.open(tmp_path / "data")
    assert check(again, 9) == 9
    write(again, 9)
    die(again)
    assert check(ReplayBuffer.open(tmp_path / "data"), 10) == 10


def test_whole_episodes_are_stored_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points, counts = Points(monkeypatch), set()
    for point in range(1, 1000):
        points.left = -1
        buffer = new(tmp_path / str(point), 20)
        made = [Episode(np.full((6, 3), n, np.float32), np.full((6, 1), n), np.full(6, n), True) for n in range(5)]
        for each in made[:4]:
            buffer.append_episode(each)
        points.left = point
        try:
            buffer.append_episode(made[4])
        except Crash:
            points.left = -1
            die(buffer)
            found = [(int(each.rewards[0, 0]), len(each)) for each in ReplayBuffer.open(tmp_path / str(point)).episodes]
            evicted = [(1, 2), (2, 6), (3, 6)]
            assert found in ([(0, 2), (1, 6), (2, 6), (3, 6)], evicted, [*evicted, (4, 6)])
            counts.add(len(found))
        else:
            break
    assert counts == {3, 4}


# -- folders of other origin -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["journal.bin", ".storage.holder", "column_0.128.npy"])
def test_links_in_a_folder_are_not_written_to(written: ReplayBuffer, tmp_path: Path, name: str) -> None:
    written.close()
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / "data" / name).unlink(missing_ok=True)
    (tmp_path / "data" / name).symlink_to(precious)
    opened = ReplayBuffer.open(tmp_path / "data")
    with pytest.raises(WriteError, match=f"{name}', a link or pipe"):
        write(opened, 9)
    assert precious.read_bytes() == b"precious"


def test_recreated_files_are_different_files(written: ReplayBuffer, tmp_path: Path) -> None:
    """Another name of such a file, or a reader who still has it open, keeps what it held."""
    written.close()
    (tmp_path / "precious").write_bytes(b"precious")
    for name in ("column_0.128.npy", "journal.bin"):
        (tmp_path / "data" / name).unlink(missing_ok=True)
        os.link(tmp_path / "precious", tmp_path / "data" / name)
    opened = ReplayBuffer.open(tmp_path / "data")
    for number in range(9, 80):
        write(opened, number)
    opened.close()
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert check(ReplayBuffer.open(tmp_path / "data"), 80) == 80


@pytest.mark.parametrize("name", ["storage.json", "journal.bin", "column_0.64.npy", "sampler.safetensors"])
def test_pipes_are_not_waited_for(written: ReplayBuffer, tmp_path: Path, name: str) -> None:
    written.close()
    pipe, over = tmp_path / "data" / name, threading.Event()
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)

    def feed() -> None:  # who does open the pipe finds its end
        while not over.is_set():
            os.close(os.open(pipe, os.O_WRONLY))

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        with pytest.raises(FileError, match="link or pipe|it is a pipe"):
            opened = ReplayBuffer.open(tmp_path / "data", sampler=PrioritizedSampler())
            write(opened, 9)
    finally:
        over.set()
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        thread.join()
        os.close(reader)


def test_a_journal_is_read_only_if_it_has_its_size(written: ReplayBuffer, tmp_path: Path) -> None:
    """It may have any size, and is no reason to take as much memory."""
    written.close()
    path = tmp_path / "data" / "journal.bin"
    with open(path, "wb") as file:
        file.truncate(2**42)
    assert check(ReplayBuffer.open(tmp_path / "data"), 9) == 9


def test_numbers_of_writes_have_room_for_more(written: ReplayBuffer, tmp_path: Path) -> None:
    written.close()
    path = tmp_path / "data" / "storage.json"
    path.write_text(path.read_text().replace('"sequence": ', '"sequence": 99999999999999999999'))
    with pytest.raises(CorruptFileError, match="sequence is"):
        ReplayBuffer.open(tmp_path / "data")


def test_a_full_disk_is_an_error_and_does_not_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are mapped into memory, and without space on disk a write to them would end the process by SIGBUS."""
    reserve, left = getattr(os, "posix_fallocate", lambda *_: None), 200_000

    def limited(file: int, begin: int, size: int) -> None:
        nonlocal left
        left -= size
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", limited, raising=False)
    buffer = new(tmp_path / "data")
    stored = 0
    with pytest.raises(WriteError, match="the disk is full: free some space"):
        for stored in range(20_000):
            write(buffer, stored % 1000)
    assert stored > 1000
    buffer.close()
    assert ReplayBuffer.open(tmp_path / "data").step_count >= stored
    left = 10**9
    write(buffer, 0)
