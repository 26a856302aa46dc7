"""Write the tables of the pages docs/moving-*.md.

Those of docs/moving-sb3.md come from birl/habits.toml, which error messages read, the others from scripts/peers/*.toml.
Each file in scripts/peers lists the names of a peer with their counterparts, and every option that has a default in the
signatures of these names, with the line that it was read in. Defaults of birl are read from birl, so a page that no
longer fits is found by a test. `scripts/check_peers.py` compares the files with a peer's source.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from birl import habits

ROOT: Final = Path(__file__).resolve().parent.parent
PEERS: Final = ("pfrl", "nnablarl")
KINDS: Final = {
    "same": "with the same meaning and default in birl",
    "default": "with the same meaning and another default",
    "differs": "with a difference that the tables name",
    "none": "without a counterpart, for the reason in the tables",
}


class Option(NamedTuple):
    """An option of a peer.

    Attributes:
        of: the peer's name that has it.
        name: its name.
        line: line of its default in the peer's file.
        default: the default as the peer's code has it.
        kind: one of `KINDS`.
        birl: the counterpart; empty if there is none.
        note: what differs, or why there is none.
    """

    of: str
    name: str
    line: int
    default: str
    kind: str
    birl: str = ""
    note: str = ""


def read(peer: str) -> dict[str, Any]:
    """Read the file of a peer."""
    return tomllib.loads((ROOT / "scripts" / "peers" / f"{peer}.toml").read_text(encoding="utf-8"))


def options(data: dict[str, Any]) -> Iterator[Option]:
    """Yield all options of a peer. A row that ends after the default has the answer of the table ``common``."""
    for of, entry in data["names"].items():
        for row in entry.get("options", ()):
            yield Option(of, *row) if len(row) > 3 else Option(of, *row, *data["common"][row[0]])


def default_of(words: str) -> object:
    """Return the default of an option in birl, such as ``birl.algos.DQNConfig(tau)``.

    It is `inspect.Parameter.empty` for an option that has to be given.

    Raises:
        LookupError: if there is no such option.
    """
    path, _, option = words.removesuffix(")").partition("(")
    option, *rest = option.split(".")
    owner = found(path)
    if typing.is_typeddict(owner):
        from birl.run import options as loops

        if option not in owner.__annotations__:
            raise LookupError(words)
        return {**loops.DEFAULTS, **loops.ONLINE_DEFAULTS}.get(option, inspect.Parameter.empty)
    if dataclasses.is_dataclass(owner):
        field = {each.name: each for each in dataclasses.fields(owner)}.get(option)
        if field is None:
            raise LookupError(words)
        value: Any = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = inspect.Parameter.empty if value is dataclasses.MISSING else value
    else:
        parameters = inspect.signature(owner).parameters
        if option not in parameters:
            raise LookupError(words)
        value = parameters[option].default
    for name in rest:
        value = getattr(value, name)
    return value


def found(path: str) -> Any:
    """Return the object of birl that ``path`` names.

    Raises:
        LookupError: if there is none.
    """
    parts = path.split(".")
    owner: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        if not hasattr(owner, part):
            try:
                importlib.import_module(".".join(parts[:index]))
            except ImportError:
                raise LookupError(path) from None
        owner = getattr(owner, part)
    return owner


def shown_default(words: str) -> str:
    """Return the default of an option in birl as a page shows it; empty if there is none or ``words`` is no option."""
    if "(" not in words:
        return ""
    value = default_of(words)
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, type) or type(value).__module__.startswith("birl") or len(repr(value)) > 30:
        name = value.__name__ if isinstance(value, type) else type(value).__name__
        return f"`{name}`"
    return f"`{value!r}`"


def names_table(data: dict[str, Any]) -> str:
    """Return the table of names."""
    rows = [f"| `{name}` | {entry['birl']} | {entry.get('differs', '')} |" for name, entry in data["names"].items()]
    return "\n".join([f"| {data['title']} | birl | what differs |", "|---|---|---|", *(_spaced(row) for row in rows)])


def _spaced(row: str) -> str:
    return row.replace("|  |", "| |")


def _answer(option: Option) -> str:
    birl = f"`{option.birl}`" if option.birl else "none"
    return f"{birl} | {shown_default(option.birl)} | {option.note} |"


def options_table(data: dict[str, Any]) -> str:
    """Return the section of options: counts, options with one answer for several names, and those of single names."""
    every = list(options(data))
    counts = ", ".join(f"{sum(each.kind == kind for each in every)} {meaning}" for kind, meaning in KINDS.items())
    shared: dict[tuple[str, str], list[Option]] = {}
    for each in every:
        if _common(data, each):
            shared.setdefault((each.name, _answer(each)), []).append(each)
    out = [f"{len(every)} options of {data['title']} have a default: {counts}.", ""]
    out += ["Options that several names have:", ""]
    out += [f"| {data['title']} | of | default | birl | default | what differs |", "|---|---|---|---|---|---|"]
    for (name, answer), owners in sorted(shared.items()):
        defaults = ", ".join(f"`{default}`" for default in dict.fromkeys(each.default for each in owners))
        names = ", ".join(each.of.rsplit(".", 1)[1] for each in owners)
        out.append(_spaced(f"| `{name}=` | {names} | {defaults} | {answer}"))
    out += ["", "Options of single names, with the file and line of each:", ""]
    out += [f"| {data['title']} | default | birl | default | what differs |", "|---|---|---|---|---|"]
    for each in every:
        if not _common(data, each):
            file = data["names"][each.of]["at"].partition(":")[0]
            own = f"`{each.of.rsplit('.', 1)[1]}({each.name})`, {file}:{each.line}"
            out.append(_spaced(f"| {own} | `{each.default}` | {_answer(each)}"))
    return "\n".join(out)


def _common(data: dict[str, Any], option: Option) -> bool:
    return data["common"].get(option.name) == [option.kind, option.birl, option.note]


def words_tables() -> str:
    """Return the tables of words of other libraries: arguments of each library, and methods."""
    out = []
    for library, words in habits.table()["arguments"].items():
        title = "Other words" if library == "others" else library
        out += [f"| {title} | birl |", "|---|---|"]
        for word in sorted(words):
            rows = habits.arguments()[habits.plain(word)]
            out.append(f"| `{word}=` | {'; or '.join(map(_counterpart, rows))} |")
        out.append("")
    methods = habits.table()["methods"]
    out += ["Methods and attributes:", "", "| elsewhere | birl |", "|---|---|"]
    out += [f"| `{word}` | {text} |" for word, text in sorted({**methods["config"], **methods["algorithm"]}.items())]
    return "\n".join(out)


def _counterpart(row: habits.Counterpart) -> str:
    if row.note.startswith("--"):
        return f"`{row.note}`"
    return f"`{row}`{', ' if row.note else ''}{habits.shortened(row.note)}" if row.call else row.note


def page(peer: str) -> str:
    """Return the text of a page, with new tables."""
    text = (ROOT / "docs" / f"moving-{peer}.md").read_text(encoding="utf-8")
    if peer == "sb3":
        tables = [("words", words_tables())]
    else:
        data = read(peer)
        tables = [("names", names_table(data)), ("options", options_table(data))]
    for name, table in tables:
        start, end = f"<!-- {name}: written by scripts/make_moving_pages.py -->", f"<!-- end of {name} -->"
        before, rest = text.split(start)
        text = f"{before}{start}\n\n{table}\n\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    for each_peer in (*PEERS, "sb3"):
        (ROOT / "docs" / f"moving-{each_peer}.md").write_text(page(each_peer), encoding="utf-8")
