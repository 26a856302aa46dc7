"""The ``birl`` command, one file per subcommand."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import typer

from birl._version import __version__
from birl.cli.algos import algos
from birl.cli.collect import collect
from birl.cli.common import algorithm_classes, note
from birl.cli.convert import convert
from birl.cli.data import app as data
from birl.cli.evaluate import evaluate
from birl.cli.export import export
from birl.cli.install import install
from birl.cli.ope import app as ope
from birl.cli.play import play
from birl.cli.plot import plot
from birl.cli.plot_all import plot_all
from birl.cli.record import record
from birl.cli.stats import stats
from birl.cli.train import train
from birl.cli.train_options import GroupedCommand
from birl.cli.tune import COMMAND, tune
from birl.config import hyperparameters
from birl.errors import BirlError
from birl.ope.html_page import printable
from birl.run.signals import handled_by

__all__ = ["main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Deep reinforcement learning from logs and in live environments.",
)
_COMMANDS: dict[Callable[..., None], str] = {
    train: "Train from logged data or in an environment.",
    tune: "Search for settings by many runs.",
    evaluate: "Returns of a trained policy.",
    collect: "Episodes of a trained policy as a dataset.",
    stats: "Statistics of a metric, a run or a dataset.",
    plot: "Curves of one or many runs.",
    plot_all: "All metrics of a run in one picture.",
    record: "Episodes of a trained policy as videos.",
    play: "A trained policy in a window.",
    export: "A policy as a file that needs no birl.",
    convert: "A model of d3rlpy as one of birl.",
    algos: "List the algorithms.",
    install: "Install optional packages.",
}
_SPECIAL: dict[Callable[..., None], dict[str, Any]] = {train: {"cls": GroupedCommand}, tune: COMMAND}
for _command, _summary in _COMMANDS.items():
    app.command(short_help=_summary, **_SPECIAL.get(_command, {}))(_command)
app.add_typer(data, name="data", short_help="Logs as episodes: schema, import, report, split.")
app.add_typer(ope, name="ope", short_help="From logs to a decision: report, rank, choose.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"birl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error. May stand anywhere."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Deep reinforcement learning from logs and in live environments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: words after ``birl``; by default those the process was started with.

    Returns:
        Exit status: 0, 1 after an error, 2 after a wrong command line, 130 after Ctrl-C; of ``birl ope report`` the
        verdict, `birl.ope.STATUS`. SIGTERM raises `SystemExit` with status 143.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    warnings.formatwarning = lambda message, *rest: f"birl: warning: {_in_options(str(message))}\n"
    try:
        with _warnings_shown(), _ended_by_sigterm():
            return int(_command_line()(words, prog_name="birl", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):  # typer turns the first into the second
        return 130
    except Exception as error:
        if _follows_interrupt(error):
            return 130
        if debug:
            raise
        usage = hasattr(error, "format_message")  # every error of typer about the command line has it
        said = f"{_given(error, words)}{_field(error, words) or _one_line(error, usage)}"
        print(f"birl: {printable(said)}", file=sys.stderr)
        return 2 if usage else 1


@functools.cache
def _command_line() -> Any:
    """The commands with their options, read from the signatures once."""
    return typer.main.get_command(app)


class _Warnings(logging.Handler):
    """Shows warnings of birl's logger above the progress bar, a line each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        words = " ".join(record.getMessage().split())
        if not words.startswith("nothing to do: ") and not _user_shows_logs():  # commands say that in options' words
            note(f"birl: warning: {_in_options(words)}")


def _user_shows_logs() -> bool:
    """Whether a module of the user's has set up logging, so that a warning stands on standard error already."""
    handlers = [*logging.getLogger("birl").handlers, *logging.getLogger().handlers]
    return any(getattr(handler, "stream", None) is sys.stderr for handler in handlers)


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    """Show what birl's logger warns of. Without a handler, Python would print it in the middle of the progress bar."""
    logger, handler = logging.getLogger("birl"), _Warnings()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM, also before and after the loops that write checkpoints."""
    ended = []

    def end(number: int, frame: FrameType | None) -> None:
        ended.append(128 + number)
        raise SystemExit(128 + number)

    try:
        with handled_by(end, signal.SIGTERM):
            yield
    except Exception:
        # A signal can arrive while a library is being imported; errors of its cleanup are consequences.
        if ended:
            raise SystemExit(ended[0]) from None
        raise


def _follows_interrupt(error: BaseException) -> bool:
    """Whether an error was raised while a Ctrl-C was being handled."""
    context = error.__context__
    return context is not None and (isinstance(context, KeyboardInterrupt) or _follows_interrupt(context))


def _given(error: Exception, words: Sequence[str]) -> str:
    """``"--n-steps ten: "``: the option that an error is about, with its value, which typer does not name."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if option.startswith("-") and word == option and following:
                return f"{word} {following}: "
            if option.startswith("-") and word.startswith(f"{option}="):
                return f"{word}: "
    return ""


def _field(error: Exception, words: Sequence[str]) -> str:
    """Where an unknown option of ``birl train`` is a hyper-parameter: how that is given."""
    option = str(getattr(error, "option_name", ""))
    name = option.lstrip("-").replace("-", "_")
    configs = [algorithm.config_class for algorithm in algorithm_classes().values()]
    if words[0] not in ("train", "tune") or not any(name in hyperparameters(each) for each in configs):
        return ""
    place = next(index for index, word in enumerate(words) if word.partition("=")[0] == option)
    value = words[place].partition("=")[2] or "".join(words[place + 1 : place + 2]) or "…"
    return f"no option is called {option}: hyper-parameters follow --set, as in --set {name}={value}"


def _one_line(error: Exception, usage: bool) -> str:
    text = " ".join((error.format_message() if usage else str(error)).split())  # type: ignore[attr-defined]
    for where in getattr(error, "__notes__", []):  # such as which evaluator
        text = f"{text.removesuffix('.')}. {' '.join(where.split()).removesuffix('.')}"
    if usage:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "birl"
        return f"{text} (see `{command} --help`)" if text else f"see `{command} --help`"
    if isinstance(error, BirlError):
        text = _in_options(text)
        wrapped = "wrap the environment in " in text  # in Python
        return text + ("; here in a function that makes it: --env-id module:function" if wrapped else "")
    return f"unexpected {type(error).__name__}: {text} (with --debug: where)"


_OPTIONS = {
    "make the dataset or buffer without sampler=": "leave out --prioritized",
    "make the dataset without sampler=": "leave out --prioritized",
    "import the module that defines it first": "name its module: --import MODULE",
    "wrap it, birl.envs.ActionMask(env),": "train with --action-mask,",
    "wrap the environment in birl.envs.ActionMask": "give --action-mask",
    "birl.Cluster(on_error='restart')": "--on-error restart",
}


def _in_options(text: str) -> str:
    """What a message says to do in Python, in options."""
    for code, words in _OPTIONS.items():
        text = text.replace(code, words)
    return text
