"""Names that other libraries and papers have for what is an algorithm with certain options here."""

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
"""What is what, by names in small letters without signs."""


def alias_hint(name: str) -> str:
    """``"; here that is DQN with …"``, or an empty string for a name that is no other library's.

    Args:
        name: of an algorithm or its configuration.
    """
    found = ALIASES.get(re.sub(r"[\W_]", "", name.lower()).removesuffix("config"))
    return f"; here that is {found}" if found else ""
