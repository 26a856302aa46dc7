"""The work that is measured, side by side: the same data, sizes and hyper-parameters for all.

Started as ``python work.py SIDE`` by `Worker`, in the interpreter of that side. Libraries are imported by the jobs that
use them: a peer's interpreter has no birl, and birl's has no peer.
"""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from workers import Job, serve_standard_streams

OBSERVATION, ACTION, EPISODE, STEPS = 17, 6, 1000, 100_000
WIDTHS = [256, 256]
SMALL = [64, 64]
BATCH = 256
FRAME = (1, 84, 84)
FRAMES = 10_000
"""Steps of an Atari game that buffers keep here."""
PACKAGES = ("birl", "torch", "d3rlpy", "stable_baselines3", "gymnasium", "mujoco", "jax", "jaxlib", "optax", "numpy")
RAW = 4 * OBSERVATION + 4 * ACTION + 4 + 1
"""Bytes of one raw transition: observation, action and reward in float32, one byte for the end of an episode."""


def arrays(n_steps: int = STEPS, discrete: bool = False, pixels: bool = False) -> dict[str, Any]:
    """Random steps in episodes of `EPISODE`."""
    generator = np.random.default_rng(0)
    if pixels:
        observations: Any = generator.integers(0, 256, (n_steps, *FRAME), dtype=np.uint8)
    else:
        observations = generator.standard_normal((n_steps, OBSERVATION), dtype=np.float32)
    if discrete:
        actions: Any = generator.integers(0, ACTION, (n_steps, 1))
    else:
        actions = generator.uniform(-1, 1, (n_steps, ACTION)).astype(np.float32)
    return {
        "observations": observations,
        "actions": actions,
        "rewards": generator.standard_normal((n_steps, 1), dtype=np.float32),
        "terminals": (np.arange(n_steps) % EPISODE == EPISODE - 1).astype(np.float32)[:, None],
    }


def sac_flops() -> int:
    """Floating-point operations of the matrix products in one SAC update with two critics.

    Targets: policy and critics forward. Critics: forward, and twice that backward. Policy: forward, critics forward and
    backward to the actions, policy backward.
    """

    def network(inputs: int, outputs: int) -> int:
        return 2 * BATCH * (inputs * WIDTHS[0] + WIDTHS[0] * WIDTHS[1] + WIDTHS[1] * outputs)

    critics, policy = 2 * network(OBSERVATION + ACTION, 1), network(OBSERVATION, 2 * ACTION)
    return (policy + critics) + 3 * critics + (policy + 2 * critics + 2 * policy)


# --------------------------------------------------------------------------------------------------------------- birl


def birl_algorithms(side: str) -> Job:
    """The names of all algorithms that learn from a dataset."""
    from birl import algos

    classes = {name: getattr(algos, name[: -len("Config")], None) for name in dir(algos) if name.endswith("Config")}
    known = {"transition", "trajectory"}
    return Job(facts={"algorithms": [cls.__name__ for cls in classes.values() if getattr(cls, "data", "") in known]})


def _birl(name: str, side: str, **fields: Any) -> Any:
    from birl import algos

    return getattr(algos, f"{name}Config")(compile_graph=side == "birl-compiled", **fields).create()


def _birl_dataset(side: str, steps: dict[str, Any], **options: Any) -> Any:
    from birl.dataset import MDPDataset

    storage = {"birl-tensors": lambda: "cpu", "birl-folder": _folder}.get(side, lambda: "memory")
    return MDPDataset(**steps, storage=storage(), **options)


def _folder() -> str:
    """A new folder, which goes when the process ends."""
    path = tempfile.mkdtemp(prefix="birl-bench-")
    atexit.register(shutil.rmtree, path)
    return os.path.join(path, "data")


def birl_offline(side: str, algorithm: str, n_steps: int = STEPS) -> Job:
    """Default configuration: sample a minibatch, update."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import birl

    birl.seed(0)
    learner = _birl(algorithm, side)
    discrete = birl.ActionSpace.CONTINUOUS not in learner.actions
    dataset = _birl_dataset(side, arrays(n_steps, discrete))
    learner.build_with_dataset(dataset)

    def step() -> float:
        learner.update(learner.sample_minibatch(dataset))
        return 1

    parameters = sum(parameter.numel() for parameter in learner.nets.parameters())
    facts = {"parameters": parameters, "batch_size": learner.batch_size}
    if side == "birl":  # of both updates of an actor that moves in every second one
        products = {torch.ops.mkldnn._linear_pointwise: _product_flops}
        with FlopCounterMode(display=False, custom_mapping=products) as counter:
            step(), step()
        facts["MFLOP per update"] = round(counter.get_total_flops() / 2e6)
    return Job(step, facts=facts)


def _product_flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Of ``x [M, in]`` by ``weight [out, in]``, given their shapes: torch does not count oneDNN's own operator."""
    return 2 * x[0] * weight[0] * weight[1]


def _birl_updates_config(algorithm: str) -> dict[str, Any]:
    """As SB3's defaults, with two layers of 256."""
    from birl.models import VectorEncoderFactory
    from birl.optimizers import AdamFactory

    encoder = VectorEncoderFactory(WIDTHS)
    if algorithm == "DQN":
        optimizer = AdamFactory(clip_grad_norm=10.0)
        return {"batch_size": 32, "learning_rate": 1e-4, "encoder_factory": encoder, "optim_factory": optimizer}
    rate = 3e-4 if algorithm == "SAC" else 1e-3
    fields = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder, "batch_size": BATCH}
    fields |= {"actor_learning_rate": rate, "critic_learning_rate": rate}
    return {**fields, "temp_learning_rate": rate} if algorithm == "SAC" else fields


def birl_updates(side: str, algorithm: str) -> Job:
    """SB3's hyper-parameters: sample a minibatch, update."""
    import birl

    birl.seed(0)
    learner = _birl(algorithm, side, **_birl_updates_config(algorithm))
    dataset = _birl_dataset(side, arrays(10 * EPISODE, discrete=algorithm == "DQN"))
    learner.build_with_dataset(dataset)

    def step() -> float:
        learner.update(learner.sample_minibatch(dataset))
        return 1

    return Job(step, facts={"parameters": sum(parameter.numel() for parameter in learner.nets.parameters())})


def birl_parts(side: str, part: str, compiled: bool) -> Job:
    """DQN with one part, or as the side "plain" without it: sample a minibatch of a million steps, update."""
    import birl
    from birl.dataset import PrioritizedSampler
    from birl.models import MeanQFunctionFactory

    birl.seed(0)
    has = {part} if side == "birl" else set()
    head = MeanQFunctionFactory(dueling="dueling" in has, noisy="noisy" in has)
    fields = {**_birl_updates_config("DQN"), "q_func_factory": head}
    learner = _birl("DQN", "birl-compiled" if compiled else "birl", **fields)
    sampler = PrioritizedSampler() if "prioritised" in has else None
    dataset = _birl_dataset("birl", arrays(1_000_000, discrete=True), sampler=sampler)
    learner.build_with_dataset(dataset)

    def step() -> float:
        learner.update(learner.sample_minibatch(dataset))
        return 1

    return Job(step, facts={"parameters": sum(parameter.numel() for parameter in learner.nets.parameters())})


def birl_priorities(side: str) -> Job:
    """A minibatch of a million steps, drawn by priority and handed back, or as the side "plain" uniformly."""
    import birl
    from birl.dataset import PrioritizedSampler

    birl.seed(0)
    dataset = _birl_dataset("birl", arrays(1_000_000), sampler=PrioritizedSampler() if side == "birl" else None)

    def step() -> float:
        batch = dataset.sample_transition_batch(BATCH)
        if side == "birl":
            batch.update_priorities(np.abs(batch.rewards[:, 0]))
        return 1

    return Job(step)


def birl_rainbow(side: str) -> Job:
    """Steps of CartPole with an update each; see `rainbow.py`, the same loop by hand."""
    from rainbow import ATOMS, CAPACITY, HIDDEN, LIMIT, RATE, START, STEPS_AHEAD, TARGET

    import birl
    from birl.dataset import MultiStepTransitionPicker, PrioritizedSampler
    from birl.logging import NoopAdapterFactory
    from birl.models import C51QFunctionFactory, VectorEncoderFactory
    from birl.optimizers import AdamFactory
    from birl.run.online import online_fitter

    birl.seed(0)
    environment = birl.envs.make_env("CartPole-v1")
    sampler = PrioritizedSampler(0.5, 0.4, beta_steps=100_000)
    buffer = birl.dataset.create_fifo_replay_buffer(
        limit=CAPACITY, env=environment, sampler=sampler,
        transition_picker=MultiStepTransitionPicker(n_steps=STEPS_AHEAD, gamma=0.99),
    )  # fmt: skip
    head = C51QFunctionFactory(n_atoms=ATOMS, v_min=-LIMIT, v_max=LIMIT, dueling=True, noisy=True)
    learner = _birl(
        "DoubleDQN", side, encoder_factory=VectorEncoderFactory(HIDDEN), q_func_factory=head, batch_size=32,
        learning_rate=RATE, target_update_interval=TARGET, optim_factory=AdamFactory(clip_grad_norm=10.0),
    )  # fmt: skip
    chunk = 100
    epochs = online_fitter(
        learner, environment, buffer, None, n_steps=10**9, n_steps_per_epoch=chunk, seed=0, show_progress=False,
        save_interval=10**9, logger_adapter=NoopAdapterFactory(), random_steps=START, update_start_step=START,
    )  # fmt: skip

    def step() -> float:
        next(epochs)
        return chunk

    for _ in range(-(-START // chunk)):  # the random steps
        step()
    return Job(step, facts={"parameters": sum(parameter.numel() for parameter in learner.nets.parameters())})


def hand_rainbow(side: str) -> Job:
    """The loop of `rainbow.py`."""
    from rainbow import Rainbow

    loop = Rainbow()
    return Job(loop.step, facts={"parameters": loop.parameters})


def birl_bare(side: str) -> Job:
    """SAC's update on a minibatch that is on the device already."""
    import birl
    from birl.preprocessing.units import to_batch

    birl.seed(0)
    learner = _birl("SAC", side, **_birl_updates_config("SAC"))
    dataset = _birl_dataset(side, arrays(n_steps=10 * EPISODE))
    learner.build_with_dataset(dataset)
    batch = to_batch(dataset.sample_transition_batch(BATCH), learner.units, learner.gamma)

    def step() -> float:
        learner.update(batch)
        return 1

    return Job(step)


def birl_online(side: str, algorithm: str, env: str, n_envs: int | None = None) -> Job:
    """Steps in an environment with the updates that belong to them; see `sb3_online`."""
    import birl
    from birl.acting.explorers import ConstantEpsilonGreedy
    from birl.logging import NoopAdapterFactory
    from birl.models import VectorEncoderFactory
    from birl.optimizers import AdamFactory
    from birl.run.on_policy import on_policy_fitter
    from birl.run.online import online_fitter

    birl.seed(0)
    environment = birl.envs.make_env(env, n_envs)
    common: dict[str, Any] = {"n_steps": 10**9, "seed": 0, "show_progress": False, "save_interval": 10**9}
    common["logger_adapter"] = NoopAdapterFactory()
    if algorithm in ("A2C", "PPO"):
        encoder = VectorEncoderFactory(SMALL, activation="tanh")
        fields = {"actor_encoder_factory": encoder, "value_encoder_factory": encoder}
        if algorithm == "A2C":
            chunk = 1600  # rollouts of 5 steps of 8 environments, and of 64
            fields |= {"rollout_length": 5, "entropy_coefficient": 0.0}
        else:
            chunk = 2048
            fields |= {"rollout_length": chunk // (n_envs or 1), "batch_size": 64, "n_epochs": 10}
        learner = _birl(algorithm, side, **fields)
        epochs = on_policy_fitter(learner, environment, n_steps_per_epoch=chunk, **common)
    else:
        buffer = birl.dataset.create_fifo_replay_buffer(limit=100_000, env=environment)
        common |= {"random_steps": 300, "update_start_step": 300}
        explorer = None
        if algorithm == "DQN":
            chunk = 1000
            encoder = VectorEncoderFactory(SMALL)
            fields = {"encoder_factory": encoder, "optim_factory": AdamFactory(clip_grad_norm=10.0)}
            fields |= {"batch_size": 32, "learning_rate": 1e-4, "target_update_interval": 2500}
            explorer = ConstantEpsilonGreedy(0.1)
            common["update_interval"] = 4
        else:
            chunk = 100
            fields = _birl_updates_config(algorithm)
        learner = _birl(algorithm, side, **fields)
        epochs = online_fitter(learner, environment, buffer, explorer, n_steps_per_epoch=chunk, **common)

    def step() -> float:
        next(epochs)
        return chunk

    for _ in range(-(-300 // chunk)):  # the random steps
        step()
    return Job(step)


def birl_atari(side: str, algorithm: str) -> Job:
    """Steps of Pong with an update after every fourth; see `sb3_atari`."""
    import birl
    from birl.acting.explorers import ConstantEpsilonGreedy
    from birl.dataset import FrameStackTransitionPicker, LastFrameWriterPreprocess, PrioritizedSampler
    from birl.dataset import MultiStepFrameStackTransitionPicker as MultiStep
    from birl.logging import NoopAdapterFactory
    from birl.recipes import find
    from birl.run.online import online_fitter

    birl.seed(0)
    rainbow = algorithm == "Rainbow"
    environment = birl.envs.Atari(birl.envs.make_atari("pong", sticky_action=False), num_stack=4)
    learner = find(*("DoubleDQN", "rainbow") if rainbow else ("DQN", "atari")).config(
        compile_graph=side == "birl-compiled"
    ).create()  # fmt: skip
    buffer = birl.dataset.create_fifo_replay_buffer(
        limit=FRAMES, env=environment, writer_preprocessor=LastFrameWriterPreprocess(),
        transition_picker=MultiStep(4, 3, learner.config.gamma) if rainbow else FrameStackTransitionPicker(4),
        sampler=PrioritizedSampler(0.5, 0.4, beta_steps=100_000) if rainbow else None,
    )  # fmt: skip
    chunk = 400
    epochs = online_fitter(
        learner, environment, buffer, None if rainbow else ConstantEpsilonGreedy(0.1), n_steps=10**9,
        n_steps_per_epoch=chunk, seed=0, show_progress=False, save_interval=10**9, update_interval=4,
        logger_adapter=NoopAdapterFactory(), random_steps=chunk, update_start_step=chunk,
    )  # fmt: skip

    def step() -> float:
        next(epochs)
        return chunk

    step()  # the random steps
    return Job(step, facts={"parameters": sum(parameter.numel() for parameter in learner.nets.parameters())})


def birl_sampling(side: str, what: str) -> Job:
    """One batch from a dataset."""
    from birl.dataset import FrameStackTransitionPicker, MultiStepTransitionPicker

    pixels = what == "frame stacks"
    pickers: dict[str, Any] = {
        "n-step": lambda: MultiStepTransitionPicker(n_steps=3, gamma=0.99),
        "frame stacks": lambda: FrameStackTransitionPicker(n_frames=4),
    }
    picker = pickers[what]() if what in pickers else None
    steps = arrays(n_steps=STEPS // 10 if pixels else STEPS, pixels=pixels)
    dataset = _birl_dataset(side, steps, transition_picker=picker)
    draw: dict[str, Callable[[], Any]] = {
        "trajectories": lambda: dataset.sample_trajectory_batch(BATCH, 20),
        "sequences": lambda: dataset.sample_sequence_batch(BATCH, 20, 0),
    }
    return _sampling_job(draw.get(what, lambda: dataset.sample_transition_batch(BATCH, next_actions=False)))


def birl_memory(side: str) -> Job:
    """Bytes for each stored transition over the raw ones: of the arrays, and of the whole process."""
    dataset, resident = _resident_growth(lambda steps: _birl_dataset(side, steps))
    stored, count = dataset.nbytes, dataset.transition_count
    return Job(value=stored / count / RAW, facts={"resident": resident / count / RAW})


def birl_predict(side: str, batch: int) -> Job:
    """Greedy actions of SAC's policy."""
    import birl

    birl.seed(0)
    learner = _birl("SAC", side, **_birl_updates_config("SAC"))
    learner.create_impl((OBSERVATION,), ACTION)
    return _predict_job(learner.predict, batch)


def birl_start(side: str, algorithm: str) -> Job:
    """Seconds of the first two compiled updates in a fresh process, its imports and data apart.

    A cold start has empty folders for compiled updates and for the compiler; a warm one those of the start before.
    """
    folder, facts = _folder(), {}
    command = [sys.executable, "-c", f"import work; work.start({algorithm!r})"]
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {"BIRL_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}

    def value() -> float:
        if side == "birl-cold":
            shutil.rmtree(folder, ignore_errors=True)
        said = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
        clock, processor, result = said.split()[-3:]
        if facts.setdefault("result", result) != result:
            raise RuntimeError(f"the updates give {result}, and gave {facts['result']}")
        facts["processor seconds"] = min(float(processor), facts.get("processor seconds", float("inf")))
        return float(clock)

    if side == "birl-warm":
        value()
        del facts["processor seconds"]
    return Job(value=value, facts=facts)


def start(algorithm: str) -> None:
    """Make two updates. Writes their seconds, processor seconds and a digest of the networks that they give."""
    import hashlib
    import time

    import birl
    from birl.logging import NoopAdapterFactory
    from birl.models import QRQFunctionFactory

    birl.seed(0)
    fields = {"q_func_factory": QRQFunctionFactory()} if algorithm == "DQN" else {}
    learner = _birl(algorithm, "birl-compiled", **fields)
    if algorithm == "PPO":
        learner.replace_config(rollout_length=64, batch_size=256, n_epochs=1)
        environment = birl.envs.make_env("CartPole-v1", 8)
        learner.build_with_env(environment)
    else:
        dataset = _birl_dataset("birl", arrays(2 * EPISODE, birl.ActionSpace.CONTINUOUS not in learner.actions))
        learner.build_with_dataset(dataset)
    clock, processor = time.perf_counter(), time.process_time()
    if algorithm == "PPO":
        options = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "seed": 0}
        learner.fit_online(environment, n_steps=512, **options)
    else:
        for _ in range(2):
            learner.update(learner.sample_minibatch(dataset))
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    content = b"".join(tensor.numpy().tobytes() for tensor in learner.nets.state_dict().values())
    sys.stdout.write(f"{clock} {processor} {hashlib.sha256(content).hexdigest()[:12]}\n")


def import_time(side: str) -> Job:
    """A fresh process that imports one package."""
    module = {"birl": "birl", "birl-algos": "birl.algos", "sb3": "stable_baselines3"}.get(side, side)

    def step() -> float:
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True, stderr=subprocess.DEVNULL)
        return 1

    return Job(step)


def products(side: str, algorithm: str, **fields: Any) -> Job:
    """The matrix products of birl's update and nothing else: same shapes, same memory, results kept in place.

    No library that makes these products with torch is faster, whatever it does about the rest.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    import birl

    aten, calls = torch.ops.aten, []
    with_place = {getattr(aten, name).default: getattr(torch, name) for name in ("mm", "bmm", "addmm", "baddbmm")}
    plain = (
        torch.ops.mkldnn._linear_pointwise.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = call(*args, **(kwargs or {}))
            if call in with_place:
                calls.append((with_place[call], args, {**(kwargs or {}), "out": torch.empty_like(result)}))
            elif call in plain:
                calls.append((call, args, kwargs or {}))
            return result

    birl.seed(0)
    learner = _birl(algorithm, side, **fields)
    dataset = _birl_dataset(side, arrays(STEPS, birl.ActionSpace.CONTINUOUS not in learner.actions))
    learner.build_with_dataset(dataset)
    learner.update(learner.sample_minibatch(dataset))
    with Watch():
        for _ in range(2):  # an actor may move in every second one
            learner.update(learner.sample_minibatch(dataset))
    calls = [(call, [_alone(each) for each in args], options) for call, args, options in calls]

    @torch.no_grad()
    def step() -> float:
        for call, args, options in calls:
            call(*args, **options)
        return 2

    return Job(step, facts={"products per update": len(calls) / 2})


def products_of_updates(side: str, algorithm: str) -> Job:
    """`products` with SB3's hyper-parameters."""
    return products(side, algorithm, **_birl_updates_config(algorithm))


def _alone(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def floor(side: str) -> Job:
    """The matrix products of one SAC update, at the fastest float32 rate found among torch's ways and some sizes."""
    import time

    import torch

    def rate(multiply: Callable[[], Any], flops: int) -> float:
        best = 0.0
        for _ in range(5):
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < 0.02:
                multiply()
                count += 1
            best = max(best, count * flops / (time.perf_counter() - start))
        return best

    found: dict[str, tuple[float, int, Callable[[], Any]]] = {}
    torch.set_grad_enabled(False)
    for rows in (256, 1024, 4096):
        for ensemble in (1, 2):
            x, weight = torch.randn(ensemble, rows, 256), torch.randn(ensemble, 256, 256)
            one, square, bias = x[0], weight[0], torch.randn(256)
            ways: dict[str, Callable[[], Any]] = {"bmm": lambda x=x, weight=weight: torch.bmm(x, weight)}
            if ensemble == 1:
                ways["mm"] = lambda one=one, square=square: torch.mm(one, square)
                ways["linear"] = lambda one=one, square=square, bias=bias: torch.nn.functional.linear(one, square, bias)
                if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
                    ways["oneDNN"] = lambda one=one, square=square, bias=bias: torch.ops.mkldnn._linear_pointwise(
                        one, square, bias, "none", [], ""
                    )
            for name, multiply in ways.items():
                flops = 2 * ensemble * rows * 256 * 256
                found[f"{name} {ensemble}x{rows}x256x256"] = rate(multiply, flops), flops, multiply
    name = max(found, key=lambda name: found[name][0])
    _, flops, multiply = found[name]

    def step() -> float:
        multiply()
        return flops / sac_flops()

    rates = {name: round(rate / 1e9) for name, (rate, _, _) in found.items()}
    return Job(step, facts={"fastest": name, "GFLOP/s": rates, "MFLOP per update": round(sac_flops() / 1e6)})


# ------------------------------------------------------------------------------------------------------------- d3rlpy


def quiet_d3rlpy() -> Any:
    """The library, which says nothing but errors."""
    import logging

    import structlog  # type: ignore[import-not-found]

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    import d3rlpy  # type: ignore[import-not-found]

    d3rlpy.seed(0)
    return d3rlpy


def d3rlpy_algorithms(side: str) -> Job:
    """The names of all algorithms that learn from a dataset."""
    algos = quiet_d3rlpy().algos
    names = [name[: -len("Config")] for name in dir(algos) if name.endswith("Config")]
    return Job(facts={"algorithms": [name for name in names if name and "Random" not in name and hasattr(algos, name)]})


def d3rlpy_offline(side: str, algorithm: str) -> Job:
    """Default configuration: sample a minibatch, update."""
    d3rlpy = quiet_d3rlpy()
    learner = getattr(d3rlpy.algos, f"{algorithm}Config")().create(device="cpu:0")
    discrete = learner.get_action_type() == d3rlpy.ActionSpace.DISCRETE
    dataset = d3rlpy.dataset.MDPDataset(**arrays(discrete=discrete))
    size, config = learner.batch_size, learner.config
    if isinstance(learner, d3rlpy.algos.TransformerAlgoBase):
        learner.create_impl((OBSERVATION,), ACTION)

        def step() -> float:
            learner.update(dataset.sample_trajectory_batch(size, length=config.context_size))
            return 1
    else:
        learner.build_with_dataset(dataset)
        if algorithm == "PRDC":  # fit() prepares its search
            steps = arrays()
            learner._nbsr.fit(np.concatenate([config.beta * steps["observations"], steps["actions"]], axis=1))

        def step() -> float:
            learner.update(dataset.sample_transition_batch(size))
            return 1

    modules = learner.impl.modules.get_torch_modules().values()
    seen = {id(parameter): parameter.numel() for module in modules for parameter in module.parameters()}
    return Job(step, facts={"parameters": sum(seen.values()), "batch_size": size})


def d3rlpy_sampling(side: str, what: str) -> Job:
    """One batch from a dataset."""
    dataset_module = quiet_d3rlpy().dataset
    pixels = what == "frame stacks"
    picker: Any = None
    if what == "n-step":
        picker = dataset_module.MultiStepTransitionPicker(n_steps=3, gamma=0.99)
    elif pixels:
        picker = dataset_module.FrameStackTransitionPicker(n_frames=4)
    steps = arrays(n_steps=STEPS // 10 if pixels else STEPS, pixels=pixels)
    dataset = dataset_module.MDPDataset(**steps, transition_picker=picker)
    if what == "trajectories":
        return _sampling_job(lambda: dataset.sample_trajectory_batch(BATCH, 20))
    return _sampling_job(lambda: dataset.sample_transition_batch(BATCH))


def d3rlpy_memory(side: str) -> Job:
    """Bytes of the process for each stored transition over the raw ones."""
    dataset_module = quiet_d3rlpy().dataset
    dataset, resident = _resident_growth(lambda steps: dataset_module.MDPDataset(**steps))
    ratio = resident / dataset.transition_count / RAW
    return Job(value=ratio, facts={"resident": ratio})


def d3rlpy_predict(side: str, batch: int) -> Job:
    """Greedy actions of SAC's policy."""
    learner = quiet_d3rlpy().algos.SACConfig().create(device="cpu:0")
    learner.create_impl((OBSERVATION,), ACTION)
    return _predict_job(learner.predict, batch)


# ---------------------------------------------------------------------------------------------------------------- SB3


def sb3_spaces(discrete: bool) -> Any:
    """An environment that stands for its spaces alone."""
    import gymnasium

    class Spaces(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        action_space: Any = gymnasium.spaces.Discrete(ACTION) if discrete else gymnasium.spaces.Box(-1, 1, (ACTION,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(OBSERVATION, np.float32), {}

    return Spaces()


def sb3_model(algorithm: str, env: Any, policy: str = "MlpPolicy", device: str = "cpu", **fields: Any) -> Any:
    """A model that logs nothing."""
    import stable_baselines3 as sb3  # type: ignore[import-not-found]
    from stable_baselines3.common.logger import Logger  # type: ignore[import-not-found]

    model = getattr(sb3, algorithm)(policy, env, device=device, seed=0, **fields)
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def sb3_updates(side: str, algorithm: str) -> Job:
    """``train`` as it stands: it samples from its buffer and updates. Defaults, with two layers of 256."""
    discrete = algorithm == "DQN"
    model = sb3_model(algorithm, sb3_spaces(discrete), buffer_size=STEPS, policy_kwargs={"net_arch": WIDTHS})
    steps = arrays(n_steps=10 * EPISODE, discrete=discrete)
    for index in range(len(steps["rewards"]) - 1):
        model.replay_buffer.add(
            steps["observations"][index][None],
            steps["observations"][index + 1][None],
            steps["actions"][index][None],
            steps["rewards"][index],
            steps["terminals"][index],
            [{}],
        )

    def step() -> float:
        model.train(gradient_steps=10, batch_size=model.batch_size)
        return 10

    return Job(step, facts={"parameters": sum(parameter.numel() for parameter in model.policy.parameters())})


def sb3_online(side: str, algorithm: str, env: str, n_envs: int | None = None) -> Job:
    """Steps in an environment with the updates that belong to them."""
    from stable_baselines3.common.env_util import make_vec_env  # type: ignore[import-not-found]

    sizes: dict[str, Any]
    if algorithm in ("A2C", "PPO"):
        chunk = 1600 if algorithm == "A2C" else 2048
        sizes = {"n_steps": 5}
        if algorithm == "PPO":
            sizes = {"n_steps": chunk // (n_envs or 1), "batch_size": 64, "n_epochs": 10}
        environment = make_vec_env(env, n_envs or 1, seed=0)
        model = sb3_model(algorithm, environment, **sizes, policy_kwargs={"net_arch": SMALL})
    elif algorithm == "DQN":
        chunk = 1000
        exploration = {"exploration_initial_eps": 0.1, "exploration_final_eps": 0.1}
        sizes = {"buffer_size": 100_000, "learning_starts": 300, "batch_size": 32, "policy_kwargs": {"net_arch": SMALL}}
        model = sb3_model("DQN", env, train_freq=4, target_update_interval=10_000, **sizes, **exploration)
    else:
        chunk = 100
        sizes = {"buffer_size": 100_000, "learning_starts": 300, "batch_size": BATCH}
        model = sb3_model(algorithm, env, **sizes, policy_kwargs={"net_arch": WIDTHS})

    def step() -> float:
        model.learn(chunk, reset_num_timesteps=False)
        return chunk

    for _ in range(-(-300 // chunk)):  # the random steps
        step()
    return Job(step)


def sb3_atari(side: str, algorithm: str) -> Job:
    """Steps of Pong with an update after every fourth, for Rainbow, too, which SB3 has not."""
    import ale_py  # type: ignore[import-not-found]
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack  # type: ignore[import-not-found]

    gymnasium.register_envs(ale_py)
    game = {"frameskip": 1, "repeat_action_probability": 0.0}
    environment = VecFrameStack(make_atari_env("ALE/Pong-v5", seed=0, env_kwargs=game), 4)
    sizes = {"buffer_size": FRAMES, "batch_size": 32, "optimize_memory_usage": False, "train_freq": 4}
    chunk = 400
    model = sb3_model(
        "DQN", environment, "CnnPolicy", learning_starts=chunk, target_update_interval=10_000,
        exploration_initial_eps=0.1, exploration_final_eps=0.1, **sizes,
    )  # fmt: skip

    def step() -> float:
        model.learn(chunk, reset_num_timesteps=False)
        return chunk

    step()  # the random steps
    return Job(step, facts={"parameters": sum(parameter.numel() for parameter in model.policy.parameters())})


def sb3_predict(side: str, batch: int) -> Job:
    """Greedy actions of SAC's policy."""
    model = sb3_model("SAC", sb3_spaces(discrete=False), buffer_size=1, policy_kwargs={"net_arch": WIDTHS})
    return _predict_job(lambda x: model.predict(x, deterministic=True)[0], batch)


# ---------------------------------------------------------------------------------------------------------------- JAX


def jax_bare(side: str) -> Job:
    """SAC's update, all of it one jitted function, on a minibatch that is on the device already."""
    import jax  # type: ignore[import-not-found]
    import jax.numpy as jnp  # type: ignore[import-not-found]
    import optax  # type: ignore[import-not-found]

    def layers(key: Any, sizes: list[int]) -> list[Any]:
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(keys, sizes, sizes[1:], strict=False)
        return [(jax.random.normal(k, (i, o)) * i**-0.5, jnp.zeros(o)) for k, i, o in pairs]

    def forward(network: list[Any], x: Any) -> Any:
        *hidden, (weight, bias) = network
        for w, b in hidden:
            x = jax.nn.relu(x @ w + b)
        return x @ weight + bias

    def values(critics: Any, observation: Any, action: Any) -> Any:
        joined = jnp.concatenate([observation, action], axis=1)
        return jax.vmap(forward, (0, None))(critics, joined)[..., 0]

    def act(policy: Any, observation: Any, key: Any) -> Any:
        mean, log_std = jnp.split(forward(policy, observation), 2, axis=1)
        log_std = jnp.clip(log_std, -20.0, 2.0)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        squashing = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        log_prob = -0.5 * (noise**2 + jnp.log(2 * jnp.pi)) - log_std - squashing
        return jnp.tanh(raw), log_prob.sum(axis=1)

    optimizer = optax.adam(3e-4)

    def descend(gradient: Any, state: Any, parameters: Any) -> Any:
        change, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, change), state

    @jax.jit
    def update(learner: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
        key, key_target, key_policy = jax.random.split(learner["key"], 3)
        alpha = jnp.exp(learner["temperature"])
        following, log_prob = act(learner["policy"], batch["next_observation"], key_target)
        best = values(learner["targets"], batch["next_observation"], following).min(axis=0)
        goal = batch["reward"] + batch["discount"] * (best - alpha * log_prob)

        def critic_loss(critics: Any) -> Any:
            return jnp.square(values(critics, batch["observation"], batch["action"]) - goal).mean(axis=1).sum()

        gradient = jax.grad(critic_loss)(learner["critics"])
        critics, critic_state = descend(gradient, learner["critic_state"], learner["critics"])

        def policy_loss(policy: Any) -> Any:
            action, log_prob = act(policy, batch["observation"], key_policy)
            return (alpha * log_prob - values(critics, batch["observation"], action).min(axis=0)).mean(), log_prob

        gradient, log_prob = jax.grad(policy_loss, has_aux=True)(learner["policy"])
        policy, policy_state = descend(gradient, learner["policy_state"], learner["policy"])
        gradient = jax.grad(lambda temperature: -(jnp.exp(temperature) * (log_prob - ACTION)).mean())(
            learner["temperature"]
        )
        temperature, temperature_state = descend(gradient, learner["temperature_state"], learner["temperature"])
        return {
            "critics": critics,
            "targets": optax.incremental_update(critics, learner["targets"], 0.005),
            "policy": policy,
            "temperature": temperature,
            "critic_state": critic_state,
            "policy_state": policy_state,
            "temperature_state": temperature_state,
            "key": key,
        }

    key, *keys = jax.random.split(jax.random.PRNGKey(0), 4)
    sizes = [OBSERVATION + ACTION, *WIDTHS, 1]
    critics = jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *(layers(k, sizes) for k in keys[:2]))
    learner = {
        "critics": critics,
        "targets": critics,
        "policy": layers(keys[2], [OBSERVATION, *WIDTHS, 2 * ACTION]),
        "temperature": jnp.zeros(()),
        "key": key,
    }
    for name, part in (("critic", "critics"), ("policy", "policy"), ("temperature", "temperature")):
        learner[f"{name}_state"] = optimizer.init(learner[part])
    steps = arrays(n_steps=BATCH + 1)
    batch = {
        "observation": jnp.asarray(steps["observations"][:-1]),
        "action": jnp.asarray(steps["actions"][:-1]),
        "reward": jnp.asarray(steps["rewards"][:-1, 0]),
        "next_observation": jnp.asarray(steps["observations"][1:]),
        "discount": jnp.full(BATCH, 0.99),
    }

    def step() -> float:
        nonlocal learner
        for _ in range(10):  # dispatched ahead, as a training loop would
            learner = update(learner, batch)
        jax.block_until_ready(learner)
        return 10

    return Job(step)


# --------------------------------------------------------------------------------------------------------- in common


def _sampling_job(draw: Callable[[], Any]) -> Job:
    batch = draw()
    facts = {"observations": list(np.shape(batch.observations)), "actions": list(np.shape(batch.actions))}

    def step() -> float:
        draw()
        return 1

    return Job(step, facts=facts)


def _predict_job(predict: Callable[[Any], Any], batch: int) -> Job:
    observations = arrays(n_steps=batch)["observations"]
    assert np.shape(predict(observations)) == (batch, ACTION)

    def step() -> float:
        predict(observations)
        return 1

    return Job(step)


def _resident_bytes() -> int:
    """Memory of this process that is in use (Linux), without what is freed but not given back yet."""
    import ctypes

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _resident_growth(make: Callable[[dict[str, Any]], Any]) -> tuple[Any, int]:
    """A dataset of a million steps and the memory that it takes, with nothing else kept of what it was made from."""
    make(arrays(n_steps=2 * EPISODE))  # what loads lazily is loaded
    before = _resident_bytes()
    dataset = make(arrays(n_steps=10 * STEPS))
    return dataset, _resident_bytes() - before


def describe(side: str) -> Job:
    """Versions, and the vector instructions that torch uses."""
    facts: dict[str, Any] = {"python": sys.version.split()[0], "versions": {}}
    for name in PACKAGES:
        try:
            facts["versions"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if side == "birl":  # which need not be installed to be imported
        import birl

        facts["versions"]["birl"] = birl.__version__
    if "torch" in facts["versions"]:
        import torch

        facts["threads"] = torch.get_num_threads()
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    return Job(facts=facts)


JOBS: dict[str, dict[str, Callable[..., Job]]] = {
    "birl": {
        "algorithms": birl_algorithms,
        "offline": birl_offline,
        "updates": birl_updates,
        "bare": birl_bare,
        "online": birl_online,
        "atari": birl_atari,
        "sampling": birl_sampling,
        "memory": birl_memory,
        "predict": birl_predict,
        "start": birl_start,
        "parts": birl_parts,
        "priorities": birl_priorities,
        "rainbow": birl_rainbow,
    },
    "d3rlpy": {
        "algorithms": d3rlpy_algorithms,
        "offline": d3rlpy_offline,
        "sampling": d3rlpy_sampling,
        "memory": d3rlpy_memory,
        "predict": d3rlpy_predict,
    },
    "sb3": {"updates": sb3_updates, "online": sb3_online, "atari": sb3_atari, "predict": sb3_predict},
    "jax": {"bare": jax_bare},
    "floor": {"bare": floor},
    "plain": {"parts": birl_parts, "priorities": birl_priorities},
    "hand": {"rainbow": hand_rainbow},
    "products": {"offline": products, "updates": products_of_updates},
}
COMMON = {"describe": describe, "import": import_time}


def make(side: str, name: str, options: dict[str, Any]) -> Job:
    """Make the job ``name`` of one side, with the cores that it may use."""
    threads = int(os.environ.get("BENCHMARK_THREADS", "1"))
    cores = sorted(os.sched_getaffinity(0))
    if threads < len(cores):
        os.sched_setaffinity(0, cores[-threads:])  # not every library goes by OMP_NUM_THREADS
    library = side.partition("-")[0]
    found = {**COMMON, **JOBS.get(library, {})}.get(name)
    if found is None:
        raise NotImplementedError(f"{library} has nothing to compare for {name!r}")
    return found(side, **options)


if __name__ == "__main__":
    serve_standard_streams(lambda name, options: make(sys.argv[1], name, options))
