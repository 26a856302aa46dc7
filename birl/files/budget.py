"""What reading a file may cost, in one place. Files from elsewhere can be small and ask for a lot.

- Arrays of a file may take 64 MiB and, over all of them, `PACKED` times the size of a file that may be compressed,
  `PLAIN` times that of others. What they take is known before memory is allocated for them. The environment variable
  ``BIRL_FILE_MEMORY``, a number of GiB, allows more.
- JSON texts, pickles and everything else that becomes Python objects have at most `MAX_JSON_BYTES` bytes and
  `MAX_VALUES` values.
- Networks that a file describes have at most `MAX_NETWORK_ARRAYS` parameters, and not many more than the file holds;
  they are counted while they are planned, before they get memory.
"""

from __future__ import annotations

import math
import os
from typing import Final

from birl.errors import ConfigError, CorruptFileError

MAX_JSON_BYTES: Final = 16 * 2**20
"""Largest JSON text in a file. Larger data belong in arrays."""
MAX_VALUES: Final = 1_000_000
"""Largest number of values in one text: bounds the memory and time that parsing takes."""
MAX_NETWORK_ARRAYS: Final = 10_000
"""Largest number of parameters (arrays, not numbers) of the networks that a file describes."""
PACKED: Final = 100
"""Real data hardly shrink more than 50 times; zeros shrink 1000 times."""
PLAIN: Final = 4
"""Every number is stored once, but a file may well be smaller than the parts of it that are shared."""
_ALWAYS: Final = 64 * 2**20
_VARIABLE: Final = "BIRL_FILE_MEMORY"


class Budget:
    """The memory that the arrays of one file may take.

    Args:
        label: the file's name for messages.
        size: its number of bytes.
        ratio: `PACKED` or `PLAIN`.

    Attributes:
        size: number of bytes of the file.
        left: bytes that may still be spent.

    Raises:
        ConfigError: if ``BIRL_FILE_MEMORY`` is not a positive number.
    """

    def __init__(self, label: str, size: int, ratio: int) -> None:
        self._label, self.size = label, size
        self._total = self.left = max(_ALWAYS + ratio * size, _allowed_by_user())

    def spend(self, nbytes: int, what: str) -> None:
        """Call it before ``nbytes`` are allocated for ``what``.

        Raises:
            CorruptFileError: if that is more than is left.
        """
        if nbytes > self.left:
            needed = self._total - self.left + nbytes
            raise CorruptFileError(
                f"{self._label}: with {what:.80} it takes {_gib(needed)} GiB of memory, but a file of {self.size} "
                f"bytes may take {_gib(self._total)} GiB: use another copy, or, if you know why it is so small, set "
                f"the environment variable {_VARIABLE} to at least that number of GiB"
            )
        self.left -= nbytes


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g}"


def _allowed_by_user() -> int:
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return 0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < math.inf:
        raise ConfigError(f"the environment variable {_VARIABLE} is {text!r:.40}; it must be a number of GiB > 0")
    return int(value * 2**30)
