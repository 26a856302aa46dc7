"""Errors and intervals of birl's estimators and of other libraries' formulas, on the same logs with known values.

OBP, SCOPE-RL and d3rlpy are not needed: their formulas are written again from their papers and descriptions. All that
need a model share one, fitted by counting: fitted Q evaluation cannot be better where states are few.
``docs/peers-ope.md`` has the table. ``python benchmarks/ope_peers.py``
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from birl.ope import Estimate, Trajectories, doubly_robust, per_decision, t_interval, t_quantile, weighted_per_decision
from tests.ope import planted
from tests.ope.planted import Array

EPISODES, REPETITIONS, RESAMPLES = 200, 1000, 200
_LASTING = 0.92 * np.repeat(np.eye(5)[:, None], 3, 1) + 0.016
"""States that mostly stay, so that a model without them is wrong."""
WORLDS = {
    "one step": (planted.world(1, 1), 0.6, False),
    "5 steps": (planted.world(2, 5), 0.4, False),
    "10 steps": (planted.world(3, 10), 0.5, False),
    "5 steps, a model without the state": (replace(planted.world(2, 5), move=_LASTING), 0.4, True),
}
Result = tuple[Array, Array, Array]
"""Estimates and the ends of their intervals, ``[R]`` each."""


def resampled(terms: Array, seed: int) -> tuple[Array, Array]:
    """Ends of the bootstrap's percentile interval of the mean of terms ``[R, n]``, as OBP and SCOPE-RL compute it."""
    n = terms.shape[-1]
    count = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    means = terms @ count.T / n
    return np.quantile(means, 0.025, -1), np.quantile(means, 0.975, -1)


def own(estimate: Estimate) -> Result:
    """An estimate of birl with its t interval."""
    interval = t_interval(estimate)
    return estimate.value, interval.lower, interval.upper


def of_terms(terms: Array, ends: tuple[Array, Array]) -> Result:
    """A mean of terms with the ends of its interval."""
    return terms.mean(-1), *ends


def one_sided(terms: Array) -> tuple[Array, Array]:
    """A t interval with the quantile of one side, as in SCOPE-RL."""
    half = t_quantile(0.95, terms.shape[-1] - 1) * terms.std(-1, ddof=1) / math.sqrt(terms.shape[-1])
    return terms.mean(-1) - half, terms.mean(-1) + half


def normal(terms: Array) -> tuple[Array, Array]:
    """A normal interval."""
    half = NormalDist().inv_cdf(0.975) * terms.std(-1, ddof=1) / math.sqrt(terms.shape[-1])
    return terms.mean(-1) - half, terms.mean(-1) + half


def recursion(of: Trajectories) -> Array:
    """Doubly robust terms by the recursion of Jiang and Li 2016, equation 10, from the last step to the first."""
    assert of.log_ratio is not None and of.q is not None and of.v is not None
    ratio, value = np.exp(of.log_ratio), np.zeros(of.mask.shape[:-1])
    for t in reversed(range(of.mask.shape[-1])):
        step = of.v[..., t] + ratio[..., t] * (of.reward[..., t] + of.gamma * value - of.q[..., t])
        value = np.where(of.mask[..., t], step, 0.0)
    return value


def with_model(
    logs: planted.Logs, world: planted.World, policies: tuple[Array, Array], parts: int, blind: bool
) -> Trajectories:
    """The logs with values by counting, fitted on the other parts of the episodes, or on all if there is one part.

    A model that is ``blind`` has features without the state: it counts all states as one.
    """
    logger, policy = policies
    state = np.minimum(logs.state, 4)
    seen, average = logs, policy
    if blind:
        seen = replace(logs, state=np.zeros_like(logs.state), goes_to=np.where(logs.goes_to < 5, 0, 5))
        average = np.tile(policy.mean(0), (5, 1))
    part = np.arange(EPISODES) % parts
    used = (part != np.arange(parts)[:, None]).astype(float) if parts > 1 else np.ones((1, EPISODES))
    moved, paid = (np.einsum("pn,rn...->rp...", used, column) for column in planted.counts(seen, world))
    q, _ = planted.fit(moved, paid, average, world)
    at = (np.arange(len(state))[:, None, None], part[:, None], np.arange(world.horizon), np.minimum(seen.state, 4))
    values = q[at]
    taken = np.take_along_axis(values, logs.action[..., None], -1)[..., 0]
    ratio = np.log(policy / logger)[state, logs.action]
    return Trajectories(logs.reward, logs.mask, world.gamma, ratio, taken, (policy[state] * values).sum(-1))


def results(name: str, repetitions: int = REPETITIONS, seed: int = 0) -> tuple[float, dict[str, Result]]:
    """The true value, and the estimates with their intervals by formula."""
    world, distance, blind = WORLDS[name]
    logger, policy = planted.policies(4, distance, 1.5 if blind else 0.5)
    logs = planted.log(world, logger, repetitions, EPISODES, seed)
    honest, fitted = (with_model(logs, world, (logger, policy), parts, blind) for parts in (2, 1))
    assert fitted.v is not None
    steps, model = recursion(fitted), fitted.v[..., 0]
    plain = per_decision(fitted).terms
    relative = (fitted.discount * fitted.relative_weight * fitted.reward).sum(-1)
    span = plain.max(-1) - plain.min(-1)
    turned = span * math.sqrt(math.log(2 / 0.05) / 2 * EPISODES)
    return world.truth(policy), {
        "birl: `doubly_robust`": own(doubly_robust(honest)),
        "birl: `weighted_per_decision`": own(weighted_per_decision(honest)),
        "birl: `per_decision`": own(per_decision(honest)),
        "textbook DR: model from the same episodes, normal interval": of_terms(steps, normal(steps)),
        "OBP, SCOPE-RL: DR, model from the same episodes, bootstrap": of_terms(steps, resampled(steps, seed)),
        "OBP, SCOPE-RL: IPS per decision, bootstrap": of_terms(plain, resampled(plain, seed)),
        "OBP, SCOPE-RL: self-normalised, bootstrap of normalised terms": of_terms(relative, resampled(relative, seed)),
        "SCOPE-RL: IPS per decision, t interval of one side": of_terms(plain, one_sided(plain)),
        "SCOPE-RL: IPS per decision, Hoeffding with its fraction inverted": (
            plain.mean(-1),
            plain.mean(-1) - turned,
            plain.mean(-1) + turned,
        ),
        "d3rlpy: FQE, no interval": (model.mean(-1), np.full(len(model), np.nan), np.full(len(model), np.nan)),
        "SCOPE-RL: FQE, bootstrap of values of first states": of_terms(model, resampled(model, seed)),
    }


def table(name: str, repetitions: int = REPETITIONS) -> list[tuple[str, float, float, float]]:
    """Formula, root mean squared error, coverage of nominal 95 %, and mean width; both relative to the true value."""
    truth, found = results(name, repetitions)
    rows = []
    for formula, (value, lower, upper) in found.items():
        error = math.sqrt(((value - truth) ** 2).mean()) / abs(truth)
        known = np.isfinite(lower).all()
        covers = float(((lower <= truth) & (truth <= upper)).mean()) if known else math.nan
        rows.append((formula, error, covers, float((upper - lower).mean()) / abs(truth)))
    return rows


def main() -> None:
    """Print the table as Markdown: in each cell error, coverage, width."""
    out = sys.stdout.write
    formulas: dict[str, list[str]] = {}
    for name in WORLDS:
        for formula, error, covers, width in table(name):
            interval = "; no interval" if math.isnan(covers) else f"; {covers:.1%}; {100 * width:,.1f} %"
            formulas.setdefault(formula, []).append(f"{error:.1%}{interval}".replace("%;", " %;"))
    out(f"| | {' | '.join(WORLDS)} |\n|---{'|---' * len(WORLDS)}|\n")
    for formula, cells in formulas.items():
        out(f"| {formula} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
