"""Summaries of verdicts for those who decide: a sentence, a figure, four facts, and what would change the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from birl.ope.decisions import Verdict
from birl.ope.evaluation import Evaluation
from birl.ope.html_page import Note, Part, Table, format_value, intervals

MARKS: Final[Mapping[str, Literal["good", "doubtful", "bad"]]] = {
    "ship": "good",
    "do_not_ship": "bad",
    "more_data": "doubtful",
    "cannot_tell": "doubtful",
    "test_online": "doubtful",
}
"""Marks of verdicts on pages."""
_ADVICE: Final = {
    "ship": "Ship it, first to a part of the users",
    "do_not_ship": "Do not ship it",
    "more_data": "Wait: the logs leave it open",
    "cannot_tell": "These logs cannot tell",
    "test_online": "Test it online: logs alone cannot decide",
}
_SMALL: Final = 1e-9
"""Values of the logs nearer to 0 than this part of the gain have no shares."""


def summary_sentence(evaluation: Evaluation, verdict: Verdict, unit: str = "") -> str:
    """Return a verdict as one sentence in plain words.

    Args:
        evaluation: result of `birl.ope.evaluate`.
        verdict: verdict on the policy.
        unit: unit of rewards, such as ``"EUR"``.
    """
    advice = _ADVICE[verdict.verdict]
    if verdict.lower is None or verdict.upper is None:
        return f"{advice}."
    low, high = verdict.lower, verdict.upper
    if low >= 0:
        gain = f"earns between {_amount(low, unit)} and {_amount(high, unit)} more"
    elif high <= 0:
        gain = f"earns between {_amount(-high, unit)} and {_amount(-low, unit)} less"
    else:
        gain = f"may earn up to {_amount(-low, unit)} less or {_amount(high, unit)} more"
    baseline = "what the logs earned" if evaluation.against == "logs" else evaluation.against
    share = _shares(evaluation, low, high)
    required = "" if verdict.min_gain == 0 else f"; {_amount(verdict.min_gain, unit)} more is required"
    return f"{advice}: per {evaluation.unit}, it {gain} than {baseline}{share}{required}."


def summary(evaluation: Evaluation, verdict: Verdict, unit: str = "") -> list[Part]:
    """Return the parts of a page that those who decide read; see `summary_sentence`."""
    mark = MARKS[verdict.verdict]
    parts: list[Part] = [Note(mark, summary_sentence(evaluation, verdict, unit))]
    why = [text for text in verdict.reasons[verdict.lower is not None :] if not text.startswith("doubtful: ")]
    parts += [Note(mark, text) for text in why if verdict.verdict != "ship"]
    if verdict.lower is not None and verdict.upper is not None:
        middle = (verdict.lower + verdict.upper) / 2
        value = middle if evaluation.gain is None else float(evaluation.gain.gain.value)
        value = value if verdict.lower <= value <= verdict.upper else middle
        label = f"gain per {evaluation.unit}{f', {unit}' if unit else ''}"
        caption = f"The gain, with {100 * verdict.confidence:.4g} % confidence. The dashed line is what is required."
        rows = [("gain", verdict.lower, value, verdict.upper)]
        parts.append(intervals(caption, rows, zero=verdict.min_gain, x=label))
    parts.append(Table(["What carries it", ""], _facts(evaluation, unit)))
    if verdict.turns:
        parts.append(Table(["What would change it, and no log shows"], [[text] for text in verdict.turns]))
    if verdict.verdict != "ship" and verdict.remedies:
        parts.append(Table(["What would help"], [[text] for text in verdict.remedies]))
    return parts


def _amount(value: float, unit: str) -> str:
    return f"{format_value(float(value))}{f' {unit}' if unit else ''}"


def _shares(evaluation: Evaluation, low: float, high: float) -> str:
    """Return the ends of a gain as shares of what the logs earned."""
    today = evaluation.logs.value
    if evaluation.against != "logs" or abs(today) <= _SMALL * max(abs(low), abs(high)) or today == 0:
        return ""
    ends = (f"{100 * end / abs(today):+.3g} %" for end in (low, high))
    return f" ({' to '.join(ends)})"


def _facts(evaluation: Evaluation, unit: str) -> list[list[object]]:
    """Return what was earned, how much evidence there is, how much changes, and what a second method says."""
    earned, interval = evaluation.logs.value, evaluation.logs.interval
    today = f"{_amount(earned, unit)} per {evaluation.unit}"
    if interval is not None:
        today += f" (from {_amount(float(interval.lower), unit)} to {_amount(float(interval.upper), unit)})"
    facts: list[list[object]] = [["what the logs earned", today]]
    evidence, effective = f"{evaluation.episodes:,} {evaluation.unit}s", evaluation.facts.get("ess")
    if effective is not None:
        evidence += f", which count like {effective:,.0f} of the policy's own"
    facts.append(["evidence", evidence])
    if evaluation.differs is not None:
        facts.append(["change", f"acts differently in {100 * evaluation.differs:.3g} % of the logged decisions"])
    other = evaluation.rows.get("direct_method")
    if other is not None and not other.refused and evaluation.gain is not None:
        contradicts = bool(evaluation.facts.get("model_differs"))
        agrees = "contradicts it" if contradicts else "agrees"
        gain = _amount(float(other.gain.value), unit)
        facts.append(["second method", f"a model alone {agrees}: it puts the gain at {gain}"])
    elif evaluation.decides is not None:
        facts.append(["second method", "none: no model of these data is reliable enough"])
    return facts
