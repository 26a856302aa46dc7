"""Policies that subcommands evaluate and export: one way to name them, so that what was evaluated is what ships."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from birl import ope
from birl.cli.common import load_model
from birl.errors import ConfigError, ForeignFileError

_KINDS: Final[Mapping[str, Any]] = {"epsilon": ope.EpsilonGreedy, "temperature": ope.Softmax, "std": ope.Gaussian}


def load_acting(
    path: Path, device: str, drawn: Mapping[str, float | None], own: str | None = None, best: bool = False
) -> tuple[Path, Any]:
    """A saved policy, or the greedy one of a model, or what ``drawn`` makes of it.

    Args:
        path: file, or folder of a run.
        device, own, best: see `birl.cli.common.load_model`.
        drawn: ``epsilon``, ``temperature`` or ``std``, one of them at most.

    Returns:
        The file and the policy.
    """
    given = {name: value for name, value in drawn.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"give one of {' and '.join(f'--{name}' for name in given)}: they make different policies")
    if path.is_file() and not best:
        try:
            policy = ope.load_policy(path, device)
        except ForeignFileError:
            pass  # a model, or nothing of birl's, which is said below
        else:
            if given:
                raise ConfigError(f"{path} is a policy that draws already: leave out --{next(iter(given))}")
            return path, policy
    file, algorithm = load_model(path, device, own, best)
    for name, value in given.items():
        return file, _KINDS[name](algorithm, value)
    return file, algorithm
