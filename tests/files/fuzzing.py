"""Mutated files of every kind, read and used. ``scripts/fuzz_files.py`` makes many, ``test_fuzz.py`` a few.

A case is a number: kind of file, mutations and everything else are drawn from it, so that it can be repeated alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import birl
from birl.cli.curves import metric_files, read_curve
from birl.compat.d3rlpy_models import read_d3rlpy
from birl.dataset import FIFOBuffer, InfiniteBuffer, ReplayBuffer, Signature
from birl.errors import BirlError
from birl.files import load_archive, save_archive
from files import log_kinds
from files.forging import sealed

D3RLPY = Path(__file__).parents[1] / "data" / "d3rlpy"
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, "", "x", "../../x"),
    *("a" * 300, [], [0], [[0]], {}, {"a": 0}, {"$float": "nan"}, {"$tuple": []}, [None], ["x"], [1] * 50),
    *("os:system", "this:x", "this", "/etc/passwd", "\x1b[31m", "\ud800", {"entry_point": "os:system", "id": "x-v0"}),
]
STEPS = 12
Files = dict[str, bytes]
"""The files of a case, by name."""


# -- the files ---------------------------------------------------------------------------------------------------


def example(limit: int | None = None, storage: str = "memory") -> ReplayBuffer:
    """Three episodes, the last of which is open."""
    floats, numbers = np.dtype(np.float32), np.dtype(np.int64)
    buffer = ReplayBuffer(
        InfiniteBuffer() if limit is None else FIFOBuffer(limit),
        observation_signature=Signature([floats], [(2,)]),
        action_signature=Signature([numbers], [(1,)]),
        reward_signature=Signature([floats], [(1,)]),
        action_space=birl.ActionSpace.DISCRETE,
        action_size=2,
        storage=storage,
    )
    for episode in range(3):
        for step in range(4):
            buffer.append(np.full(2, step + episode, np.float32), step % 2, float(step))
        if episode < 2:
            buffer.clip_episode(episode == 0)
    return buffer


def dqn(**fields: Any) -> Any:
    """It does not compile, which a checkpoint may ask for and takes long."""
    encoder = birl.models.VectorEncoderFactory([4])
    return birl.algos.DQNConfig(batch_size=4, encoder_factory=encoder, compile_graph=False, **fields).create()


def scaled() -> Any:
    return dqn(observation_scaler=birl.preprocessing.StandardObservationScaler())


class Stopped(Exception):
    """A run was stopped."""


def options(folder: Path, logs: bool, stop: bool) -> dict[str, Any]:
    """Of a run whose checkpoint is of step 8 if it is stopped, between the ends of a rollout."""

    def callback(algorithm: Any, epoch: int, step: int) -> None:
        if stop and step == 9:
            raise Stopped

    adapter = birl.logging.FileAdapterFactory(folder) if logs else birl.logging.NoopAdapterFactory()
    quiet = {"logger_adapter": adapter, "show_progress": False, "with_timestamp": False, "n_steps_per_epoch": 4}
    return {**quiet, "checkpoint": folder, "experiment_name": "run", "callback": callback}


def offline(folder: Path, stop: bool = False) -> Any:
    algorithm = scaled()
    algorithm.fit(example(), STEPS, log_gradients=True, **options(folder, logs=True, stop=stop))
    return algorithm


def online(folder: Path, stop: bool = False) -> Any:
    algorithm, explorer, env = dqn(), birl.algos.ConstantEpsilonGreedy(0.5), birl.testing.MemoryEnv()
    buffer = ReplayBuffer(FIFOBuffer(30), env=env)
    algorithm.fit_online(
        env, buffer, explorer, STEPS, update_start_step=2, seed=0, **options(folder, logs=False, stop=stop)
    )
    return algorithm


def on_policy(folder: Path, stop: bool = False) -> Any:
    encoder = birl.models.VectorEncoderFactory([4])
    given: Any = {"actor_encoder_factory": encoder, "value_encoder_factory": encoder, "compile_graph": False}
    algorithm = birl.algos.PPOConfig(rollout_length=6, n_epochs=1, batch_size=3, **given).create()
    algorithm.fit_online(birl.testing.MemoryEnv(), n_steps=STEPS, seed=0, **options(folder, logs=False, stop=stop))
    return algorithm


def resumed(train: Callable[..., Any]) -> Callable[[Path], Any]:
    return lambda folder: train(folder).get_state()


def cut(train: Callable[..., Any]) -> Callable[[Path], Any]:
    """The checkpoint of a run that was stopped."""

    def make(folder: Path) -> None:
        with contextlib.suppress(Stopped):
            train(folder, stop=True)

    return make


def dump(folder: Path) -> None:
    example().dump(folder / "file")


def dump_flat(folder: Path) -> None:
    example().dump(folder / "file", layout="flat")


def dump_plain(folder: Path) -> None:
    shutil.copy(D3RLPY / "vectors_v2.h5", folder / "file")


def dump_packed(folder: Path) -> None:
    with h5py.File(folder / "file", "w") as h5:
        for name, value in {"observations": np.zeros((40, 3), "f4"), "actions": np.zeros((40, 2), "f4")}.items():
            h5.create_dataset(name, data=value, chunks=(8, value.shape[1]), compression="gzip", shuffle=True)
        h5["rewards"], h5["terminals"] = np.ones(40, "f4"), np.arange(40) % 10 == 9


def load(folder: Path) -> Any:
    return used(ReplayBuffer.load(folder / "file"))


def used(buffer: ReplayBuffer) -> Any:
    buffer.sample_transition_batch(4)
    return [(e.observations, e.actions, e.rewards, e.terminated) for e in buffer.episodes]


def save_folder(folder: Path) -> None:
    example(storage=str(folder / "data")).flush()


def open_folder(folder: Path) -> Any:
    return used(ReplayBuffer.open(folder / "data"))


def save_model(folder: Path) -> None:
    algorithm = scaled()
    algorithm.build_with_dataset(example())
    algorithm.update(example().sample_transition_batch(4))
    algorithm.save(folder / "file")


def load_model(folder: Path) -> Any:
    algorithm = birl.load_learnable(folder / "file")
    algorithm.predict(np.zeros((1, 2), np.float32))
    return algorithm.get_state()


def save_parameters(folder: Path) -> None:
    algorithm = dqn()
    algorithm.create_impl((2,), 2)
    algorithm.save_model(folder / "file")


def load_parameters(folder: Path) -> Any:
    algorithm = dqn()
    algorithm.create_impl((2,), 2)
    before = algorithm.get_state()
    try:
        algorithm.load_model(folder / "file")
    except BirlError:
        assert content_of(algorithm.get_state()) == content_of(before), "a refused file changed the algorithm"
        raise
    algorithm.update(example().sample_transition_batch(4))
    return algorithm.get_state()


def save_d3rlpy(folder: Path) -> None:
    shutil.copy(D3RLPY / "dqn.d3", folder / "file")


def load_d3rlpy(folder: Path) -> Any:
    algorithm = read_d3rlpy(folder / "file")
    algorithm.predict(np.zeros((1, *algorithm.spec.observation_shape), np.float32))
    return algorithm.get_state()["engine"]["nets"]


def save_run(folder: Path) -> None:
    offline(folder)
    for path in folder.iterdir():
        if path.name == "checkpoint.d3c" or path.suffix == ".d3":
            path.unlink()


def read_run(folder: Path) -> Any:
    algorithm = birl.algos.DQN.from_json(folder / "run" / "params.json")
    algorithm.predict(np.zeros((1, 2), np.float32))
    return [read_curve(path) for path in metric_files(folder / "run")], algorithm.describe()


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "dataset": (dump, load),
    "dataset of flat arrays": (dump_flat, load),
    "dataset of d3rlpy": (dump_plain, load),
    "compressed dataset": (dump_packed, load),
    "folder": (save_folder, open_folder),
    "model": (save_model, load_model),
    "parameters": (save_parameters, load_parameters),
    "model of d3rlpy": (save_d3rlpy, load_d3rlpy),
    "run folder": (save_run, read_run),
    "checkpoint": (cut(offline), resumed(offline)),
    "checkpoint online": (cut(online), resumed(online)),
    "checkpoint on-policy": (cut(on_policy), resumed(on_policy)),
    **log_kinds.KINDS,
}


@cache
def original(kind: str) -> tuple[tuple[tuple[str, bytes], ...], str]:
    """The files of a kind, and what comes of them."""
    with scratch() as folder:
        birl.seed(0)
        KINDS[kind][0](folder)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with scratch() as folder:
        put(files, folder)
        birl.seed(0)
        return tuple(sorted(files.items())), content_of(KINDS[kind][1](folder))


# -- mutations ---------------------------------------------------------------------------------------------------


def bits(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8)) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def field(draw: random.Random, data: bytes) -> bytes:
    """Overwrite a few bytes with an extreme number, or what looks like one."""
    number = draw.choice((b"\0", b"\xff", b"\x7f", b"\1", b"9", b'"', b"[", b"-", b"}"))
    width, start = draw.choice((1, 2, 4, 8)), draw.randrange(len(data) + 1)
    return data[:start] + number * width + data[start + width :]


def truncation(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def splice(draw: random.Random, data: bytes) -> bytes:
    """Copy, move in or remove a piece."""
    begin, end = sorted(draw.randrange(len(data) + 1) for _ in "ab")
    place = draw.randrange(len(data) + 1)
    skipped = draw.choice((0, end - begin))
    return draw.choice((data[:place] + data[begin:end] + data[place + skipped :], data[:begin] + data[end:]))


def inside(draw: random.Random, value: Any) -> Any:
    """JSON with one change somewhere."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        match draw.randrange(12):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {(key + "x" if name == key else name): item for name, item in value.items()}
            case 2:
                return {**value, draw.choice(("x", "$", "seed", "evaluator", "../x")): draw.choice(VALUES)}
        return {**value, key: inside(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.7:
        index = draw.randrange(len(value))
        match draw.randrange(6):
            case 0:
                return value[:index] + value[index + 1 :]
            case 1:
                return value[: index + 1] + value[index:]
        return [*value[:index], inside(draw, value[index]), *value[index + 1 :]]
    if isinstance(value, np.ndarray | torch.Tensor) and draw.random() < 0.9:
        return array(draw, value)
    if type(value) is int and draw.random() < 0.5:
        return value + draw.choice((1, -1, 1000, -1000))
    return draw.choice(VALUES)


def array(draw: random.Random, value: Any) -> Any:
    """An array with another shape, dtype or number."""
    changed = value.numpy().copy() if isinstance(value, torch.Tensor) else value.copy()
    match draw.randrange(8):
        case 0:
            changed = changed.astype(draw.choice(("f4", "f8", "f2", "i8", "i4", "u1", "i1", "?", "u8")))
        case 1:
            changed = draw.choice((changed[..., None], changed[None], changed.reshape(-1)))
        case 2 if changed.ndim:
            axis = draw.randrange(changed.ndim)
            changed = draw.choice((changed.take([], axis), np.concatenate([changed, changed], axis)))
        case 3 if changed.ndim:
            changed = changed[:-1]
        case _ if changed.size:
            extremes = (0, 1, -1, 3, 127, 2**31, 2**62, float("nan"), float("inf"), 1e30)
            with contextlib.suppress(OverflowError, ValueError):
                changed.reshape(-1)[draw.randrange(changed.size)] = draw.choice(extremes)
    return torch.from_numpy(np.ascontiguousarray(changed)) if isinstance(value, torch.Tensor) else changed


def state(draw: random.Random, data: bytes) -> bytes:
    """Change the state of an archive, nothing else."""
    kind = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]["kind"]
    config, saved = load_archive(io.BytesIO(data), kind)
    file = io.BytesIO()
    for _ in range(draw.choice((1, 1, 1, 3))):
        changed = inside(draw, saved)
        saved = changed if isinstance(changed, dict) else saved
    try:
        save_archive(file, kind, config, saved)
    except BirlError:  # a value that no archive holds
        return archive(draw, data)
    return file.getvalue()


def text(draw: random.Random, data: bytes) -> bytes:
    """Change a value of JSON, which may be inside of a text of JSON, as in Minari's metadata."""
    value = json.loads(data)
    nested = (
        [key for key, item in value.items() if isinstance(item, str) and item[:1] == "{"]
        if isinstance(value, dict)
        else []
    )
    if nested and draw.random() < 0.5:
        key = draw.choice(nested)
        return json.dumps({**value, key: text(draw, value[key].encode()).decode()}).encode()
    return json.dumps(inside(draw, value)).encode()


def lines(draw: random.Random, data: bytes) -> bytes:
    """Change a line of text: a value of JSON, or a number or word; repeat, remove or exchange lines."""
    rows = data.splitlines()
    number = draw.randrange(len(rows))
    row = rows[number]
    match draw.randrange(6):
        case 0:
            rows[number : number + 1] = [row] * draw.choice((0, 2, 1000))
        case 1:
            rows[number] = draw.choice(
                (b"", b"[1]", b"null", b"[" * 5000, b"{}", b"\xff\xfe", b"a = [" * 2000, b"=" * 3000)
            )
        case 2:
            other = draw.randrange(len(rows))
            rows[number], rows[other] = rows[other], row
        case _ if row[:1] == b"{":
            rows[number] = text(draw, row)
        case _:
            words = row.split(b",") if b"," in row else row.split(b" ")
            word = draw.choice(
                (b"", b"-1", b"1e999", b"nan", b"x", b'"', b"9" * 400, b"[[]]", b"true", b"0x7", b"2020-01-01")
            )
            words[draw.randrange(len(words))] = word
            rows[number] = (b"," if b"," in row else b" ").join(words)
    return b"\n".join(rows) + b"\n"


def archive(draw: random.Random, data: bytes) -> bytes:
    """Change config, state, list or numbers of an archive, and make the digests right."""
    size = 8 + struct.unpack("<Q", data[:8])[0]
    header, numbers = json.loads(data[8:size]), data[size:]
    metadata = header["__metadata__"]
    match draw.randrange(5):
        case 0 | 1:
            metadata["state"] = text(draw, metadata["state"].encode()).decode()
        case 2:
            metadata["config"] = text(draw, metadata["config"].encode()).decode()
        case 3:
            numbers = draw.choice((bits, field))(draw, numbers)
            metadata["data"] = hashlib.sha256(numbers).hexdigest()
        case 4:  # other shapes or dtypes of as many bytes
            name = draw.choice([name for name in header if name != "__metadata__"])
            count = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            kinds = {"U8": 1, "BOOL": 1, "I16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8, "F64": 8, "U64": 8}
            kind, width = draw.choice([(kind, width) for kind, width in kinds.items() if count % width == 0])
            shape = draw.choice(([count // width], [1, count // width], [count // width, 1], [1, 1, count // width]))
            header[name] |= {"dtype": kind, "shape": header[name]["shape"] if draw.random() < 0.3 else shape}
    if not isinstance(metadata["state"], str):
        metadata["state"] = json.dumps(metadata["state"])
    return sealed(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(), numbers)


def _edit(draw: random.Random, opened: Any) -> None:
    name = draw.choice([*opened, "birl", "truncated_0", "extra_0_0", "final_observation_0"])
    there = opened.get(name)
    old = there[()] if isinstance(there, h5py.Dataset) else 0
    if there is not None:
        del opened[name]
    shape = tuple(draw.choice((0, 1, 2, 5, 70)) for _ in range(draw.randrange(4)))
    dtype = draw.choice(("f4", "f8", "f2", "i1", "u8", "i8", "?", "c8", "S5", "longdouble", "(2,)f4", "f4,i4"))
    match draw.randrange(8):
        case 0:
            opened[name] = draw.choice((True, 0, 1, -1, 7, 2**31, 0.5, 1e308, "", "x", "2.9"))
        case 1:
            opened.create_dataset(name, shape, dtype)
        case 2:
            packed = {"chunks": tuple(max(n, 1) for n in shape), "compression": draw.choice(("gzip", "lzf"))}
            opened.create_dataset(name, shape, dtype, **packed if shape and 0 not in shape else {})
        case 3:
            opened[name] = draw.choice((h5py.SoftLink("/x"), h5py.ExternalLink("x", "y"), np.dtype("f4")))
        case 4:
            opened[name] = np.asarray(old)[..., None]
        case 5 if isinstance(old, np.ndarray) and old.dtype.kind in "fiu":
            flat = old.reshape(-1)
            flat[draw.randrange(len(flat)) if len(flat) else slice(0)] = draw.choice((0, 1, 100))
            opened[name] = old
        case 6 if name == "birl" or isinstance(old, bytes):
            opened[name] = text(draw, old if isinstance(old, bytes) and old[:1] == b"{" else b"{}")


def h5(draw: random.Random, data: bytes) -> bytes:
    """Replace, remove or add objects of an HDF5 file."""
    file = io.BytesIO(data.partition(b"birl-sha256:")[0])
    with h5py.File(file, "r+") as opened:
        for _ in range(draw.choice((1, 1, 3))):
            with contextlib.suppress(TypeError, ValueError, KeyError, OSError, RuntimeError):  # there is no such object
                _edit(draw, opened)
    return file.getvalue()


def guarded(data: bytes) -> bytes:
    """An HDF5 file with a right digest."""
    body = data.partition(b"birl-sha256:")[0]
    return body + b"birl-sha256:" + hashlib.sha256(body).digest()


def d3rlpy(draw: random.Random, data: bytes) -> bytes:
    """Change the configuration, or the pickle or another member of the torch file inside of the pickle."""
    content = pickle.loads(data)  # noqa: S301  the project's own file
    if draw.random() < 0.4:
        return pickle.dumps({**content, "config": text(draw, content["config"].encode()).decode()})
    old, new = zipfile.ZipFile(io.BytesIO(content["torch"])), io.BytesIO()
    chosen = draw.choice([*old.namelist(), *(name for name in old.namelist() if name.endswith("data.pkl"))] * 2)
    with zipfile.ZipFile(new, "w") as changed:
        for name in old.namelist():
            member = old.read(name)
            if name == chosen:
                member = draw.choice((bits, field, splice, truncation))(draw, member)
            changed.writestr(name, member)
    return pickle.dumps({**content, "torch": new.getvalue()})


def mutated(draw: random.Random, kind: str, files: Files) -> tuple[Files, bool]:
    """The files with a change, and whether all that guards them was made right again."""
    name = draw.choice(sorted(files) if "checkpoint" not in kind else ["checkpoint.d3c"])
    data, made_right = files[name], False
    blind = draw.choice((bits, bits, field, field, truncation, splice))
    if draw.random() < 0.4:
        data = blind(draw, data)
    elif name.endswith(".json"):
        data, made_right = text(draw, data), True
    elif name.endswith((".toml", ".csv", ".jsonl", ".journal")) and kind in log_kinds.KINDS:
        data, made_right = lines(draw, data), True
    elif name.endswith(".hdf5"):
        data, made_right = h5(draw, data), True
    elif kind in ("model", "parameters") or "checkpoint" in kind:
        data, made_right = draw.choice((archive, state, state))(draw, data), True
    elif "dataset" in kind:
        data = h5(draw, data) if draw.random() < 0.6 else blind(draw, data.partition(b"birl-sha256:")[0])
        data, made_right = guarded(data) if kind in ("dataset", "dataset of flat arrays") else data, True
    elif kind == "model of d3rlpy":
        data, made_right = d3rlpy(draw, data), True
    elif draw.random() < 0.3:
        return {each: content for each, content in files.items() if each != name}, True
    else:
        data = blind(draw, data)
    return {**files, name: data}, made_right


# -- running -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder in memory where there is one."""
    folder = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"fuzz.{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put(files: Files, folder: Path) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def content_of(value: Any) -> str:
    digest = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, dict):
            for key in sorted(item):
                digest.update(key.encode())
                add(item[key])
        elif isinstance(item, list | tuple):
            for each in item:
                add(each)
        elif isinstance(item, np.ndarray | torch.Tensor):
            digest.update(np.asarray(item).tobytes())
        else:
            digest.update(repr(item).encode())

    add(value)
    return digest.hexdigest()


def kind_of(case: int) -> str:
    return list(KINDS)[case % len(KINDS)]


def run(case: int) -> tuple[str, str]:
    """Make a case and use it.

    Returns:
        ``"equal"``, ``"other"`` (it loads as something else, which nothing guards against), ``"error"`` (typed) or
        ``"unnoticed"``, ``"untyped"``, and what the error was.
    """
    kind, draw = kind_of(case), random.Random(case)
    files, expected = original(kind)
    changed, made_right = mutated(draw, kind, dict(files))
    unguarded = kind in ("dataset of d3rlpy", "compressed dataset", "folder", "model of d3rlpy", "run folder")
    unguarded = unguarded or kind in log_kinds.KINDS
    with scratch() as folder, warnings.catch_warnings(), log_kinds.watched():
        warnings.simplefilter("ignore")
        put(changed, folder)
        birl.seed(0)
        try:
            result = KINDS[kind][1](folder)
            outcome = "equal" if content_of(result) == expected else "other"
            found = outcome if outcome == "equal" or made_right or unguarded else "unnoticed", ""
        except BirlError as error:
            found = "error", f"{type(error).__name__}: {error}"
        except (Exception, SystemExit) as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            found = "untyped", f"{type(error).__name__}: {error}\n{where}"
    return ("executed", "; ".join(log_kinds.ran)) if log_kinds.ran else found
