"""birl: deep reinforcement learning from logs and in live environments.

>>> import birl
>>> dataset, env = birl.datasets.get_dataset("cartpole-replay")
>>> cql = birl.algos.DiscreteCQLConfig().create()
>>> cql.fit(dataset, n_steps=10000)  # doctest: +SKIP
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from birl._version import __version__
from birl.errors import BirlError
from birl.seeding import seed
from birl.types import ActionSpace

if TYPE_CHECKING:
    from birl import (
        algos,
        dataset,
        datasets,
        distributed,
        envs,
        logging,
        metrics,
        models,
        notebook_utils,
        ope,
        optimizers,
        preprocessing,
        recipes,
        testing,
        types,
    )
    from birl.algorithm import load_learnable
    from birl.algorithm.multi_seed import fit_many
    from birl.logging import LoggingStrategy
    from birl.models import PositionEncodingType
    from birl.run.cluster import Cluster

_MODULES = (
    "algos",
    "base",
    "constants",
    "dataset",
    "datasets",
    "distributed",
    "envs",
    "errors",
    "logging",
    "metrics",
    "models",
    "notebook_utils",
    "ope",
    "optimizers",
    "preprocessing",
    "recipes",
    "testing",
    "types",
)
_NAMES = {
    "Cluster": "birl.run.cluster",
    "LoggingStrategy": "birl.logging",
    "PositionEncodingType": "birl.models",
    "fit_many": "birl.algorithm.multi_seed",
    "load_learnable": "birl.algorithm",
}

__all__ = [
    "ActionSpace",
    "BirlError",
    "Cluster",
    "LoggingStrategy",
    "PositionEncodingType",
    "__version__",
    "algos",
    "dataset",
    "datasets",
    "distributed",
    "envs",
    "fit_many",
    "load_learnable",
    "logging",
    "metrics",
    "models",
    "notebook_utils",
    "ope",
    "optimizers",
    "preprocessing",
    "recipes",
    "seed",
    "testing",
    "types",
]


def __getattr__(name: str) -> Any:
    """Import submodules and names on first use."""
    if name in _MODULES:
        return import_module(f"birl.{name}")
    if name in _NAMES:
        if name == "load_learnable":  # a saved model may be of any of these algorithms
            import_module("birl.algos")
            import_module("birl.ope")
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'birl' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
