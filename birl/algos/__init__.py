"""All algorithms and their configurations, one file each.

Every file in this package is imported; its algorithms and their configurations become names of this package.
Type checkers find the names in ``__init__.pyi``, which ``scripts/make_algorithm_pages.py`` writes.
"""

from importlib import import_module
from pkgutil import iter_modules

from birl.acting.explorers import (
    Boltzmann,
    ConstantEpsilonGreedy,
    EpsilonGreedy,
    Explorer,
    ExponentialDecayEpsilonGreedy,
    Greedy,
    LinearDecayEpsilonGreedy,
    NormalNoise,
    OrnsteinUhlenbeckNoise,
    epsilon_ladder,
)
from birl.acting.sequence_context import (
    GreedyTransformerActionSampler,
    IdentityTransformerActionSampler,
    SoftmaxTransformerActionSampler,
    StatefulTransformerWrapper,
    TransformerActionSampler,
    TransformerInput,
)
from birl.algorithm import Algorithm
from birl.algorithm import Algorithm as QLearningAlgoBase
from birl.algorithm import TransformerAlgorithm as TransformerAlgoBase
from birl.errors import explain_missing_names

__all__ = [
    "Algorithm",
    "Boltzmann",
    "ConstantEpsilonGreedy",
    "EpsilonGreedy",
    "Explorer",
    "ExponentialDecayEpsilonGreedy",
    "Greedy",
    "GreedyTransformerActionSampler",
    "IdentityTransformerActionSampler",
    "LinearDecayEpsilonGreedy",
    "NormalNoise",
    "OrnsteinUhlenbeckNoise",
    "QLearningAlgoBase",
    "SoftmaxTransformerActionSampler",
    "StatefulTransformerWrapper",
    "TransformerActionSampler",
    "TransformerAlgoBase",
    "TransformerInput",
    "epsilon_ladder",
]


def _algorithms() -> dict[str, type]:
    """Return the final algorithms in this package's files, and their configurations, by name."""
    found: dict[str, type] = {}
    for file in iter_modules(__path__):
        for value in vars(import_module(f"{__name__}.{file.name}")).values():
            if isinstance(value, type) and issubclass(value, Algorithm) and getattr(value, "__final__", False):
                found |= {each.__name__: each for each in (value, value.config_class)}
    return found


_FOUND = _algorithms()
globals().update(_FOUND)
__all__ += sorted(_FOUND)


explain_missing_names(__name__, __all__)
