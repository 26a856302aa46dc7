"""Training on logged data."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Unpack

from birl.dataset import ReplayBufferBase
from birl.run.fingerprint import dataset_settings, run_settings
from birl.run.options import Options, checked_options
from birl.run.protocols import Evaluator, Trainable
from birl.run.session import SamplerPart, Session


def fitter(
    algorithm: Trainable,
    dataset: ReplayBufferBase,
    n_steps: int,
    *,
    evaluators: Mapping[str, Evaluator] | None = None,
    **options: Unpack[Options],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on a dataset, one epoch per iteration.

    Args:
        algorithm: its networks are built if they do not exist.
        dataset: dataset. A checkpoint holds the state of its sampling generator and a digest of its contents.
        n_steps: exact number of updates: the last epoch may be shorter.
        evaluators: evaluators by name, called with ``(algorithm, dataset)`` after each epoch; the results are metrics.
        **options: see `Options`.

    Yields:
        Number of the epoch (from 1) and its metrics.

    Raises:
        NonFiniteError: if a loss, a parameter or a moment becomes NaN or infinite.
        ResumeError: if ``checkpoint`` holds a run with other settings.
    """
    n_steps, all_options = checked_options(n_steps, options)
    data = {} if all_options["checkpoint"] is None else dataset_settings(dataset)
    settings = run_settings(algorithm, "offline", **data)
    algorithm.build_with_dataset(dataset)
    learner = algorithm.learner
    source = learner.start_run(dataset, n_steps)
    parts = {"sampler": SamplerPart(source)}
    name = type(algorithm).__name__
    session = Session(algorithm, name, n_steps, parts, settings, evaluators, dataset, all_options)
    block = learner.updates_at_once(source)

    def step() -> None:
        if 1 < block <= session.steps_until_check:
            with session.time("step", block):
                metrics = learner.update_many(source, block)
            session.averages.add_many(metrics)
            session.tick(block)
            return
        with session.time("step"):
            with session.time("sample_batch"):
                minibatch = learner.sample(source)
            session.update(minibatch)
        session.tick()

    yield from session.epochs(step)
