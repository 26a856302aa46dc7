"""Worker processes: each has one side's work, and does it for some seconds whenever it is asked.

Parent and worker talk in lines of JSON over the worker's standard input and output. Each request has one answer:

* ``{"make": JOB, "options": {…}}``: ``{"facts": {…}, "seconds": …}`` when imports are done, networks and data made.
* ``{"run": SECONDS, "at_least": UNITS}``: ``{"units": …, "clock": …, "processor": …, "first": …}``, the last being the
  seconds of the first step; or ``{"value": …}`` from a job that is a figure.

``{"error": "…"}`` says what failed. A worker ends when its input does.

This file needs only the standard library: it runs in every peer's interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

__all__ = ["Job", "Worker", "WorkerError", "serve"]


@dataclass
class Job:
    """What one side does in one row.

    Attributes:
        step: does a piece of the work, finished when it returns, and tells how many units that was.
        value: for what is not timed: the figure itself, or the function that gets it in each round.
        facts: what else is known, such as the number of parameters.
    """

    step: Callable[[], float] | None = None
    value: float | Callable[[], float] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


# -------------------------------------------------------------------------------------------- in the measured process


def serve(make: Callable[[str, dict[str, Any]], Job], requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until there are no more.

    Args:
        make: makes a job of its name and options.
        requests, answers: lines of JSON.
    """
    job = Job()
    for line in requests:
        request = json.loads(line)
        try:
            if "make" in request:
                start = time.perf_counter()
                job = make(request["make"], request.get("options", {}))
                answer = {"facts": job.facts, "seconds": time.perf_counter() - start}
            else:
                answer = _run(job, request["run"], request.get("at_least", 1))
        except Exception as error:  # whatever a library raises belongs into the table
            text = " ".join(str(error).split())
            answer = {"error": f"{type(error).__name__}: {text}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


def _run(job: Job, seconds: float, at_least: float) -> dict[str, float]:
    if job.value is not None:
        return {"value": job.value() if callable(job.value) else job.value}
    assert job.step is not None
    units, first, clock = 0.0, 0.0, 0.0
    start, processor = time.perf_counter(), time.process_time()
    while clock < seconds or units < at_least:
        units += job.step()
        clock = time.perf_counter() - start
        first = first or clock
    return {"units": units, "clock": clock, "processor": time.process_time() - processor, "first": first}


def serve_standard_streams(make: Callable[[str, dict[str, Any]], Job]) -> None:
    """`serve` over standard input and output. Whatever libraries print goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(make, sys.stdin, answers)


# ------------------------------------------------------------------------------------------- in the measuring process


class WorkerError(Exception):
    """A worker cannot do its work; the message says why."""


class Worker:
    """One side, at work in a process of its own.

    Args:
        command: interpreter, script and its arguments.
        threads: processor cores and threads that the worker may use.
        timeout: seconds that one answer may take.
    """

    def __init__(self, command: list[str], threads: int = 1, timeout: float = 900) -> None:
        self._timeout = timeout
        self._folder = tempfile.TemporaryDirectory()  # also for logs that a library insists on
        self._errors = Path(self._folder.name) / "errors"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(threads)
        environment["BENCHMARK_THREADS"] = str(threads)
        try:
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=environment,
                    cwd=self._folder.name,
                )
        except OSError as error:
            self._folder.cleanup()
            raise WorkerError(f"{command[0]} cannot be started: {error.strerror}") from error

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            WorkerError: if the worker says that it failed, takes too long or ends.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(self._timeout, self._process.kill)
        timer.start()
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if not line:
            if not in_time:
                raise WorkerError(f"no answer within {self._timeout:g} s")
            raise WorkerError(f"the worker ended without an answer: {self._last_error()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _last_error(self) -> str:
        self._process.wait()
        text = self._errors.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit status {self._process.returncode}"

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


def script(name: str) -> str:
    """Path of a file next to this one."""
    return str(Path(__file__).resolve().parent / name)
