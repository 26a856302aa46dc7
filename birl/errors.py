"""All errors that birl raises on purpose, as one tree.

::

    BirlError
    ├── CompileError                  (RuntimeError)  an update cannot be compiled
    ├── ConfigError                   (ValueError)    an option is unknown, of the wrong type or out of range
    ├── DataError                     (ValueError)    data that cannot be learned from
    │   ├── ShapeError                                a shape, length or dtype does not fit
    │   ├── NonFiniteError                            NaN or infinity in data, a loss or a parameter
    │   ├── ActionError                               an action outside its space, or a space that cannot be told
    │   └── EmptyDataError                            nothing to sample from
    ├── EnvironmentMismatchError      (ValueError)    an environment and a model do not belong together
    ├── FileError                     (OSError)       a file that cannot be used
    │   ├── CorruptFileError                          truncated, altered or damaged
    │   ├── ForeignFileError                          not a file of the expected kind, or from a newer birl
    │   └── WriteError                                could not be written; what was there before is untouched
    ├── ResumeError                   (RuntimeError)  a run folder holds a run with other settings, or one at work
    ├── MissingExtraError             (ImportError)   an optional package is needed: the message names the extra
    ├── NotBuiltError                 (RuntimeError)  an algorithm is used before its networks exist
    ├── OrderError                    (RuntimeError)  a call that others must come before or after
    ├── StalledError                  (RuntimeError)  updates in a row that could move nothing
    ├── UnsupportedError              (RuntimeError)  the algorithm cannot do this by nature
    └── WorkerError                   (RuntimeError)  a process that runs an environment has ended

    ActionRangeWarning                (UserWarning)   actions reach beyond what an unscaled policy can express
    ShortRunWarning                   (UserWarning)   a run is too short for what it is to learn

A message names the value that was given and the values that are allowed, and says what to do.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType

__all__ = [
    "ActionError",
    "ActionRangeWarning",
    "BirlError",
    "CompileError",
    "ConfigError",
    "CorruptFileError",
    "DataError",
    "EmptyDataError",
    "EnvironmentMismatchError",
    "FileError",
    "ForeignFileError",
    "MissingExtraError",
    "NonFiniteError",
    "NotBuiltError",
    "OrderError",
    "ResumeError",
    "ShapeError",
    "ShortRunWarning",
    "StalledError",
    "UnsupportedError",
    "WorkerError",
    "WriteError",
    "did_you_mean",
    "require",
]


class BirlError(Exception):
    """Base of all errors that birl raises on purpose."""


class ConfigError(BirlError, ValueError):
    """A hyper-parameter or option is unknown, of the wrong type or out of range."""


class DataError(BirlError, ValueError):
    """Data that cannot be learned from."""


class ShapeError(DataError):
    """A shape, length or dtype does not fit."""


class NonFiniteError(DataError):
    """NaN or infinity in data, a loss, a parameter or a moment of an optimiser."""


class ActionError(DataError):
    """An action outside its space, or an action space that cannot be told from the data."""


class EmptyDataError(DataError):
    """Nothing to sample from."""


class EnvironmentMismatchError(BirlError, ValueError):
    """An environment and a model (or dataset) do not belong together."""


class FileError(BirlError, OSError):
    """A file that cannot be used."""


class CorruptFileError(FileError):
    """A file that is truncated, altered or damaged."""


class ForeignFileError(FileError):
    """A file of another kind than expected, or written by a newer birl."""


class WriteError(FileError):
    """A file could not be written; what was there before is untouched."""


class ResumeError(BirlError, RuntimeError):
    """A run folder holds a run with other settings than the ones given, or another run is at work in it."""


class MissingExtraError(BirlError, ImportError):
    """A required optional package is not installed."""


class NotBuiltError(BirlError, RuntimeError):
    """An algorithm is used before its networks exist."""


class OrderError(BirlError, RuntimeError):
    """A method is called where others must be called before or after it."""


class StalledError(BirlError, RuntimeError):
    """Updates have moved nothing many times in a row, though there was something to learn."""


class CompileError(BirlError, RuntimeError):
    """An update cannot be compiled: the compiler is missing, or it does not take a user's module."""


class UnsupportedError(BirlError, RuntimeError):
    """The algorithm cannot do what was asked by its nature."""


class WorkerError(BirlError, RuntimeError):
    """A process that runs one of several environments has ended."""


class ActionRangeWarning(UserWarning):
    """Actions reach beyond what a policy in ``[-1, 1]`` can express, and no action scaler is set."""


_ALIKE = 0.7
"""How alike names must be: at difflib's own 0.6 ``created`` is a guess for ``reward``."""


class ShortRunWarning(UserWarning):
    """A run is too short for what it is to learn."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'learning_rate'?"``, or an empty string if no known name is near.

    Near is a name that differs in case and ``_`` only; else those that contain ``name`` or end in words with these
    initials (``lr``); else the one most alike.
    """
    names = list(known)
    same = [each for each in names if _plain(each) == _plain(name)]
    holding = [each for each in names if name in each or "".join(word[:1] for word in each.split("_")).endswith(name)]
    near = same or (holding[:3] if len(name) > 1 and holding else difflib.get_close_matches(name, names, 1, _ALIKE))
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def missing_name(
    module: str, name: str, known: Iterable[str], renamed: Mapping[str, str] = MappingProxyType({})
) -> AttributeError:
    """Return the error for a name that a module does not have: with its new name, or else with a similar one.

    Args:
        module: full name of the module.
        name: the missing name.
        known: the module's public names.
        renamed: full new names by old name.
    """
    hint = f"; it is {renamed[name]} now" if name in renamed else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name, obj=sys.modules[module])


def require(module: str, extra: str) -> ModuleType:
    """Import an optional ``module``, or name the extra of birl that installs it.

    Raises:
        MissingExtraError: if the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module!r} is needed here and is not installed: run `pip install 'birl[{extra}]'`"
        ) from error
