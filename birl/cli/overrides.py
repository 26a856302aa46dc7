"""Words on the command line: ``--set field=value`` as a checked configuration, ``--seeds`` as numbers."""

from __future__ import annotations

import json
import typing
from collections.abc import Sequence
from typing import Any, Final

from birl.algorithm import Algorithm
from birl.algorithm.multi_seed import checked_seeds
from birl.config import AlgorithmConfig
from birl.errors import ConfigError
from birl.files.serializable import Serializable, encode

_MOST_SEEDS: Final = 1000
_WORDS = {"True": True, "False": False, "None": None}


def configure(
    algorithm: type[Algorithm[Any, Any]], assignments: Sequence[str], base: AlgorithmConfig | None = None
) -> AlgorithmConfig:
    """Make a configuration from ``field=value`` words, and otherwise from ``base`` or the algorithm's defaults.

    A value is JSON, or a plain word. Encoders, heads, optimisers and scalers are chosen by their short names
    (``q_func_factory=qr``), and their own fields follow after a dot (``q_func_factory.n_quantiles=64``).

    Raises:
        ConfigError: if a field or a value does not exist or does not fit, or if a field is set twice.
    """
    params: dict[str, Any] = (base or algorithm.config_class()).serialize()["params"]
    given: dict[str, str] = {}
    for word in assignments:
        path, equals, text = word.partition("=")
        if not equals or not path:
            raise ConfigError(f"{word!r} has no value: write field=value, such as gamma=0.9 or q_func_factory=qr")
        if path in given:
            raise ConfigError(f"{path} is set twice, to {given[path]} and to {text}: leave one out")
        given[path] = text
        _assign(algorithm.config_class, params, path, "", _value(text))
    return AlgorithmConfig.deserialize({"type": algorithm.config_class.get_type(), "params": params})


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for parse in (json.loads, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def _assign(owner: type[Any], params: dict[str, Any], path: str, before: str, value: Any) -> None:
    head, _, rest = path.partition(".")
    kind, full = _kind(owner, head), before + head
    if rest:
        inner = params.get(head)
        if kind is None or not isinstance(inner, dict) or "type" not in inner:
            raise ConfigError(
                f"{full} is {inner!r:.60} and has no field {rest!r}"
                + (f": choose one first, {full}=one of {', '.join(sorted(kind._known))}" if kind else "")
            )
        _assign(kind._known[inner["type"]], inner["params"], rest, f"{full}.", value)
        return
    if kind is not None and value is not None:
        try:
            value = kind.from_short(value)
            value = encode(value if isinstance(value, kind) else kind.named(value))
        except ConfigError as error:
            raise ConfigError(f"{full}={value!s:.80}: {error}") from error
    if before and head not in params and head not in getattr(owner, "__dataclass_fields__", ()):
        raise ConfigError(f"{before.rstrip('.')} ({owner.__name__}) has no field {head!r}; it has: {', '.join(params)}")
    params[head] = value


def _kind(owner: type[Any], field: str) -> type[Serializable] | None:
    """The kind of factory or scaler that ``owner.field`` holds, if it does."""
    hint = typing.get_type_hints(owner).get(field)
    for option in (hint, *typing.get_args(hint)):
        if isinstance(option, type) and issubclass(option, Serializable):
            return option
    return None


def seeds_of(words: str, seed: int) -> list[int]:
    """The seeds that ``--seeds`` asks for."""
    if seed:
        raise ConfigError(f"--seed {seed} and --seeds {words} are both given: leave one out")
    try:
        numbers = [int(word) for word in words.split(",")]
        if len(numbers) > 1 or numbers[0] <= _MOST_SEEDS:
            return checked_seeds(numbers[0] if len(numbers) == 1 else numbers)
    except (ValueError, ConfigError) as error:
        raise ConfigError(
            f"--seeds is {words!r}: give a number of seeds (--seeds 16 for 0 … 15) or different seeds (--seeds 3,5,7)"
        ) from error
    one = numbers[0]
    raise ConfigError(f"--seeds {words} asks for more than {_MOST_SEEDS} seeds; for this one alone: --seed {one}")
