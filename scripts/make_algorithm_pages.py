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

A random policy has about -1200 on Pendulum and 22 on CartPole, the replays have -345 and 129 on average and much
better episodes at their ends. 5,000 updates are few, and BCQ, BEAR, CQL, CalQL, CrossQ, EDAC, MPO, REDQ and TQC have
networks of 64 units here: some rows show an algorithm that has not learned yet, as BEAR's, CalQL's and EDAC's. The rows
tell whether both sides learn alike, not which algorithm is good.

With two or three seeds a bootstrap interval is no more than the lowest and the highest of them. All evaluations begin
in the same ten states. Seeds were added where birl lay below d3rlpy, to find out whether that was a fault, and not
where it lay above. An empty cell is an algorithm that the other side does not have. "birl compiled" has
`compile_graph=True`. HalfCheetah's replay is that of birl's compiled SAC with seed 2 in the table above, and comes from
`python benchmarks/scores.py run --task sac-halfcheetah --side birl-compiled --seed 2`. Another machine rounds
otherwise, so its replay is another one: seeds 0 to 4 of IQL's 20,000 updates learned from one, seeds 5 to 7 from
another.

### Where birl's mean was below a peer's interval

Each of these was looked into, some with fewer seeds than the tables have now. From the same weights, minibatches and
random numbers the updates of both agree up to rounding, but for what the pages say
([which ones](../moving.md#what-is-better-and-may-change-your-numbers)).

- **Decision transformers, TACR:** a fault of birl's, mended: embeddings and outputs began with GPT-2's small weights,
  which the paper's code gives to the blocks only.
- **CRR:** networks were alike, acting was not. `predict` took the candidate that the critic likes best and so
  followed its errors; it is the mean of the critic-weighted policy now.
- **CQL, CalQL:** the action in targets. birl sampled it, as the papers' expectations ask (the tables "in the paper's
  form"); d3rlpy takes the policy's mode, and learns faster so on these data. Now birl does the same by default. Before
  it was the default, `mode_q_backup=True` gave CalQL -1257, -1224 and -1127 on Pendulum (seeds 0 to 2), and CQL 257
  and 910 on HalfCheetah (seeds 0 and 1). With d3rlpy's gap, too, as `sum_proposals=True` has it, CQL had 665 and 727,
  and metrics of its updates agree with d3rlpy's to two per cent over 1,500 of them.
- **CalQL on HalfCheetah's replay:** birl's mean is lower with eight seeds (at 5,000 updates 460 and 944), and the cause
  is not the update. From the same weights, minibatches and random numbers, 5,000 updates of both go the same way: in
  the end the critics' losses are 584 and 580, ``alpha`` is 1.637 in both, and the scores are 1197 and 1003. From
  d3rlpy's weights at the start (of four seeds) birl scores 815, 462, 881 and 743, d3rlpy itself 1036, 678, 915 and 663;
  d3rlpy on birl's minibatches scores 879, 929 and 926. Single runs depend much on these weights, and on both sides they
  are drawn alike: means and deviations of values, policy means and deviations agree over 300 networks of each.
- **PPO on HalfCheetah:** two faults of birl's, mended. Its weights began as torch makes them, not orthogonal: without
  running scalers it ended at -210 and 465 (seeds 0 and 1), with them at 371 (seed 1). And the running scale of
  observations leaped between rollouts: with orthogonal weights and that, five seeds ended at 946, 1006, -156, -21 and
  -16 ([0023](../adr/0023-running-scalers.md)). Single runs fall for a time on both sides, and an evaluation may find
  them low.
- **DQN, DoubleDQN, SAC, TD3PlusBC, BCQ:** inside the interval with more seeds.
- **IQL, 20,000 updates on HalfCheetah's replay:** below it with five seeds, inside with eight. With d3rlpy's order of V
  and Q and its form of the standard deviation the updates are the same; at 10,000 and 15,000 updates both had the same
  means, and on the second replay birl's was higher.
- **TD3 on Hopper:** eager runs have 251 with eight seeds (220 with five), six below the lower end of SB3's interval;
  compiled runs, which are the same algorithm up to rounding, 286 with seven, and all fifteen together 267, which is
  inside. Updates equal SB3's up to rounding (a test holds this), and what is stored and drawn was held against what
  the environment gave. After 50,000 steps nobody has learned to hop far yet: seeds range from 113 to 435.
- **TQC, online:** one small fault of birl's, mended: critics' losses were summed over quantiles and critics, not
  averaged, and gradients are near Adam's epsilon. It made no difference that seeds show. On the same steps thousands of
  updates lead both sides to the same temperatures, values and norms, from first weights and from those after 20,000 and
  40,000 steps. The loop stores and draws the environment's steps and explores as the policy says. On HalfCheetah the
  sides are not told apart: after 30,000 steps fourteen seeds have 463 to 1734, 953 on average, and sb3-contrib's twelve
  558 to 1817, 1009; after 50,000 steps ten have 2860 and its eight 2983, a difference of 123 with a standard error of
  164. On Hopper, by means of ten evaluations, six seeds have 346 to 789 and sb3-contrib's four 497 to 830: not told
  apart either. Stable-Baselines3 cuts off the log-densities of actions near the bounds, which is left as a difference.
  What was tried is in `benchmarks/results/history.md`.
- **SAC on Hopper, online:** 421 with 22 seeds, 13 below the lower end of SB3's interval, whose ten seeds have 492: not
  told apart (a difference of 71 with a standard error of 59), and no fault was found. Twelve seeds had 370. With
  birl's learner and buffer in SB3's loop eight seeds have 279 to 893, 482 on average. In birl's own loop every action
  was the present policy's, and minibatches were uniform over the environment's steps. Seeds range from 268 to 1402.
- **BC:** below it with 23 seeds, by 30. The updates are equal, and among some thirty comparisons one is to be expected
  so far apart.

The other way round AWAC is far above. d3rlpy's differs in its weights (a softmax over the minibatch) and in its targets
(SAC's entropy bonus, with temperature 1); which of them matters was not looked into.
"""
"""What `results` ends with."""

METRICS = {
    "actor_loss": "Loss of the policy. Where it holds the negative value of its actions, it falls as they seem better.",
    "agent_accuracy": "Share of the policy's steps that the discriminator knows; it falls as the policy imitates.",
    "alpha": "Weight of the constraint or of the conservative loss.",
    "alpha_loss": "Loss of that weight.",
    "approximate_kl": "Divergence of the policy from the one that collected the rollout; large means too many passes.",
    "average_kl": "Divergence of the policy from its slowly moving average.",
    "bc_loss": "Squared error of the policy's actions against those of the data.",
    "clip_fraction": "Share of steps whose probability ratio was clipped.",
    "conservative_loss": "How far values of unseen actions lie above the data's; of CQL and CalQL times its weight.",
    "critic_loss": "Loss of the Q-functions (or of the state-value function), summed over the ensemble.",
    "dc_loss": "Squared distance of the policy's actions to the nearest ones of the data.",
    "discriminator_loss": "Cross-entropy of the discriminator; 1.39 (2 log 2) where it can tell nothing apart.",
    "diversity_loss": "How much the critics' gradients point the same way, times its weight.",
    "dual_loss": "Loss of the temperatures and of the multipliers of bounds; its sign says nothing.",
    "entropy": "Entropy of the policy; it falls as the policy makes up its mind.",
    "expert_accuracy": "Share of the expert's steps that the discriminator knows.",
    "imitation_loss": "Negative log-likelihood of the data's actions.",
    "imitator_loss": "Loss of the model that imitates the data.",
    "importance_weight": "Mean ratio of the policy's probabilities to those that chose the actions, clipped.",
    "kl": "Divergence of the policy from the one that it improves on, which is bounded.",
    "kl_mean": "The same if only its means changed, by dimension; large means a bound that does not hold.",
    "kl_std": "The same if only its standard deviations changed.",
    "learning_rate": "Learning rate of the update.",
    "loss": "What is minimised, in all.",
    "mmd_loss": "Distance of the policy's actions from the imitator's, as it enters the policy's loss.",
    "policy_loss": "What the policy is to maximise, negative.",
    "q_loss": "Loss of the Q-functions.",
    "regularization_loss": "Penalty on large logits.",
    "failed_search": "Share of rollouts with a gradient whose line search found no step.",
    "step_share": "Share of the whole step that the line search allowed; 0 if none, so that the policy stayed.",
    "td_loss": "Temporal-difference loss, without what is added to it.",
    "temp": "Temperature: the weight of the entropy.",
    "temp_loss": "Loss of the temperature; its sign says which way the temperature goes.",
    "v_loss": "Loss of the state-value function.",
    "vae_loss": "Reconstruction error and divergence of the auto-encoder.",
    "value_loss": "Squared error of the state-value function.",
    "weights": "Mean weight of the imitated actions.",
}
"""Every metric that an algorithm's docstring says it logs."""


WAYS = {"TrustRegion": "by a natural gradient and a line search"}
"""How networks follow a loss, where it is not by an optimiser."""


def algorithms() -> list[type[Algorithm[Any, Any]]]:
    """All algorithms, by name."""
    values = (getattr(module, name) for module in (algos, ope) for name in module.__all__)
    found = {v for v in values if inspect.isclass(v) and issubclass(v, Algorithm) and hasattr(v, "config_class")}
    return sorted(found, key=lambda cls: cls.__name__)


def markdown(text: str) -> str:
    """Docstring markup as Markdown."""
    text = re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(text))
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def value(default: Any) -> str:
    """A default as it would be written in code."""
    if isinstance(default, Serializable):
        plain = type(default)()
        changed = {key: item for key, item in default.get_params().items() if item != plain.get_params()[key]}
        return f"`{type(default).__name__}({', '.join(f'{key}={item!r}' for key, item in changed.items())})`"
    return f"`{getattr(default, 'value', default)!r}`"


Scores = dict[str, dict[str, Outcome]]
"""By task and side."""


def measured() -> dict[str, Scores]:
    """The scores that there are, by algorithm."""
    found: dict[str, Scores] = {}
    for task, sides in outcomes().items():
        found.setdefault(TASKS[task].algorithm, {})[task] = sides
    return found


def seen(name: str, tasks: Scores) -> str:
    """What an algorithm's curves show, in words."""
    text = f"Mean return of {name} while it learns."
    for task, sides in tasks.items():
        each = (f"{SIDES[side][0]} ends at {outcome.last.mean():.0f}" for side, outcome in sides.items())
        text += f" {TASKS[task].title}: {', '.join(each)}."
    return text


def measurements(name: str, tasks: Scores) -> list[str]:
    """The section about an algorithm's scores."""
    lines = ["## Measured", "", f"![{seen(name, tasks)}](curves/{name}.svg)", ""]
    lines += [f"Mean return of {EPISODES} greedy episodes, which begin alike at each evaluation. Lines are means over"]
    lines += ["seeds; shades reach from the lowest seed to the highest. All sides have the same steps and"]
    lines += ["hyper-parameters. Last scores, with 95 % bootstrap intervals of the mean over seeds:", ""]
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
    """Tables of all last scores, one for each kind of task."""
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
    """One algorithm's page, with its scores if there are any."""
    config = cls.config_class
    lines = [f"# {cls.__name__}", "", "<!-- written by scripts/make_algorithm_pages.py -->", ""]
    lines += [markdown(config.__doc__ or ""), ""]
    lines += [f"- actions: {cls.actions.words}", f"- learns from: {cls.learns_from.description}", ""]
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
                told = re.sub(r"\n(?=.)", "\n    ", markdown(step.loss.__doc__ or ""))  # stays in its item of the list
                lines += [f"1. {trained}{every}, logged as `{step.logged}`: {told}", *[""] * ("\n" in told)]
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
    """File name to content, the index included."""
    scores = measured()
    made = {f"{cls.__name__}.md": page(cls, scores.get(cls.__name__)) for cls in algorithms()}
    index = ["# Algorithms", "", "| algorithm | actions | learns from |", "|---|---|---|"]
    for cls in algorithms():
        index += [f"| [{cls.__name__}]({cls.__name__}.md) | {cls.actions.words} | {cls.learns_from.description} |"]
    return {"README.md": "\n".join([*index, "", *results(scores)]), **made}


def stub() -> str:
    """Names of `birl.algos` for type checkers, which do not see names that are found at import."""
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
    for old in (PAGES / "curves").glob("*.svg"):  # whose scores may be gone
        old.unlink()
    for name, tasks in measured().items():
        draw(PAGES / "curves" / f"{name}.svg", name, seen(name, tasks), tasks)
    sys.stdout.write(f"{len(pages())} pages in {PAGES}\n")
