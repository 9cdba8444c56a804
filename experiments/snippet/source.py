"""Select the code that a snippet takes from a scenario file: everything that its case may depend on, unchanged.

Only code that certainly has no effect is left out: the project's import, the `scenario =` line and the marks, and
unused functions, classes, constants and imports of the standard library. A statement with an effect (a seed, a
switch, a registration, an `if` or `try`) stays, with everything that it names.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
from dataclasses import dataclass
from typing import Iterator, Mapping, Sequence, Union

from .. import scenario

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Definition = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef]

COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")
"""An encoding declaration (PEP 263)."""
SAFE_CALLS = frozenset(
    ("dict", "frozenset", "len", "list", "max", "min", "range", "set", "sorted", "sum", "tuple", "zip")
)
"""Builtins whose call has no side effects."""
SAFE_DECORATORS = ("torch.no_grad", "torch.enable_grad", "torch.inference_mode")
"""Decorators of torch without side effects, like those of the standard library."""
KNOWN = frozenset((*sys.stdlib_module_names, "torch", "functorch"))
"""Packages that are available wherever torch is."""
ALL_NAMES = frozenset(("globals", "locals", "vars", "eval", "exec"))
"""Builtins that may use any name of the file without naming it."""


class SnippetError(Exception):
    """A case cannot be written as a file of its own. The message says why."""


@dataclass(frozen=True)
class Carried:
    """The parts of a snippet that are taken from the scenario file."""

    opening: str
    """Docstring and `__future__` imports, which must come first."""
    imports: str
    """The imports at the top, without those of this project."""
    body: str
    """The other statements, in their order."""
    observes: tuple[str, ...]
    """Names under which the kept part uses `observe`."""
    names: frozenset[str]
    """Every name in the kept part."""
    functions: Mapping[str, Function]
    """Functions of the file by name; of several with one name, the last."""
    inputs: str
    """Name of the function that creates the inputs."""
    generators: frozenset[str]
    """Names of kept functions that return a generator."""
    shuffles: bool
    """Whether it imports Python's `random`, whose state is separate from torch's."""
    needs: tuple[str, ...]
    """Packages that it imports, except torch and the standard library."""
    spawns: bool
    """Whether it may start processes that load the file again; these must not run the case again."""


def carry(source: str, wanted: Sequence[str]) -> Carried:
    """Return the parts of a file with this `source` that the functions `wanted` and the inputs need.

    Raises SnippetError if one of them is not a function of the file, or needs this project.
    """
    text = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    file = _File(text)
    for name in wanted:
        if name not in file.functions:
            raise SnippetError(f"the file defines no function {name} that could be carried over")
    kept = file.select_statements({*wanted, file.inputs})
    return _carried_parts(file, kept)


def _carried_parts(file: _File, kept: Sequence[_Statement]) -> Carried:
    opening = [one for one in kept if one.opens]
    rest = [one for one in kept if not one.opens]
    leading = next((at for at, one in enumerate(rest) if not one.is_plain_import()), len(rest))
    used = {name for one in kept for name in one.uses}
    named = {part for one in kept for node in ast.walk(one.node) for part in _mentioned_names(node)}
    generators = {
        name for one in kept for name, node in _functions([one.node]) if is_generator(node) and not _is_managed(node)
    }
    return Carried(
        opening=_join_statements(opening),
        imports=_join_statements(rest[:leading]),
        body=_join_statements(rest[leading:]),
        observes=tuple(sorted(file.observes & used)),
        names=frozenset(named),
        functions=file.functions,
        inputs=file.inputs,
        generators=frozenset(generators),
        shuffles=any(isinstance(one.node, ast.Import) and "random" in one.binds for one in kept),
        needs=tuple(sorted(_packages(kept) - KNOWN)),
        spawns=any(word in one.text for one in kept for word in ("spawn", "multiprocess")),
    )


def _packages(kept: Sequence[_Statement]) -> set[str]:
    nodes = [node for one in kept for node in ast.walk(one.stripped)]
    return {name for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for name in _modules(node)}


def _join_statements(kept: Sequence[_Statement]) -> str:
    made = ""
    for one in kept:
        made += ("\n" * one.gap if made else "") + one.text + "\n"
    return made


def _mentioned_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]


# Generators.


def is_generator(function: Function) -> bool:
    """Whether the function returns a generator: it contains `yield` itself, not in a nested function."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return False


def _is_managed(function: Function) -> bool:
    """Whether a decorator turns the generator into a context manager."""
    return any("contextmanager" in ast.unparse(one) for one in function.decorator_list)


# The file.


class _File:
    """A scenario file: its statements, and which names belong to this project."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.split("\n")
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.observes, self.project = _imported_names(self.tree)
        self.bound = {name for node in _loaded_statements(self.tree.body) for name in used_and_bound_names(node)[1]}
        self._propagate_project()
        self.functions = dict(_functions(self.tree.body))
        self.inputs = self._find_inputs()
        self.statements = [_Statement(self, index) for index in range(len(self.tree.body))]

    def _propagate_project(self) -> None:
        """Add to `project` every name that is computed from one of its names."""
        before = -1
        while before != len(self.project):
            before = len(self.project)
            for node in _loaded_statements(self.tree.body):
                if not isinstance(node, COMPOUND):
                    used, bound = used_and_bound_names(self.strip_marks(node))
                    if used & self.project:
                        self.project |= bound

    def _find_inputs(self) -> str:
        for name, node in self.functions.items():
            for mark in node.decorator_list:
                if isinstance(mark, ast.Attribute) and mark.attr == "inputs" and self.is_mark(mark):
                    return name
        if "inputs" in self.functions:
            return "inputs"
        raise SnippetError("no function of the file is marked as the one that makes the inputs")

    def is_mark(self, decorator: ast.expr) -> bool:
        """Whether the decorator is a mark of this project."""
        return _root_name(decorator) in self.project

    def is_of_project(self, node: ast.stmt) -> bool:
        """Whether the statement only concerns this project: its import, its objects, marks applied by a call."""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return _is_ours(node)
        if isinstance(node, COMPOUND) or not self.is_harmless(node):
            return False
        return bool(used_and_bound_names(self.strip_marks(node))[0] & self.project)

    def strip_marks(self, node: ast.stmt) -> ast.stmt:
        """Return a copy without marks, with `pass` in place of statements that only concern this project."""
        copy = ast.parse(ast.unparse(node)).body[0]
        _Stripped(self).visit(copy)
        return copy

    def select_statements(self, wanted: set[str]) -> list[_Statement]:
        """Return the statements that are kept, in order. Raises SnippetError if one of them needs the project."""
        found = self._closure(wanted)
        if any(one.uses & ALL_NAMES for one in found):
            found = self._closure(wanted | self.bound)
        for one in (*found, *(one for one in self.statements if one.binds & wanted)):
            self._refuse_project(one)
        return found

    def _refuse_project(self, one: _Statement) -> None:
        """Raise SnippetError if the statement needs this project."""
        for name in sorted(one.uses & self.project):
            raise SnippetError(f"line {one.node.lineno} uses {name!r}, which is this project's, when it runs")
        for node in ast.walk(one.stripped):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and _is_ours(node):
                raise SnippetError(f"line {one.node.lineno} imports this project when it runs")

    def _closure(self, wanted: set[str]) -> list[_Statement]:
        chosen: set[int] = set()
        grown = True
        while grown:
            grown = False
            for one in self.statements:
                if one.index not in chosen and one.is_kept(wanted):
                    chosen.add(one.index)
                    wanted = wanted | one.uses | one.binds
                    grown = True
        return [self.statements[index] for index in sorted(chosen)]

    def offset(self, line: int, column: int) -> int:
        """Return the position in the text of a line, from 1, and a column in UTF-8 bytes, as ast counts them."""
        before = self.lines[line - 1].encode("utf-8")[:column].decode("utf-8")
        return self._starts[line - 1] + len(before)

    def is_harmless(self, node: ast.stmt) -> bool:
        """Whether running the statement certainly does nothing but bind names to values."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]
            return self._has_safe_decorators(node) and all(map(self._is_value, defaults))
        if isinstance(node, ast.ClassDef):
            return self._is_plain_class(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return all(map(_is_name, targets)) and (node.value is None or self._is_value(node.value))
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return all(name in sys.stdlib_module_names for name in _modules(node)) or _is_ours(node)
        if isinstance(node, ast.Expr):
            called = isinstance(node.value, ast.Call) and self._is_value(node.value)
            return isinstance(node.value, ast.Constant) or called
        return isinstance(node, ast.Pass)

    def _has_safe_decorators(self, node: Definition) -> bool:
        """Whether all decorators only return another function; one that registers the function does more."""
        return all(self.is_mark(one) or self._is_safe_decorator(one) for one in node.decorator_list)

    def _is_safe_decorator(self, decorator: ast.expr) -> bool:
        if not isinstance(decorator, ast.Call):
            called = ast.unparse(decorator)
            return called in SAFE_DECORATORS or self._is_from_library(called)
        arguments = [*decorator.args, *(one.value for one in decorator.keywords)]
        return self._is_safe_decorator(decorator.func) and all(map(self._is_value, arguments))

    def _is_from_library(self, called: str) -> bool:
        """Whether a dotted name is a builtin or comes from the standard library."""
        root = called.partition(".")[0]
        if root not in self.bound:
            return hasattr(builtins, root)
        imports = [one for one in _loaded_statements(self.tree.body) if root in used_and_bound_names(one)[1]]
        return all(
            isinstance(one, (ast.Import, ast.ImportFrom))
            and all(module in sys.stdlib_module_names for module in _modules(one))
            for one in imports
        )

    def _is_plain_class(self, node: ast.ClassDef) -> bool:
        hooked = "__init_subclass__" in self.text or "__set_name__" in self.text
        plain = not node.keywords and not hooked and all(map(self._is_value, node.bases))
        return plain and self._has_safe_decorators(node) and all(map(self.is_harmless, node.body))

    def _is_value(self, node: ast.expr) -> bool:
        """Whether evaluating the expression certainly has no side effects."""
        if isinstance(node, ast.Lambda):
            return all(map(self._is_value, node.args.defaults))
        if isinstance(node, ast.Call):
            root = _root_name(node)
            safe = isinstance(node.func, ast.Name) and root in SAFE_CALLS and root not in self.bound
            if not safe and root not in self.project:
                return False
            # The arguments of calls to the project's objects may contain further such calls.
            return all(map(self._is_value, [*node.args, *(one.value for one in node.keywords)]))
        if not isinstance(node, VALUES):
            return False
        parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, (ast.expr, ast.comprehension))]
        inner = [expr for one in parts for expr in (_parts(one) if isinstance(one, ast.comprehension) else [one])]
        return all(map(self._is_value, inner))


VALUES = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Subscript,
    ast.Slice,
    ast.Starred,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
COMPOUND = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.Match, ast.AsyncFor, ast.AsyncWith)


class _Statement:
    """One module-level statement of the file."""

    def __init__(self, file: _File, index: int) -> None:
        self.file, self.index, self.node = file, index, file.tree.body[index]
        node = self.node
        self.stripped = file.strip_marks(node)
        self.uses, self.binds = used_and_bound_names(self.stripped)
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        self.is_docstring = is_docstring and isinstance(node.value.value, str)  # type: ignore[attr-defined]
        self.opens = self.is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")

    def is_kept(self, wanted: set[str]) -> bool:
        """Whether a snippet that needs the names `wanted` contains the statement."""
        if self.opens:
            return True
        if self.file.is_of_project(self.node) or _is_main_guard(self.node):
            return False
        return not self.file.is_harmless(self.node) or bool(self.binds & wanted)

    def is_plain_import(self) -> bool:
        """Whether it imports only torch or the standard library, which the number of threads does not affect."""
        return isinstance(self.node, (ast.Import, ast.ImportFrom)) and set(_modules(self.node)) <= KNOWN

    @property
    def gap(self) -> int:
        """Number of empty lines before it, at most two."""
        blank = [line.strip(" \t\f") == "" for line in self._lines_above()]
        return min(2, next((at for at, empty in enumerate(blank) if not empty), len(blank)))

    @property
    def text(self) -> str:
        """The statement with the comments above it, without marks."""
        comments = [line for line in self._lines_above()[self.gap :] if line.strip(" \t\f")[:1] in ("", "#")]
        while comments and not comments[0].strip(" \t\f"):
            comments.pop(0)
        if self.index == 0:
            comments = [line for line in comments if not COOKIE.match(line)]
        return "\n".join([*comments, self._unmarked_text()]).strip("\n")

    def _lines_above(self) -> list[str]:
        """Return the lines between the previous statement and this one."""
        node, above = _first_line(self.file, self.node), self.index - 1
        last = self.file.tree.body[above].end_lineno if above >= 0 else 0
        return self.file.lines[last or 0 : node - 1]

    def _unmarked_text(self) -> str:
        start, end = self._extent()
        made = self.file.text[start:end]
        for low, high, instead in sorted(_cuts(self.file, self.node), reverse=True):
            made = made[: low - start] + instead + made[high - start :]
        return made

    def _extent(self) -> tuple[int, int]:
        """Return its start, including decorators, and its end: that of its line unless another statement shares it."""
        file, node, body = self.file, self.node, self.file.tree.body
        first = _first_line(file, node)
        start = file.offset(first, node.col_offset if first == node.lineno else 0)
        last, column = node.end_lineno or node.lineno, node.end_col_offset or 0
        shared = self.index + 1 < len(body) and body[self.index + 1].lineno == last
        return start, file.offset(last, column) if shared else file.offset(last, 2**31)


class _Stripped(ast.NodeTransformer):
    """Remove marks and the statements that only concern the project."""

    def __init__(self, file: _File) -> None:
        self.file = file

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.decorator_list = [one for one in node.decorator_list if not self.file.is_mark(one)]
            return _Listening().generic_visit(node)  # Everything else inside runs later.
        if isinstance(node, COMPOUND):
            for name, value in ast.iter_fields(node):
                if isinstance(value, list):
                    setattr(node, name, [self._visit_nested(one) for one in value])
        return node

    def _visit_nested(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.ExceptHandler, ast.match_case)):
            node.body = [self._visit_nested(one) for one in node.body]  # type: ignore[misc]
            return node
        if isinstance(node, ast.stmt) and self.file.is_of_project(node):
            return ast.copy_location(ast.Pass(), node)
        return self.visit(node)


class _Listening(ast.NodeTransformer):
    """Remove the import of `observe` inside a function: a snippet defines it at the top."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node) if _is_observe_import(node) else node


def _is_observe_import(node: ast.AST) -> bool:
    """Whether it imports only `observe` of this project, under its own name."""
    if not isinstance(node, ast.ImportFrom) or not _is_ours(node):
        return False
    return all(alias.name == "observe" and alias.asname in (None, "observe") for alias in node.names)


def _cuts(file: _File, node: ast.stmt, *, inside: bool = False) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and replacement of each part to cut out of a statement's text."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield from _mark_cuts(file, node)
        yield from (
            _pass_replacement(file, one)
            for one in ast.walk(node)
            if _is_observe_import(one) and isinstance(one, ast.stmt)
        )
    elif inside and file.is_of_project(node):
        yield _pass_replacement(file, node)
    elif isinstance(node, COMPOUND):
        for one in _bodies(node):
            yield from _cuts(file, one, inside=True)


def _pass_replacement(file: _File, node: ast.stmt) -> tuple[int, int, str]:
    end = file.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
    return file.offset(node.lineno, node.col_offset), end, "pass"


def _mark_cuts(file: _File, node: Definition) -> Iterator[tuple[int, int, str]]:
    """Yield the lines of each mark, from its `@` to the next one or the definition."""
    lines = [*(_decorator_line(file, one) for one in node.decorator_list), node.lineno]
    for decorator, first, following in zip(node.decorator_list, lines, lines[1:]):
        if file.is_mark(decorator):
            yield file.offset(first, 0), file.offset(following, 0), ""


def _decorator_line(file: _File, decorator: ast.expr) -> int:
    """Return the line of the `@`, which a bracket and a line break may separate from the expression."""
    line = decorator.lineno
    while not file.lines[line - 1].lstrip(" \t\f").startswith("@"):
        line -= 1
    return line


def _first_line(file: _File, node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return _decorator_line(file, decorators[0]) if decorators else node.lineno


# Names.


def used_and_bound_names(node: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the global names that a statement uses, anywhere in it, and those that it binds."""
    table = symtable.symtable(ast.unparse(node), "<statement>", "exec")
    used = {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    bound = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    waiting = list(table.get_children())
    while waiting:
        inner = waiting.pop()
        waiting += inner.get_children()
        for one in inner.get_symbols():
            if one.is_global():
                used.add(one.get_name())
                bound |= {one.get_name()} if one.is_assigned() else set()
    return used, bound


def _imported_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names under which the file has `observe`, and all other names that it imports from this project."""
    observes = {"observe" for node in ast.walk(tree) if _is_observe_import(node)}
    project = {"scenario"}
    for node in _loaded_statements(tree.body):
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or not _is_ours(node):
            continue
        for alias in node.names:
            name = (alias.asname or alias.name).partition(".")[0]
            if alias.name == "*":
                observes.add("observe")
                project |= {one for one in vars(scenario) if not one.startswith("_") and one != "observe"}
            elif isinstance(node, ast.ImportFrom) and alias.name == "observe":
                observes.add(name)
            else:
                project.add(name)
    return observes, project


def _loaded_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield every statement that runs when the file is loaded, not those inside functions and classes."""
    for node in body:
        yield node
        if isinstance(node, COMPOUND):
            yield from _loaded_statements(list(_bodies(node)))


def _bodies(node: ast.stmt) -> Iterator[ast.stmt]:
    for _, value in ast.iter_fields(node):
        for one in value if isinstance(value, list) else ():
            if isinstance(one, ast.stmt):
                yield one
            elif isinstance(one, (ast.ExceptHandler, ast.match_case)):
                yield from one.body


def _functions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, Function]]:
    for node in _loaded_statements(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the top-level packages that are imported; a dot for a relative import."""
    if isinstance(node, ast.ImportFrom):
        return ["." if node.level else (node.module or "").partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in node.names]


def _is_ours(node: ast.Import | ast.ImportFrom) -> bool:
    return "experiments" in _modules(node)


def _is_main_guard(node: ast.stmt) -> bool:
    """Whether the statement runs only if the file is the main program, which it never is in a worker."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(map(_is_name, target.elts))
    return isinstance(target.value if isinstance(target, ast.Starred) else target, ast.Name)


def _root_name(node: ast.expr) -> str:
    """Return the name that an expression begins with. Empty if it does not begin with a name."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _parts(one: ast.comprehension) -> list[ast.expr]:
    return [one.iter, *one.ifs]
