"""Text from elsewhere, made safe to show, and times as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_UNPRINTABLE: Final = re.compile(  # control characters, and those that reverse the direction of text
    "[^\x20-\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def printable(text: str) -> str:
    """Replace characters that control a terminal or reverse the direction of text."""
    return _UNPRINTABLE.sub("\ufffd", text)


def format_time(time: float, dates: bool) -> str:
    """Return a time as text: a date in UTC, if times are seconds since 1970, or a number."""
    if not dates:
        return f"{time:.10g}"
    when = datetime.fromtimestamp(time, UTC)
    return when.strftime("%Y-%m-%d" if time % 86400 == 0 else "%Y-%m-%d %H:%M UTC")
