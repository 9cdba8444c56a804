"""A function is named by a verb and its object, or by the noun that it returns; never by a bare participle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IRREGULAR = words("""
    begun borne brought built caught chosen come done drawn found given gone held kept known left lost made meant met
    said seen sent shown shut spelled spent taken thought told torn worn written
""")
ADVERBS = words("""
    about above across after again alike alone along among anywhere apart around aside at away back before behind below
    beneath beside between beyond by elsewhere everywhere from here inside instead near nowhere of off on once otherwise
    outside over since somewhere than then there through to together toward under until up why with within without
""")
VERBS = words("bleed embed exceed feed heed need proceed seed shed speed succeed")
"""End as a participle does and are none."""


def is_bare(name: str) -> bool:
    """Whether the name is one word that is a participle or an adverb."""
    word = name.strip("_")
    if "_" in word or word in VERBS:
        return False
    return word.endswith("ed") or word in IRREGULAR or word in ADVERBS


def functions(text: str) -> list[str]:
    """Names of functions and methods. A property says what its object is, so it may be an adjective."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if not decorators & {"property", "cached_property"}:
                found.append(node.name)
    return found


def modules() -> list[str]:
    left_out = {"scenarios", "versions"}
    paths = (path for top in ("experiments", "store", "reports") for path in (ROOT / top).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in paths if not left_out & set(path.parts))


@pytest.mark.parametrize("name", modules())
def test_no_function_is_named_by_a_bare_participle(name):
    assert [one for one in functions((ROOT / name).read_text(encoding="utf-8")) if is_bare(one)] == []


@pytest.mark.parametrize("name", ["_told", "shown", "_judged", "across", "_beside", "excluded", "_why"])
def test_a_bare_participle_or_adverb_is_found(name):
    assert is_bare(name)


@pytest.mark.parametrize("name", ["read_bundle", "_seed", "is_excluded", "machine_documents", "run", "_recorded_names"])
def test_a_verb_or_noun_is_not_taken_for_one(name):
    assert not is_bare(name)


def test_a_property_may_be_an_adjective():
    assert functions("class A:\n    @property\n    def done(self): ...\n\n    def told(self): ...\n") == ["told"]
