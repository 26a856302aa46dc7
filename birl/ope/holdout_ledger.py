"""A ledger of the questions asked of held-out episodes, so that they certify one answer only.

The ledger is written before the answer is shown, so a process that is killed has used the episodes too. The same
question may be asked again, because it has the same answer. Episodes are identified by a digest of their contents:
other data in the same place count as new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from filelock import Timeout

from birl.dataset.log_record import load_record
from birl.errors import CorruptFileError, DataError, WriteError
from birl.files import atomic_write, parse_json
from birl.files.locks import FolderLock

SELECT: Final = "select"
CERTIFY: Final = "certify"
_USES: Final = {SELECT: "have selected policies", CERTIFY: "have answered another question"}
Query: TypeAlias = "dict[str, str]"
"""``digest`` of the episodes, ``purpose``, digest of the ``question``, and ``when`` it was asked."""


def ledger_path(dataset: str | Path) -> Path:
    """Return the path of the ledger of a folder of steps, or of a file."""
    path = Path(dataset)
    return path / "queries.json" if path.is_dir() else path.with_name(f"{path.name}.queries.json")


def question_digest(**parts: object) -> str:
    """Return the digest of a question, given as JSON values by name."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def record_query(dataset: str | Path, digest: str, purpose: str, question: str, *, reuse: bool = False) -> bool:
    """Record a question about held-out episodes before it is answered.

    Episodes may select policies any number of times, until they certify. They may certify once: not after they have
    selected, nor after another question. If the data are a part of a split, queries of the whole and of other parts
    that share episodes with it also count, as long as they are in the same folder or in the folder above or below.

    Args:
        dataset: folder or file.
        digest: digest of its contents, from `birl.run.fingerprint.digest`.
        purpose: `SELECT` or `CERTIFY`.
        question: from `question_digest`.
        reuse: whether to allow a question that the ledger forbids.

    Returns:
        Whether the ledger forbids the question, and ``reuse`` allowed it.

    Raises:
        DataError: if the ledger forbids the question.
        FileError: if the ledger cannot be read or written.
    """
    file = ledger_path(dataset)
    lock = FolderLock(file.parent, file.name, "two queries")
    try:
        locked = lock.acquire()
    except Timeout as error:
        raise DataError(f"{lock.holder} is querying {dataset}; one query runs at a time: wait for it") from error
    except OSError as error:
        raise WriteError(
            f"{file} cannot be written ({error}); it records queries of these episodes: copy the data to a folder that "
            "you can write"
        ) from error
    try:
        if locked:
            lock.write_holder()
        queries = _read(file)
        query = {"digest": digest, "purpose": purpose, "question": question}
        same = [all(entry[key] == value for key, value in query.items()) for entry in queries]
        repeated = purpose == CERTIFY and any(same)
        earlier = queries[: same.index(True)] if repeated else queries
        conflicts = [(file, entry) for entry in earlier if entry["digest"] == digest and _conflicts(entry, query)]
        since = queries[same.index(True)]["when"] if repeated else None
        conflicts += [(path, entry) for path, entry in _related(Path(dataset), since) if _conflicts(entry, query)]
        if conflicts and not reuse:
            path, first = conflicts[0]
            raise DataError(
                f"the episodes of {dataset} {_USES[first['purpose']]}, at {first['when']} ({path}); another answer by "
                "them would be too optimistic: ask that question again, log new episodes, or keep an unused part (birl "
                "data split); --allow-reuse answers anyway, and the report says so"
            )
        if not any(same):
            when = datetime.now(UTC).isoformat(" ", "seconds")
            atomic_write(file, json.dumps([*queries, {**query, "when": when}], indent=1).encode())
        return bool(conflicts)
    finally:
        if locked:
            lock.release()


def _related(folder: Path, since: str | None) -> Iterator[tuple[Path, Query]]:
    """Yield queries of related folders that share episodes with this one, before the time ``since`` if it is given.

    Related are the data that the folder is a part of, its own parts, and parts of other splits of the same data; see
    `LogRecord.shares`.
    """
    record = load_record(folder) if folder.is_dir() else None
    if record is None:
        return
    resolved = folder.resolve()
    for place in (resolved.parent, *sorted(resolved.parent.iterdir()), *sorted(resolved.iterdir())):
        if place != resolved and place.is_dir() and ledger_path(place).is_file():
            other = load_record(place)
            if other is not None and record.shares(other):
                queries = _read(ledger_path(place))
                yield from ((ledger_path(place), query) for query in queries if since is None or query["when"] < since)


def _conflicts(earlier: Query, query: Query) -> bool:
    """Return whether an earlier query forbids this one."""
    one, other = ((each["purpose"], each["question"]) for each in (earlier, query))
    return CERTIFY in (one[0], other[0]) and one != other


def _read(file: Path) -> list[Query]:
    if not file.exists():
        return []
    if not file.is_file():
        raise CorruptFileError(f"{file} is not a file; it must be the ledger of queries: remove it")
    remedy = "restore it, or use episodes that were never queried"
    try:
        queries = parse_json(file.read_bytes(), str(file))
    except CorruptFileError as error:
        raise CorruptFileError(
            f"{file}, the ledger of queries of these episodes, is damaged ({error}): {remedy}"
        ) from error
    keys = {"digest", "purpose", "question", "when"}
    rows: list[object] = queries if isinstance(queries, list) else [None]
    valid: list[Query] = []
    for row in rows:
        if not isinstance(row, dict) or row.keys() != keys or set(map(type, row.values())) != {str}:
            raise CorruptFileError(
                f"{file} is no ledger of queries; it must list queries with {sorted(keys)}: {remedy}"
            )
        valid.append(row)
    return valid
