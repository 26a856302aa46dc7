"""Evaluations, verdicts and rankings for people and for programs: a page of HTML and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl.errors import WriteError
from birl.files import atomic_write
from birl.ope.decisions import Verdict
from birl.ope.evaluation import Evaluation, Row
from birl.ope.html_page import Figure, Note, Section, Table, intervals, lines, render_page, word
from birl.ope.ranking import Ranking
from birl.ope.validity_limits import FAMILIES, LIMITS, Finding

_WORDS: Final = {"ship": "ship", "do_not_ship": "do not ship", "more_data": "more data", "cannot_tell": "cannot tell"}
_MARKS: Final[Mapping[str, Any]] = {**dict.fromkeys(_WORDS, "doubtful"), "ship": "good", "do_not_ship": "bad"}
_ALONE: Final = (
    "A model alone (direct_method) has no interval here, and never decides: its terms know nothing of its own error. "
    "Refits on drawn episodes do (birl.ope.linear_refits, birl.ope.fqe_refits), but of fewer than 400 they may hold "
    "the truth less often than they say."
)
BESIDE: Final = {"direct_method": "FQE", "doubly_robust": "DR"}
"""Estimators whose gains stand beside the one that decides."""
CONTRADICTED: Final = "FQE and DR contradict each other: the 99 % interval of their difference leaves out 0"
_BESIDE: Final = (
    "FQE and DR are gains by a model alone and by weights with this model; those with an exclamation mark are refused. "
    "The last column is the share of the logged steps in which a policy does something else than the one that logged: "
    "far from the logs little is known."
)
_MOST_COLUMNS: Final = 12
_BY_STEP: Final = {"ess": "Effective episodes by step", "mean_weight": "Mean weight by step (1, if all is right)"}
_HEAD: Final = ("estimator", "value", "value from", "to", "gain", "gain from", "to", "refused for")
_FACTS: Final = ("figure", "what it says", "value", "doubtful", "refused")


def as_json(found: Evaluation, said: Verdict | None = None) -> dict[str, Any]:
    """An evaluation in JSON form: numbers that are not finite are null.

    Args:
        found: of `birl.ope.evaluate`.
        said: the verdict on it.
    """
    made: dict[str, Any] = {
        "policy": found.name,
        "against": found.against,
        "gamma": found.gamma,
        "horizon": found.horizon,
        "confidence": found.confidence,
        "behaviour": found.behaviour,
        "episodes": found.episodes,
        "steps": found.steps,
        "logs": _row(found.logs, gain=False),
        "estimates": {key: _row(row) for key, row in found.rows.items()},
        "decides": found.decides,
        "differs_from_logs": _number(found.differs),
        "facts": {key: _number(value) for key, value in found.facts.items() if value is not None},
        "findings": [one.as_dict() for one in found.findings],
        "drift": None if found.drift is None else {"halves": list(found.drift), "refused": found.drifts},
    }
    if said is not None:
        made |= {
            "verdict": said.verdict,
            "status": said.status,
            "min_gain": said.min_gain,
            "gain": [_number(said.lower), _number(said.upper)],
            "confidence_of_verdict": said.confidence,
            "reasons": list(said.reasons),
            "remedies": list(said.remedies),
            "assumptions": list(said.assumptions),
            "times_as_many_episodes": _number(said.times),
            "flips_at_gamma": _number(said.flips_at),
            "gain_by_gamma": [[_number(value) for value in row] for row in said.ranges],
        }
    return made


def write_report(
    folder: str | Path,
    found: Mapping[str, Evaluation],
    said: Mapping[str, Verdict],
    notes: Sequence[str] = (),
    asked: Mapping[str, Any] | None = None,
) -> None:
    """Write ``report.html`` and ``report.json``.

    Args:
        folder: where; it is made.
        found: evaluations by name.
        said: verdicts by name.
        notes: what a reader must know first, such as that episodes were used before.
        asked: what was evaluated: ``policies`` by name, and other facts by theirs, in words.

    Raises:
        MissingExtraError: without jinja2.
        WriteError: if it cannot be written.
    """
    lead: list[str | Table | Note | Figure] = [Note("bad", text) for text in notes]
    lead += [Note(_MARKS[one.verdict], f"{name}: {_WORDS[one.verdict]}") for name, one in said.items()]
    if asked:
        facts = [[key, text] for key, text in asked.items() if key != "policies"]
        lead.append(Table(["evaluated", ""], [*map(list, asked.get("policies", {}).items()), *facts]))
    sections = [part for name in found for part in _sections(found[name], said[name])]
    page = render_page("From logs to a decision", sections, lead)
    policies = [as_json(found[k], said[k]) for k in found]
    _write(folder, "report", page, {"notes": list(notes), "asked": dict(asked or {}), "policies": policies})


def ranking_as_json(found: Ranking, notes: Sequence[str] = ()) -> dict[str, Any]:
    """A ranking for programs, without what a screen left out."""
    ranked = [{**as_json(one), "rank": list(found.ranges[name])} for name, one in found.evaluations.items()]
    return {"notes": list(notes), "advice": found.advice, "policies": ranked, "differences": found.differences}


def write_ranking(folder: str | Path, found: Ranking, notes: Sequence[str] = ()) -> None:
    """Write ``ranking.html`` and ``ranking.json``; see `write_report`."""
    rows = []
    for name, one in found.evaluations.items():
        own, (best, worst) = one.gain, found.ranges[name]
        ends = (None, None) if own is None or own.gain_interval is None else _ends(own.gain_interval)
        gain = None if own is None else float(own.gain.value)
        rows.append([name, _ranks(best, worst), gain, *ends, one.decides or "none", *beside(one), one.differs])
    table = Table(["policy", "rank", "gain", "from", "to", "by", *BESIDE.values(), "differs"], rows)
    figure = _gains("Gains over the logs", {name: one.gain for name, one in found.evaluations.items()})
    lead: list[str | Table | Note | Figure] = [Note("bad", text) for text in notes]
    lead += [Note("info", found.advice), table, _BESIDE]
    lead += [Note("doubtful", f"{name}: {CONTRADICTED}") for name, one in found.evaluations.items() if contradicts(one)]
    aside = {name: _number(value) for name, value in found.set_aside.items()}
    lead += [Table(["set aside by the screen", "value"], [[*row] for row in aside.items()])] if aside else []
    apart = found.differences
    if len(apart) > 1:
        shown = list(apart)[:_MOST_COLUMNS]
        head = ["policy", *(f"from {place}" for place, _ in enumerate(shown, 1))]
        cells = [[f"{n}. {name}", *(f"{apart[name][other]:.2f}" for other in shown)] for n, name in enumerate(apart, 1)]
        lead.append(Table(head, cells, "In what share of the steps two policies choose differently"))
    sections = [Section(name, _estimates(one)) for name, one in found.evaluations.items()]
    page = render_page("Ranks of policies", sections, [*lead, *figure])
    _write(folder, "ranking", page, {**ranking_as_json(found, notes), "set_aside": aside})


def beside(found: Evaluation) -> list[str]:
    """The gains by the estimators of `BESIDE`, as words: those that are refused end with an exclamation mark."""
    rows = [found.rows.get(key) for key in BESIDE]
    return ["–" if row is None else f"{word(float(row.gain.value))}{'!' if row.refused else ''}" for row in rows]


def contradicts(found: Evaluation) -> bool:
    """Whether the model alone and weights with the model say different things."""
    return bool(found.facts.get("model_differs"))


def _sections(found: Evaluation, said: Verdict) -> list[Section]:
    mark = _MARKS[said.verdict]
    parts: list[str | Table | Note | Figure] = [
        Note("doubtful" if reason.startswith("doubtful: ") else mark, reason) for reason in said.reasons
    ]
    parts += [Note("info", remedy) for remedy in said.remedies]
    asked = f"A gain of more than {said.min_gain:g} is asked for, with a confidence of {said.confidence:.4g}, over"
    against = "what the logs earned." if found.against == "logs" else f"{found.against}."  # last: names may be cut
    parts.append(f"{found.episodes} episodes, {found.steps} steps. {asked} {against}")
    head = "Assumptions, which no log can check"
    parts.append(Table([head], [[text] for text in said.assumptions]))
    confounding: list[str | Table | Note | Figure] = []
    if said.ranges:
        confounding.append(_flip(said))
        rows = [list(row) for row in said.ranges]
        confounding.append(Table(["Gamma", "gain from", "to"], rows))
        ends = [(f"Gamma {g:g}", low, (low + high) / 2, high) for g, low, high in said.ranges]
        confounding.append(intervals("The gain, if something hidden drove actions", ends, zero=said.min_gain, x="gain"))
    name = found.name
    made = [Section(f"{name}: {_WORDS[said.verdict]}", parts), Section(f"{name}: estimates", _estimates(found))]
    if confounding:
        made.append(Section(f"{name}: what hidden confounding could do", confounding))
    return made


def _flip(said: Verdict) -> str:
    odds = "the odds of a logged action are off by a factor of Gamma in one decision of each episode"
    if said.verdict == "more_data":
        return f"If {odds}, the gain is in these ranges."
    if said.flips_at is None:
        return f"The verdict stays the same up to a Gamma of 20: if {odds}."
    return f"From a Gamma of {said.flips_at:.3g} on the verdict may be another: if {odds}, because of what is hidden."


def _estimates(found: Evaluation) -> list[str | Table | Note | Figure]:
    shown = {family for family, names in FAMILIES.items() if any(name in found.rows for name in names)} | {"data"}
    findings = [one for one in found.findings if one.family in shown]

    def cells(name: str, row: Row) -> list[Any]:
        label = f"{name}{' (decides)' if name == found.decides else ''}"
        known = [row.value, *_ends(row.interval), float(row.gain.value), *_ends(row.gain_interval)]
        return [label, *([None] * len(known) if row.refused else known), _refused_for(name, findings)]

    table = [["what the logs earned", found.logs.value, *_ends(found.logs.interval), None, None, None, ""]]
    table += [cells(key, row) for key, row in found.rows.items()]
    trusted = {key: row for key, row in found.rows.items() if not row.refused}
    some = len(trusted) < len(found.rows)
    title = f"{100 * found.confidence:.4g} % intervals"
    parts: list[str | Table | Note | Figure] = [Table(_HEAD, table, title)]
    parts += _gains(f"Gains by estimator{'s that are not refused' if some else ''}", trusted)
    parts += ["What refused estimators say stands in the JSON file alone: it may be far off."] if some else []
    if "direct_method" in found.rows:
        parts.append(_ALONE)
    told: dict[tuple[bool, str], list[str]] = {}
    for one in findings:
        told.setdefault((one.refused, one.message), []).append(one.family)
    worst: Any = "bad" if found.decides is None else "info"  # what is refused beside the one that decides does no harm
    parts += [
        Note(worst if refused else "doubtful", f"{', '.join(families)}{' refused' if refused else ''}: {message}")
        for (refused, message), families in told.items()
    ]
    facts = [
        [limit.fact, limit.said[0], found.facts[limit.fact], *limit.said[1:]]
        for limit in LIMITS
        if found.facts.get(limit.fact) is not None and shown.intersection(limit.families)
    ]
    parts.append(Table(_FACTS, facts, "Figures, and the limits that they are compared with"))
    for key, text in _BY_STEP.items():
        if key in found.weights:
            steps = np.arange(1, found.horizon + 1)
            parts.append(lines(text, {key: (steps, found.weights[key])}, x="step", from_zero=True))
    return parts


def _refused_for(name: str, findings: Sequence[Finding]) -> str:
    """The figures that refuse an estimator: findings below the table say it in full."""
    return ", ".join(dict.fromkeys(one.fact for one in findings if one.refused and name in FAMILIES[one.family]))


def _ranks(best: int, worst: int) -> str:
    return f"{best}" if best == worst else f"{best} to {worst}"


def _gains(caption: str, rows: Mapping[str, Row | None]) -> list[str | Table | Note | Figure]:
    """A drawing of gains, if there are any."""
    known = {key: row for key, row in rows.items() if row is not None and row.gain_interval is not None}
    ends = [(key, _ends(row.gain_interval), float(row.gain.value)) for key, row in known.items()]
    shown = [(key, low, value, high) for key, (low, high), value in ends]
    return [intervals(caption, shown, zero=0.0, x="gain")] if shown else []


def _ends(interval: Any) -> tuple[Any, Any]:
    return (None, None) if interval is None else (float(interval.lower), float(interval.upper))


def _row(row: Row, gain: bool = True) -> dict[str, Any]:
    made: dict[str, Any] = {"value": _number(row.value), "interval": [_number(end) for end in _ends(row.interval)]}
    if gain:
        made |= {"gain": _number(row.gain.value), "gain_interval": [_number(end) for end in _ends(row.gain_interval)]}
        made |= {"refused": row.refused}
    return made


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _write(folder: str | Path, name: str, page: str, told: Mapping[str, Any]) -> None:
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{place} cannot be made ({error.strerror}): give another --out") from error
    atomic_write(place / f"{name}.json", (json.dumps(told, indent=1, allow_nan=False) + "\n").encode())
    atomic_write(place / f"{name}.html", page.encode())
