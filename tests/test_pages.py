"""The algorithm pages say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generator():
    path = ROOT / "scripts" / "make_algorithm_pages.py"
    spec = importlib.util.spec_from_file_location("make_algorithm_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_algorithm_pages_are_up_to_date():
    module = generator()
    written = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "algorithms").iterdir()}
    assert written == module.pages(), "run scripts/make_algorithm_pages.py"


def test_what_is_logged_is_what_an_update_gives():
    """The docstrings' metrics, which the pages explain, are those of the first updates."""
    from birl import algos
    from birl.config import AlgorithmConfig
    from birl.models import VectorEncoderFactory
    from birl.testing.contract import _Subject

    module, small = generator(), VectorEncoderFactory(hidden_units=[4])
    configs = [getattr(algos, name) for name in algos.__all__ if name.endswith("Config")]
    for config in (each for each in configs if issubclass(each, AlgorithmConfig) and each.algorithm.phases):
        fields = {name: small for name, *_ in config.documentation() if name.endswith("encoder_factory")}
        fields |= {"batch_size": 8, "warmup_steps": 1, "context_size": 4, "num_heads": 1}
        fields |= {"rollout_length": 8, "n_epochs": 1}
        fields |= {"batch_size_per_update": 4, "n_actor_updates": 1, "n_critic_updates": 1}
        known = {name for name, *_ in config.documentation()}
        cfg = config(**{name: value for name, value in fields.items() if name in known})
        discrete = config.algorithm.action_space.name == "DISCRETE"
        subject = _Subject(cfg, (3,), 2, discrete, 0)
        algorithm = subject.build()
        given = set()
        for item in subject.inputs(algorithm, 3):
            given |= set(subject.update(algorithm, item))
        table = module.page(config.algorithm).partition("## What it logs")[2].partition("##")[0]
        assert given == {name for name in module.METRICS if f"| `{name}` |" in table}, config.__name__
