"""Write docs/estimators/: one page for each estimator of `birl.ope`, from its docstring and the table of limits.

What it needs is found by leaving it out, what refuses it is read from `birl.ope.LIMITS`. Only when it fails is said
here. Run it after adding an estimator or a limit; a test compares the files with what it would write.
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
    "on_policy": "It says what the logs earned, and nothing of another policy. It is the baseline of every gain.",
    "direct_method": "The model is wrong: features that do not hold the state, too few updates, actions that the logs "
    "do not have. It is then narrow and wrong, and nothing in its spread shows it. So it never decides alone.",
    "importance_sampling": "Episodes are long: the spread of a product of ratios grows with every step, and soon one "
    "episode has all the weight. Intervals then miss on one side; with rewards that can be negative, give `lowest`.",
    "weighted_importance_sampling": "Few episodes are effective: it is then biased towards what the heaviest of them "
    "earned, and its interval is too narrow.",
    "per_decision": "As importance sampling, some steps later: late rewards have the weights of long products.",
    "weighted_per_decision": "Few episodes are effective, later than with weights of whole episodes. It is biased.",
    "doubly_robust": "Weights and model are both poor. A poor model alone widens it, wrong propensities alone are "
    "mended by the model; with both wrong nothing holds. With a model that has seen the episode it is too narrow.",
    "weighted_doubly_robust": "As doubly robust. Its interval covers two or three points too few at 20 to 40 effective "
    "episodes.",
    "double_reinforcement_learning": "Observations are not the whole state, or no linear ratios of visits are right; "
    "no figure shows either. It is a second opinion, never the verdict.",
    "magic": "The model is wrong by less than the spread of the weighted estimates: then the blend follows it, and an "
    "interval is that of a value which may be biased. It does not decide.",
    "return_quantile": "Few episodes are effective: a quantile near 0 or 1 rests on a handful of them, and needs far "
    "more than a mean.",
    "conditional_value_at_risk": "Few episodes are effective among the worst ones, which are all that it looks at.",
}
"""When not to trust it, in words; the rest of a page comes from the code."""

_TO_CALL: Final[dict[str, Any]] = {"return_quantile": {"p": 0.5}, "conditional_value_at_risk": {"share": 0.5}}
_LIKE: Final = dict.fromkeys(("return_quantile", "conditional_value_at_risk"), "weighted_importance_sampling")
"""Estimators that no limit names, and those with the same weights, whose limits are theirs."""


def estimators() -> dict[str, Callable[..., Any]]:
    """Functions of `birl.ope` that make an estimate of logged episodes, those of `FAMILIES` first."""
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
    found = estimators()
    return {"README.md": _index(found), **{f"{name}.md": _page(name, one) for name, one in found.items()}}


INDEX: Final = """\
# Estimators

`w_t` is the product of the ratios of a policy's probability and the logged one up to step t, `Q` and `V` a
model's values under the policy. [Off-policy evaluation](../ope.md) says how to call them, and which decides.
[FQE](../algorithms/FQE.md) is a model that is trained.

| estimator | equation | needs |
|---|---|---|
{rows}

Ratios that are changed first make other estimators of these, with less variance for a bias that `bias_bound`
bounds: `clip_ratios`, `switch_ratios` (SWITCH), `shrink_ratios`, `temper_ratios`. With `mixture_log_ratios`
the logs of several policies are one log, with `kernel_log_density` logged quantities are compared with those
of a policy that draws nothing.

## Diagnostics and limits

Figures of the data, the weights and the model (`birl.ope.diagnose`, `weight_facts`, `model_facts`) are
compared with one table, `birl.ope.LIMITS`: what passes a limit is doubtful, or refuses a family.

{limits}"""


def _index(found: dict[str, Callable[..., Any]]) -> str:
    rows = [f"| [{name}]({name}.md) | {_first(one)} | {_needs(name, one)} |" for name, one in found.items()]
    limits = [line for family, names in FAMILIES.items() if names for line in _limits(family, names)]
    return INDEX.format(rows="\n".join(rows), limits="\n".join(limits))


def _page(name: str, one: Callable[..., Any]) -> str:
    parts = [
        f"# {name}",
        text_of(one.__doc__ or "", {}),
        f"**Needs** {_needs(name, one)}.",
        f"**Fails when:** {FAILS[name]}",
        _refused(name),
        f"In Python: `birl.ope.{name}({', '.join(inspect.signature(one).parameters)})` of a `birl.ope.Trajectories`. "
        "[All estimators](README.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _first(one: Callable[..., Any]) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(one) or "").split("\n\n")[0].split()).replace("|", "\\|")


def _needs(name: str, one: Callable[..., Any]) -> str:
    """What it cannot do without: found by leaving it out."""
    steps = np.ones((3, 2))
    whole = ope.Trajectories(steps, steps > 0, 1.0, 0 * steps, steps, steps, z=steps)
    call = partial(one, **_TO_CALL.get(name, {}))
    call(whole)
    needed = []
    for words, without in {
        "propensities": {"log_ratio": None},
        "a model": {"q": None, "v": None},
        "ratios of visits": {"z": None},
    }.items():
        try:
            call(replace(whole, **without))
        except DataError:
            needed.append(words)
    return " and ".join(needed) or "nothing but episodes"


def _refused(name: str) -> str:
    """What refuses it: the limits of its family."""
    like = _LIKE.get(name, name)
    family = next((family for family, names in FAMILIES.items() if like in names), None)
    if family is None:
        return "**Refused** by nothing: it is about the logs themselves."
    note = "" if like == name else f"It has the weights of `{like}`. "
    return f"**Refused** by the [limits of the family {family}](README.md#{family}). {note}".strip()


def _limits(family: str, names: tuple[str, ...]) -> list[str]:
    """The rows of the table of limits that judge a family."""
    rows = [
        f"| `{limit.fact}` | {limit.meaning.format('…')} | {_side(limit, limit.warn)} | {_side(limit, limit.refuse)} | "
        f"{limit.remedy} |"
        for limit in ope.LIMITS
        if family in limit.families
    ]
    head = ["| figure | what it says | doubtful | refused | what would help |", "|---|---|---|---|---|"]
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
