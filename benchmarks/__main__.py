"""birl and its peers, all sides in turns in one run: ``make bench``, or ``python -m benchmarks`` from its root.

``python -m benchmarks --only 'offline/*' 'update/*' --rounds 3 --seconds 1`` measures some rows for a short time.
Environments for the peers are made in ``.bench`` when they are first needed; ``--peer-python sb3=ENV/bin/python`` uses
one that is there. Results go to ``benchmarks/results``: see the README in that folder.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, peer_python
from benchmarks.report import Comparison, Measurement, Side, compare, markdown, plot, write_csv
from benchmarks.rows import Row, rows
from benchmarks.workers import Worker, WorkerError, script

ROOT = Path(__file__).resolve().parents[1]
INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve")

Start = Callable[[str], Worker]
"""Starts a worker for a side."""


def measure_row(
    row: Row, start: Start, rounds: int, seconds: float, warm_up: float
) -> tuple[list[Measurement], list[Side]]:
    """Measure all sides of one row in turns, the order reversed from round to round.

    A side that fails keeps its place, with the reason; the others go on.

    Args:
        row: what to measure.
        start: starts a side's worker.
        rounds: how often each side is measured.
        seconds: how long each time.
        warm_up: seconds of warm-up, in which at least the row's number of units is done.
    """
    measurements: list[Measurement] = []
    sides = {name: Side(row.name, name) for name in row.sides}
    workers: dict[str, Worker] = {}
    try:
        for name, side in sides.items():
            try:
                workers[name] = start(name)
                made = workers[name].ask(make=row.job, options=row.options)
                side.start, side.facts = made["seconds"], made["facts"]
                if row.kind != "value":
                    warm = workers[name].ask(run=warm_up, at_least=row.warm_up)
                    side.first, side.warm_up = warm["first"], warm["clock"]
            except WorkerError as error:
                side.error = str(error)
        for number in range(rounds):
            for name in row.sides if number % 2 == 0 else row.sides[::-1]:
                if sides[name].error:
                    continue
                try:
                    answer = workers[name].ask(run=seconds)
                except WorkerError as error:
                    sides[name].error = str(error)
                    continue
                if "value" in answer:
                    measurements.append(Measurement(row.name, name, number, answer["value"]))
                else:
                    units = answer["units"]
                    each = answer["clock"] / units, answer["processor"] / units
                    measurements.append(Measurement(row.name, name, number, *each, units))
    finally:
        for worker in workers.values():
            worker.close()
    return measurements, list(sides.values())


def chosen(everything: Sequence[Row], patterns: Sequence[str], without: Sequence[str] = ()) -> list[Row]:
    """The rows whose names fit one of the patterns, or that stand in the folder that one names.

    Args:
        everything: all rows.
        patterns: as for `fnmatch`; none for all rows.
        without: sides to leave out.

    Raises:
        SystemExit: naming a pattern that fits no row, or a side that is in none.
    """
    known = {side for row in everything for side in row.sides}
    for side in without:
        if side not in known:
            raise SystemExit(f"there is no side {side!r}; there are: {', '.join(sorted(known))}")
    for pattern in patterns:
        if not any(_fits(row.name, pattern) for row in everything):
            raise SystemExit(f"no row fits {pattern!r}; there are:\n" + "\n".join(row.name for row in everything))
    kept = [row for row in everything if not patterns or any(_fits(row.name, pattern) for pattern in patterns)]

    def left(sides: Sequence[str]) -> tuple[str, ...]:
        return tuple(side for side in sides if side not in without)

    return [replace(row, ours=left(row.ours), peers=left(row.peers)) for row in kept]


def wanted_rows(
    ours: set[str], theirs: Callable[[], set[str] | None], patterns: Sequence[str], without: Sequence[str]
) -> list[Row]:
    """The rows to measure; see `chosen`.

    Args:
        ours: birl's algorithms.
        theirs: says which algorithms d3rlpy has, ``None`` if unknown. It is asked only if a row compares with
            them, since its environment may have to be made for it.
        patterns, without: see `chosen`.
    """
    found = chosen(rows(ours), patterns, without)
    if not any(row.name.startswith("offline/") and "d3rlpy" in row.peers for row in found):
        return found
    known = theirs()
    return found if known is None else chosen(rows(ours & known), patterns, without)


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}/")


def hardware() -> dict[str, Any]:
    """CPU model, cores and vector instructions (Linux)."""
    words: dict[str, str] = {}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            words.setdefault(key.strip(), value.strip())
    flags = set((words.get("flags") or words.get("Features", "")).split())
    model = words.get("model name", "unknown")
    if "cpu family" in words:
        model += f" (family {words['cpu family']}, model {words['model']})"
    found = ", ".join(name for name in INSTRUCTIONS if name in flags)
    return {"CPU": model, "cores": len(os.sched_getaffinity(0)), "vector instructions": found}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="names of rows, such as 'offline/*'")
    parser.add_argument("--without", nargs="+", default=[], metavar="SIDE", help="sides to leave out")
    parser.add_argument("--list", action="store_true", help="print the names of all rows and end")
    parser.add_argument("--rounds", type=int, default=9, help="times that each side is measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each time")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before the first time, not counted")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every worker")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds that one answer of a worker may take")
    parser.add_argument("--peer-python", nargs="+", default=[], metavar="NAME=PATH", help="interpreters to use")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if min(options.rounds, options.threads) < 1 or options.seconds <= 0:
        parser.error("--rounds and --threads must be at least 1, --seconds above 0")
    given = dict(entry.partition("=")[::2] for entry in options.peer_python)
    unknown = [name for name in given if name not in PEERS]
    if unknown:
        parser.error(f"there is no peer {unknown[0]!r}; there are: {', '.join(PEERS)}")
    # Absolute, but links unresolved: that is how an interpreter knows its environment.
    pythons = {name: os.path.abspath(os.path.expanduser(path)) for name, path in given.items()}
    missing: dict[str, str] = {}

    def start(side: str) -> Worker:
        library = side.partition("-")[0]
        if library in PEERS and library not in pythons and library not in missing:
            print(f"making the environment of {library}", file=sys.stderr, flush=True)
            try:
                pythons[library] = peer_python(library, ROOT / ".bench")
            except (OSError, subprocess.CalledProcessError) as error:
                missing[library] = f"its environment cannot be made: {error}"
        if library in missing:
            raise WorkerError(missing[library])
        command = [pythons.get(library, sys.executable), script("work.py"), side]
        return Worker(command, options.threads, options.timeout)

    def facts(side: str, job: str) -> dict[str, Any]:
        worker = start(side)
        try:
            answer: dict[str, Any] = worker.ask(make=job)["facts"]
            return answer
        finally:
            worker.close()

    def theirs() -> set[str] | None:
        try:
            return set(facts("d3rlpy", "algorithms")["algorithms"])
        except WorkerError:
            return None  # the rows will say why they have no peer

    ours = set(facts("birl", "algorithms")["algorithms"])
    wanted = wanted_rows(ours, (lambda: None) if options.list else theirs, options.only, options.without)
    if options.list:
        print("\n".join(row.name for row in wanted))
        return

    machine = {
        **hardware(),
        "threads of every side": options.threads,
        "torch's vector instructions": facts("birl", "describe").get("instructions", "unknown"),
        "rounds": f"{options.rounds} of {options.seconds:g} s, sides in turns, each in a process of its own",
        "warm-up": f"{options.warm_up:g} s or more",
    }
    versions: dict[str, Any] = {}
    for library in dict.fromkeys(["birl", *(side.partition("-")[0] for row in wanted for side in row.sides)]):
        if library == "birl" or library in PEERS:
            try:
                about = facts(library, "describe")
                versions[library] = {"python": about["python"], **about["versions"]}
            except WorkerError as error:
                versions[library] = {"unknown": str(error)}
    title = f"{machine['CPU']}, {options.threads} thread(s) a side, medians and quartiles of {options.rounds} round(s)"
    options.out.mkdir(parents=True, exist_ok=True)

    begin = time.perf_counter()
    measurements: list[Measurement] = []
    sides: list[Side] = []
    for number, row in enumerate(wanted, 1):
        some, known = measure_row(row, start, options.rounds, options.seconds, options.warm_up)
        measurements += some
        sides += known
        words = [_words(one) for one in compare([row], some)]
        words += [f"{side.side} failed: {side.error}" for side in known if side.error]
        clock = time.perf_counter() - begin
        print(f"{clock:6.0f} s  {number}/{len(wanted)} {row.name}: {', '.join(words)}", file=sys.stderr, flush=True)
        # Written after every row: a run that is stopped leaves what it found.
        write_csv(options.out / "measurements.csv", measurements)
        table = markdown(wanted[:number], measurements, sides, machine, versions)
        (options.out / "table.md").write_text(table, encoding="utf-8")
        plot(options.out / "ratios.png", compare(wanted[:number], measurements), title)
    print(f"results are in {options.out}")
    if any(side.error for side in sides):
        sys.exit("some sides failed: the table says why")


def _words(one: Comparison) -> str:
    against = f" against {one.peer}" if one.peer else ""
    return f"{one.side}{against} {one.median:.3g}"


if __name__ == "__main__":
    main()
