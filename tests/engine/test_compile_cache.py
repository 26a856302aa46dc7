"""Compiled updates on disk: found by processes that need the same, by no others, and never trusted when damaged."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import birl
from birl.algorithm.learner import COMPILE_FROM, LOAD_FROM
from birl.algos import DQNConfig, SACConfig
from birl.engine import compile_cache as stored
from birl.engine import compiler
from birl.engine.cache_keys import OpaqueError, digest
from birl.models import VectorEncoderFactory, layers
from birl.optimizers import AdamFactory, OptimizerFactory
from birl.types import Batch

SMALL = VectorEncoderFactory([8])
COMPILES = compiler.has_compiler(torch.device("cpu"))  # without a compiler nothing is kept

SCRIPT = """
import sys
from tests.engine.test_compile_cache import sac, trained
print(trained(sac()))
"""


def batch(step: int, continuous: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(step)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    action = draw(6, 3).tanh() if continuous else torch.randint(3, (6,), generator=generator)
    return Batch(draw(6, 4), action, draw(6), draw(6, 4), torch.full((6,), 0.9), torch.ones(6))


def dqn(compiled: bool | str = True, **fields: Any) -> Any:
    birl.seed(0)
    algorithm = DQNConfig(compile_graph=compiled, encoder_factory=SMALL, **fields).create()
    algorithm.create_impl((4,), 3)
    return algorithm


def sac() -> Any:
    birl.seed(0)
    algorithm = SACConfig(compile_graph=True, actor_encoder_factory=SMALL, critic_encoder_factory=SMALL).create()
    algorithm.create_impl((4,), 3)
    return algorithm


def trained(algorithm: Any) -> str:
    """Makes five updates, with new moments in between. Returns every parameter, moment and random number to come."""
    torch.set_num_threads(1)
    continuous = birl.ActionSpace.CONTINUOUS in algorithm.actions
    for step in range(5):
        algorithm.update(batch(step, continuous))
        if step == 2:
            algorithm.reset_optimizer_states()
    tensors = [*algorithm.nets.state_dict().values(), torch.rand(3)]
    for optimizer in algorithm.engine.optimizers.values():
        tensors += [tensor for state in optimizer.state.values() for tensor in state.values()]
    return digest([tensor.detach().numpy() for tensor in tensors])


def shelf(algorithm: Any) -> Path:
    found: Path = algorithm.engine._updates.shelf
    return found


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All calls of torch.compile."""
    calls: list[Any] = []
    original = torch.compile

    def counted(function: Any, **options: Any) -> Any:
        calls.append(function)
        return original(function, **options)

    monkeypatch.setattr(torch, "compile", counted)
    return calls


@pytest.mark.slow
def test_what_was_compiled_once_is_loaded_bit_for_bit(compilations: list[Any]) -> None:
    """In this process and in another one, after new moments, and with the same random numbers."""
    cold = trained(sac())
    assert len(compilations) == 1
    warm = sac()
    assert trained(warm) == cold
    assert len(compilations) == (1 if COMPILES else 2)
    assert len(list(shelf(warm).glob("*.so"))) == len(list(shelf(warm).glob("*.json"))) == int(COMPILES)
    environment = {**os.environ, "PYTHONHASHSEED": "7", "CXX": "false"} if COMPILES else {**os.environ}
    environment.pop("CXX", None)
    root = Path(__file__).resolve().parents[2]
    made = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=environment, capture_output=True, text=True)
    assert made.stdout.strip() == cold, made.stderr
    assert not COMPILES or len(list(shelf(warm).glob("*.so"))) == 1  # the other process found it


def test_compiled_equals_eager_when_loaded() -> None:
    trained(dqn())
    loaded, eager = dqn(), dqn(False)
    for step in range(4):
        metrics = loaded.update(batch(step)), eager.update(batch(step))
        assert float(metrics[0]["loss"]) == pytest.approx(float(metrics[1]["loss"]), rel=1e-5)
    for mine, theirs in zip(loaded.nets.parameters(), eager.nets.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        assert (mine._version > 0) == (theirs._version > 0)  # autograd knows which tensors changed


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_damaged_files_are_compiled_again(compilations: list[Any], tmp_path: Path) -> None:
    expected = trained(dqn())
    folder = shelf(dqn())
    kept = {file: file.read_bytes() for file in folder.glob("*")}
    assert len(kept) == 2 * COMPILES
    for file, content in kept.items():
        for other, whole in kept.items():
            (tmp_path / other.name).write_bytes(whole)
        copy, half = tmp_path / file.name, len(content) // 2  # files that are in use must not be written to
        for damaged in (content[:half], _flipped(content, half), _flipped(content, 0), b"", bytes(len(content))):
            copy.write_bytes(damaged)
            assert stored.load(copy.with_suffix("")) is None
        copy.unlink()
        assert stored.load(copy.with_suffix("")) is None
    for file, content in kept.items():
        file.unlink()
        file.write_bytes(_flipped(content, len(content) // 2))
    before = len(compilations)
    assert trained(dqn()) == expected
    assert len(compilations) == before + 1
    assert all(stored.load(file.with_suffix("")) is not None for file in kept)  # kept again


def test_wiring_that_names_no_tensor_is_not_loaded(tmp_path: Path) -> None:
    """Files are read with their digests; a library that is none at all is no reason to stop either."""
    library = tmp_path / "library"
    library.write_bytes(b"\x7fELF")
    stored.save(tmp_path / "kept", library, stored.Wiring([(True, 0)], {"loss": 0}, None, {}, [0]))
    assert stored.load(tmp_path / "kept") is None


def test_another_configuration_code_or_version_has_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [shelf(dqn()), shelf(dqn())]
    assert places[0] == places[1]
    batches = {"batch_size": 7, "gamma": 0.5, "optim_factory": AdamFactory(clip_grad_norm=1.0)}
    places += [shelf(dqn(**{name: value})) for name, value in batches.items()]
    wider = DQNConfig(compile_graph=True, encoder_factory=VectorEncoderFactory([9])).create()
    wider.create_impl((4,), 3)
    places.append(shelf(wider))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        places.append(shelf(dqn()))
    with monkeypatch.context() as patch:
        patch.setattr(layers.DenseLayer, "forward", lambda self, x: x)
        places.append(shelf(dqn()))
    with monkeypatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
        places.append(shelf(dqn()))
    with torch._inductor.config.patch(max_fusion_size=3):  # monkeypatch would leave the setting deleted
        places.append(shelf(dqn()))
    assert len(set(places[1:])) == len(places) - 1
    assert shelf(dqn()) == places[0]


def test_importing_the_compiler_changes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second algorithm of a process would not find what it left in another one's."""
    importlib.import_module("torch._inductor.config")
    imported = stored.compile_environment()
    monkeypatch.delitem(sys.modules, "torch._inductor.config")
    assert stored.compile_environment() == imported


SCALE = 2.0
TABLE = {"scale": 1.0}


def _loss(x: Any) -> Any:
    return (lambda y: SCALE * y * TABLE["scale"] * _helper(y))(x)


def _helper(x: Any) -> Any:
    return x


def _other(x: Any) -> Any:
    return x + 1


def test_a_digest_follows_code_to_the_constants_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    found = [digest(_loss)]
    for name, value in {"SCALE": 3.0, "TABLE": {"scale": 0.5}, "_helper": _other}.items():
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            found.append(digest(_loss))
    assert len(set(found)) == len(found)
    assert digest(_loss) == found[0]


def test_a_digest_knows_networks_by_their_form() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    assert digest(first) == digest(second)
    assert digest([first, second]) != digest([first, first])  # sharing is part of the form
    assert digest(first) != digest(nn.Linear(3, 4))
    assert digest(first) != digest(second.eval())
    assert digest(first) != digest(nn.Linear(3, 3).requires_grad_(False))
    assert digest(torch.zeros(2, 3)) != digest(torch.zeros(3, 2).t())
    assert digest(np.zeros(2)) != digest(np.ones(2))
    assert digest({1, "a", 2.5}) == digest({2.5, 1, "a"})
    assert digest(1) != digest(1.0) != digest("1.0")


def test_what_cannot_be_described_has_no_digest() -> None:
    first: list[Any] = []
    first.append(first)
    for value in (torch.Generator(), iter([1]), first):
        with pytest.raises(OpaqueError):
            digest(value)


def test_an_opaque_configuration_compiles_without_being_kept(compilations: list[Any]) -> None:
    algorithm = dqn()
    algorithm.nets.critic.note = torch.Generator()
    assert shelf(algorithm) is None
    algorithm.update(batch(0))
    assert len(compilations) == 1
    assert not algorithm.engine.is_stored()


@pytest.mark.parametrize("part", ["", "programs", "inductor"])
@pytest.mark.parametrize("reason", ["belongs to another user", "can be written by other users", "cannot be used"])
def test_a_folder_of_others_is_refused(reason: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("BIRL_CACHE_DIR", str(folder))
    assert stored.folder() == folder
    inner = folder / part
    assert inner.stat().st_mode & 0o777 == 0o700
    if reason == "belongs to another user":
        disown(inner, monkeypatch)
    elif reason == "can be written by other users":
        inner.chmod(0o770)
    else:
        shutil.rmtree(inner)
        inner.write_text("a file")
    reason = f"{inner} {reason}" if "user" in reason else f"File exists.*{inner}"
    with pytest.warns(RuntimeWarning, match=f"not stored: {folder} cannot be used .*{reason}.*BIRL_CACHE_DIR"):
        assert stored.folder() is None
    with pytest.warns(RuntimeWarning, match="not stored"):
        assert not dqn().engine.is_stored()


def disown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file or folder belong to another user."""
    usual = Path.stat

    def stat(self: Path, **options: Any) -> os.stat_result:
        found = usual(self, **options)
        other = [*found[:4], found.st_uid + 1, *found[5:]]
        return os.stat_result(other) if self == path else found

    monkeypatch.setattr(Path, "stat", stat)


def kept(tmp_path: Path) -> Path:
    """Keep a library that can be loaded, which does nothing, as a program."""
    library, place = tmp_path / "library", tmp_path / "cache" / "shelf" / "program"
    library.write_bytes(b"whatever")
    stored.save(place, library, stored.Wiring([(True, 0)], {"loss": 0}, None, {}, [0]))
    return place


@pytest.mark.parametrize("suffix", [".so", ".json", ""])
@pytest.mark.parametrize("fault", ["owner", "mode", "none"])
def test_files_of_others_are_not_executed(
    suffix: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(stored, "load_library", lambda *args: executed.append(args))
    place = kept(tmp_path)
    file = place.with_suffix(suffix) if suffix else place.parent
    if fault == "owner":
        disown(file, monkeypatch)
    elif fault == "mode":
        file.chmod(file.stat().st_mode | 0o020)
    assert (stored.load(place) is None) == (fault != "none")
    assert len(executed) == (fault == "none")


def test_a_program_at_the_place_of_another_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "load_library", lambda *args: args)
    place = kept(tmp_path)
    assert stored.load(place) is not None
    for other in (place.with_name("other"), place.parent.with_name("other") / place.name):
        other.parent.mkdir(mode=0o700, exist_ok=True)
        for suffix in (".so", ".json"):
            place.with_suffix(suffix).rename(other.with_suffix(suffix))
        assert stored.load(other) is None
        for suffix in (".so", ".json"):
            other.with_suffix(suffix).rename(place.with_suffix(suffix))
    assert stored.load(place) is not None


def test_the_folder_without_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BIRL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stored.folder() == tmp_path / "birl"
    monkeypatch.setenv("BIRL_CACHE_DIR", " ")
    assert stored.folder() == tmp_path / "birl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stored.folder() == tmp_path / ".cache/birl"


def test_the_compilers_own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BIRL_CACHE_DIR", str(tmp_path))
    with stored.inductor_folder():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != str(tmp_path / "inductor")  # named by the user
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    with stored.inductor_folder():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    torch_utilities = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", torch_utilities.default_cache_dir())  # as its import does
    with stored.inductor_folder():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")


def test_auto_compiles_shorter_runs_if_the_update_lies_on_disk() -> None:
    cold = dqn("auto")
    cold.learner.start_run(None, COMPILE_FROM - 1)
    assert not cold.compiled
    trained(dqn())
    warm = dqn("auto")
    warm.learner.start_run(None, LOAD_FROM - 1)
    assert not warm.compiled
    warm.learner.start_run(None, LOAD_FROM)
    assert warm.compiled == COMPILES
    other = dqn("auto", optim_factory=OptimizerFactory(torch.optim.Adagrad))  # never kept as a whole
    other.learner.start_run(None, LOAD_FROM)
    assert not other.compiled


@pytest.mark.parametrize("was", [False, True])
def test_a_resumed_run_goes_on_as_it_was(was: bool) -> None:
    """Whatever lies on disk by then: updates round differently when they are compiled."""
    first = dqn(was)
    first.update(batch(0))
    state = first.learner.get_state()
    assert state["compiled"] is was
    resumed = dqn("auto")
    if not was:
        trained(dqn())
        resumed.learner.start_run(None, COMPILE_FROM)
        assert resumed.compiled
    resumed.learner.set_state(state)
    assert resumed.compiled is was
    for algorithm in (first, resumed):
        algorithm.update(batch(1))
    for mine, theirs in zip(first.nets.parameters(), resumed.nets.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    del state["compiled"]  # from an earlier version
    resumed.learner.set_state(state)
    assert resumed.compiled is was


TORN = """
import torch
from birl.algos import DQNConfig
from birl.models import VectorEncoderFactory
from birl.types import Batch

algorithm = DQNConfig(compile_graph=True, encoder_factory=VectorEncoderFactory([4])).create()
algorithm.create_impl((2,), 2)
one = torch.ones(4)
algorithm.update(Batch(torch.randn(4, 2), torch.tensor([0, 1, 1, 0]), one, torch.randn(4, 2), one, one))
"""


@pytest.mark.slow
def test_libraries_that_a_killed_compiler_left_half_written_are_rebuilt(tmp_path: Path) -> None:
    places = {"BIRL_CACHE_DIR": str(tmp_path / "own"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiler")}
    for attempt in range(2):
        run = [sys.executable, "-W", "ignore", "-c", TORN]
        done = subprocess.run(run, env={**os.environ, **places}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        if attempt == 0:
            shutil.rmtree(tmp_path / "own")
            libraries = list((tmp_path / "compiler").rglob("*.main.so"))
            assert libraries
            for library in libraries:
                library.write_bytes(b"")


def test_a_program_whose_description_is_too_deep_is_not_loaded(tmp_path: Path) -> None:
    place, deep = kept(tmp_path), b"[" * 100_000
    place.with_suffix(".json").write_bytes(stored._sha256(deep) + b"\n" + deep)
    assert stored.load(place) is None
