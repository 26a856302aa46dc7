"""The tables of the pages "Moving from …": every name has a counterpart that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from birl.cli.train import train
from scripts import check_peers
from scripts.make_moving_pages import KINDS, PEERS, default_of, found, options, page, read

DOCS = Path(__file__).parent.parent / "docs"
ROW = r"^\| `([a-z][\w.]+)` \| (.*) \| ?(.*) ?\|$"
NUMBERS = {"pfrl": 79, "nnablarl": 73, "pytorchrl": 16, "sb3": 27}
PAGES = {name: re.findall(ROW, (DOCS / f"moving-{name}.md").read_text("utf-8"), re.M) for name in NUMBERS}


def exists(words: str) -> bool:
    """Whether ``birl.a.b(option, other)`` or ``--option`` is there."""
    if words.startswith("--"):
        return words.removeprefix("--").replace("-", "_") in train.__annotations__
    path, _, named = words.removesuffix(")").partition("(")
    try:
        found(path)
        for option in filter(None, named.split(",")):
            default_of(f"{path}({option.strip()})")
    except LookupError:
        return False
    return True


def test_tables_are_whole() -> None:
    names = {page: [row[0] for row in rows] for page, rows in PAGES.items()}
    assert {page: len(set(found)) for page, found in names.items()} == NUMBERS
    assert all(len(found) == len(set(found)) for found in names.values())


@pytest.mark.parametrize(("name", "own"), [row[:2] for rows in PAGES.values() for row in rows])
def test_every_counterpart_exists(name: str, own: str) -> None:
    words = re.findall(r"`([^`]+)`", own)
    assert words and [each for each in words if not exists(each)] == []
    assert "*(" not in own  # nothing is still to come


def test_the_check_can_fail() -> None:
    good = ["birl.algos.DQN", "birl.models.distributions.Normal", "--noise-std", "birl.run.Options(callback, score)"]
    good += ["birl.algos.PPOConfig(clip_range)", "birl.algos.Algorithm.fit_online(buffer)"]
    assert all(map(exists, good))
    bad = ["birl.algos.DQM", "birl.nowhere.X", "--nonsense", "birl.run.Options(callback, skore)"]
    bad += ["birl.algos.PPOConfig(clip_ranje)", "birl.algos.Algorithm.fit_online(bufer)"]
    assert not any(map(exists, bad))


@pytest.mark.parametrize("page", ["pfrl", "nnablarl"])
def test_options_and_recipes_in_words_exist(page: str) -> None:
    from birl.recipes import RECIPES

    named = re.findall(r"recipes? ((?:`[\w-]+`(?:, )?)+)", (DOCS / f"moving-{page}.md").read_text("utf-8"))
    assert named
    for words in named:
        assert set(re.findall(r"`([\w-]+)`", words)) <= {name for _, name in RECIPES}


def value_there(text: str) -> Any:
    """Return the value of a default in a peer's code: a literal, or a product of literals."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.BinOp):
            operator = {ast.Mult: lambda a, b: a * b, ast.Pow: lambda a, b: a**b}.get(type(tree.op))
            return operator and operator(value_there(ast.unparse(tree.left)), value_there(ast.unparse(tree.right)))
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) == "int":
            return int(value_there(ast.unparse(tree.args[0])))
        return {"F.relu": "relu", "torch.relu": "relu"}.get(text, text)


@pytest.mark.parametrize("peer", [*PEERS, "sb3"])
def test_pages_are_written_from_the_tables(peer: str) -> None:
    text = (DOCS / f"moving-{peer}.md").read_text("utf-8")
    assert text == page(peer), "run python scripts/make_moving_pages.py"


@pytest.mark.parametrize("peer", PEERS)
def test_options_of_peers_have_the_answer_that_is_said(peer: str) -> None:
    """Counterparts exist, defaults that are said to be equal are, and every difference has words."""
    every = list(options(read(peer)))
    assert len({(each.of, each.name) for each in every}) == len(every) == {"pfrl": 324, "nnablarl": 380}[peer]
    for each in every:
        assert each.kind in KINDS and bool(each.birl) == (each.kind != "none"), each
        assert bool(each.note) == (each.kind in ("differs", "none")), each
        here = default_of(each.birl) if "(" in each.birl else found(each.birl) if each.birl else None
        if each.kind == "same":
            assert here == value_there(each.default), each
        elif each.kind == "default":
            assert here != value_there(each.default), each


@pytest.mark.parametrize("peer", PEERS)
def test_recipes_have_the_values_of_the_scripts_that_they_name(peer: str) -> None:
    from birl.recipes import find

    data = read(peer)
    for recipe, setting, _file, _keyword, there, factor in data["recipes"]:
        row = next(each for each in find(*recipe.split(".")).settings if each.name == setting)
        assert row.value == pytest.approx(value_there(there) * factor), (recipe, setting)
        assert data["title"] in row.source or "arXiv" in row.source or "doi" in row.source, (recipe, setting)


@pytest.mark.parametrize("peer", PEERS)
def test_statements_about_peers_name_the_file_that_they_were_read_in(peer: str) -> None:
    data, root = read(peer), DOCS.parent
    for file, statement, source in data["statements"]:
        assert statement in " ".join((root / file).read_text("utf-8").split()), statement
        assert source in data["files"], source
    known = {file for file, _, _ in data["statements"]}
    for path in (root / "birl").rglob("*.py"):
        if data["title"] in path.read_text("utf-8"):
            assert str(path.relative_to(root)) in known, f"{path} says something about {data['title']}"
    said = re.findall(r"`([\w/]+\.py)`", (DOCS / f"moving-{peer}.md").read_text("utf-8"))
    assert set(said) <= set(data["files"])


SOURCE = """
@dataclass
class SomeConfig:
    kept: int = 1
    changed: float = 0.5
    gone: str = "a"

class Some:
    def __init__(self, x, size=3, *, more=None, **kwargs):
        self.eta = kwargs.pop("eta", 1.0)

def main():
    parser.add_argument("--lr", default=1e-3)
    Some(gamma=0.9)
"""


def test_the_check_of_peers_finds_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["kept", 4, "1"], ["changed", 5, "0.5"], ["gone", 6, "'a'"]]
    made = [["size", 9, "3"], ["more", 9, "None"], ["eta", 10, "1.0"]]
    data: dict[str, Any] = {
        "package": "some",
        "files": {"some.py": check_peers.digest(ast.parse(SOURCE))},
        "common": {key: ["none", "", "why not"] for key in ("kept", "changed", "gone", "size", "more", "eta")},
        "names": {
            "some.SomeConfig": {"at": "some.py:3", "options": rows},
            "some.Some": {"at": "some.py:8", "options": made},
        },
        "recipes": [["A.b", "c", "some/some.py", "lr", "0.001"], ["A.b", "d", "some/some.py", "gamma", "0.9"]],
    }
    monkeypatch.setattr(check_peers, "read", lambda peer: data)
    (tmp_path / "some").mkdir()
    file = tmp_path / "some" / "some.py"
    file.write_text(SOURCE)
    assert check_peers.problems("some", tmp_path) == []
    file.write_text(
        SOURCE.replace("0.5", "0.6").replace('    gone: str = "a"\n', "    new: int = 2\n").replace("0.9", "1")
    )
    now = "\n".join(check_peers.problems("some", tmp_path))
    assert "some.py: has changed since it was read" in now and "the option new has no row" in now
    assert "SomeConfig: the option gone is gone" in now and "recipe A.b, d" in now and "recipe A.b, c" not in now
    assert "SomeConfig(changed): is ['0.6', 5], the file has ('0.5', 5)" in now
    file.unlink()
    assert "some.py: is gone" in check_peers.problems("some", tmp_path)
