"""Names of other libraries and papers for algorithms that birl has under another name or as an option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_C51, _IQN = "C51QFunctionFactory (q_func_factory=c51)", "IQNQFunctionFactory (q_func_factory=iqn)"
_RAINBOW: Final = "DoubleDQN with the recipe rainbow, whose parts combine freely"

ALIASES: Final[Mapping[str, str]] = {
    "c51": f"DQN with {_C51}",
    "categoricaldoubledqn": f"DoubleDQN with {_C51}",
    "categoricaldqn": f"DQN with {_C51}",
    "d3qn": "DoubleDQN with MeanQFunctionFactory(dueling=True) (q_func_factory.dueling=true)",
    "drqn": "DQN or DoubleDQN with LSTMEncoderFactory (encoder_factory=lstm)",
    "duelingdqn": "DQN with MeanQFunctionFactory(dueling=True) (q_func_factory.dueling=true)",
    "iqn": f"DQN with {_IQN}",
    "miqn": f"MunchausenDQN with {_IQN}",
    "munchauseniqn": f"MunchausenDQN with {_IQN}",
    "qrdqn": "DQN with QRQFunctionFactory (q_func_factory=qr)",
    "rainbow": _RAINBOW,
    "rainbowdqn": _RAINBOW,
    "softactorcritic": "SAC",
}
"""The algorithm and options for each such name, in lower case and without punctuation."""


_NEAREST: Final[Mapping[str, str]] = {
    "amp": "GAIL imitates demonstrations in an environment",
    "atrpo": "TRPO is for discounted returns",
    "ddp": "birl has no controllers that plan with a model",
    "demmesac": "ICML2018SAC is nearest",
    "hyar": "PPO learns discrete and continuous actions together",
    "icra2018qtopt": "NAF, TD3 and SAC learn Q-functions of continuous actions",
    "ilqr": "birl has no controllers that plan with a model",
    "lqr": "birl has no controllers that plan with a model",
    "mmesac": "ICML2018SAC is nearest",
    "mppi": "birl has no controllers that plan with a model",
    "optioncritic": "birl has no policies over options",
    "qtopt": "NAF, TD3 and SAC learn Q-functions of continuous actions",
    "sacd": "SAC with discrete actions is DiscreteSAC; birl has no SAC with one Q-function for each part of the reward",
    "xql": "IQL is nearest",
}
"""What birl has instead of algorithms that it does not have, by their names in lower case."""


def alias_hint(name: str) -> str:
    """Return ``"; here that is DQN with …"``, what is nearest, or an empty string for other names.

    Args:
        name: name of an algorithm or of its configuration.
    """
    plain = re.sub(r"[\W_]", "", name.lower()).removesuffix("config")
    if plain in _NEAREST:
        return f", and birl does not have this algorithm: {_NEAREST[plain]}"
    return f"; here that is {ALIASES[plain]}" if plain in ALIASES else ""
