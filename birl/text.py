"""Text from elsewhere, made safe to show."""

from __future__ import annotations

import re
from typing import Final

_UNPRINTABLE: Final = re.compile(  # control characters, and those that reverse the direction of text
    "[^\x20-\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def printable(text: str) -> str:
    """Replace characters that control a terminal or reverse the direction of text."""
    return _UNPRINTABLE.sub("\ufffd", text)
