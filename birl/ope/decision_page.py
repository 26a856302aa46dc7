"""Reports of evaluations, verdicts and rankings as pages of HTML and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from birl.errors import WriteError
from birl.files import atomic_write
from birl.ope.change_points import ERROR
from birl.ope.constraints import Constraint
from birl.ope.decision_summary import MARKS, summary
from birl.ope.decisions import CONSTRAINT_STATES, Verdict
from birl.ope.evaluation import Evaluation, Row
from birl.ope.html_page import Note, Part, Section, Table, format_value, intervals, json_value, lines, render_page
from birl.ope.intervals import Interval
from birl.ope.online_test import OnlineTestPlan
from birl.ope.ranking import Ranking
from birl.ope.validity_limits import FAMILIES, LIMITS, Finding, members

JSONObject: TypeAlias = "dict[str, object]"
"""JSON values by name."""
_MODEL_ONLY: Final = (
    "A model alone (direct_method) has no interval here and never decides, because its terms ignore the model's error. "
    "The bootstrap includes it (bootstrap_linear_fqe, bootstrap_fqe), but with fewer than 400 episodes its intervals "
    "may cover the truth too seldom."
)
SECOND_OPINIONS: Final = {"direct_method": "LINEAR", "doubly_robust": "DR"}
"""Estimators whose gains are reported next to the gain by the estimator that decides."""
CONTRADICTED: Final = "LINEAR and DR contradict each other: the 99 % interval of their difference excludes 0"
_COLUMNS_NOTE: Final = (
    "LINEAR is the gain by a linear model alone, DR the gain by this model and weights; an exclamation mark means that "
    "the estimate is refused. The last column is the share of the logged steps in which a policy acts differently from "
    "the logging policy: the larger, the less the logs say."
)
_MAX_COMPARED: Final = 12
_BY_STEP: Final = {"ess": "Effective episodes by step", "mean_weight": "Mean weight by step (1 in expectation)"}
_ESTIMATES_HEAD: Final = ("estimator", "value", "value from", "to", "gain", "gain from", "to", "refused by")
_FACTS_HEAD: Final = ("figure", "meaning", "value", "doubtful", "refused")


def as_json(evaluation: Evaluation, verdict: Verdict | None = None) -> JSONObject:
    """Return an evaluation as JSON values; numbers that are not finite are null.

    Args:
        evaluation: result of `birl.ope.evaluate`.
        verdict: verdict on the policy.
    """
    data: JSONObject = {
        "policy": evaluation.name,
        "against": evaluation.against,
        "gamma": evaluation.gamma,
        "horizon": evaluation.horizon,
        "confidence": evaluation.confidence,
        "behaviour": evaluation.behaviour,
        "episodes": evaluation.episodes,
        "steps": evaluation.steps,
        "logs": _row(evaluation.logs, gain=False),
        "estimates": {key: _row(row) for key, row in evaluation.rows.items()},
        "decides": evaluation.decides,
        "differs_from_logs": evaluation.differs,
        "facts": {key: value for key, value in evaluation.facts.items() if value is not None},
        "findings": [finding.as_dict() for finding in evaluation.findings],
        "support": None if evaluation.bounds is None else evaluation.bounds.as_dict(),
        "over_time": _over_time_json(evaluation),
    }
    if verdict is not None:
        data |= {
            "verdict": verdict.verdict,
            "status": verdict.status,
            "min_gain": verdict.min_gain,
            "gain": [verdict.lower, verdict.upper],
            "confidence_of_verdict": verdict.confidence,
            "reasons": verdict.reasons,
            "remedies": verdict.remedies,
            "assumptions": verdict.assumptions,
            "times_as_many_episodes": verdict.times,
            "flips_at_gamma": verdict.flips_at,
            "unseen_loss": verdict.unseen_loss,
            "gain_by_gamma": verdict.ranges,
            "online_test": None if verdict.plan is None else verdict.plan.as_dict(),
        }
        if evaluation.constraints:
            data["constraints"] = _constraint_rows(evaluation, verdict)
        if evaluation.tails:
            data["lower_tails"] = [each.as_dict(verdict.confidence) for each in evaluation.tails]
        if evaluation.segments:
            data["segments"] = _segment_rows(evaluation, verdict)
            data["segment_loss"] = evaluation.segment_loss
    return {key: json_value(value) for key, value in data.items()}


def write_report(
    folder: str | Path,
    evaluations: Mapping[str, Evaluation],
    verdicts: Mapping[str, Verdict],
    notes: Sequence[str] = (),
    policies: Mapping[str, str] | None = None,
    inputs: Mapping[str, str] | None = None,
    unit: str = "",
) -> None:
    """Write ``report.html`` and ``report.json``, and plans of the online tests that verdicts advise.

    Args:
        folder: folder of the files; it is created if it is missing.
        evaluations: evaluations by name.
        verdicts: verdicts by name.
        notes: warnings at the top, such as that episodes were used before.
        policies: descriptions of the evaluated policies by name.
        inputs: descriptions of the other inputs by name, such as the episodes.
        unit: unit of rewards, such as ``"EUR"``.

    Raises:
        MissingExtraError: without jinja2.
        WriteError: if the files cannot be written.
    """
    described, inputs = dict(policies or {}), dict(inputs or {})
    lead: list[Part] = [Note("bad", text) for text in notes]
    summaries = {name: summary(evaluations[name], verdict, unit) for name, verdict in verdicts.items()}
    alone = len(verdicts) == 1
    for name, verdict in verdicts.items():
        lead.append(Note(MARKS[verdict.verdict], f"{name}: {verdict.label}"))
        lead += summaries[name] if alone else []
    if described or inputs:
        lead.append(Table(["evaluated", ""], [[*row] for row in (*described.items(), *inputs.items())]))
    sections = []
    for name, verdict in verdicts.items():
        first, *others = _sections(evaluations[name], verdict)
        sections += [first if alone else Section(first.title, [*summaries[name], *first.parts]), *others]
    page = render_page("From logs to a decision", sections, lead)
    data = [as_json(evaluations[name], verdicts[name]) for name in evaluations]
    subjects = {"policies": described, **inputs} if described or inputs else {}
    _write(folder, "report", page, {"notes": list(notes), "asked": subjects, "policies": data})
    for name, plan in plans_by_file(verdicts).items():
        plan.save(Path(folder) / name)


def plans_by_file(verdicts: Mapping[str, Verdict]) -> dict[str, OnlineTestPlan]:
    """Return the plans of the verdicts ``test_online`` by the names of their files."""
    plans = [verdict.plan for verdict in verdicts.values() if verdict.plan is not None]
    if len(plans) == 1:
        return {"online_test.json": plans[0]}
    return {f"online_test_{number}.json": plan for number, plan in enumerate(plans, 1)}


def ranking_as_json(ranking: Ranking, notes: Sequence[str] = ()) -> JSONObject:
    """Return a ranking as JSON values, without the policies that a screen set aside."""
    ranked = [{**as_json(result), "rank": list(ranking.ranges[name])} for name, result in ranking.evaluations.items()]
    return {"notes": list(notes), "advice": ranking.advice, "policies": ranked, "differences": ranking.differences}


def write_ranking(folder: str | Path, ranking: Ranking, notes: Sequence[str] = ()) -> None:
    """Write ``ranking.html`` and ``ranking.json``; see `write_report`."""
    rows = []
    for name, result in ranking.evaluations.items():
        row, (best, worst) = result.gain, ranking.ranges[name]
        ends = (None, None) if row is None else _ends(row.gain_interval)
        gain = None if row is None else float(row.gain.value)
        ranks = f"{best}" if best == worst else f"{best} to {worst}"
        rows.append([name, ranks, gain, *ends, result.decides or "none", *second_opinions(result), result.differs])
    table = Table(["policy", "rank", "gain", "from", "to", "by", *SECOND_OPINIONS.values(), "differs"], rows)
    lead: list[Part] = [Note("bad", text) for text in notes]
    lead += [Note("info", ranking.advice), table, _COLUMNS_NOTE]
    lead += [
        Note("doubtful", f"{name}: {CONTRADICTED}")
        for name, result in ranking.evaluations.items()
        if contradicts(result)
    ]
    if ranking.set_aside:
        values = [[name, json_value(value)] for name, value in ranking.set_aside.items()]
        lead.append(Table(["set aside by the screen", "value"], values))
    if len(ranking.differences) > 1:
        lead.append(_differences_table(ranking.differences))
    lead += _gains_figure("Gains over the logs", {name: result.gain for name, result in ranking.evaluations.items()})
    sections = [Section(name, _estimates(result)) for name, result in ranking.evaluations.items()]
    page = render_page("Ranks of policies", sections, lead)
    _write(folder, "ranking", page, {**ranking_as_json(ranking, notes), "set_aside": json_value(ranking.set_aside)})


def second_opinions(evaluation: Evaluation) -> list[str]:
    """Return the gains by `SECOND_OPINIONS` as texts, with an exclamation mark if refused."""
    rows = [evaluation.rows.get(key) for key in SECOND_OPINIONS]
    return ["–" if row is None else format_value(float(row.gain.value)) + "!" * bool(row.refused) for row in rows]


def contradicts(evaluation: Evaluation) -> bool:
    """Return whether the model alone contradicts the model with weights."""
    return bool(evaluation.facts.get("model_differs"))


def _differences_table(differences: Mapping[str, Mapping[str, float]]) -> Table:
    columns = list(differences)[:_MAX_COMPARED]
    head = ["policy", *(f"from {number}" for number, _ in enumerate(columns, 1))]
    rows = [
        [f"{number}. {name}", *(f"{differences[name][other]:.2f}" for other in columns)]
        for number, name in enumerate(differences, 1)
    ]
    return Table(head, rows, "Share of the steps in which two policies choose differently")


def _sections(evaluation: Evaluation, verdict: Verdict) -> list[Section]:
    mark = MARKS[verdict.verdict]
    parts: list[Part] = [
        Note("doubtful" if reason.startswith("doubtful: ") else mark, reason) for reason in verdict.reasons
    ]
    parts += [Note("info", text) for text in (*verdict.turns, *verdict.remedies)]
    required = f"The required gain is {verdict.min_gain:g}, with a confidence of {verdict.confidence:.4g}."
    baseline = (
        "what the logs earned." if evaluation.against == "logs" else f"{evaluation.against}."
    )  # last: a long name is cut
    size = f"{evaluation.episodes} {evaluation.unit}s"
    size += {"episode": f", {evaluation.steps} steps", "slate": f", {evaluation.steps} items", "decision": ""}[
        evaluation.unit
    ]
    parts.append(f"{size}. {required} The baseline is {baseline}")
    parts += _constraint_parts(evaluation, verdict) + _segment_parts(evaluation, verdict)
    parts += _tail_parts(evaluation, verdict)
    parts.append(Table(["Assumptions that logs cannot check"], [[text] for text in verdict.assumptions]))
    name = evaluation.name
    sections = [
        Section(f"{name}: {verdict.label}", parts),
        Section(f"{name}: estimates", _estimates(evaluation)),
    ]
    if over_time := _over_time(evaluation, verdict):
        sections.append(Section(f"{name}: over time", over_time))
    if verdict.ranges:
        ends = [(f"Gamma {gamma:g}", low, (low + high) / 2, high) for gamma, low, high in verdict.ranges]
        caption = "Gain if a hidden variable influenced actions"
        confounding: list[Part] = [
            _flip_text(verdict),
            Table(["Gamma", "gain from", "to"], [list(row) for row in verdict.ranges]),
            intervals(caption, ends, zero=verdict.min_gain, x="gain"),
        ]
        sections.append(Section(f"{name}: hidden confounding", confounding))
    return sections


def _constraint_rows(evaluation: Evaluation, verdict: Verdict) -> list[JSONObject]:
    """Return the constraints as JSON values, in the direction of their columns."""
    rows: list[JSONObject] = []
    for each, outcome in evaluation.constraints.items():
        found, row = verdict.constraints.get(each), outcome.gain
        ends = (None, None) if found is None or found.lower is None or found.upper is None else _margin(each, found)
        rows.append(
            {
                "constraint": str(each),
                "verdict": None if found is None else CONSTRAINT_STATES[found.verdict],
                "logs": each.sign * outcome.logs.value,
                "policy": None if row is None else each.sign * row.value,
                "distance_to_limit": ends,
                "decides": outcome.decides,
                "reasons": () if found is None else found.reasons,
            }
        )
    return rows


def _margin(constraint: Constraint, found: Verdict) -> tuple[float, float]:
    assert found.lower is not None and found.upper is not None
    return found.lower - constraint.min_gain, found.upper - constraint.min_gain


def _constraint_parts(evaluation: Evaluation, verdict: Verdict) -> list[Part]:
    if not evaluation.constraints:
        return []
    keys = ("constraint", "verdict", "logs", "policy", "distance_to_limit", "decides")
    rows: list[list[object]] = []
    for row in _constraint_rows(evaluation, verdict):
        name, state, logs, policy, ends, decides = (row[key] for key in keys)
        assert isinstance(ends, tuple)
        rows.append([name, state, logs, policy, *ends, decides or "none"])
    head = ("constraint", "", "logs", "policy", "distance to limit from", "to", "by")
    return [
        Table(head, rows, "Constraints, per episode"),
        "A distance to the limit below 0 is beyond it. The policy may ship only if its gain and all constraints hold, "
        "each with this confidence: such a test needs no correction for their number.",
    ]


def _segment_rows(evaluation: Evaluation, verdict: Verdict) -> list[JSONObject]:
    """Return the segments as JSON values."""
    rows: list[JSONObject] = []
    for each in evaluation.segments:
        found, part = verdict.segments.get(each.name), each.evaluation
        row = None if part is None else part.gain
        rows.append(
            {
                "segment": each.name,
                "episodes": each.episodes,
                "gain": None if row is None else float(row.gain.value),
                "interval": (None, None) if found is None else (found.lower, found.upper),
                "decides": None if part is None else part.decides,
                "verdict": None if found is None else _segment_state(found),
                "reasons": () if found is None else found.reasons,
            }
        )
    return rows


def _segment_state(found: Verdict) -> str:
    """Return what is known of a segment in words."""
    if found.lower is None or found.upper is None:
        return found.reasons[0] if found.reasons else "cannot tell"
    if found.lower == found.upper == 0:
        return "acts as the baseline"
    return "gains" if found.lower > 0 else "loses" if found.upper < 0 else "open"


def _segment_parts(evaluation: Evaluation, verdict: Verdict) -> list[Part]:
    if not evaluation.segments:
        return []
    rows: list[list[object]] = []
    drawn: list[tuple[str, float, float, float]] = []
    confidence = verdict.confidence
    for each in evaluation.segments:
        found, part = verdict.segments.get(each.name), each.evaluation
        row = None if part is None else part.gain
        if row is None or part is None or found is None or found.lower is None or found.upper is None:
            state = "cannot tell" if found is None else _segment_state(found)
            rows.append([each.name, each.episodes, None, None, None, "none", state])
            continue
        gain, confidence = float(row.gain.value), found.confidence
        rows.append([each.name, each.episodes, gain, found.lower, found.upper, part.decides, _segment_state(found)])
        drawn.append((each.name, found.lower, gain, found.upper))
    head = ("segment", "episodes", "gain", "from", "to", "by", "")
    loss = evaluation.segment_loss
    rule = (
        "A segment that certainly loses makes the verdict 'do not ship'."
        if loss is None
        else f"The policy may ship only if no segment loses more than {loss:g} per episode."
    )
    together = (
        f"The intervals are simultaneous (Bonferroni): each has a confidence of {confidence:.4g}, so that all of them "
        f"together cover the true gains with {verdict.confidence:.4g}. {rule}"
    )
    figure: list[Part] = [intervals("Gains by segment", drawn, zero=0.0, x="gain")] if drawn else []
    return [Table(head, rows, "Gains by segment"), *figure, together]


def _over_time(evaluation: Evaluation, verdict: Verdict) -> list[Part]:
    """Describe the gain in consecutive parts of the logs."""
    over_time = evaluation.over_time
    if over_time is None:
        return []
    since, count = over_time.when(over_time.since), len(over_time.time) - over_time.first
    _, after = over_time.means(over_time.gain)
    interval = over_time.newest(verdict.confidence)
    ends = "" if interval is None else f", between {float(interval.lower):.4g} and {float(interval.upper):.4g}"
    newest = f"the gain of the newest {count} episodes, since {since}, is {after:.4g}{ends}."
    if over_time.change is None:
        text = f"No change of the gain over time is found; {newest}"
    else:
        at = over_time.when(over_time.change.time)
        text = f"The gain changes at about {at}; {newest} In logs without a change, {ERROR:.0%} of tests find one."
    rows = over_time.parts(verdict.confidence)
    figure = intervals("Gain by the time at which episodes began", rows, zero=verdict.min_gain, x="gain")
    parts: list[Part] = [Note("info" if over_time.change is None else "doubtful", text)]
    if evaluation.against == "logs" and (other := over_time.baseline_change) is not None:
        early, late = over_time.means(over_time.baseline, other.time)
        text = (
            f"What the logs earn changes at about {over_time.when(other.time)}: {early:.4g} before, {late:.4g} since."
        )
        hint = " If rewards become known later than their steps, the newest may be incomplete: see reward.delay."
        parts.append(Note("doubtful", text + hint * (late < early)))
    return [*parts, figure]


def _over_time_json(evaluation: Evaluation) -> JSONObject | None:
    over_time = evaluation.over_time
    if over_time is None:
        return None
    interval = over_time.newest(evaluation.confidence)
    return {
        "change": None if over_time.change is None else over_time.change.time,
        "since": over_time.since,
        "since_text": over_time.when(over_time.since),
        "newest_episodes": len(over_time.time) - over_time.first,
        "gain_before_and_since": over_time.means(over_time.gain),
        "gain_interval_since": _ends(interval),
        "unseen_change": over_time.unseen,
        "baseline_change": None if over_time.baseline_change is None else over_time.baseline_change.time,
    }


def _tail_parts(evaluation: Evaluation, verdict: Verdict) -> list[Part]:
    if not evaluation.tails:
        return []
    rows: list[list[object]] = []
    for each in evaluation.tails:
        data = each.as_dict(verdict.confidence)
        ends = data["interval"] if isinstance(data["interval"], tuple) else (None, None)
        rows.append([str(each.tail), each.baseline, each.policy, *ends, each.tail.min_gain, each.refused])
    head = ("figure", "baseline", "policy", "difference from", "to", "required", "unknown because")
    return [Table(head, rows, "The worst episodes")]


def _flip_text(verdict: Verdict) -> str:
    odds = "hidden variables change the odds of a logged action by a factor of Gamma in one decision of each episode"
    if verdict.verdict == "more_data":
        return f"If {odds}, the gain lies in these ranges."
    if verdict.flips_at is None:
        return f"If {odds}, the verdict stays the same up to a Gamma of 20."
    return f"If {odds}, the verdict may change at a Gamma of {verdict.flips_at:.3g} or more."


def _estimates(evaluation: Evaluation) -> list[Part]:
    families = {family for family, names in FAMILIES.items() if any(name in evaluation.rows for name in names)}
    families |= {"data", *evaluation.rows}
    findings = [finding for finding in evaluation.findings if finding.family in families]

    def cells(name: str, row: Row) -> list[object]:
        label = f"{name}{' (decides)' if name == evaluation.decides else ''}"
        numbers = [row.value, *_ends(row.interval), float(row.gain.value), *_ends(row.gain_interval)]
        return [label, *([None] * len(numbers) if row.refused else numbers), _refused_for(name, findings)]

    table: list[list[object]] = [
        ["what the logs earned", evaluation.logs.value, *_ends(evaluation.logs.interval), None, None, None, ""]
    ]
    table += [cells(key, row) for key, row in evaluation.rows.items()]
    trusted = {key: row for key, row in evaluation.rows.items() if not row.refused}
    any_refused = len(trusted) < len(evaluation.rows)
    parts: list[Part] = [Table(_ESTIMATES_HEAD, table, f"{100 * evaluation.confidence:.4g} % intervals")]
    parts += _gains_figure(f"Gains by estimator{', without refused ones' if any_refused else ''}", trusted)
    parts += ["Refused estimates are in the JSON file only, because they may be far off."] if any_refused else []
    if "direct_method" in evaluation.rows:
        parts.append(_MODEL_ONLY)
    families_of: dict[tuple[bool, str], list[str]] = {}
    for finding in findings:
        families_of.setdefault((finding.refused, finding.message), []).append(finding.family)
    # If an estimator decides, refusals of the others do no harm.
    mark: Literal["bad", "info"] = "bad" if evaluation.decides is None else "info"
    parts += [
        Note(mark if refused else "doubtful", f"{', '.join(names)}{' refused' if refused else ''}: {message}")
        for (refused, message), names in families_of.items()
    ]
    facts = [
        [limit.fact, limit.labels[0], evaluation.facts[limit.fact], *limit.labels[1:]]
        for limit in LIMITS
        if evaluation.facts.get(limit.fact) is not None
        and (evaluation.unit == "slate" or families.intersection(limit.families))
    ]
    parts.append(Table(_FACTS_HEAD, facts, "Figures and their limits"))
    for key, text in _BY_STEP.items():
        if key in evaluation.weights:
            steps = np.arange(1, evaluation.horizon + 1)
            parts.append(lines(text, {key: (steps, evaluation.weights[key])}, x="step", from_zero=True))
    return parts


def _refused_for(name: str, findings: Sequence[Finding]) -> str:
    """Return the facts for which an estimator is refused; the notes below the table have the full messages."""
    facts = (finding.fact for finding in findings if finding.refused and name in members(finding.family))
    return ", ".join(dict.fromkeys(facts))


def _gains_figure(caption: str, rows: Mapping[str, Row | None]) -> list[Part]:
    """Draw the gains with their intervals, if there are any."""
    known = {key: row for key, row in rows.items() if row is not None}
    gains = [
        (key, float(row.gain_interval.lower), float(row.gain.value), float(row.gain_interval.upper))
        for key, row in known.items()
        if row.gain_interval is not None
    ]
    return [intervals(caption, gains, zero=0.0, x="gain")] if gains else []


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (float(interval.lower), float(interval.upper))


def _row(row: Row, gain: bool = True) -> JSONObject:
    data: JSONObject = {"value": row.value, "interval": _ends(row.interval)}
    if gain:
        data |= {"gain": float(row.gain.value), "gain_interval": _ends(row.gain_interval), "refused": row.refused}
    return data


def _write(folder: str | Path, name: str, page: str, data: JSONObject) -> None:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{path} cannot be created ({error.strerror}): give another --out") from error
    atomic_write(path / f"{name}.json", (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())
    atomic_write(path / f"{name}.html", page.encode())
