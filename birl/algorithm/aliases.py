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


def alias_hint(name: str) -> str:
    """Return ``"; here that is DQN with …"``, or an empty string for other names.

    Args:
        name: name of an algorithm or of its configuration.
    """
    found = ALIASES.get(re.sub(r"[\W_]", "", name.lower()).removesuffix("config"))
    return f"; here that is {found}" if found else ""
