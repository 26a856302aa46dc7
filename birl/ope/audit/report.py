"""Reports of logged data: `report_data` runs all checks, and a `DataReport` is the result, as a page and as JSON.

A report does not change or choose anything: it gives advice with its reason and source.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from birl._version import __version__
from birl.checks import check
from birl.dataset.replay_buffer import ReplayBuffer
from birl.errors import ConfigError
from birl.files import atomic_write
from birl.files.strict_json import dump_json
from birl.ope.audit import checks, model_checks
from birl.ope.audit.checks import Check, Number
from birl.ope.audit.model_checks import GOOD, MOVED, OBSERVED, PAIRS, QUALITY, RANDOMNESS, STITCHED
from birl.ope.audit.scan import scan
from birl.ope.html_page import Note, Part, Section, Table, json_value, plain_text, render_page
from birl.ope.validity_limits import LIMITS, Finding, check_limits
from birl.types import ActionSpace

Messages: TypeAlias = "dict[str, tuple[bool, str]]"
"""For each fact, whether it refuses estimates, and its message."""
T = TypeVar("T")
_LENGTH, _ZEROS, _DISCRETE, _HISTORY = "mean length", "share of zeros", "discrete actions", "history"


@dataclass(frozen=True)
class Rule:
    """A rule of thumb for the choice of an algorithm.

    Attributes:
        when: names of numbers, and the range in which each must be.
        pattern: description of such data.
        advice: methods to try first.
        source: publication that the rule is from.
    """

    when: Mapping[str, tuple[float, float]]
    pattern: str
    advice: str
    source: str


_LABELS: Final = {limit.fact: limit.labels for limit in reversed(LIMITS)}
_FACTS: Final = ("message beyond a limit", "value", "doubtful", "refused")
NUMBERS: Final = {
    "discrete": _DISCRETE,
    "distinct_observations": OBSERVED,
    "distinct_pairs": PAIRS,
    "good": GOOD,
    "history": _HISTORY,
    "length": _LENGTH,
    "overlap": MOVED,
    "quality": QUALITY,
    "randomness": RANDOMNESS,
    "stitching": STITCHED,
    "zero_rewards": _ZEROS,
}
"""Names of numbers in ``advice.toml``, and in reports."""


def _read_rules() -> tuple[Rule, ...]:
    text = resources.files("birl.ope.audit").joinpath("advice.toml").read_text(encoding="utf-8")
    rules = tomllib.loads(text)["rule"]
    return tuple(
        Rule(**{**rule, "when": {NUMBERS[name]: ends for name, ends in rule["when"].items()}}) for rule in rules
    )


RULES: Final = _read_rules()
"""Rules of ``advice.toml``."""


@dataclass(frozen=True)
class Advice:
    """Advice on what to try first; it is never applied automatically.

    Attributes:
        pattern: description of the data.
        advice: methods to try.
        reason: numbers on which the advice is based.
        source: publication that the advice is from.
    """

    pattern: str
    advice: str
    reason: str
    source: str


@dataclass(frozen=True, eq=False)
class DataReport:
    """The result of all checks of logs.

    Attributes:
        title: name of the data.
        checks: results of all checks.
        findings: facts beyond a limit, refusals first; one for each family of estimators that a fact concerns.
        advice: algorithms that suit such data.
    """

    title: str
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    advice: tuple[Advice, ...]

    @property
    def facts(self) -> dict[str, float | None]:
        """All facts, for `birl.ope.check_limits`."""
        return {name: value for result in self.checks for name, value in result.facts.items()}

    def messages(self) -> Messages:
        """Return, by fact, whether it refuses estimates, and its message; refusals come first."""
        where = {name: text for result in self.checks for name, text in result.where.items() if text}
        messages: Messages = {}
        for finding in self.findings:
            suffix = f" ({where[finding.fact]})" if finding.fact in where else ""
            messages.setdefault(finding.fact, (finding.refused, finding.message + suffix))
        return messages

    def as_dict(self) -> dict[str, object]:
        """Return the contents of the page as JSON values; ``None`` for unknown or infinite numbers."""
        messages = self.messages().items()
        return {
            "version": 1,
            "birl": __version__,
            "title": self.title,
            "messages": [{"fact": fact, "refused": refused, "message": text} for fact, (refused, text) in messages],
            "findings": [finding.as_dict() for finding in self.findings],
            "advice": [vars(advice) for advice in self.advice],
            "checks": [
                {
                    "title": result.title,
                    "facts": json_value(result.facts),
                    "numbers": json_value(result.numbers),
                    "tables": {
                        name: {"head": [*table.head], "rows": json_value(table.rows)}
                        for name, table in result.tables.items()
                    },
                }
                for result in self.checks
            ],
        }

    def html(self) -> str:
        """Return a self-contained page without scripts, under a megabyte.

        Raises:
            MissingExtraError: without jinja2 (extra ``logs``).
        """
        messages = self.messages()
        refusals = sum(refused for refused, _ in messages.values())
        summary = f"Facts that forbid some use of these logs: {refusals}; doubtful facts: {len(messages) - refusals}."
        lead: list[Part] = [f"{summary if messages else 'No fact is doubtful.'} A dash stands for an unknown number."]
        lead += map(_note, messages.values())
        rows = [[row.pattern, row.advice, row.reason, row.source] for row in self.advice]
        table = Table(["pattern of the data", "try first", "because", "source"], rows)
        about = "Advice is never applied automatically: only an evaluation on other episodes shows what is better."
        advice: list[Part] = [about, table if rows else "No rule of thumb fits these data."]
        sections = [Section("Advice", advice)] + [_section(result, messages) for result in self.checks]
        return render_page(f"Logged data: {self.title}" if self.title else "Logged data", sections, lead)

    def save(self, html: str | Path | None = None, json: str | Path | None = None) -> None:
        """Write the page, JSON, or both, each atomically.

        Args:
            html, json: paths of the files.

        Raises:
            WriteError: if a file cannot be written.
            MissingExtraError: for a page without jinja2 (extra ``logs``).
        """
        if html is None and json is None:
            raise ConfigError("neither html nor json is given: name a file for at least one of them")
        texts = {os.fspath(json): dump_json(self.as_dict(), "the report")} if json is not None else {}
        if html is not None:
            texts[os.fspath(html)] = self.html()
        for path, text in texts.items():
            atomic_write(path, text.encode())


def report_data(
    dataset: ReplayBuffer,
    *,
    others: Mapping[str, ReplayBuffer] | None = None,
    gamma: float = 0.99,
    title: str = "",
    names: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    loggers: Sequence[str] = (),
    seed: int = 0,
) -> DataReport:
    """Check whether logged episodes are fit for learning and evaluation.

    The data are read once, in batches of some thousand steps. Small models are fitted on whole episodes of up to 50,000
    steps and evaluated on held-out episodes. The checks use these extra columns, which an import writes, if they exist:
    ``log_propensity``, ``propensities``, ``logger``, ``cluster``, ``time`` and ``censored``.

    Args:
        dataset: the episodes.
        others: other parts of the same logs by name, such as the training part; the report says which episodes they
            share, and whether they differ.
        gamma: discount of a step, 0 to 1.
        title: name of the data.
        names: names of the columns of observations.
        actions: names of the discrete actions, or of the dimensions of an action.
        loggers: names of the logging policies, by the numbers in ``logger``.
        seed: random seed of the sample and the models.

    Raises:
        EmptyDataError: if there is no step.
        ShapeError, DataError: if one of these extra columns has another shape, or values that are impossible.
        ConfigError: if an argument is invalid.
    """
    for name, value in {"dataset": dataset, **(others or {})}.items():
        check(f"{name!r:.80}", value, ReplayBuffer, ": give a dataset, as birl.dataset.ReplayBuffer.open(folder)")
    check("gamma", gamma, float, low=0, high=1)
    check("seed", seed, int, low=0)
    columns = None if names is None else [plain_text(str(name)) for name in names]
    loggers, action_names = ([plain_text(str(name)) for name in each] for each in (loggers, actions or ()))
    logs = scan(dataset, gamma=gamma, names=columns, seed=seed)
    parts = {plain_text(name): scan(other, gamma=gamma, seed=seed) for name, other in (others or {}).items()}
    behaviour = model_checks.fit_behaviour(logs, seed)
    results = (
        checks.check_size(logs),
        checks.check_ends(logs),
        checks.check_order(logs, parts),
        checks.check_returns(logs, gamma, loggers),
        checks.check_rewards(logs),
        checks.check_observations(logs, model_checks.part_aucs(logs, parts, seed)),
        checks.check_leakage(logs),
        checks.check_actions(logs, action_names),
        checks.check_independence(logs),
        model_checks.check_propensities(logs, behaviour, loggers),
        model_checks.check_behaviour(logs, behaviour),
        model_checks.check_markov(logs, behaviour, seed),
        model_checks.check_coverage(logs),
        model_checks.check_improvement(logs, behaviour, seed),
        model_checks.check_power(logs, behaviour, gamma),
    )
    facts = {name: value for result in results for name, value in result.facts.items()}
    numbers: dict[str, Number] = {**facts, **{k: v for result in results for k, v in result.numbers.items()}}
    numbers[_LENGTH] = float(logs.episodes["length"].mean())
    numbers[_DISCRETE] = {ActionSpace.DISCRETE: 1, ActionSpace.CONTINUOUS: 0}.get(logs.actions.kind)
    finite = tuple(
        replace(
            result,
            facts={name: _finite(value) for name, value in result.facts.items()},
            numbers={name: _finite(value) for name, value in result.numbers.items()},
        )
        for result in results
    )
    return DataReport(plain_text(title), finite, check_limits(facts), _advice(numbers))


def _advice(numbers: Mapping[str, Number]) -> tuple[Advice, ...]:
    advice = []
    for rule in RULES:
        values = {name: value for name in rule.when if isinstance(value := numbers.get(name), int | float)}
        if all(name in values and low <= values[name] <= high for name, (low, high) in rule.when.items()):
            reason = "; ".join(f"{name}: {value:.3g}" for name, value in values.items())
            advice.append(Advice(rule.pattern, rule.advice, reason, rule.source))
    return tuple(advice)


def _note(message: tuple[bool, str]) -> Note:
    return Note("bad" if message[0] else "doubtful", message[1])


def _section(result: Check, messages: Messages) -> Section:
    parts: list[Part] = [result.about, *(_note(messages[name]) for name in result.facts if name in messages)]
    known = [value is not None for value in result.facts.values()]
    if not any(name in messages for name in result.facts) and any(known):
        subset = "" if all(known) else f"; {sum(known)} of {len(known)} figures are known"
        parts.append(Note("good", f"no objection{subset}"))
    facts = [[_LABELS[name][0], value, *_LABELS[name][1:]] for name, value in result.facts.items()]
    parts += [Table(_FACTS, facts)] if facts else []
    numbers = [[name, value] for name, value in result.numbers.items()]
    parts += [Table(["number", "value"], numbers)] if numbers else []
    captions = {figure.caption for figure in result.figures}
    tables = [replace(table, title=name, folded=name in captions) for name, table in result.tables.items()]
    return Section(result.title, [*parts, *result.figures, *tables])


def _finite(value: T) -> T | None:
    """Return the value, or ``None`` for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
