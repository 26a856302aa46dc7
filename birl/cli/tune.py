"""``birl tune``: a search for hyper-parameters. Each trial is a run of ``birl train``."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from birl.cli.common import flags, import_user_module
from birl.cli.loading import AnyAlgorithm, algorithm_class
from birl.cli.run_folder import read_settings
from birl.cli.run_processes import process_starter
from birl.cli.study import HyperparameterSearch, SearchRange
from birl.cli.train import check_source, configure, initial_model, train
from birl.config import AlgorithmConfig
from birl.errors import ConfigError, ForeignFileError, ResumeError
from birl.files import atomic_write
from birl.metrics import EnvironmentEvaluator, EnvironmentStatistics
from birl.recipes import find
from birl.run.checkpoint import differences
from birl.run.evaluators import TRAINING_SCORES, Score
from birl.run.run_lock import only_run

_SETTINGS: Final = "tune.json"
_REFUSED = {
    "fresh": "give another --out to start again",
    "extend": "a larger --trials adds trials",
    "seeds": "each trial is one run; --seed is the seed of the search and of all its runs",
}
_SYNTAX = (
    "write NAME=LOW..HIGH (gamma=0.9..0.999, n_critics=2..10), NAME=LOW..HIGH:log (learning_rate=1e-5..1e-2:log) or "
    "choices, NAME=A,B,… (batch_size=32,64,128)"
)
_COMMA = re.compile(r",(?![^\[{]*[\]}])")  # not within a list, as in [64],[256,256]
_trainer = typer.Typer(add_completion=False, rich_markup_mode=None)
_trainer.command()(train)


class TuneCommand(TyperCommand):
    """Command whose option ``--search`` takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        words: list[str] = []
        in_search = False
        for word in args:
            repeated = in_search and not word.startswith("-") and words[-1] != "--search"
            words += ["--search", word] if repeated else [word]
            in_search = word == "--search" or (in_search and not word.startswith("-"))
        return super().parse_args(ctx, words)


COMMAND: Final[dict[str, Any]] = {
    "cls": TuneCommand,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}
"""Arguments of typer for `tune`. Unknown options are allowed, because they are options of ``birl train``."""


def tune(
    context: typer.Context,
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="As for `birl train`, whose other options follow.")],
    trials: Annotated[int, typer.Option(min=1, help="Number of runs; a larger one later adds trials.")],
    search: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=RANGE …",
            help="Fields to search: learning_rate=1e-5..1e-2:log, gamma=0.9..0.999, n_critics=2..10, "
            "batch_size=32,64,128.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the search; run N is in DIR/trial_N.")],
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    no_prune: Annotated[
        bool, typer.Option("--no-prune", help="Complete all runs, including those below the median of others.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed of the search and of each run.")] = 0,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Ray cluster that starts the runs, or with --collectors these; auto finds it, local is this machine.",
        ),
    ] = None,
) -> None:
    """Search for hyper-parameters with Optuna: each trial is a run of `birl train`. Run it again to continue.

    All other options are those of `birl train`, and the same in all trials. A trial's score is the mean of its last
    three evaluations; --score and --score-direction select another metric.
    """
    ranges = [parse_search(word) for word in search]
    words = list(context.args)
    options = _train_options(algo, words)
    if address is not None and "collectors" in options:
        words, address = [*words, "--address", address], None
        options = _train_options(algo, words)
    algorithm, ranges = _check(algo, options, ranges)
    settings = {
        "algorithm": algorithm.__name__,
        "trials": trials,
        "seed": seed,
        "prune": not no_prune,
        "search": {search.name: search.text for search in ranges},
        "train": options,
    }
    with only_run(out):
        _prepare_folder(out, settings)
        score = find_score(options)
        direction = options.get("score_direction") or score.default_direction({})
        shared = [algo, *words, "--seed", str(seed)]
        study = HyperparameterSearch(
            out, shared, ranges, metric=score.metric, direction=direction, seed=seed, prune=not no_prune
        )
        with process_starter(jobs, address, options.get("device", "cpu")) as start:
            study.run(trials, jobs, start)
        study.report()


def find_score(options: Mapping[str, Any]) -> Score:
    """Return the metric that ranks trials: ``--score``, or the return of evaluations.

    Raises:
        ConfigError: if a run with these options of ``birl train`` has no such metric.
    """
    online = options.get("dataset") is None
    name = "evaluation" if online else "environment"
    kind: Any = EnvironmentStatistics if options.get("eval_statistics") else EnvironmentEvaluator
    return Score.find(options.get("score") or name, {name: kind}, TRAINING_SCORES if online else ())


def parse_search(word: str) -> SearchRange:
    """Parse ``NAME=RANGE``.

    Raises:
        ConfigError: if the word has another form, or if the range is empty.
    """
    name, _, text = word.partition("=")
    if not name or not text:
        raise ConfigError(f"--search {word!r} has no {'range' if name else 'name'}: {_SYNTAX}")
    if ".." not in text:
        choices = tuple(_COMMA.split(text))
        if len(choices) < 2 or len(set(choices)) < len(choices) or not all(choices):
            raise ConfigError(f"--search {word!r}: there must be two or more different choices: {_SYNTAX}")
        return SearchRange(name, text, choices=choices)
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
    return SearchRange(name, text, low, high, bool(colon), whole)


def _train_options(algo: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the given options of ``birl train`` as JSON values. Typer raises its own errors for unknown options.

    Raises:
        ConfigError: if an option cannot be used in a search.
    """
    if algo.startswith("-"):
        raise ConfigError(f"the algorithm's name comes first, before {algo}: birl tune ALGO {algo} …")
    command = typer.main.get_command(_trainer)
    context = command.make_context("birl train", [algo, *words])
    sources = {name: context.get_parameter_source(name) for name in context.params if name != "algo"}
    options = {
        name: context.params[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"
    }
    for name, instead in _REFUSED.items():
        if name in options:
            raise ConfigError(f"{flags([name])}: not in a search: leave it out; {instead}")
    return dict(json.loads(json.dumps(options, default=str)))


def _check(
    algo: str, options: dict[str, Any], ranges: Sequence[SearchRange]
) -> tuple[type[AnyAlgorithm], list[SearchRange]]:
    """Check everything about a search that can be checked before it starts.

    Returns:
        The algorithm, and the ranges. A range such as ``0..1`` has fractions if the field accepts them.
    """
    if (module := options.get("import_")) is not None:
        import_user_module(module)
    algorithm = algorithm_class(algo)
    find_score(options)
    if options.get("env_id") is None:
        missing = "--dataset has no scores without an environment" if "dataset" in options else "nothing to learn from"
        raise ConfigError(f"{missing}: give --env-id ID, in which trials are evaluated")
    check_source(algorithm, options.get("dataset"), options.get("demonstrations"))
    words = [*options.get("set_", ()), *options.get("more", ())]
    fixed = {word.partition("=")[0]: word for word in words}
    base: AlgorithmConfig | None = None
    if "init_from" in options:
        base = initial_model(algorithm, Path(options["init_from"]), None).config
    elif "recipe" in options:
        base = find(algorithm.__name__, options["recipe"]).config(options.get("n_steps") or 1)
    configure(algorithm, words, base)
    checked: dict[str, SearchRange] = {}
    for search in ranges:
        if search.name in checked:
            raise ConfigError(f"--search {search.name} is given twice: leave one out")
        if search.name in fixed:
            raise ConfigError(f"--search {search.name} and --set {fixed[search.name]} are both given: leave one out")
        checked[search.name] = _check_range(algorithm, words, search, base)
    return algorithm, list(checked.values())


def _check_range(
    algorithm: type[AnyAlgorithm], words: Sequence[str], search: SearchRange, base: AlgorithmConfig | None
) -> SearchRange:
    """Check that the field accepts both ends, or all choices; return the range, with fractions if it accepts them."""
    for value in search.ends():
        try:
            configure(algorithm, [*words, f"{search.name}={value}"], base)
        except ConfigError as error:
            raise ConfigError(f"--search {search.name}={search.text}: {error}") from error
    fractions = search.whole and _accepts(algorithm, [*words, f"{search.name}={search.low + 0.5}"], base)
    return dataclasses.replace(search, whole=search.whole and not fractions)


def _accepts(algorithm: type[AnyAlgorithm], words: Sequence[str], base: AlgorithmConfig | None) -> bool:
    try:
        configure(algorithm, words, base)
    except ConfigError:
        return False
    return True


def _prepare_folder(out: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a search into its folder, or compare them with the settings in the folder.

    Raises:
        ResumeError: if they differ, except for a larger number of trials.
        ForeignFileError: if the folder holds something else.
    """
    file = out / _SETTINGS
    if file.is_file():
        saved = read_settings(file, "trials", "search", "give another --out")
        fewer = settings["trials"] < saved["trials"]
        different = differences(saved if fewer else {**saved, "trials": settings["trials"]}, dict(settings))
        if different:
            raise ResumeError(
                f"{out} holds a search with other settings: {'; '.join(different)}. Give the same ones to continue, "
                "with at least as many --trials, or another --out"
            )
    elif any(not entry.name.startswith(".run.") for entry in out.iterdir()):
        raise ForeignFileError(f"{out} has files but no search of `birl tune`: give another --out")
    atomic_write(file, json.dumps(settings, indent=2).encode())
