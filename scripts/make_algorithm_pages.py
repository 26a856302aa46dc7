"""Write docs/algorithms/: one page for each algorithm, from its docstrings and its configuration.

Run it after changing a configuration or a loss; a test compares the pages with what it would write.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from birl import algos, ope
from birl.algorithm import Algorithm
from birl.serialization import Serializable
from birl.types import ActionSpace

PAGES = Path(__file__).resolve().parent.parent / "docs" / "algorithms"
KINDS = {ActionSpace.CONTINUOUS: "continuous", ActionSpace.DISCRETE: "discrete", ActionSpace.BOTH: "both"}
SOURCES = {
    "transition": "logged data, or live environments through a replay buffer",
    "tail": "logged data, or live environments through a replay buffer: steps with the rest of their episodes",
    "trajectory": "logged data",
    "rollout": "live environments (its own fresh experience)",
    "nothing": "nothing: it does not learn",
}


METRICS = {
    "actor_loss": "Loss of the policy. Where it holds the negative value of its actions, it falls as they seem better.",
    "alpha": "Weight of the constraint or of the conservative loss.",
    "alpha_loss": "Loss of that weight.",
    "approximate_kl": "Divergence of the policy from the one that collected the rollout; large means too many passes.",
    "bc_loss": "Squared error of the policy's actions against those of the data.",
    "clip_fraction": "Share of steps whose probability ratio was clipped.",
    "conservative_loss": "How far values of unseen actions lie above those of the data, times its weight.",
    "critic_loss": "Loss of the Q-functions (or of the state-value function), summed over the ensemble.",
    "diversity_loss": "How much the critics' gradients point the same way, times its weight.",
    "entropy": "Entropy of the policy; it falls as the policy makes up its mind.",
    "imitation_loss": "Negative log-likelihood of the data's actions.",
    "imitator_loss": "Loss of the model that imitates the data.",
    "learning_rate": "Learning rate of the update.",
    "loss": "What is minimised, in all.",
    "mmd_loss": "Distance of the policy's actions from the imitator's, as it enters the policy's loss.",
    "policy_loss": "Clipped objective of the policy, negative.",
    "q_loss": "Loss of the Q-functions.",
    "regularization_loss": "Penalty on large logits.",
    "td_loss": "Temporal-difference loss, without what is added to it.",
    "temp": "Temperature: the weight of the entropy.",
    "temp_loss": "Loss of the temperature; its sign says which way the temperature goes.",
    "v_loss": "Expectile loss of the state-value function.",
    "vae_loss": "Reconstruction error and divergence of the auto-encoder.",
    "value_loss": "Squared error of the state-value function.",
    "weights": "Mean weight of the imitated actions.",
}
"""Every metric that an algorithm's docstring says it logs."""


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


def source(cls: type[Algorithm[Any, Any]]) -> str:
    """What an algorithm learns from."""
    return SOURCES["trajectory" if cls.imitates else cls.data]


def page(cls: type[Algorithm[Any, Any]]) -> str:
    """One algorithm's page."""
    config, bare = cls.config_class, cls.__new__(cls)
    lines = [f"# {cls.__name__}", "", "<!-- written by scripts/make_algorithm_pages.py -->", ""]
    lines += [markdown(config.__doc__ or ""), ""]
    lines += [f"- actions: {KINDS[cls.action_space]}", f"- learns from: {source(cls)}", ""]
    phases = bare.phases_for(config())
    if phases:
        lines += ["## An update", "", "In this order:", ""]
        for phase in phases:
            when = [f"every `{phase.every}` updates"] if phase.every != 1 else []
            when += [f"after `{phase.after}` updates"] if phase.after != 0 else []
            when += [f"until update `{phase.until}`"] if phase.until is not None else []
            every = f" ({', '.join(when)})" if when else ""
            trained = ", ".join(f"`{name}`" for name in phase.trained)
            lines += [f"1. {trained}{every}, logged as `{phase.logged}`: {markdown(phase.loss.__doc__ or '')}"]
        for target in bare.targets_for(config()):
            every = f" every `{target.every}` updates" if target.every != 1 else ""
            every += f" after `{target.after}` updates" if target.after != 0 else ""
            kind = type(target).__name__
            lines += [f"1. `{target.target}` follows `{target.source}` ({kind}{every})"]  # type: ignore[attr-defined]
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
    made = {f"{cls.__name__}.md": page(cls) for cls in algorithms()}
    index = ["# Algorithms", "", "| algorithm | actions | learns from |", "|---|---|---|"]
    for cls in algorithms():
        index += [f"| [{cls.__name__}]({cls.__name__}.md) | {KINDS[cls.action_space]} | {source(cls)} |"]
    return {"README.md": "\n".join([*index, ""]), **made}


if __name__ == "__main__":
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(pages())} pages in {PAGES}\n")
