"""Former path of `birl.spaces`: using a name from here raises an error with its new name."""

from typing import NoReturn

from birl import spaces
from birl.errors import did_you_mean


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # queries of the import system and of tools that walk over packages
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    new = f"birl.spaces.{name}" if name in spaces.__all__ else spaces.RENAMED.get(name)
    hint = did_you_mean(name, spaces.__all__) if new is None else f": birl.actions.{name} is {new} now"
    # no AttributeError: `from birl.actions import …` would replace its message
    raise ImportError(f"birl.actions has become birl.spaces{hint}", name=__name__)
