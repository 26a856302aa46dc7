"""The public face: what `import birl` gives, lazily, and what it says about names that are missing or were renamed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import birl

PACKAGE = Path(birl.__file__).parent


@pytest.mark.parametrize("name", birl.__all__)
def test_every_public_name_is_an_attribute(name: str) -> None:
    assert getattr(birl, name) is not None
    assert name in dir(birl)


def test_public_packages_list_their_names() -> None:
    for name in birl.__all__:
        if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file():
            assert getattr(birl, name).__all__, f"birl.{name} has no __all__"


def test_a_fresh_import_knows_every_package_and_loads_none() -> None:
    code = (
        "import sys, birl\n"
        "print(sorted(m for m in ('birl.algos', 'birl.run', 'birl.dataset', 'birl.ope') if m in sys.modules))\n"
        "print(birl.run.Hook.__name__, birl.algorithm.RewardPredictor.__name__, birl.losses.vae_loss.__name__,"
        " birl.config.AlgorithmConfig.__name__, birl.spaces.Discrete.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "Hook RewardPredictor vae_loss AlgorithmConfig Discrete"]


def test_a_missing_name_comes_with_a_similar_one() -> None:
    with pytest.raises(AttributeError, match="module 'birl' has no attribute 'metric'; did you mean 'metrics'"):
        _ = birl.metric


def test_a_renamed_name_comes_with_its_new_one() -> None:
    with pytest.raises(ImportError, match=r"no attribute 'observations'; it is birl\.spaces now"):
        _ = birl.observations
    with pytest.raises(ImportError, match=r"no attribute 'Elsewhere'; it is birl\.envs\.ExternalEnv now"):
        _ = birl.envs.Elsewhere
    with pytest.raises(ImportError, match=r"it is birl\.envs\.ExternalEnv now"):
        from birl.envs import Elsewhere  # noqa: F401


@pytest.mark.parametrize(("name", "new"), [("Discrete", "Discrete"), ("as_rows", "flatten_actions")])
@pytest.mark.parametrize(
    "code",
    [
        "import birl; birl.actions.{}",
        "import birl.actions; birl.actions.{}",
        "import birl.actions as a; a.{}",
        "from birl import actions; actions.{}",
        "from birl.actions import {}",
    ],
)
def test_a_name_of_the_former_path_comes_with_its_new_one(
    monkeypatch: pytest.MonkeyPatch, code: str, name: str, new: str
) -> None:
    monkeypatch.delattr(birl, "actions", raising=False)  # as in a process that has not imported it
    monkeypatch.delitem(sys.modules, "birl.actions", raising=False)
    with pytest.raises(ImportError, match=rf"birl\.actions\.{name} is birl\.spaces\.{new} now"):
        exec(code.format(name))  # noqa: S102  # statements from the list above


def test_an_unknown_name_of_the_former_path_comes_with_a_similar_one() -> None:
    with pytest.raises(ImportError, match=r"birl\.actions has become birl\.spaces; did you mean 'Discrete'"):
        _ = birl.actions.Discret


def test_a_renamed_name_of_a_module_comes_with_its_new_one() -> None:
    with pytest.raises(ImportError, match=r"no attribute 'JUDGE'; it is birl\.algos\.gail\.DISCRIMINATOR_STEPS now"):
        _ = birl.algos.gail.JUDGE
