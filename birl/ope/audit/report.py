"""What logs can carry: `report_data` asks them, and a `DataReport` is the answer, as a page and as JSON.

Nothing is changed or chosen: advice is shown with its reason and source.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from birl._version import __version__
from birl.checks import check
from birl.dataset.replay_buffer import ReplayBuffer
from birl.errors import ConfigError
from birl.files import atomic_write
from birl.files.strict_json import dump_json
from birl.ope.audit import checks as data_checks
from birl.ope.audit import model_checks as data_estimates
from birl.ope.audit.checks import Check
from birl.ope.audit.model_checks import GOOD, MOVED, OBSERVED, PAIRS, QUALITY, RANDOMNESS, STITCHED
from birl.ope.audit.scan import look
from birl.ope.html_page import Note, Section, Table, plain, render_page
from birl.ope.validity_limits import LIMITS, Finding, judge
from birl.types import ActionSpace

_LENGTH, _ZEROS, _DISCRETE, _HISTORY = "mean length", "share of zeros", "discrete actions", "history"


@dataclass(frozen=True)
class Rule:
    """When an advice is given.

    Attributes:
        when: numbers with the range in which each must be, all of them.
        looks: what such data look like.
        advice: what to try first.
        source: who found it.
    """

    when: Mapping[str, tuple[float, float]]
    looks: str
    advice: str
    source: str


_SAID: Final = {limit.fact: limit.said for limit in reversed(LIMITS)}
_FACTS: Final = ("what would be said past a limit", "value", "doubtful", "forbidden")
_ANY = math.inf
RULES: Final = (
    Rule(
        {QUALITY: (0.8, 1), RANDOMNESS: (0, 0.5)}, "good and narrow, as of an expert", "BC first",
        "Schweighofer et al. 2022, arXiv:2111.04714; Kumar et al. 2022, arXiv:2204.05618",
    ),
    Rule(
        {_LENGTH: (50, _ANY), _ZEROS: (0.9, 1)}, "long episodes with sparse rewards",
        "offline RL, even over BC on data of experts", "Kumar et al. 2022, arXiv:2204.05618",
    ),
    Rule(
        {_DISCRETE: (0, 0), GOOD: (0.6, 1), QUALITY: (0, 0.4)}, "quantities, few good episodes among many poor ones",
        "IQL, AWAC or CRR, or BC on the best tenth; sampling weighted by return", "Hong et al. 2023, arXiv:2306.13085",
    ),
    Rule(
        {_DISCRETE: (1, 1), GOOD: (0.6, 1), QUALITY: (0, 0.4)},
        "discrete actions, few good episodes among many poor ones",
        "DiscreteIQL or DiscreteAWR, or DiscreteBC on the best tenth; sampling weighted by return",
        "Hong et al. 2023, arXiv:2306.13085",
    ),
    Rule(
        {_DISCRETE: (0, 0), _ZEROS: (0, 0.5)}, "quantities as actions, dense rewards", "TD3+BC first, then ReBRAC",
        "Fujimoto and Gu 2021, arXiv:2106.06860; Tarasov et al. 2023, arXiv:2305.09836",
    ),
    Rule(
        {_DISCRETE: (0, 0), _ZEROS: (0.5, 1), STITCHED: (0.3, 1)}, "quantities, sparse rewards, much to stitch",
        "IQL or CQL", "Kostrikov et al. 2021, arXiv:2110.06169",
    ),
    Rule(
        {_DISCRETE: (1, 1), PAIRS: (0.3, 1), OBSERVED: (0, 0.8)}, "discrete actions, much of the world seen",
        "DiscreteCQL, or the family of DQN", "Schweighofer et al. 2022, arXiv:2111.04714",
    ),
    Rule(
        {_DISCRETE: (1, 1), PAIRS: (0, 0.3)}, "discrete actions, little of the world seen, or again and again",
        "DiscreteBCQ or DiscreteIQL", "Schweighofer et al. 2022, arXiv:2111.04714",
    ),
    Rule(
        {_HISTORY: (0.05, _ANY)}, "observations are not the whole state, as with people",
        "BC with a recurrent encoder; a Decision Transformer with more data, where the world is not random",
        "Mandlekar et al. 2021, arXiv:2108.03298; Bhargava et al. 2023, arXiv:2305.14550",
    ),
    Rule(
        {MOVED: (0, 20)}, "little overlap with other policies",
        "one step of improvement, a large penalty, or the behaviour as a fallback",
        "Brandfonbrener et al. 2021, arXiv:2106.08909; Laroche et al. 2019, arXiv:1712.06924",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """What to try first, never applied by itself.

    Attributes:
        looks: what the data look like.
        advice: what to try.
        reason: the numbers that say so.
        source: who found it.
    """

    looks: str
    advice: str
    reason: str
    source: str


@dataclass(frozen=True, eq=False)
class DataReport:
    """What was asked of logs, and found.

    Attributes:
        title: what the data are called.
        checks: all that was asked.
        findings: what the table of limits says of it, refusals first. Families of estimators that one fact concerns
            have one each.
        advice: which algorithms such data suit.
    """

    title: str
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    advice: tuple[Advice, ...]

    @property
    def facts(self) -> dict[str, float | None]:
        """All facts, for `birl.ope.judge`."""
        return {name: value for each in self.checks for name, value in each.facts.items()}

    def messages(self) -> dict[str, tuple[bool, str]]:
        """By fact, whether something is refused for it, and its message; refusals first."""
        where = {name: text for each in self.checks for name, text in each.where.items() if text}
        found: dict[str, tuple[bool, str]] = {}
        for one in self.findings:
            place = f" ({where[one.fact]})" if one.fact in where else ""
            found.setdefault(one.fact, (one.refused, one.message + place))
        return found

    def as_dict(self) -> dict[str, Any]:
        """All that the page says, as values of JSON; ``None`` for what is not known, or not finite."""
        said = self.messages()
        return {
            "version": 1,
            "birl": __version__,
            "title": self.title,
            "messages": [{"fact": fact, "refused": no, "message": text} for fact, (no, text) in said.items()],
            "findings": [one.as_dict() for one in self.findings],
            "advice": [vars(one) for one in self.advice],
            "checks": [
                {
                    "title": each.title,
                    "facts": _json(each.facts),
                    "numbers": _json(each.numbers),
                    "tables": {name: {"head": [*t.head], "rows": _json(t.rows)} for name, t in each.tables.items()},
                }
                for each in self.checks
            ],
        }

    def html(self) -> str:
        """One page without scripts that needs no other file, under a megabyte.

        Raises:
            MissingExtraError: without jinja2 (extra ``logs``).
        """
        said = self.messages()
        bad = sum(refused for refused, _ in said.values())
        words = f"Answers that forbid some use of these logs: {bad}; doubtful ones: {len(said) - bad}."
        words = f"{words if said else 'No answer is doubtful.'} A dash stands for what these logs do not tell."
        lead: list[Any] = [words, *map(_note, said.values())]
        rows = [[one.looks, one.advice, one.reason, one.source] for one in self.advice]
        advice: Any = Table(["the data look like", "try first", "because", "source"], rows)
        advice = advice if rows else "No rule of thumb fits these data."
        about = "Never applied by itself: which algorithm is better is found by evaluation, on other episodes."
        sections = [Section("Advice", [about, advice])] + [_section(each, said) for each in self.checks]
        return render_page(f"Logged data: {self.title}" if self.title else "Logged data", sections, lead)

    def save(self, html: Any = None, json: Any = None) -> None:
        """Write the page, JSON, or both, each whole or not at all.

        Args:
            html, json: paths of files.

        Raises:
            WriteError: if one cannot be written.
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
    """Ask logged episodes whether they are fit to learn from and to evaluate with.

    The data are read once, some thousand steps at a time; small models are fitted on whole episodes of up to 50,000
    steps, and judged on episodes that they have not seen. Used are, if they are there, the columns beside the steps
    that an import writes: ``log_propensity``, ``propensities``, ``logger``, ``cluster``, ``time`` and ``censored``.

    Args:
        dataset: the episodes.
        others: other parts of the same logs by name, as what was trained on beside what certifies: what they share,
            and whether they differ.
        gamma: discount of a step, 0 to 1.
        title: what the data are called.
        names: of the numbers of an observation.
        actions: names of the choices, or of the numbers of an action.
        loggers: names of the policies that acted, by the numbers in ``logger``.
        seed: of the sample and the models.

    Raises:
        EmptyDataError: if there is no step.
        ConfigError: if an argument is none that is allowed.
    """
    for name, given in {"dataset": dataset, **(others or {})}.items():
        check(f"{name!r:.80}", given, ReplayBuffer, ": give a dataset, as birl.dataset.ReplayBuffer.open(folder)")
    check("gamma", gamma, float, low=0, high=1)
    check("seed", seed, int, low=0)
    tidy = None if names is None else [plain(str(name)) for name in names]
    loggers, called = ([plain(str(name)) for name in each] for each in (loggers, actions or ()))
    seen = look(dataset, gamma=gamma, names=tidy, seed=seed)
    beside = {plain(name): look(other, gamma=gamma, seed=seed) for name, other in (others or {}).items()}
    acted = data_estimates.behaviour_of(seen, seed)
    checks = (
        data_checks.size(seen),
        data_checks.ends(seen),
        data_checks.order(seen, beside),
        data_checks.returns(seen, gamma, loggers),
        data_checks.rewards(seen),
        data_checks.observations(seen, data_estimates.part_aucs(seen, beside, seed)),
        data_checks.leakage(seen),
        data_checks.action_coverage(seen, called),
        data_estimates.propensities(seen, acted, loggers),
        data_estimates.behaviour(seen, acted),
        data_estimates.memory(seen, acted, seed),
        data_estimates.coverage(seen),
        data_estimates.improvement(seen, acted, seed),
        data_estimates.power(seen, acted, gamma),
    )
    facts = {name: value for each in checks for name, value in each.facts.items()}
    numbers: dict[str, Any] = {**facts, **{k: v for each in checks for k, v in each.numbers.items()}}
    numbers[_LENGTH] = float(seen.episodes["length"].mean())
    numbers[_DISCRETE] = {ActionSpace.DISCRETE: 1, ActionSpace.CONTINUOUS: 0}.get(seen.actions.kind)
    tidied = tuple(replace(each, facts=_json(each.facts), numbers=_json(each.numbers)) for each in checks)
    return DataReport(plain(title), tidied, judge(facts), _advice(numbers))


def _advice(numbers: Mapping[str, Any]) -> tuple[Advice, ...]:
    found = []
    for rule in RULES:
        told = {name: numbers.get(name) for name in rule.when}
        if all(value is not None and rule.when[name][0] <= value <= rule.when[name][1] for name, value in told.items()):
            reason = "; ".join(f"{name}: {value:.3g}" for name, value in told.items())
            found.append(Advice(rule.looks, rule.advice, reason, rule.source))
    return tuple(found)


def _note(said: tuple[bool, str]) -> Note:
    return Note("bad" if said[0] else "doubtful", said[1])


def _section(of: Check, said: Mapping[str, tuple[bool, str]]) -> Section:
    parts: list[Any] = [of.about, *(_note(said[name]) for name in of.facts if name in said)]
    asked = [value is not None for value in of.facts.values()]
    if not any(name in said for name in of.facts) and any(asked):
        some = "" if all(asked) else f" in the {sum(asked)} of {len(asked)} figures that these data have"
        parts.append(Note("good", f"nothing to object to{some}"))
    facts = [[_SAID[name][0], value, *_SAID[name][1:]] for name, value in of.facts.items()]
    parts += [Table(_FACTS, facts)] if facts else []
    numbers = [[name, value] for name, value in of.numbers.items()]
    parts += [Table(["what", "value"], numbers)] if numbers else []
    folded = {figure.caption for figure in of.figures}
    shown = [replace(table, title=name, folded=name in folded) for name, table in of.tables.items()]
    return Section(of.title, [*parts, *of.figures, *shown])


def _json(value: Any) -> Any:
    """A value of JSON: numbers that are not finite become ``None``."""
    if isinstance(value, Mapping):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
