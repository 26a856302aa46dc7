"""Write docs/algorithms/: one page for each algorithm, from its docstrings, its configuration and its scores.

It also writes the names in `birl.algos` for type checkers. Run it after adding an algorithm, after changing a
configuration or a loss, and after adding to the scores (`benchmarks/scores.py`), whose curves it draws; tests compare
the files with what it would write.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from birl import algos, ope
from birl.algorithm import Algorithm
from birl.engine import TargetUpdate, Training
from birl.files.serializable import Serializable

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.scores import EPISODES, RESULTS, SIDES, TASKS, Outcome, draw, outcomes  # noqa: E402  not installed

PAGES = ROOT / "docs" / "algorithms"
STUB = ROOT / "birl" / "algos" / "__init__.pyi"
FINDINGS = """\
### How to read this

A random policy scores about -1200 on Pendulum and 22 on CartPole. The replays have -345 and 129 on average, with
much better episodes at their ends. 5,000 updates are few, and BCQ, BEAR, CQL, CalQL, CrossQ, EDAC, MPO, REDQ and
TQC have networks of 64 units here, so some rows show an algorithm that has not learned yet, such as those of BEAR,
CalQL and EDAC. The rows show whether both sides learn alike, not which algorithm is good.

With two or three seeds, a bootstrap interval only spans the lowest and the highest score. All evaluations start in
the same ten states. Seeds were added where birl scored below d3rlpy, to find out whether that was a fault, but not
where it scored above. An empty cell is an algorithm that the other library does not have. "birl compiled" has
`compile_graph=True`. HalfCheetah's replay is that of birl's compiled SAC with seed 2 in the table above, and comes
from `python benchmarks/scores.py run --task sac-halfcheetah --side birl-compiled --seed 2`. Machines round
differently, so the replay differs between machines: seeds 0 to 4 of IQL's 20,000 updates learned from one replay,
seeds 5 to 7 from another.

### Where birl's mean was below another library's interval

Each of these was investigated, some with fewer seeds than the tables have now. From the same weights, minibatches
and random numbers, the updates of both libraries agree up to rounding, except where the pages say otherwise ([which
ones](../moving.md#what-is-better-and-may-change-your-numbers)).

- **Decision transformers, TACR:** a fault of birl's, now fixed: embeddings and outputs started with GPT-2's small
  weights, which the paper's code uses in the blocks only.
- **CRR:** networks were alike, acting was not. `predict` took the candidate that the critic rates best and so
  followed its errors; now it is the mean of the critic-weighted policy.
- **CQL, CalQL:** the action in targets. birl sampled it, as the papers' expectations require (the tables "in the
  paper's form"); d3rlpy takes the policy's mode, and learns faster on these data. Now birl does the same by
  default. Before it was the default, `mode_q_backup=True` gave CalQL -1257, -1224 and -1127 on Pendulum (seeds 0 to
  2), and CQL 257 and 910 on HalfCheetah (seeds 0 and 1). With d3rlpy's gap as well (`sum_proposals=True`), CQL
  reached 665 and 727, and the metrics of its updates agree with d3rlpy's to two per cent over 1,500 of them.
- **CalQL on HalfCheetah's replay:** birl's mean is lower with eight seeds (at 5,000 updates 460 and 944), and the
  update is not the cause. From the same weights, minibatches and random numbers, 5,000 updates of both take the
  same course: at the end the critics' losses are 584 and 580, ``alpha`` is 1.637 in both, and the scores are 1197
  and 1003. From d3rlpy's initial weights (of four seeds) birl scores 815, 462, 881 and 743, d3rlpy itself 1036,
  678, 915 and 663; d3rlpy on birl's minibatches scores 879, 929 and 926. Single runs depend strongly on these
  weights, and both libraries initialise them alike: means and deviations of values, policy means and deviations
  agree over 300 networks of each.
- **PPO on HalfCheetah:** two faults of birl's, now fixed. Its weights had PyTorch's initialisation, not an
  orthogonal one: without running scalers it ended at -210 and 465 (seeds 0 and 1), with them at 371 (seed 1). And
  the running scale of observations jumped between rollouts: with orthogonal weights and that, five seeds ended at
  946, 1006, -156, -21 and -16 ([0023](../adr/0023-running-scalers.md)). Single runs fall for a time in both
  libraries, and an evaluation may catch them low.
- **DQN, DoubleDQN, SAC, TD3PlusBC, BCQ:** inside the interval with more seeds.
- **IQL, 20,000 updates on HalfCheetah's replay:** below it with five seeds, inside with eight. With d3rlpy's order
  of V and Q and its form of the standard deviation the updates are the same; at 10,000 and 15,000 updates both had
  the same means, and on the second replay birl's was higher.
- **TD3 on Hopper:** eager runs reach 251 with eight seeds (220 with five), six below the lower end of SB3's
  interval; compiled runs, the same algorithm up to rounding, reach 286 with seven, and all fifteen together 267,
  which is inside. Updates equal SB3's up to rounding (a test checks this), and stored and sampled steps were
  compared with what the environment returned. After 50,000 steps no run has learned to hop far yet: seeds range
  from 113 to 435.
- **TQC, online:** one small fault of birl's, now fixed: critics' losses were summed over quantiles and critics, not
  averaged, and gradients are near Adam's epsilon. It made no difference that seeds show. On the same steps,
  thousands of updates lead both libraries to the same temperatures, values and norms, from initial weights and from
  those after 20,000 and 40,000 steps. The loop stores and samples the environment's steps and explores as the
  policy says. On HalfCheetah the libraries cannot be distinguished: after 30,000 steps fourteen seeds have 463 to
  1734, 953 on average, and sb3-contrib's twelve 558 to 1817, 1009; after 50,000 steps ten have 2860 and its eight
  2983, a difference of 123 with a standard error of 164. On Hopper, by means of ten evaluations, six seeds have 346
  to 789 and sb3-contrib's four 497 to 830: not distinguishable either. Stable-Baselines3 cuts off the log-densities
  of actions near the bounds; birl does not. `benchmarks/results/history.md` lists what was tried.
- **SAC on Hopper, online:** 421 with 22 seeds, 13 below the lower end of SB3's interval, whose ten seeds have 492:
  not distinguishable (a difference of 71 with a standard error of 59), and no fault was found. Twelve seeds had
  370. With birl's learner and buffer in SB3's loop, eight seeds have 279 to 893, 482 on average. In birl's own loop
  every action was the current policy's, and minibatches were uniform over the environment's steps. Seeds range from
  268 to 1402.
- **BC:** below it with 23 seeds, by 30. The updates are equal, and among some thirty comparisons one such
  difference is to be expected.

In the other direction, AWAC is far above. d3rlpy's differs in its weights (a softmax over the minibatch) and in its
targets (SAC's entropy bonus, with temperature 1); which of them matters was not investigated.
"""
"""The end of `results`."""

METRICS = {
    "actor_loss": "Loss of the policy. If it contains the negative value of actions, it falls as that value rises.",
    "agent_accuracy": "Share of the policy's steps that the discriminator classifies correctly; falls with imitation.",
    "alpha": "Weight of the constraint or of the conservative loss.",
    "alpha_loss": "Loss of that weight.",
    "approximate_kl": "Divergence of the policy from the one that collected the rollout; if large: too many passes.",
    "average_kl": "Divergence of the policy from its moving average.",
    "bc_loss": "Squared error of the policy's actions against those of the data.",
    "clip_fraction": "Share of steps whose probability ratio was clipped.",
    "conservative_loss": "How far values of unseen actions exceed the data's; for CQL and CalQL times its weight.",
    "critic_loss": "Loss of the Q-functions (or of the state-value function), summed over the ensemble.",
    "dc_loss": "Squared distance of the policy's actions to the nearest ones of the data.",
    "discriminator_loss": "Cross-entropy of the discriminator; 1.39 (2 log 2) if it cannot distinguish the two.",
    "diversity_loss": "Similarity of the directions of the critics' gradients, times its weight.",
    "dual_loss": "Loss of the temperatures and of the multipliers of bounds; its sign has no meaning.",
    "entropy": "Entropy of the policy; it falls as the policy becomes more deterministic.",
    "expert_accuracy": "Share of the expert's steps that the discriminator classifies correctly.",
    "explained_variance": "Share of the variance of returns that the value function explains; 1 is best.",
    "imitation_loss": "Negative log-likelihood of the data's actions.",
    "imitator_loss": "Loss of the model that imitates the data.",
    "importance_weight": "Mean clipped ratio of the policy's probabilities to those of the acting policy.",
    "kl": "Divergence of the policy from the previous one, which is bounded.",
    "kl_mean": "The same for a change of the means alone, by dimension; if large, the bound does not hold.",
    "kl_std": "The same for a change of the standard deviations alone.",
    "learning_rate": "Learning rate of the update.",
    "loss": "The total loss.",
    "mmd_loss": "Distance of the policy's actions from the imitator's, as used in the policy's loss.",
    "policy_loss": "The negative of the policy's objective.",
    "q_loss": "Loss of the Q-functions.",
    "q_value": "Mean value of the sampled actions; if it grows far beyond possible returns, values are overestimated.",
    "regularization_loss": "Penalty on large logits.",
    "failed_search": "Share of rollouts with a gradient for which the line search found no step.",
    "step_share": "Share of the full step that the line search accepted; 0: the policy did not change.",
    "td_loss": "Temporal-difference loss, without added terms.",
    "temp": "Temperature: the weight of the entropy.",
    "temp_loss": "Loss of the temperature; its sign shows in which direction the temperature moves.",
    "v_loss": "Loss of the state-value function.",
    "vae_loss": "Reconstruction error and divergence of the auto-encoder.",
    "value_loss": "Squared error of the state-value function.",
    "weights": "Mean weight of the imitated actions.",
}
"""The meaning of every metric that algorithms log."""


WAYS = {"TrustRegion": "by a natural gradient and a line search"}
"""How networks are updated if not by an optimiser."""


def algorithms() -> list[type[Algorithm[Any, Any]]]:
    """Return all algorithms, ordered by name."""
    values = (getattr(module, name) for module in (algos, ope) for name in module.__all__)
    found = {v for v in values if inspect.isclass(v) and issubclass(v, Algorithm) and hasattr(v, "config_class")}
    return sorted(found, key=lambda cls: cls.__name__)


def markdown(text: str) -> str:
    """Convert docstring markup to Markdown."""
    text = re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(text))
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def value(default: Any) -> str:
    """Return a default as code."""
    if isinstance(default, Serializable):
        plain = type(default)()
        changed = {key: item for key, item in default.get_params().items() if item != plain.get_params()[key]}
        return f"`{type(default).__name__}({', '.join(f'{key}={item!r}' for key, item in changed.items())})`"
    return f"`{getattr(default, 'value', default)!r}`"


Scores = dict[str, dict[str, Outcome]]
"""By task and side."""


def measured() -> dict[str, Scores]:
    """Return the measured scores, by algorithm."""
    found: dict[str, Scores] = {}
    for task, sides in outcomes().items():
        found.setdefault(TASKS[task].algorithm, {})[task] = sides
    return found


def caption(name: str, tasks: Scores) -> str:
    """Describe an algorithm's curves in one line."""
    text = f"Mean return of {name} while it learns."
    for task, sides in tasks.items():
        each = (f"{SIDES[side][0]} ends at {outcome.last.mean():.0f}" for side, outcome in sides.items())
        text += f" {TASKS[task].title}: {', '.join(each)}."
    return text


def measurements(name: str, tasks: Scores) -> list[str]:
    """Return the section about an algorithm's scores."""
    lines = ["## Measured", "", f"![{caption(name, tasks)}](curves/{name}.svg)", ""]
    lines += [f"Mean return of {EPISODES} greedy episodes with the same initial states in each evaluation."]
    lines += ["Lines are means over seeds; shaded areas span the lowest to the highest."]
    lines += ["All libraries have the same steps and hyper-parameters."]
    lines += ["Last scores, with 95 % bootstrap intervals of the mean over seeds:", ""]
    lines += ["| task | length | side | seeds | score |", "|---|---|---|---|---|"]
    for task, sides in tasks.items():
        what = f"{TASKS[task].title} | {TASKS[task].length}"
        lines += [f"| {what} | {SIDES[side][0]} | {len(found.last)} | {found} |" for side, found in sides.items()]
    for task in tasks:
        tail, late = len(TASKS[task].scored), TASKS[task].late
        scored = f" Its scores are means of the last {tail} evaluations, one every {late} steps." if late else ""
        lines += ["", f"{TASKS[task].title}, {TASKS[task].length}: {TASKS[task].settings}.{scored}"]
    task = next(iter(tasks))
    command = f"python benchmarks/scores.py run --task {task} --side {next(iter(tasks[task]))} --seed 0"
    return [*lines, "", f"One run: `{command}`. All runs: [scores.csv](../../benchmarks/results/{RESULTS.name}).", ""]


def results(scores: dict[str, Scores]) -> list[str]:
    """Return tables of all last scores, one for each kind of task."""
    kinds: dict[str, dict[str, dict[str, Outcome]]] = {}
    for name, tasks in sorted(scores.items()):
        for task, sides in tasks.items():
            kinds.setdefault(f"{TASKS[task].title}, {TASKS[task].length}", {})[name] = sides
    lines = ["## Measured", ""]
    lines += [f"Mean return of the greedy policy in {EPISODES} episodes at the end of training: the mean over n seeds"]
    lines += ["with its 95 % bootstrap interval. Curves and hyper-parameters are on the algorithms' pages. Families in"]
    tables = (f"[{name}](../../benchmarks/results/{name}.md)" for name in ("values", "policies", "imitation"))
    lines += [f"more tasks, with three seeds each, have tables of their own: {', '.join(tables)}.", ""]
    for kind, rows in kinds.items():
        shown = [side for side in SIDES if any(side in sides for sides in rows.values())]
        header = ["algorithm", *(SIDES[side][0] for side in shown)]
        lines += [f"### {kind}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
        for name, sides in rows.items():
            each = (f"{sides[side]}, n = {len(sides[side].last)}" if side in sides else "" for side in shown)
            lines += [f"| [{name}]({name}.md#measured) | {' | '.join(each)} |"]
        lines += [""]
    return [*lines, FINDINGS]


def page(cls: type[Algorithm[Any, Any]], tasks: Scores | None = None) -> str:
    """Return an algorithm's page, with its scores if there are any."""
    config = cls.config_class
    lines = [f"# {cls.__name__}", "", "<!-- written by scripts/make_algorithm_pages.py -->", ""]
    lines += [markdown(config.__doc__ or ""), ""]
    lines += [f"- actions: {cls.actions.label}", f"- learns from: {cls.learns_from.description}", ""]
    if tasks:
        lines += measurements(cls.__name__, tasks)
    steps = [step for step in cls.steps if step.when.holds(config())]
    if steps:
        lines += ["## An update", "", "In this order:", ""]
        for step in steps:
            when = [f"every `{step.when.every}` updates"] if step.when.every != 1 else []
            when += [f"after `{step.when.after}` updates"] if step.when.after != 0 else []
            when += [f"until update `{step.when.until}`"] if step.when.until is not None else []
            if isinstance(step, Training):
                when = [*when, way] if (way := WAYS.get(type(step).__name__)) else when
                every = f" ({', '.join(when)})" if when else ""
                trained = ", ".join(f"`{name}`" for name in step.networks)
                described = re.sub(
                    r"\n(?=.)", "\n    ", markdown(step.loss.__doc__ or "")
                )  # stays inside the list item
                lines += [f"1. {trained}{every}, logged as `{step.logged}`: {described}", *[""] * ("\n" in described)]
            elif isinstance(step, TargetUpdate):
                kind = " ".join([type(step).__name__, *when])
                lines += [f"1. `{step.target}` follows `{step.source}` ({kind})"]
        lines += [""]
    logged = re.search(r"^Logs .*?(?:\n\n|\Z)", inspect.cleandoc(config.__doc__ or ""), re.DOTALL | re.MULTILINE)
    names = [name for name in re.findall(r"``(\w+)``", logged.group()) if name in METRICS] if logged else []
    if names:
        lines += ["## What it logs", "", "| metric | meaning |", "|---|---|"]
        lines += [*(f"| `{name}` | {METRICS[name]} |" for name in dict.fromkeys(names)), ""]
    lines += ["## Hyper-parameters", "", "| field | default | allowed | meaning |", "|---|---|---|---|"]
    for name, default, allowed, meaning in config.documentation():
        lines += [f"| `{name}` | {value(default)} | {allowed} | {markdown(meaning)} |"]
    file = inspect.getsourcefile(cls)
    assert file is not None
    path = "/".join(Path(file).parts[-3:])
    lines += ["", f"Code: [{path}](../../{path})", ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return the content of each file, including the index, by file name."""
    scores = measured()
    made = {f"{cls.__name__}.md": page(cls, scores.get(cls.__name__)) for cls in algorithms()}
    index = ["# Algorithms", "", "| algorithm | actions | learns from |", "|---|---|---|"]
    for cls in algorithms():
        index += [f"| [{cls.__name__}]({cls.__name__}.md) | {cls.actions.label} | {cls.learns_from.description} |"]
    return {"README.md": "\n".join([*index, "", *results(scores)]), **made}


def stub() -> str:
    """Return the names of `birl.algos` for type checkers, which do not see names found at import."""
    values = {name: getattr(algos, name) for name in algos.__all__}
    imported = {f"from {v.__module__} import {v.__name__} as {v.__name__}" for v in values.values()}
    renamed = [f"{name} = {v.__name__}" for name, v in values.items() if name != v.__name__]
    lines = ["# written by scripts/make_algorithm_pages.py", *sorted(imported), "", *renamed, "__all__: list[str]", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
    (PAGES / "curves").mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
    for old in (PAGES / "curves").glob("*.svg"):  # their scores may have been removed
        old.unlink()
    for name, tasks in measured().items():
        draw(PAGES / "curves" / f"{name}.svg", name, caption(name, tasks), tasks)
    sys.stdout.write(f"{len(pages())} pages in {PAGES}\n")
