"""Updates on a GPU, of birl, d3rlpy and Stable-Baselines3 in one run: ``python benchmarks/gpu.py``.

Minibatches of 256 are sampled from 100,000 steps of 17 observations and 6 actions; networks have two layers of 256
units. The script needs a CUDA device, which nothing else in the project does, and leaves out peers that are not
installed. Each library has its own process, because importing d3rlpy turns TF32 on. SAC is measured in float32 and
TF32, other algorithms only in TF32, in which d3rlpy computes.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from work import ACTION, BATCH, OBSERVATION, STEPS, WIDTHS, arrays, quiet_d3rlpy, sb3_model, sb3_spaces

SEEDS = 16
ALGORITHMS = ("SAC", "TD3", "CQL", "IQL", "DQN")
PRECISION = {"float32": "highest", "TF32": "high"}
RESULTS = Path(__file__).parent / "results" / "gpu.md"


def rate(step: Callable[[], object], each: int, device: str, seconds: float) -> dict[str, Any]:
    """Updates per second of ``step``, which makes ``each``, after a warm-up of 20 calls."""
    import torch

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    begin = time.perf_counter()
    for _ in range(20):
        step()
    wait()
    first, count, begin = time.perf_counter() - begin, 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(5):
            step()
        wait()
        count += 5 * each
    return {"updates/s": count / (time.perf_counter() - begin), "warm-up, s": first}


def epochs(fit: Callable[..., object], length: int, count: int = 4) -> dict[str, Any]:
    """Updates per second of a whole training loop, from the end of its first epoch to that of its last.

    At the end of an epoch its metrics are read, so that all of its updates are made by then.
    """
    from birl.logging import NoopAdapterFactory

    ends: dict[int, float] = {}
    begin = time.perf_counter()
    fit(
        n_steps=length * count,
        n_steps_per_epoch=length,
        epoch_callback=lambda algorithm, epoch, step: ends.setdefault(epoch, time.perf_counter()) and None,
        show_progress=False,
        logger_adapter=NoopAdapterFactory(),
        save_interval=count,
    )
    return {"updates/s": length * (count - 1) / (ends[count] - ends[1]), "warm-up, s": ends[1] - begin}


def precisions(algorithm: str) -> Iterator[str]:
    """Set the precision of products to each one that is measured, and yield its name."""
    import torch

    for precision, setting in PRECISION.items():
        if algorithm == "SAC" or precision == "TF32":
            torch.set_float32_matmul_precision(setting)
            yield precision


def encoders(algorithm: str, factory: Any) -> dict[str, Any]:
    """Fields of birl's and d3rlpy's configurations: the networks and the batch size."""
    names = {"DQN": ("",), "IQL": ("actor_", "critic_", "value_")}.get(algorithm, ("actor_", "critic_"))
    return {"batch_size": BATCH, **{f"{name}encoder_factory": factory for name in names}}


def birl(algorithm: str, device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Eager updates, recorded ones, and recorded ones of many seeds at once, as ``fit`` and ``fit_many`` make them."""
    import birl
    from birl import algos
    from birl.dataset import MDPDataset
    from birl.models import VectorEncoderFactory

    fields = encoders(algorithm, VectorEncoderFactory(WIDTHS))
    dataset = MDPDataset(**arrays(discrete=algorithm == "DQN"))
    for precision in precisions(algorithm):
        for compiled in (False, True):
            birl.seed(0)
            config = getattr(algos, f"{algorithm}Config")(compile_graph=compiled, **fields)
            learner = config.create(device)
            length = int(seconds * (1500 if compiled else 50))
            side = f"birl, {'recorded' if compiled else 'eager'}"
            yield {"side": side, "precision": precision, **epochs(partial(learner.fit, dataset), length)}
        many = partial(birl.fit_many, config, dataset, seeds=SEEDS, device=device)
        side = f"birl, recorded, {SEEDS} seeds at once"
        yield {"side": side, "precision": precision, **epochs(many, int(seconds * 700))}


def stable_baselines3(algorithm: str, device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Its own training loop."""
    import numpy as np
    import stable_baselines3 as sb3

    if not hasattr(sb3, algorithm):
        return
    discrete = algorithm == "DQN"
    steps = arrays(discrete=discrete)
    for precision in precisions(algorithm):
        fields = {"batch_size": BATCH, "buffer_size": STEPS, "policy_kwargs": {"net_arch": WIDTHS}}
        model = sb3_model(algorithm, sb3_spaces(discrete), device=device, **fields)
        buffer = model.replay_buffer
        buffer.observations[:, 0], buffer.actions[:, 0] = steps["observations"], steps["actions"]
        buffer.next_observations[:, 0] = np.roll(steps["observations"], -1, 0)
        buffer.rewards[:], buffer.dones[:], buffer.full = steps["rewards"], steps["terminals"], True
        row = rate(lambda own=model: own.train(1, BATCH), 1, device, seconds)
        yield {"side": f"Stable-Baselines3 {sb3.__version__}", "precision": precision, **row}


def d3rlpy(algorithm: str, device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Without and with its ``compile_graph``."""
    import torch

    d3rlpy = quiet_d3rlpy()
    fields = encoders(algorithm, d3rlpy.models.VectorEncoderFactory(WIDTHS))
    dataset = d3rlpy.dataset.MDPDataset(**arrays(discrete=algorithm == "DQN"))
    precision = "TF32" if torch.get_float32_matmul_precision() == "high" else "float32"
    for compiled in (False, True):
        learner = getattr(d3rlpy.algos, f"{algorithm}Config")(compile_graph=compiled, **fields).create(device)
        learner.build_with_dataset(dataset)
        row = rate(lambda own=learner: own.update(dataset.sample_transition_batch(BATCH)), 1, device, seconds)
        side = f"d3rlpy {d3rlpy.__version__}{', compile_graph' if compiled else ''}"
        yield {"side": side, "precision": precision, **row}


SIDES = {"birl": birl, "stable_baselines3": stable_baselines3, "d3rlpy": d3rlpy}


def table(rows: list[dict[str, Any]], machine: str) -> str:
    """The rows as a page."""
    lines = [
        "# Updates on a GPU",
        "",
        f"{machine}. Written by `python benchmarks/gpu.py`: minibatches of {BATCH}, whose sampling counts, two layers "
        f"of {WIDTHS[0]} units, {OBSERVATION} observations, {ACTION} actions. All rows come from one run; each library "
        "has its own process for each algorithm. birl's rows count the updates of `fit` and `fit_many` after a first "
        "epoch, its peers' rows those of `update` and `train` after 20 calls. The last column is the time before that, "
        "which includes compilation.",
        "",
        "| algorithm | side | precision of products | updates/s | warm-up, s |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        speed = f"{row['updates/s']:,.0f}"
        if "seeds" in row["side"]:
            speed += f" of each, {SEEDS * row['updates/s']:,.0f} in all"
        lines.append(f"| {row['algorithm']} | {row['side']} | {row['precision']} | {speed} | {row['warm-up, s']:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all sides in turn and write the table."""
    parser = argparse.ArgumentParser(prog="gpu.py", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--side", choices=SIDES, help="measure this library alone, and print its rows")
    given = parser.parse_args()
    if given.side:
        for algorithm in given.algorithms:
            for row in SIDES[given.side](algorithm, given.device, given.seconds):
                print(json.dumps({"algorithm": algorithm, **row}), flush=True)
        return
    import torch

    card = torch.cuda.get_device_name(given.device) if given.device.startswith("cuda") else given.device
    rows: list[dict[str, Any]] = []
    for algorithm in given.algorithms:
        for side in SIDES:
            command = [sys.executable, __file__, "--side", side, "--algorithms", algorithm]
            command += ["--device", given.device, "--seconds", str(given.seconds)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            measured = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"algorithm"')]
            rows += measured
            print("\n".join(map(str, measured)) or f"{side} has no rows of {algorithm}", flush=True)
            given.out.write_text(table(rows, f"{card}, torch {torch.__version__}"), encoding="utf-8")
    print(given.out)


if __name__ == "__main__":
    main()
