"""Write docs/estimators/: one page for each estimator of `birl.ope`, from its docstring and the table of limits.

The required inputs are found by leaving each out; limits are those of `birl.ope.LIMITS`. Only the texts about failures
are written here. Run it after adding an estimator or a limit; a test compares the files with its output.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl import ope
from birl.errors import DataError
from birl.ope.validity_limits import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.api_pages import text_of  # noqa: E402  not installed

PAGES = ROOT / "docs" / "estimators"

FAILS: Final = {
    "on_policy": "It estimates the value of the logging policy only. It is the baseline of every gain.",
    "direct_method": "The model is wrong: features without the whole state, too few updates, actions that are not in "
    "the logs. The estimate is then wrong with a small spread that does not show it, so it never decides alone.",
    "importance_sampling": "Episodes are long: the variance of a product of ratios grows with every step, until one "
    "episode has all the weight. Intervals are then wrong on one side; give `lowest` if rewards can be negative.",
    "weighted_importance_sampling": "Few episodes are effective: it is then biased towards the returns of the heaviest "
    "ones, and its interval is too narrow.",
    "per_decision": "As importance sampling, but at later steps: late rewards have the weights of long products.",
    "weighted_per_decision": "Few episodes are effective, but later than with weights of whole episodes. It is biased.",
    "doubly_robust": "Weights and model are both wrong. A wrong model alone widens the interval, the model corrects "
    "wrong propensities. If the model was fitted on the episode itself, the interval is too narrow.",
    "weighted_doubly_robust": "As doubly robust. The coverage of its interval is two or three points too low at 20 to "
    "40 effective episodes.",
    "double_reinforcement_learning": "Observations are not Markov, or ratios of visits are not linear in the features; "
    "no figure shows either. It is a second opinion and never decides.",
    "magic": "The error of the model is smaller than the spread of the weighted estimates: then the blend follows the "
    "model, and the interval ignores the bias. It does not decide.",
    "return_quantile": "Few episodes are effective: a quantile near 0 or 1 depends on a few of them, and needs far "
    "more episodes than a mean.",
    "conditional_value_at_risk": "Few episodes are effective among the worst ones, the only ones that it uses.",
}
"""When an estimator fails; the rest of a page comes from the code."""

_ARGUMENTS: Final[dict[str, Any]] = {"return_quantile": {"p": 0.5}, "conditional_value_at_risk": {"share": 0.5}}
_LIKE: Final = dict.fromkeys(("return_quantile", "conditional_value_at_risk"), "weighted_importance_sampling")
"""Estimators without limits of their own, and the estimators with the same weights, whose limits apply."""


def estimators() -> dict[str, Callable[..., Any]]:
    """Functions of `birl.ope` that return an estimate of logged episodes, those of `FAMILIES` first."""
    order = [name for names in FAMILIES.values() for name in names]
    found = {}
    for name in sorted(ope.__all__, key=lambda name: order.index(name) if name in order else len(order)):
        value = getattr(ope, name)
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            first = next(iter(signature.parameters.values()), None)
            made = str(signature.return_annotation)
            if first is not None and first.annotation == "Trajectories" and ("Estimate" in made or "Interval" in made):
                found[name] = value
    return found


def pages() -> dict[str, str]:
    """The pages by file name; ``README.md`` is the index."""
    functions = estimators()
    return {"README.md": _index(functions), **{f"{name}.md": _page(name, each) for name, each in functions.items()}}


INDEX: Final = """\
# Estimators

`w_t` is the product of the ratios of a policy's and the logging policy's probabilities up to step t, `Q` and `V` are a
model's values of the policy. [Off-policy evaluation](../ope.md) explains how to call them, and which one decides.
[FQE](../algorithms/FQE.md) trains a model.

| estimator | equation | needs |
|---|---|---|
{rows}

Changed ratios make other estimators of these, with less variance for a bias that `bias_bound` bounds: `clip_ratios`,
`switch_ratios` (SWITCH), `shrink_ratios`, `temper_ratios`. `mixture_log_ratios` joins the logs of several policies to
one log, and `kernel_log_density` compares logged continuous actions with those of a deterministic policy.

## Diagnostics and limits

Figures of the data, the weights and the model (`birl.ope.diagnose`, `weight_facts`, `model_facts`) are compared with
one table, `birl.ope.LIMITS`. An estimate beyond a limit is doubtful, or its family is refused.

{limits}"""


def _index(functions: dict[str, Callable[..., Any]]) -> str:
    rows = [f"| [{name}]({name}.md) | {_summary(each)} | {_needs(name, each)} |" for name, each in functions.items()]
    limits = [line for family, names in FAMILIES.items() if names for line in _limits(family, names)]
    return INDEX.format(rows="\n".join(rows), limits="\n".join(limits))


def _page(name: str, function: Callable[..., Any]) -> str:
    parts = [
        f"# {name}",
        text_of(function.__doc__ or "", {}),
        f"**Needs** {_needs(name, function)}.",
        f"**Fails when:** {FAILS[name]}",
        _refused(name),
        f"In Python: `birl.ope.{name}({', '.join(inspect.signature(function).parameters)})` with a "
        "`birl.ope.Trajectories`. [All estimators](README.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring in one line, without the verb."""
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()).replace("|", "\\|")
    text = text.removeprefix("Return ")
    return text[0].upper() + text[1:]


def _needs(name: str, function: Callable[..., Any]) -> str:
    """The inputs without which an estimator raises an error."""
    steps = np.ones((3, 2))
    complete = ope.Trajectories(steps, steps > 0, 1.0, 0 * steps, steps, steps, z=steps)
    call = partial(function, **_ARGUMENTS.get(name, {}))
    call(complete)
    needed = []
    for label, missing in {
        "propensities": {"log_ratio": None},
        "a model": {"q": None, "v": None},
        "ratios of visits": {"z": None},
    }.items():
        try:
            call(replace(complete, **missing))
        except DataError:
            needed.append(label)
    return " and ".join(needed) or "nothing but episodes"


def _refused(name: str) -> str:
    """The limits of an estimator's family."""
    like = _LIKE.get(name, name)
    family = next((family for family, names in FAMILIES.items() if like in names), None)
    if family is None:
        return "**Never refused**: it describes the logs themselves."
    note = "" if like == name else f"It has the weights of `{like}`. "
    return f"**Refused** by the [limits of the family {family}](README.md#{family}). {note}".strip()


def _limits(family: str, names: tuple[str, ...]) -> list[str]:
    """The rows of the table of limits for a family."""
    rows = [
        f"| `{limit.fact}` | {limit.meaning.format('…')} | {_side(limit, limit.warn)} | {_side(limit, limit.refuse)} | "
        f"{limit.remedy} |"
        for limit in ope.LIMITS
        if family in limit.families
    ]
    head = ["| figure | meaning | doubtful | refused | what would help |", "|---|---|---|---|---|"]
    return [f"### {family}", "", f"{', '.join(f'`{name}`' for name in names)}:", "", *head, *rows, ""]


def _side(limit: Any, end: float | None) -> str:
    return "" if end is None else f"{'below' if limit.too_low else 'above'} {end:g}"


def main() -> None:
    """Write all pages, and remove those of estimators that are gone."""
    PAGES.mkdir(exist_ok=True)
    wanted = pages()
    for old in PAGES.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    print(f"{len(wanted)} pages in {PAGES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
