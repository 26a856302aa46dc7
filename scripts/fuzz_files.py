"""Read mutated files of every kind in a process with limits, and count what happens.

    python scripts/fuzz_files.py 100000            # cases 0 … 99999: about 30 minutes on one core
    python scripts/fuzz_files.py 1 --first 582     # one case again, with its error

Exits with 1 if a case was not read as it was, refused by a typed error, or (where nothing guards it) read as another.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

GOOD = ("equal", "other", "error")
MEMORY = 2**31  # bytes of address space that a process may add, for all of its cases
RESIDENT = 2**29  # bytes that a case may take
SECONDS = 60.0


def work(first: int, last: int, results: Connection) -> None:
    """Make cases one after the other, with limits, and report each."""
    from files import fuzzing

    for kind in fuzzing.KINDS:
        fuzzing.original(kind)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY,) * 2)
    for case in range(first, last):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome, text = fuzzing.run(case)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if grown > RESIDENT or "MemoryError" in text:
            outcome, text = "over memory", f"{grown >> 20} MiB, {text}"
        results.send((case, fuzzing.kind_of(case), outcome, text))


def outcomes(first: int, last: int):
    """Yield case, kind, outcome and text of all cases, whatever becomes of the processes."""
    context = multiprocessing.get_context("spawn")
    while first < last:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(first, last, theirs), daemon=True)
        process.start()
        theirs.close()
        patience = 600.0  # it imports and makes the files first
        try:
            while first < last:
                if not ours.poll(patience):
                    outcome = "over time"
                    break
                result = ours.recv()
                yield result
                first, patience = result[0] + 1, SECONDS
            else:
                return
        except EOFError:
            outcome = "crash"
        process.kill()
        process.join()
        yield first, "", outcome, f"exit code {process.exitcode}"
        first += 1


def main() -> int:
    """Make the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    start = time.monotonic()
    for case, kind, outcome, text in outcomes(given.first, given.first + given.count):
        counts[outcome, kind] += 1
        if outcome not in GOOD or given.count == 1:
            print(f"case {case} ({kind}): {outcome}: {text}", flush=True)
        if counts.total() % 1000 == 0:
            print(f"{counts.total()} cases in {time.monotonic() - start:.0f} s", flush=True)
    for outcome in sorted({outcome for outcome, _ in counts}):
        each = {kind: count for (found, kind), count in sorted(counts.items()) if found == outcome}
        print(f"{outcome}: {sum(each.values())} {each}")
    return int(any(outcome not in GOOD for outcome, _ in counts))


if __name__ == "__main__":
    sys.exit(main())
