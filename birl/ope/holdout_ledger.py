"""A record beside a dataset of the questions that were asked of it: what certifies is looked at once.

The record is written before an answer is, so that a killed process has looked; the same question may be asked again,
since its answer is the same. Episodes are known by a digest of their contents: other data in the same place are new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from filelock import Timeout

from birl.dataset.log_record import record_in
from birl.errors import CorruptFileError, DataError, WriteError
from birl.files import atomic_write, parse_json
from birl.files.locks import FolderLock

SELECT: Final = "select"
CERTIFY: Final = "certify"
_DONE: Final = {SELECT: "chosen policies", CERTIFY: "answered another question"}


def record_of(dataset: str | Path) -> Path:
    """Where the record of a folder of steps, or of a file, lies."""
    path = Path(dataset)
    return path / "looks.json" if path.is_dir() else path.with_name(f"{path.name}.looks.json")


def question(**parts: Any) -> str:
    """The digest of a question: JSON values by name."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def look(dataset: str | Path, digest: str, purpose: str, asked: str, *, reuse: bool = False) -> bool:
    """Note that a question is asked of a dataset, before it is answered.

    To select by episodes as often as one likes is allowed, until they have certified. To certify by them is allowed
    once: not after selecting by them, nor after another question. Looks at the whole that a part was split from, and at
    other parts with some of its episodes, count as long as they lie in the same folder or above or below it.

    Args:
        dataset: folder or file.
        digest: of its contents, from `birl.run.fingerprint.digest`.
        purpose: `SELECT` or `CERTIFY`.
        asked: of `question`.
        reuse: ask all the same.

    Returns:
        Whether this is a reuse, which `reuse` allowed.

    Raises:
        DataError: if it must not be asked.
        FileError: if the record cannot be read or written.
    """
    file = record_of(dataset)
    lock = FolderLock(file.parent, file.name, "two looks")
    try:
        locked = lock.acquire()
    except Timeout as error:
        raise DataError(f"{dataset} is being looked at by {lock.holder}: wait for it") from error
    except OSError as error:
        raise WriteError(f"{file} cannot be written, where looks are noted ({error}): copy the data") from error
    try:
        if locked:
            lock.sign()
        entries = _read(file)
        now = {"digest": digest, "purpose": purpose, "question": asked}
        same = [all(one[key] == value for key, value in now.items()) for one in entries]
        again = purpose == CERTIFY and any(same)
        before = entries[: same.index(True)] if again else entries
        used = [(file, one) for one in before if one["digest"] == digest and _spends(one, purpose, asked)]
        since = entries[same.index(True)]["when"] if again else None
        used += [(place, one) for place, one in _beside(Path(dataset), since) if _spends(one, purpose, asked)]
        if used and not reuse:
            place, first = used[0]
            raise DataError(
                f"the episodes of {dataset} have {_DONE[first['purpose']]}, at {first['when']} ({place}): "
                "another answer by them now would be too good. Ask that question again, log new episodes, or keep a "
                "part that nobody has looked at (birl data split); --allow-reuse answers all the same, and says so"
            )
        if not any(same):
            when = datetime.now(UTC).isoformat(" ", "seconds")
            atomic_write(file, json.dumps([*entries, {**now, "when": when}], indent=1).encode())
        return bool(used)
    finally:
        if locked:
            lock.release()


def _beside(folder: Path, since: str | None) -> Iterator[tuple[Path, dict[str, str]]]:
    """Looks at folders in or around this one that hold some of the same episodes, before ``since`` if that is given.

    The whole that it is a part of, its parts, and parts of other splits of the same whole; see `LogRecord.shares`.
    """
    own = record_in(folder) if folder.is_dir() else None
    if own is None:
        return
    around = folder.resolve()
    for place in (around.parent, *sorted(around.parent.iterdir()), *sorted(around.iterdir())):
        if place != around and place.is_dir() and record_of(place).is_file():
            other = record_in(place)
            if other is not None and own.shares(other):
                rows = _read(record_of(place))
                yield from ((record_of(place), one) for one in rows if since is None or one["when"] < since)


def _spends(entry: dict[str, str], purpose: str, asked: str) -> bool:
    """Whether an earlier look forbids this one."""
    return (CERTIFY in (entry["purpose"], purpose)) and (entry["purpose"], entry["question"]) != (purpose, asked)


def _read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    if not file.is_file():
        raise CorruptFileError(f"{file} is no file: it must be the record of looks; take it away")
    remedy = "restore it, or take episodes that nobody has looked at"
    try:
        found = parse_json(file.read_bytes(), str(file))
    except CorruptFileError as error:
        what = f"{file}, where looks at these episodes are noted, is damaged"
        raise CorruptFileError(f"{what} ({error}): {remedy}") from error
    keys = {"digest", "purpose", "question", "when"}
    rows: list[Any] = found if isinstance(found, list) else [None]
    if not all(isinstance(one, dict) and one.keys() == keys and set(map(type, one.values())) == {str} for one in rows):
        raise CorruptFileError(f"{file} is no record of looks: {remedy}")
    return rows
