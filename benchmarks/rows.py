"""What is measured: the rows, the sides of each, and what is asked of the comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OFFLINE_MEAN", "Row", "rows"]

OFFLINE_MEAN = 4.0
"""Asked of the geometric mean over all rows ``offline/…``."""
OFFLINE_LEAST = 2.0
"""Asked of each of them."""
PARTS = ("dueling", "noisy", "prioritised")
"""Options of DQN, each compared with plain DQN."""
STARTS = ("BC", "BEAR", "CQL", "DQN", "DecisionTransformer", "DiscreteCQL", "IQL", "PPO", "SAC", "TACR", "TD3")
"""Algorithms whose compiled start is measured; DQN learns quantiles."""


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        name: ``theme/what``.
        unit: what one unit of the work is.
        job: name of the job in ``work.py``.
        ours: sides of birl, and "products": the matrix products of its update alone, which bound every library.
        peers: sides that birl is compared with.
        options: of the job.
        asked: what the comparison should reach; ``None`` where nothing is asked.
        kind: ``"ratio"``: a peer's time over ours, at least ``asked``. ``"difference"``: our time less the peer's, in
            seconds, at most ``asked``. ``"value"``: a figure of its own, at most ``asked``.
        held: the sides that it is asked of; all of ours if empty.
        warm_up: least number of units before the first round.
    """

    name: str
    unit: str
    job: str
    ours: tuple[str, ...]
    peers: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    asked: float | None = None
    kind: str = "ratio"
    warm_up: int = 20
    held: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[str, ...]:
        """All sides."""
        return self.ours + self.peers


def rows(algorithms: Iterable[str]) -> list[Row]:
    """All rows, with an offline one for each of ``algorithms``."""
    both = ("birl", "birl-compiled")
    found = [
        Row(
            f"offline/{name}",
            "minibatch sampled and one update, default configuration",
            "offline",
            (*both, "products"),
            ("d3rlpy",),
            {"algorithm": name},
            OFFLINE_LEAST,
        )
        for name in sorted(algorithms)
    ]
    for name in ("SAC", "TD3", "DQN"):
        what = "minibatch sampled and one update, SB3's hyper-parameters, two layers of 256"
        found.append(Row(f"update/{name}", what, "updates", (*both, "products"), ("sb3",), {"algorithm": name}, 2.5))
    what = "one update on a minibatch of 256 that is on the device"
    found.append(Row("update/SAC against JAX", what, "bare", both, ("jax",), asked=1.2))
    what += "; a ratio of 1 is the floor of its matrix products"
    found.append(Row("update/SAC share of the floor", what, "bare", both, ("floor",), asked=0.6))

    what = "DQN's minibatch of 32 of a million steps and update, with the part; a ratio is plain DQN's time over it"
    for part in PARTS:
        for compiled in (False, True):
            options, name = {"part": part, "compiled": compiled}, f"parts/{part}{', compiled' if compiled else ''}"
            found.append(Row(name, what, "parts", ("birl",), ("plain",), options))
    what = "sampled from a million steps (256 of them), and handed back; a ratio is uniform sampling's time over it"
    found.append(Row("parts/sampling by priority", what, "priorities", ("birl",), ("plain",), asked=1 / 3))
    what = "step of CartPole with an update of Rainbow (all six parts, minibatches of 32); the peer is written by hand"
    found.append(Row("online/Rainbow by hand", what, "rainbow", both, ("hand",), warm_up=600))

    online = [
        ("SAC Pendulum", {"algorithm": "SAC", "env": "Pendulum-v1"}, 1.8),
        ("SAC HalfCheetah", {"algorithm": "SAC", "env": "HalfCheetah-v5"}, 1.8),
        ("DQN CartPole", {"algorithm": "DQN", "env": "CartPole-v1"}, None),
        ("PPO CartPole, 8 environments", {"algorithm": "PPO", "env": "CartPole-v1", "n_envs": 8}, 2.0),
        ("PPO CartPole, 64 environments", {"algorithm": "PPO", "env": "CartPole-v1", "n_envs": 64}, None),
        ("A2C CartPole, 8 environments", {"algorithm": "A2C", "env": "CartPole-v1", "n_envs": 8}, None),
        ("A2C CartPole, 64 environments", {"algorithm": "A2C", "env": "CartPole-v1", "n_envs": 64}, None),
    ]
    for name, options, asked in online:
        what = "environment step, with its share of the updates"
        found.append(Row(f"online/{name}", what, "online", both, ("sb3",), options, asked, warm_up=200))

    what = "step of Pong (four frames) with its share of the updates, networks and batches of Mnih et al. 2015"
    for name, more in (("DQN", ""), ("Rainbow", "; the peer plays and learns DQN")):
        found.append(Row(f"online/{name} Pong", what + more, "atari", both, ("sb3",), {"algorithm": name}, warm_up=5))

    for name, asked in (("transitions", 40.0), ("n-step", None), ("frame stacks", None), ("trajectories", None)):
        places = ("birl", "birl-tensors")
        found.append(
            Row(f"sampling/{name}", "one batch of 256", "sampling", places, ("d3rlpy",), {"what": name}, asked)
        )
    found.append(Row("sampling/sequences", "one batch of 256", "sampling", places, (), {"what": "sequences"}))

    what = "minibatch of a million transitions in mapped files and one update; 1 is the time with arrays in memory"
    for name in ("SAC", "DQN"):
        options = {"algorithm": name, "n_steps": 1_000_000}
        found.append(Row(f"mapped/{name}", what, "offline", ("birl-folder",), ("birl",), options, 0.9))

    for batch, asked in ((1, 5.0), (256, None)):
        what = f"predict of SAC's policy (two layers of 256), batch {batch}"
        found.append(Row(f"predict/{batch}", what, "predict", ("birl",), ("sb3", "d3rlpy"), {"batch": batch}, asked))

    what = "seconds of the first two updates in a fresh process, compiled; warm: it was compiled there before"
    for name in STARTS:
        sides = ("birl-warm", "birl-cold")
        found.append(
            Row(f"starts/{name}", what, "start", sides, (), {"algorithm": name}, 3.0, kind="value", held=sides[:1])
        )

    what = "a fresh process that imports it"
    imports = {"job": "import", "kind": "difference", "asked": 0.3, "warm_up": 1}
    found.append(Row("import/beyond torch", what, ours=("birl", "birl-algos"), peers=("torch",), **imports))
    imports = {"job": "import", "warm_up": 1}
    found.append(Row("import/peers", what, ours=("birl-algos",), peers=("d3rlpy", "sb3"), **imports))
    what = "bytes of a stored transition, of a million, over its raw bytes (birl: its arrays; d3rlpy: its memory)"
    found.append(Row("memory", what, "memory", ("birl", "birl-tensors", "d3rlpy"), (), asked=1.05, kind="value"))
    return found
