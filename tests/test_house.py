"""The house rules of ARCHITECTURE.md, checked: layers, style, types, and what must be absent."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import birl.algos
import birl.errors
import birl.ope
from birl.config import AlgorithmConfig, hyperparameters
from scripts.measure_structure import measure

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "birl").rglob("*.py"))
LEARNING = ("algos", "engine", "losses", "models", "optimizers")


def parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT / "birl").parts


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Parsed files, all of them or those in some folders of birl/."""
    for path in FILES:
        if not folders or parts(path)[0] in folders:
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def called(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every call: ``"name"`` for functions, ``".name"`` for methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.lineno, node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.lineno, f".{node.func.attr}"


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def tool(name: str, *arguments: str) -> None:
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}:\n{done.stdout[-4000:]}\n{done.stderr[-1000:]}"


def test_layers() -> None:
    tool("lint-imports")


def test_style() -> None:
    tool("ruff", "check", ".")
    tool("ruff", "format", "--check", ".")


def test_types() -> None:
    tool("mypy")


def classes() -> Iterator[type]:
    """Every class that the package defines in a module."""
    for path in FILES:
        if path.name != "__main__.py":
            module = importlib.import_module(".".join(("birl", *parts(path.with_suffix("")))).removesuffix(".__init__"))
            yield from (v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__)


def test_public_methods_that_override_nothing_are_documented() -> None:
    for cls in classes():
        # the members of protocols are documented in the classes that have them
        for name, value in () if cls.__name__.startswith("_") or is_protocol(cls) else vars(cls).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            ours = inspect.isfunction(function) and function.__module__ == cls.__module__
            if ours and not name.startswith("_") and not any(name in vars(base) for base in cls.__mro__[1:]):
                assert function.__doc__, f"{cls.__module__}.{cls.__name__}.{name} has no docstring"


def is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def test_nothing_on_a_load_path_can_run_code() -> None:
    """One file reads pickles, those of d3rlpy, through a reader that refuses every name it does not know."""
    modules = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    for name, tree in trees():
        found = modules & {module.split(".")[0] for module in imported(tree)}
        if name == "birl/compat/d3rlpy_pickles.py":
            used = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
            table = {"pickle._Unpickler.dispatch", "pickle.BUILD"}
            assert {node for node in used if node.startswith("pickle.")} == {"pickle._Unpickler", *table}
            bases = [ast.unparse(base) for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases]
            assert bases.count("pickle._Unpickler") == 1 and used.count("pickle._Unpickler") == 2  # one is the table's
            found -= {"pickle"}
        assert not found, name
        assert not {"exec", "eval", "compile", "__import__"} & {call for _, call in called(tree)}, name
        loads = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node.value) == "torch"
        ]
        assert not loads, f"{name}:{loads} torch.load"


def test_learning_never_waits_for_the_device() -> None:
    waiting = {".item", ".cpu", ".numpy", ".tolist"}
    calls = [(f"{name}:{line}", call) for name, tree in trees(*LEARNING) for line, call in called(tree)]
    found = [(place, call) for place, call in calls if call in waiting]
    assert not found


def test_item_only_in_loops_and_logs() -> None:
    elsewhere = [path for path in {parts(file)[0] for file in FILES} if path not in ("run", "logging")]
    found = [f"{name}:{line}" for name, tree in trees(*elsewhere) for line, call in called(tree) if call == ".item"]
    assert not found


def test_no_algorithm_subclasses_another() -> None:
    from birl.algorithm import Algorithm

    values = [*vars(birl.algos).values(), *vars(birl.ope).values()]
    concrete = {value for value in values if inspect.isclass(value) and issubclass(value, Algorithm)}
    concrete = {value for value in concrete if "config_class" in vars(value)}
    assert len(concrete) >= 14
    for algorithm in concrete:
        assert not concrete & set(algorithm.__mro__[1:]), algorithm
        assert getattr(algorithm, "__final__", False), f"{algorithm.__name__} is not marked @final"


def test_every_hyperparameter_is_described_once() -> None:
    configs = [v for v in (*vars(birl.algos).values(), *vars(birl.ope).values()) if inspect.isclass(v)]
    configs = [value for value in configs if issubclass(value, AlgorithmConfig)]
    meanings: dict[str, tuple[int, str]] = {}
    for config in configs:
        assert hyperparameters(config).keys() == {field.name for field in dataclasses.fields(config)}, config
        for name, row in hyperparameters(config).items():
            first, where = meanings.setdefault(row.meaning, (id(row), f"{config.__name__}.{name}"))
            given = f"{config.__name__}.{name} has the meaning of {where}"
            assert first == id(row), f"{given}: take it from there with field(…, like={where.split('.')[0]})"
    assert len(meanings) > 100


PUBLIC = [path for path in FILES if "\n__all__ = [" in path.read_text(encoding="utf-8")]


def test_packages_list_their_names_and_private_modules_none() -> None:
    modules = {"/".join(parts(path)) for path in PUBLIC if path.name != "__init__.py"}
    paths_of_d3rlpy = {"dataset/components.py", "metrics/utility.py", "models/torch.py", "notebook_utils.py"}
    assert modules == {"base.py", "config.py", "constants.py", "errors.py", "types.py"} | paths_of_d3rlpy


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: "/".join(parts(path)))
def test_public_names_are_listed_and_exist(path: Path) -> None:
    words = ["birl", *parts(path)]
    words[-1] = words[-1].removesuffix(".py")
    module = importlib.import_module(".".join(word for word in words if word != "__init__"))
    names = module.__all__  # its order is ruff's RUF022
    assert len(names) == len(set(names))
    missing = [name for name in names if not hasattr(module, name)]
    assert not missing
    defined = ast.parse(path.read_text(encoding="utf-8")).body
    star = [node for node in defined if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    assert not star


def test_core_imports_only_what_is_declared() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    declared = {word.split(">")[0].split("[")[0] for word in project["dependencies"]}
    allowed = declared | set(sys.stdlib_module_names) | {"birl"}
    for name, tree in trees(*{parts(path)[0] for path in FILES} - {"testing"}):  # the test kit needs `dev`
        outside = {module.split(".")[0] for module in imported(tree)} - allowed
        assert not outside, f"{name} imports {outside}: optional packages go through birl.errors.require"


def test_version_is_stated_once_and_the_same() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["version"] == birl.__version__


def test_importing_loads_no_optional_package() -> None:
    code = (
        "import sys, birl.algos, birl.datasets, birl.metrics, birl.logging\n"
        "heavy = {'matplotlib', 'onnx', 'onnxruntime', 'onnxscript', 'tensorboard', 'h5py', 'pygame', 'pyarrow'}\n"
        "print(sorted((heavy | {'ray'}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_error_tree_in_the_docstring_is_complete() -> None:
    own = {name: value for name, value in vars(birl.errors).items() if inspect.isclass(value)}
    classes = [name for name, value in own.items() if value.__module__ == "birl.errors"]
    assert classes
    for name in classes:
        assert issubclass(getattr(birl.errors, name), birl.errors.BirlError | Warning)
        assert name in (birl.errors.__doc__ or ""), f"{name} is missing in the tree of birl.errors"


def test_no_test_is_skipped() -> None:
    marks = ("pytest.mark." + "skip", "pytest.mark." + "xfail", "pytest." + "skip(")
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [mark for mark in marks if mark in text], path


def test_files_and_functions_are_short_and_types_say_something() -> None:
    figures = measure(ROOT / "birl")
    assert {name: length for name, length in figures.lengths.items() if length > 800} == {}
    assert {name: lines for name, lines in figures.functions.items() if lines > 80} == {}
    share = len(figures.any_places) / figures.annotations
    assert share < 0.02, f"{share:.1%} of parameters and results are Any: {figures.any_places}"
