"""The small changes that scripts/mutation.py tries: what mutmut's operators make of a file."""

import ast
import difflib
import hashlib
import random
from pathlib import Path
from typing import NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

STATEMENT = cst.SimpleStatementLine | cst.BaseCompoundStatement
LEFT_ALONE = cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom


class Mutant(NamedTuple):
    """A changed file, and the lines of which one is executed if the change is."""

    path: str
    lines: range
    code: str
    diff: str

    @property
    def key(self) -> str:
        """Names the change whatever else stands in the file."""
        return f"{self.path}:{self.lines[-1]}:{hashlib.sha256(self.diff.encode()).hexdigest()[:12]}"


class Changes(cst.CSTVisitor):
    """Collects (lines, node, changed node)."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[range, cst.CSTNode, cst.CSTNode]] = []
        self.statements: list[int] = []  # where those begin that a node stands in

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, LEFT_ALONE) or (len(self.statements) == 1 and is_type(node)):
            return False
        position = self.get_metadata(PositionProvider, node, None)
        if isinstance(node, STATEMENT):
            self.statements.append(position.start.line)
        start = self.statements[-1] if self.statements else 1
        lines = range(start, max(start, position.start.line if position else start) + 1)
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and not is_message(node):
                changed = list(operator(node))[
                    : 1 if kind is cst.BaseString else None
                ]  # of a string, one will do
                self.all += [(lines, node, new) for new in changed]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, STATEMENT):
            self.statements.pop()


def is_type(node: cst.CSTNode) -> bool:
    """Whether a statement gives a type a name."""
    is_alias = isinstance(node, cst.Assign) and isinstance(node.value, cst.Subscript | cst.BinaryOperation)
    return is_alias and "[" in cst.Module([]).code_for_node(node)


def is_message(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and " " in node.value


def mutants_of(root: Path, path: str, *, sample: int, seed: int) -> list[Mutant]:
    """Mutants of a file in the order of their lines; `sample` of them, 0 for all."""
    source = (root / path).read_text()
    wrapper, changes = MetadataWrapper(cst.parse_module(source)), Changes()
    wrapper.visit(changes)
    random.Random(f"{seed} {path}").shuffle(changes.all)
    made: dict[str, Mutant] = {}
    for lines, node, changed in changes.all:
        code = wrapper.module.deep_replace(node, changed).code  # type: ignore[union-attr]
        if is_valid(code) and ast.dump(ast.parse(code)) != ast.dump(ast.parse(source)):
            diff = list(difflib.unified_diff(source.splitlines(), code.splitlines(), n=0, lineterm=""))[2:]
            made[code] = Mutant(path, lines, code, "\n".join(diff))
        if len(made) == sample > 0:
            break
    return sorted(made.values(), key=lambda mutant: mutant.lines[-1])


def is_valid(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def lines_in_functions(source: str) -> set[int]:
    """The lines that run when a function is called, not when the file is imported."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    statements = (statement for function in functions for statement in function.body)
    return {
        line
        for statement in statements
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
