"""All errors that birl raises, as one tree.

::

    BirlError
    ├── CompileError                  (RuntimeError)  an update cannot be compiled
    ├── ConfigError                   (ValueError)    an option is unknown, of the wrong type or out of range
    │   └── ArgumentError             (TypeError)     a function has no such argument, or lacks one
    ├── DataError                     (ValueError)    data cannot be learned from
    │   ├── ShapeError                                a shape, length or dtype does not fit
    │   ├── NonFiniteError                            NaN or infinity in data, a loss or a parameter
    │   ├── ActionError                               an action outside its space, or a space that cannot be inferred
    │   └── EmptyDataError                            nothing to sample from
    ├── EnvironmentMismatchError      (ValueError)    an environment does not fit a model or dataset
    ├── FileError                     (OSError)       a file cannot be used
    │   ├── CorruptFileError                          truncated, altered or damaged
    │   ├── ForeignFileError                          not a file of the expected kind, or from a newer birl
    │   └── WriteError                                could not be written; the former file is untouched
    ├── ResumeError                   (RuntimeError)  a folder contains a run with other settings, or a running one
    ├── MissingExtraError             (ImportError)   an optional package is missing; the message names the extra
    ├── NotBuiltError                 (RuntimeError)  an algorithm is used before it has networks
    ├── OrderError                    (RuntimeError)  a method is called too early or too late
    ├── StalledError                  (RuntimeError)  many updates in a row changed nothing
    ├── UnsupportedError              (RuntimeError)  the algorithm does not support this by design
    └── WorkerError                   (RuntimeError)  a worker process has ended

    ActionRangeWarning                (UserWarning)   actions are outside the range of an unscaled policy
    ObservationRangeWarning           (UserWarning)   networks read bytes from 0 to 255, or badly scaled numbers
    EpisodeCutWarning                 (UserWarning)   steps do not follow one another, so that episodes are cut
    ResolutionWarning                 (UserWarning)   float32 cannot tell the values of a column apart
    UnloadableModelWarning            (UserWarning)   a saved model cannot be loaded with its configuration
    MissingColumnWarning              (UserWarning)   steps lack an extra column of their buffer, and hold 0 there
    OneHotActionWarning               (UserWarning)   actions that are taken as continuous look one-hot
    UnloggedActionWarning             (UserWarning)   no step of the data holds some of the discrete actions
    EvaluationWarning                 (UserWarning)   an evaluator returned NaN or infinity
    UnusedOptionWarning               (UserWarning)   an option has no effect with the others
    ShortRunWarning                   (UserWarning)   a run is too short to learn anything

Each message gives the value, the allowed values, and what to do.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from birl.habits import argument_hint, name_hint

__all__ = [
    "ActionError",
    "ActionRangeWarning",
    "ArgumentError",
    "BirlError",
    "CompileError",
    "ConfigError",
    "CorruptFileError",
    "DataError",
    "EmptyDataError",
    "EnvironmentMismatchError",
    "EpisodeCutWarning",
    "EvaluationWarning",
    "FileError",
    "ForeignFileError",
    "MissingColumnWarning",
    "MissingExtraError",
    "NonFiniteError",
    "NotBuiltError",
    "ObservationRangeWarning",
    "OneHotActionWarning",
    "OrderError",
    "ResolutionWarning",
    "ResumeError",
    "ShapeError",
    "ShortRunWarning",
    "StalledError",
    "UnloadableModelWarning",
    "UnloggedActionWarning",
    "UnsupportedError",
    "UnusedOptionWarning",
    "WorkerError",
    "WriteError",
    "did_you_mean",
    "require",
]


class BirlError(Exception):
    """Base class of all errors that birl raises."""


class ConfigError(BirlError, ValueError):
    """A hyper-parameter or option is unknown, of the wrong type or out of range."""


class ArgumentError(ConfigError, TypeError):
    """A function has no argument of this name, or lacks one that it needs."""


class DataError(BirlError, ValueError):
    """Data that cannot be learned from."""


class ShapeError(DataError):
    """A shape, length or dtype does not fit."""


class NonFiniteError(DataError):
    """NaN or infinity in data, a loss, a parameter or a moment of an optimiser."""


class ActionError(DataError):
    """An action outside its space, or an action space that cannot be inferred from the data."""


class EmptyDataError(DataError):
    """There is no data to sample from."""


class EnvironmentMismatchError(BirlError, ValueError):
    """An environment does not fit a model or a dataset."""


class FileError(BirlError, OSError):
    """A file that cannot be used."""


class CorruptFileError(FileError):
    """A file that is truncated, altered or damaged."""


class ForeignFileError(FileError):
    """A file of another kind than expected, or written by a newer birl."""


class WriteError(FileError):
    """A file could not be written; the former file is untouched."""


class ResumeError(BirlError, RuntimeError):
    """A folder contains a run with other settings, or another run is using it."""


class MissingExtraError(BirlError, ImportError):
    """A required optional package is not installed."""


class NotBuiltError(BirlError, RuntimeError):
    """An algorithm is used before it has networks."""


class OrderError(BirlError, RuntimeError):
    """A method is called too early or too late."""


class StalledError(BirlError, RuntimeError):
    """Many updates in a row changed nothing, although there was something to learn."""


class CompileError(BirlError, RuntimeError):
    """An update cannot be compiled: the compiler is missing, or it does not support a user's module."""


class UnsupportedError(BirlError, RuntimeError):
    """The algorithm does not support the request by design."""


class WorkerError(BirlError, RuntimeError):
    """A worker process, such as one that runs environments, has ended."""


class ActionRangeWarning(UserWarning):
    """Actions are outside the range ``[-1, 1]`` of the policy: no action scaler is set, or it does not fit the data."""


class EvaluationWarning(UserWarning):
    """An evaluator returned NaN or infinity, which ranks no model, or some episodes did not report their success."""


class ObservationRangeWarning(UserWarning):
    """Networks read images as bytes from 0 to 255, because no observation scaler is set, or the scaler does not fit."""


class ResolutionWarning(UserWarning):
    """Float32, in which networks compute, cannot tell the values of a column of data apart."""


class EpisodeCutWarning(UserWarning):
    """Consecutive steps of data do not follow one another, so that episodes are cut between them."""


class UnloadableModelWarning(UserWarning):
    """A model was saved whose configuration describes other networks, so that ``load_learnable`` refuses it."""


class OneHotActionWarning(UserWarning):
    """Actions that are taken as continuous look like one-hot vectors of discrete ones."""


class UnloggedActionWarning(UserWarning):
    """The data hold no step with some of the discrete actions, and do not say that these exist."""


class MissingColumnWarning(UserWarning):
    """Steps are stored without an extra column that a buffer has, which holds 0 for them."""


class ShortRunWarning(UserWarning):
    """A run is too short to learn anything."""


class UnusedOptionWarning(UserWarning):
    """An option has no effect with the others."""


_MIN_SIMILARITY: Final = 0.7
"""Smallest similarity of suggested names. At difflib's default of 0.6, ``created`` is a suggestion for ``reward``."""


def outside_birl() -> int:
    """Return the ``stacklevel`` with which the calling function warns of the line that called birl."""
    frame, level = sys._getframe(1), 1
    inside = ("birl", "contextlib")  # which calls the ends of context managers
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    return level


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'learning_rate'?"``, or an empty string if no known name is similar.

    Similar names are those that differ in case and ``_`` only; else those that contain ``name`` or end in words with
    these initials (``lr``); else the most similar one.
    """
    names = list(known)
    equal = [each for each in names if _normalized(each) == _normalized(name)]
    containing = [
        each for each in names if name in each or "".join(word[:1] for word in each.split("_")).endswith(name)
    ]
    similar = equal or (
        containing[:3] if len(name) > 1 and containing else difflib.get_close_matches(name, names, 1, _MIN_SIMILARITY)
    )
    return f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""


def _normalized(name: str) -> str:
    return name.lower().replace("_", "")


def argument_here(name: str, known: Iterable[str]) -> str:
    """Return advice about an unknown argument: what another library's word is here, or `did_you_mean`."""
    known = list(known)
    return argument_hint(name, known) or did_you_mean(name, known)


def missing_name(
    module: str, name: str, known: Iterable[str], renamed: Mapping[str, str] = MappingProxyType({})
) -> AttributeError | ImportError:
    """Return the error for a name that a module lacks: its new name, where it is, or a similar one.

    It is an `ImportError` for a renamed name and in ``from package import name``, which would replace the text of an
    `AttributeError`.

    Args:
        module: full name of the module.
        name: the missing name.
        known: the module's public names.
        renamed: full new names by old name.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name in renamed:
        return ImportError(f"{text}; it is {renamed[name]} now", name=module)
    hint = ""
    if not name.startswith("_") and not _is_module(f"{module}.{name}"):  # that `from module import name` will import
        hint = name_hint(name) or _home(name) or did_you_mean(name, known)
    if hint and _imports_a_name():
        return ImportError(f"{text}{hint}", name=module)
    return AttributeError(f"{text}{hint}", name=name, obj=sys.modules[module])


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is no package
        return False


def _home(name: str) -> str:
    """Return where a public name of birl is that another package has not."""
    birl = importlib.import_module("birl")
    if name in birl.__all__:
        return f"; it is birl.{name}"
    places = [each for each in birl.__all__ if name in getattr(getattr(birl, each), "__all__", ())]
    return f"; it is birl.{places[0]}.{name}" if places else ""


def _imports_a_name() -> bool:
    """Return whether a ``__getattr__`` of a package calls this in ``from package import name``."""
    frame, birl = sys._getframe(), os.path.dirname(__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(birl):
        frame = frame.f_back
    return frame.f_code.co_name == "_handle_fromlist"


def explain_missing_names(
    module: str,
    known: Iterable[str],
    renamed: Mapping[str, str] = MappingProxyType({}),
    homes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Give a package a ``__getattr__`` that raises the error of `missing_name`.

    Type checkers do not see it, and go on to report missing names.

    Args:
        module, known, renamed: see `missing_name`.
        homes: modules of the public names that the package imports on first use, see `import_name`.
    """

    def __getattr__(name: str) -> object:
        return import_name(module, name, homes, known, renamed)

    setattr(sys.modules[module], "__getattr__", __getattr__)  # noqa: B010  # a module has no such attribute for mypy


def import_name(
    module: str,
    name: str,
    homes: Mapping[str, str],
    known: Iterable[str],
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> object:
    """Return a public name that a package imports on first use, so that importing the package is cheap.

    A package calls it in its ``__getattr__``.

    Args:
        module: full name of the package.
        name: the name.
        homes: modules of the names that are imported on first use.
        known, renamed: see `missing_name`, whose error is raised for any other name.
    """
    if name not in homes:
        raise missing_name(module, name, known, renamed)
    value = getattr(importlib.import_module(homes[name]), name)
    setattr(sys.modules[module], name, value)  # not found again
    return value


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module. If it is missing, the error names the extra of birl that installs it.

    Raises:
        MissingExtraError: if the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module!r} is needed here and is not installed: run `pip install 'birl[{extra}]'`"
        ) from error
