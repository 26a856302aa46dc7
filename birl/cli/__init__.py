"""The ``birl`` command, one file per subcommand."""

from __future__ import annotations

from birl.cli import lazy_torch as lazy_torch  # first, before anything imports torch

# isort: split
import contextlib
import functools
import json
import logging
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from birl._version import __version__
from birl.cli.common import note
from birl.errors import BirlError
from birl.habits import option_hint
from birl.run.signals import handled_by
from birl.text import printable

__all__ = ["main"]


@dataclass(frozen=True)
class _Command:
    """A subcommand.

    Attributes:
        name: name of the command. Its module in this package has the same name, with ``_`` for ``-``.
        summary: what ``birl --help`` says about it.
        arguments: returns arguments of typer, from the module.
        module: name of the module, if it is another one.
    """

    name: str
    summary: str
    arguments: Callable[[ModuleType], dict[str, Any]] = lambda module: {}
    module: str = ""

    def load(self) -> Any:
        """Import the module of the command, and make the command, or the group of commands that is called ``app``."""
        module = import_module(f"birl.cli.{self.module or self.name.replace('-', '_')}")
        if hasattr(module, "app"):
            return typer.main.get_command(module.app)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        function = getattr(module, module.__name__.rpartition(".")[2])
        single.command(self.name, short_help=self.summary, **self.arguments(module))(function)
        return typer.main.get_command(single)


_COMMANDS: Final = {
    command.name: command
    for command in (
        _Command("train", "Train from logged data or in an environment.", lambda module: module.COMMAND),
        _Command("tune", "Search for hyper-parameters with many runs.", lambda module: module.COMMAND),
        _Command("evaluate", "Play episodes and print their returns."),
        _Command("collect", "Write a policy's episodes as a dataset."),
        _Command("stats", "Print statistics of a metric, run or dataset."),
        _Command("plot", "Plot curves of one or more runs."),
        _Command("plot-all", "Plot all metrics of a run in one picture."),
        _Command("record", "Write a policy's episodes as videos."),
        _Command("play", "Show a policy's episodes in a window."),
        _Command("export", "Write a policy as a file that runs without birl."),
        _Command("convert", "Convert a model of d3rlpy."),
        _Command("algos", "List the algorithms."),
        _Command("install", "Install optional packages."),
        _Command("data", "Make episodes of logs: schema, import, report, split."),
        _Command("ope", "From logs to a decision: report, rank, plan, watch.", module="ope_group"),
    )
}


class _Commands(TyperGroup):
    """The subcommands, each of which is imported when it is used: ``birl --help`` and ``birl data`` need no PyTorch."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name) for name in _COMMANDS}  # for the order, and to suggest names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command."""
        return _load(cmd_name) if cmd_name in _COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.summary) for command in _COMMANDS.values()])


@functools.cache
def _load(name: str) -> Any:
    return _COMMANDS[name].load()


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Deep reinforcement learning from logs and in live environments.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"birl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error. Can be given anywhere."),
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Deep reinforcement learning from logs and in live environments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: words after ``birl``; by default those of the process.

    Returns:
        Exit status: 0, 1 after an error, 2 after a wrong command line, 130 after Ctrl-C. ``birl ope report`` has a
        status for each verdict, `birl.ope.STATUS`. SIGTERM raises `SystemExit` with status 143.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    warnings.formatwarning = lambda message, *rest: f"birl: warning: {_in_options(str(message))}\n"
    try:
        with _show_warnings(), _exit_on_sigterm():
            return int(_command_line()(words, prog_name="birl", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):  # typer turns the first into the second
        return 130
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:
            raise
        if debug:
            traceback.print_exc()
        print(
            f"birl: an environment, or other code that the command calls, ended the program with "
            f"sys.exit({error.code!s:.100}) before the command was done: raise an error there instead",
            file=sys.stderr,
        )
        return 1
    except Exception as error:
        if _follows_interrupt(error):
            return 130
        if debug:
            raise
        usage = hasattr(error, "format_message")  # every error of typer about the command line has it
        message = f"{_option_of(error, words)}{_option_hint(error, words) or _one_line(error, usage)}"
        print(f"birl: {printable(message)}", file=sys.stderr)
        return 2 if usage else 1


@functools.cache
def _command_line() -> Any:
    """Make the group of commands, once."""
    return typer.main.get_command(app)


class _Warnings(logging.Handler):
    """Handler that shows warnings of birl's logger above the progress bar, one line each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if not text.startswith("nothing to do: ") and not _user_shows_logs():  # commands print a message of their own
            note(f"birl: warning: {_in_options(text)}")


def _user_shows_logs() -> bool:
    """Return whether the user's own code has set up logging, so that warnings are on standard error already."""
    handlers = [*logging.getLogger("birl").handlers, *logging.getLogger().handlers]
    return any(getattr(handler, "stream", None) is sys.stderr for handler in handlers)


@contextlib.contextmanager
def _show_warnings() -> Iterator[None]:
    """Show warnings of birl's logger. Without a handler, Python would print them into the progress bar."""
    logger, handler = logging.getLogger("birl"), _Warnings()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM, also before and after the loops that write checkpoints."""
    ended = []

    def end(number: int, frame: FrameType | None) -> None:
        ended.append(128 + number)
        raise SystemExit(128 + number)

    try:
        with handled_by(end, signal.SIGTERM):
            yield
    except Exception:
        # A signal can arrive while a library is being imported, whose cleanup then raises further errors.
        if ended:
            raise SystemExit(ended[0]) from None
        raise


def _follows_interrupt(error: BaseException) -> bool:
    """Return whether an error was raised while a Ctrl-C was being handled."""
    context = error.__context__
    return context is not None and (isinstance(context, KeyboardInterrupt) or _follows_interrupt(context))


def _option_of(error: Exception, words: Sequence[str]) -> str:
    """Return the option and value that an error is about, such as ``"--n-steps ten: "``; typer does not name them."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        for word, following in reversed([*zip(words, [*words[1:], ""], strict=True)]):  # the last one counts
            if option.startswith("-") and word == option and following:
                return f"{word} {following}: "
            if option.startswith("-") and word.startswith(f"{option}="):
                return f"{word}: "
    return ""


_RENAMED = {
    "--beside": "--other",
}
"""Former names of options."""

_NO_COMMANDS: Final = {
    "resume": "the same `birl train` command again resumes its run, and --extend makes it longer",
    "continue": "the same `birl train` command again resumes its run, and --extend makes it longer",
    "eval": "here that is `birl evaluate`",
    "test": "here that is `birl evaluate`",
    "enjoy": "here that is `birl play`, or `birl record` for videos",
}
"""Commands of other programs."""


def _option_hint(error: Exception, words: Sequence[str]) -> str:
    """Return advice about an unknown option: its new name, or how to set a hyper-parameter that has its name."""
    option = str(getattr(error, "option_name", ""))
    if not option and words[0] in _NO_COMMANDS:
        return f"no command is called {words[0]}; {_NO_COMMANDS[words[0]]}"
    if option in _RENAMED:
        return f"no option is called {option}: it is {_RENAMED[option]} now"
    name = option.lstrip("-").replace("-", "_")
    options = [each.name for each in error.ctx.command.params] if option else []  # type: ignore[attr-defined]
    fields = _fields_of(words) if option and words[0] in ("train", "tune") else set()
    if name not in fields:
        here = option_hint(name, options, fields)
        near = [each for each in options if here and each in (f"{name}s", name.removesuffix("s"))]
        if near:
            here = f"did you mean --{near[0].replace('_', '-')}? In other libraries it also has another sense: {here}"
        return f"no option is called {option}; {here}" if here else ""
    position = next(index for index, word in enumerate(words) if word.partition("=")[0] == option)
    value = words[position].partition("=")[2] or "".join(words[position + 1 : position + 2]) or "…"
    return f"no option is called {option}: hyper-parameters follow --set, as in --set {name}={value}"


def _fields_of(words: Sequence[str]) -> set[str]:
    """Return the hyper-parameters of the algorithm that the words name, or of all algorithms."""
    from birl.cli.loading import algorithm_class, algorithm_classes
    from birl.config import hyperparameters

    kinds = [*algorithm_classes().values()]
    with contextlib.suppress(BirlError):  # an unknown algorithm
        kinds = [algorithm_class(words[1])] if len(words) > 1 and ":" not in words[1] else kinds
    return {name for kind in kinds for name in hyperparameters(kind.config_class)}


def _one_line(error: Exception, usage: bool) -> str:
    text = " ".join((error.format_message() if usage else str(error)).split())  # type: ignore[attr-defined]
    for detail in getattr(error, "__notes__", []):  # such as which evaluator failed
        text = f"{text.removesuffix('.')}. {' '.join(detail.split()).removesuffix('.')}"
    if usage:
        for kind, allowed in _KINDS.items():
            text = re.sub(rf"Input should be a valid {kind}\b.*", f"it must be {allowed}", text)
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "birl"
        return f"{text} (see `{command} --help`)" if text else f"see `{command} --help`"
    if isinstance(error, BirlError):
        text = _in_options(text)
        python_only = "wrap the environment in " in text
        return text + ("; here in a function that makes it: --env-id module:function" if python_only else "")
    return f"unexpected {type(error).__name__}: {text} (with --debug: where)"


_OPTIONS = {
    "make the dataset or buffer without sampler=": "leave out --prioritized",
    "make the dataset without sampler=": "leave out --prioritized",
    "import the module that defines it first": "name its module: --import MODULE",
    "wrap it, birl.envs.ActionMask(env),": "train with --action-mask,",
    "wrap the environment in birl.envs.ActionMask": "give --action-mask",
    "birl.Cluster(on_error='restart')": "--on-error restart",
    "replace it with fresh=True": "replace it with --fresh",
}


_KINDS: Final = {"integer": "an integer in digits, such as 100000", "number": "a number, such as 0.01"}
_TUPLE: Final = re.compile(r"\b(observation_keys)=\(((?:'[^']*',? ?)+)\)")
_QUOTED: Final = r"'([^']*)'"


def _in_options(text: str) -> str:
    """Replace Python code in a message by options of the command line."""
    for code, option in _OPTIONS.items():
        text = text.replace(code, option)
    return _TUPLE.sub(lambda match: f"--set '{match[1]}={json.dumps(re.findall(_QUOTED, match[2]))}'", text)
