"""``birl collect``: episodes of a trained policy, as a dataset."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from birl.acting.explorers import ConstantEpsilonGreedy
from birl.cli.common import (
    Model,
    note,
    print_line,
    with_options,
)
from birl.cli.evaluate import PlayOptions
from birl.cli.run_folder import environment_of
from birl.dataset import dump
from birl.errors import ConfigError, WriteError
from birl.run.data_collection import collect as collect_from


@with_options(PlayOptions)
def collect(
    model: Model,
    out: Annotated[Path, typer.Option(metavar="FILE.h5", help="File to write; an existing one is replaced.")],
    n_episodes: Annotated[int, typer.Option(min=1, help="Number of whole episodes.")] = 20,
    sample: Annotated[bool, typer.Option("--sample", help="Sample actions instead of acting greedily.")] = False,
    *,
    options: PlayOptions,
) -> None:
    """Write episodes of a trained policy, such as an expert, as a dataset for --dataset and --demonstrations.

    Without --epsilon and --sample, these are the episodes that `birl evaluate` plays with the same seed.
    """
    if out.suffix not in (".h5", ".hdf5"):
        raise ConfigError(f"--out {out}: a dataset is an .h5 file: give a name such as --out expert.h5")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise WriteError(f"{out} cannot be written: it is a folder, or its folder does not exist; give another --out")
    seed, epsilon = options.seed, options.epsilon
    if sample and epsilon > 0:
        raise ConfigError(
            "--sample and --epsilon: either all actions are sampled from the policy, or a share of them is random and "
            "the others are greedy; leave one out"
        )
    file, algorithm = options.load(model)
    name, env = environment_of(model, options.env_id)
    acting: Any
    acting, env = options.prepare(model, algorithm, env)
    explorer = ConstantEpsilonGreedy(epsilon) if epsilon > 0 else None
    note(f"{file} in {name}, seed {seed}")
    try:
        buffer = collect_from(
            acting,
            env,
            explorer=explorer,
            deterministic=not sample and explorer is None,
            n_episodes=n_episodes,
            seed=seed,
        )
    finally:
        env.close()
    # A learner with other networks must not start from the recurrent states of this policy.
    episodes = [dataclasses.replace(episode, extra=None) for episode in buffer.episodes]
    dump(episodes, out, buffer.dataset_info)
    returns = [episode.compute_return() for episode in episodes]
    print_line(
        f"{out}: {len(episodes)} episodes, {buffer.transition_count} steps, return {np.mean(returns):.2f} ± "
        f"{np.std(returns):.2f} (min {min(returns):.2f}, max {max(returns):.2f})"
    )
