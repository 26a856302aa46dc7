"""Words of other libraries, and what they are in birl: one table for errors and the documentation."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

T = TypeVar("T")

SHORT: Final = {
    "birl.algos.Algorithm.": "",
    "birl.algos.Algorithm(": "create(",
    "birl.run.OnlineOptions(": "fit_online(",
}
"""Calls that messages name without the class that documents their arguments."""

ON_CLASSES: Final = {"algorithm": ("from_checkpoint", "from_pretrained", "load"), "config": ("load",)}
"""Class methods of other libraries, which are looked for in the class itself."""


class Counterpart(NamedTuple):
    """A counterpart of an argument: a call, its arguments and a note, an option of the command line, or only a note."""

    call: str
    arguments: tuple[str, ...]
    note: str

    @classmethod
    def parse(cls, text: str) -> Counterpart:
        """Read a text of the table."""
        if not re.match(r"birl[.]\S+(\(|: |$)", text):
            return cls("", (), text)
        match = re.match(r"(birl[\w.]+)(?:\(([\w, ]+)\))?(?:: (.*))?$", text)
        if match is None:
            raise ValueError(f"{text!r} is no call with arguments")
        return cls(match[1], tuple((match[2] or "").replace(" ", "").split(",")) if match[2] else (), match[3] or "")

    def __str__(self) -> str:
        arguments = ", ".join(f"{each}=…" for each in self.arguments)
        return shortened(f"{self.call}({arguments})" if arguments else self.call)


def shortened(text: str) -> str:
    """Return a text with calls as messages name them, such as ``fit_online(n_steps=…)``."""
    text = re.sub(
        r"(birl[.][\w.]+)\(([a-z_][\w, ]*)\)", lambda match: f"{match[1]}({match[2].replace(',', '=…,')}=…)", text
    )
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text


@functools.cache
def table() -> dict[str, Any]:
    """Read the table."""
    text = resources.files("birl").joinpath("habits.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)
    return found


@functools.cache
def arguments() -> dict[str, list[Counterpart]]:
    """Return the counterparts of all arguments, by words without case and ``_``."""
    found: dict[str, list[Counterpart]] = {}
    for words in table()["arguments"].values():
        for word, texts in words.items():
            for text in [texts] if isinstance(texts, str) else texts:
                found.setdefault(plain(word), []).append(Counterpart.parse(text))
    return found


def plain(word: str) -> str:
    """Return a word in lower case and without punctuation."""
    return re.sub(r"[\W_]", "", word.lower())


def name_hint(name: str) -> str:
    """Return ``"; here that is birl.algos.DQN with …"``, what is nearest, or an empty string for other names.

    Args:
        name: name of a class, function or module. It may end in ``Config``.
    """
    word = plain(name)
    for key in (word, word.removesuffix("config")):
        if key in _plain_keys("absent"):
            return f", and birl does not have this algorithm: {_plain_keys('absent')[key]}"
        if key in _plain_keys("names"):
            return f"; here that is {shortened(_plain_keys('names')[key])}"
    return ""


@functools.cache
def _plain_keys(part: str) -> Mapping[str, str]:
    return {plain(word): text for word, text in table()[part].items()}


def argument_hint(name: str, known: Iterable[str]) -> str:
    """Return ``"; here that is 'rollout_length'."``, or an empty string for other words.

    Args:
        name: the unknown argument.
        known: arguments of the place. If the counterpart is not one of them, the text names its place.
    """
    known = set(known)
    rows = [row for row in arguments().get(plain(name), ()) if not row.note.startswith("--")]
    if not rows or plain(name) in map(plain, known):
        return ""
    here = [(row, names) for row in rows if (names := [each for each in row.arguments if each in known])]
    whole = [(row, names) for row, names in here if len(names) == len(row.arguments)]
    found = [listed(map(repr, names)) + _bracketed(_NOT_HERE.sub("", row.note)) for row, names in (whole or here)[:1]]
    if not found and not rows[0].call:
        return f"; {rows[0].note}."
    found = found or [f"{row}{_bracketed(_with_fields(row.note, known))}" for row in rows if row.call]
    return f"; here that is {' or '.join(found)}."


def _encoder_fields(known: Iterable[str]) -> list[str]:
    return sorted(each for each in known if each.endswith("encoder_factory"))


def _with_fields(note: str, known: set[str]) -> str:
    """Return a note whose example of an encoder names the encoders that are known."""
    fields = _encoder_fields(known) or ["encoder_factory"]
    return re.sub(r"\bencoder_factory(=\[.*\])", lambda match: ", ".join(f"{each}{match[1]}" for each in fields), note)


_NOT_HERE: Final = re.compile("(; )?fit_online takes it as .*|; n_steps_per_epoch sets .*")
"""Parts of a note that say how to use a counterpart which belongs to another place."""


def option_hint(name: str, options: Iterable[str], fields: Iterable[str] = ()) -> str:
    """Return advice about an unknown option of the command line, such as ``"here that is --n-steps"``.

    Args:
        name: the option, without dashes.
        options: arguments of the command's options.
        fields: hyper-parameters that follow ``--set``.
    """
    options, rows, fields = set(options), arguments().get(plain(name), ()), list(fields)
    found = [row.note for row in rows if row.note.startswith("--") and row.note[2:].replace("-", "_") in options]
    found = found or [f"--{each.replace('_', '-')}" for row in rows for each in row.arguments if each in options]
    found = found or [f"--set {each}=…" for row in rows for each in row.arguments if each in fields]
    if any("encoder_factory=[" in row.note for row in rows):
        found = found or [f"--set '{each}=[64, 64]'" for each in _encoder_fields(fields)]
    found = found or [row.note for row in rows if not row.call and not row.note.startswith(("--", "not needed"))]
    return f"here that is {' or '.join(dict.fromkeys(found))}" if found else ""


def value_hint(value: object) -> str:
    """Return where a policy's name or an environment belongs that is given to an algorithm or a configuration."""
    if isinstance(value, str) and value.endswith("Policy"):
        return "; networks are made by encoder factories, which are fields of the configuration"
    if (isinstance(value, str) and re.search(r"-v\d+$", value)) or (hasattr(value, "reset") and hasattr(value, "step")):
        return "; the environment is an argument of fit_online"
    return ""


def named_hint(kind: str, name: str) -> str:
    """Return ``"; here that is 'vector'."`` for another library's name of a factory or scaler; empty for other names.

    Args:
        kind: name of the base class, such as ``"EncoderFactory"``.
        name: the unknown name.
    """
    for word, text in table()["values"].get(kind, {}).items():
        if plain(word) == plain(name):
            here, _, note = text.partition(", ")
            return f"; here that is {here!r}{f', {shortened(note)}' if note else ''}."
    return ""


def listed(words: Iterable[str]) -> str:
    """Return ``"a, b and c"``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _bracketed(note: str) -> str:
    return f" ({shortened(note)})" if note else ""


def attribute_hint(kind: str, owner: type, name: str) -> str:
    """Return what to do instead of using an attribute that other libraries have; empty for other names.

    Args:
        kind: ``"algorithm"``, ``"config"`` or ``"buffer"``.
        owner: the class that lacks the attribute.
        name: name of the attribute.
    """
    texts: Mapping[str, str] = table()["methods"][kind]
    if kind == "config" and name not in texts and not name.startswith("_"):
        algorithm = getattr(owner, "algorithm", None)
        if hasattr(algorithm, name):
            return f"; create() makes the algorithm, which has it: {owner.__name__}(…).create().{name}"
        texts = table()["methods"]["algorithm"]
        return f"; create() makes the algorithm, and then {texts[name]}" if name in texts else ""
    return f"; {texts[name]}" if name in texts else ""


def explain_attributes(kind: str) -> Callable[[type[T]], type[T]]:
    """Make a decorator of a class whose objects explain missing attributes that other libraries have.

    Type checkers do not see it, and go on to report missing attributes.

    Args:
        kind: see `attribute_hint`.
    """

    def __getattr__(self: object, name: str) -> object:
        try:
            return object.__getattribute__(self, name)  # raises again what a property has raised
        except AttributeError as error:
            if hint := attribute_hint(kind, type(self), name):
                text = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
                raise AttributeError(text, name=name, obj=self) from None
            raise error

    def decorate(cls: type[T]) -> type[T]:
        setattr(cls, "__getattr__", __getattr__)  # noqa: B010
        for name in ON_CLASSES.get(kind, ()):
            setattr(cls, name, _Missing(kind, name))
        return cls

    return decorate


class _Missing:
    """An attribute that a class explains, but does not have."""

    def __init__(self, kind: str, name: str) -> None:
        self._kind, self._name = kind, name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        hint = attribute_hint(self._kind, owner, self._name)
        raise AttributeError(f"{owner.__name__} has no attribute {self._name!r}{hint}", name=self._name, obj=owner)
