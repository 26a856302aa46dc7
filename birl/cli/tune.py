"""``birl tune``: a search for settings, each of whose trials is a run of ``birl train``."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from birl.cli.common import AnyAlgorithm, algorithm_class, flags, import_user_module
from birl.cli.run_processes import starter
from birl.cli.study import Tuning
from birl.cli.train import check_source, configure, initial_model, train
from birl.config import AlgorithmConfig
from birl.errors import ConfigError, ForeignFileError, ResumeError
from birl.files import atomic_write
from birl.recipes import find
from birl.run.checkpoint import differences
from birl.run.run_lock import only_run

_SETTINGS: Final = "tune.json"
_REFUSED = {
    "fresh": "give another --out to start over",
    "extend": "a larger --trials goes on with more trials",
    "seeds": "each trial is one run; --seed is that of the search and of all its runs",
}
_SYNTAX = (
    "write NAME=LOW..HIGH (gamma=0.9..0.999, n_critics=2..10), NAME=LOW..HIGH:log (learning_rate=1e-5..1e-2:log) or "
    "choices, NAME=A,B,… (batch_size=32,64,128)"
)
_COMMA = re.compile(r",(?![^\[{]*[\]}])")  # not within a list, as in [64],[256,256]
_trainer = typer.Typer(add_completion=False, rich_markup_mode=None)
_trainer.command()(train)


class TuneCommand(TyperCommand):
    """All words that follow ``--search`` belong to it, up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        found: list[str] = []
        searched = False
        for word in args:
            again = searched and not word.startswith("-") and found[-1] != "--search"
            found += ["--search", word] if again else [word]
            searched = word == "--search" or (searched and not word.startswith("-"))
        return super().parse_args(ctx, found)


COMMAND: dict[str, Any] = {
    "cls": TuneCommand,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}
"""How typer is told of `tune`: what it does not know are options of ``birl train``."""


@dataclass(frozen=True)
class Search:
    """A field and where its value is sought.

    Attributes:
        name: the field, as after ``--set``.
        text: its range in words.
        low, high: both ends, of which either may be found.
        log: whether the logarithm is drawn uniformly.
        whole: whether only whole numbers are drawn.
        choices: values instead of a range.
    """

    name: str
    text: str
    low: float = 0
    high: float = 0
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()

    def suggest(self, trial: Any) -> str:
        """The value of one of Optuna's trials, as a word for ``--set``."""
        if self.choices:
            return str(trial.suggest_categorical(self.name, self.choices))
        if self.whole:
            return str(trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log))
        return repr(trial.suggest_float(self.name, self.low, self.high, log=self.log))

    def ends(self) -> list[str]:
        """Values that must fit the field if all are to fit."""
        return list(self.choices) or [str(int(end)) if self.whole else repr(end) for end in (self.low, self.high)]


def tune(
    context: typer.Context,
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="As of `birl train`, whose other options follow.")],
    trials: Annotated[int, typer.Option(min=1, help="Number of runs; a larger one later goes on with more.")],
    search: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=RANGE …",
            help="Fields to search: learning_rate=1e-5..1e-2:log, gamma=0.9..0.999, n_critics=2..10, "
            "batch_size=32,64,128.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the search; run N is in DIR/trial_N.")],
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    no_prune: Annotated[
        bool, typer.Option("--no-prune", help="Let all runs end, also those worse than the median of others.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the search, and of each run.")] = 0,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Ray places the runs, in its cluster there; auto finds it, local is this machine. With --collectors "
            "it places those.",
        ),
    ] = None,
) -> None:
    """Search for settings with Optuna: each trial is a run of `birl train`. The same command again goes on.

    All other options are those of `birl train`, and the same in all trials. A trial's score is the mean of its last
    three evaluations.
    """
    searches = [parse_search(word) for word in search]
    words = list(context.args)
    options = _options(algo, words)
    if address is not None and "collectors" in options:
        words, address = [*words, "--address", address], None
        options = _options(algo, words)
    algorithm, searches = _check(algo, options, searches)
    told = {
        "algorithm": algorithm.__name__,
        "trials": trials,
        "seed": seed,
        "prune": not no_prune,
        "search": {each.name: each.text for each in searches},
        "train": options,
    }
    with only_run(out):
        _settle(out, told)
        metric = "evaluation" if options.get("dataset") is None else "environment"
        fixed = [algo, *words, "--seed", str(seed)]
        tuning = Tuning(out, fixed, searches, metric=metric, seed=seed, prune=not no_prune)
        with starter(jobs, address, options.get("device", "cpu")) as begin:
            tuning.run(trials, jobs, begin)
        tuning.report()


def parse_search(word: str) -> Search:
    """``NAME=RANGE`` as a `Search`.

    Raises:
        ConfigError: if it is not written so, or if the range is empty.
    """
    name, _, text = word.partition("=")
    if not name or not text:
        raise ConfigError(f"--search {word!r} has no {'range' if name else 'name'}: {_SYNTAX}")
    if ".." not in text:
        choices = tuple(_COMMA.split(text))
        if len(choices) < 2 or len(set(choices)) < len(choices) or not all(choices):
            raise ConfigError(f"--search {word!r}: there must be two or more different choices: {_SYNTAX}")
        return Search(name, text, choices=choices)
    numbers, colon, scale = text.partition(":")
    ends = numbers.split("..")
    try:
        low, high = map(float, ends)
    except ValueError as error:
        raise ConfigError(f"--search {word!r}: {numbers!r} is not two numbers: {_SYNTAX}") from error
    if colon and scale != "log":
        raise ConfigError(f"--search {word!r}: {scale!r} is not log: {_SYNTAX}")
    if not (low < high and math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"--search {word!r}: the first number must be below the second, and both finite: {_SYNTAX}")
    if colon and low <= 0:
        raise ConfigError(f"--search {word!r}: with :log both ends must be above 0: {_SYNTAX}")
    whole = all(re.fullmatch(r"[+-]?\d+", end.strip()) for end in ends)
    return Search(name, text, low, high, bool(colon), whole)


def _options(algo: str, words: Sequence[str]) -> dict[str, Any]:
    """Options of ``birl train`` that are given, as JSON values.

    Raises:
        ConfigError: if one has no place in a search. Typer's own errors, if one does not exist.
    """
    if algo.startswith("-"):
        raise ConfigError(f"the algorithm's name comes first, before {algo}: birl tune ALGO {algo} …")
    command = typer.main.get_command(_trainer)
    context = command.make_context("birl train", [algo, *words])
    sources = {name: context.get_parameter_source(name) for name in context.params if name != "algo"}
    found = {name: context.params[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    for name, instead in _REFUSED.items():
        if name in found:
            raise ConfigError(f"{flags([name])}: not in a search: leave it out; {instead}")
    return dict(json.loads(json.dumps(found, default=str)))


def _check(algo: str, options: dict[str, Any], searches: Sequence[Search]) -> tuple[type[AnyAlgorithm], list[Search]]:
    """Check the words of a search as far as that is possible before it begins.

    Returns:
        The algorithm, and the searches, where a range such as ``0..1`` has fractions if its field has.
    """
    if (module := options.get("import_")) is not None:
        import_user_module(module)
    algorithm = algorithm_class(algo)
    if options.get("env_id") is None:
        both = "--dataset has no scores without an environment" if "dataset" in options else "nothing to learn from"
        raise ConfigError(f"{both}: give --env-id ID, in which trials are evaluated")
    check_source(algorithm, options.get("dataset"), options.get("demonstrations"))
    words = [*options.get("set_", ()), *options.get("more", ())]
    fixed = {word.partition("=")[0]: word for word in words}
    base: AlgorithmConfig | None = None
    if "init_from" in options:
        base = initial_model(algorithm, Path(options["init_from"]), None).config
    elif "recipe" in options:
        base = find(algorithm.__name__, options["recipe"]).config(options.get("n_steps") or 1)
    configure(algorithm, words, base)
    checked: dict[str, Search] = {}
    for each in searches:
        if each.name in checked:
            raise ConfigError(f"--search {each.name} is given twice: leave one out")
        if each.name in fixed:
            raise ConfigError(f"--search {each.name} and --set {fixed[each.name]} are both given: leave one out")
        for value in each.ends():
            try:
                configure(algorithm, [*words, f"{each.name}={value}"], base)
            except ConfigError as error:
                raise ConfigError(f"--search {each.name}={each.text}: {error}") from error
        fractions = each.whole and _accepts(algorithm, [*words, f"{each.name}={each.low + 0.5}"], base)
        checked[each.name] = dataclasses.replace(each, whole=each.whole and not fractions)
    return algorithm, list(checked.values())


def _accepts(algorithm: type[AnyAlgorithm], words: Sequence[str], base: AlgorithmConfig | None) -> bool:
    try:
        configure(algorithm, words, base)
    except ConfigError:
        return False
    return True


def _settle(out: Path, told: dict[str, Any]) -> None:
    """Write the words of a search into its folder, or compare them with those that are there.

    Raises:
        ResumeError: if they differ in more than a larger number of trials.
        ForeignFileError: if the folder holds something else.
    """
    file = out / _SETTINGS
    if file.is_file():
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(saved, dict) or not isinstance(saved.get("trials"), int):
                raise ValueError("it holds no words of a search")
        except (ValueError, RecursionError) as error:
            raise ForeignFileError(f"{file} cannot be read ({error}): give another --out") from error
        fewer = told["trials"] < saved["trials"]
        different = differences(saved if fewer else {**saved, "trials": told["trials"]}, told)
        if different:
            raise ResumeError(
                f"{out} holds a search with other words: {'; '.join(different)}. Give the same words to go on, with "
                "as many --trials or more, or another --out"
            )
    elif any(not each.name.startswith(".run.") for each in out.iterdir()):
        raise ForeignFileError(f"{out} has files but no search of `birl tune`: give another --out")
    atomic_write(file, json.dumps(told, indent=2).encode())
