"""``birl train --init-from``: a run that begins with the networks of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from birl.algorithm import Algorithm
from birl.cli.common import load_model
from birl.dataset.log_record import joined
from birl.errors import ConfigError, CorruptFileError


def initial_model(algorithm: type[Algorithm[Any, Any]], path: Path, several: Any) -> Any:
    """The model that a run begins with."""
    if several is not None:
        raise ConfigError("--init-from: not with --seeds, whose networks are made at once; leave one out")
    file, begun = load_model(path, "cpu")
    if type(begun) is not algorithm:
        raise ConfigError(
            f"--init-from {file} is a model of {type(begun).__name__}, not of {algorithm.__name__}: train "
            f"{type(begun).__name__}, or copy its networks in Python (copy_policy_from, copy_q_function_from)"
        )
    return begun


def check_initial(probe: Any, begun: Any) -> None:
    """Check that a model's networks are those that the run needs."""
    if probe.spec != begun.spec:
        raise ConfigError(f"--init-from: the model was made for {begun.spec}, but this run has {probe.spec}")
    try:
        probe.engine.load_networks(begun.nets.state_dict())
    except CorruptFileError as error:
        own, asked = vars(begun.config), vars(probe.config)
        changed = [f"{name} {own[name]!r:.80} against {asked[name]!r:.80}" for name in own if own[name] != asked[name]]
        raise ConfigError(
            f"--init-from: the model has other networks than the settings ask for ({'; '.join(changed)}): leave out "
            "those settings that change networks, a model brings its own"
        ) from error


def begin_with(learner: Any, begun: Any, source: Any, env: Any) -> None:
    """Give a new algorithm the networks of another; its optimisers and counters begin anew."""
    if source is not None:
        learner.build_with_dataset(source)
    else:
        learner.build_with_env(env)
    learner.engine.load_networks(begun.engine.get_state()["nets"])
    learner.learner.logs = joined(begun.logs, learner.logs, "the model", "the dataset")
