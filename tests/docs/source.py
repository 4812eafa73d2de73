"""What the source itself says of its parts: fields with the comments beside them, functions with their arguments.

Read, not imported: the models need torch, and a reference does not.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pytest_accel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a class, a member of an enum, or an argument of a function."""

    name: str
    type: str = ""
    default: str = ""  # as it is written; empty for none
    note: str = ""  # the comment beside it


@dataclass(frozen=True, slots=True)
class Module:
    tree: ast.Module
    comments: dict[int, str]  # by line
    alone: frozenset[int]  # lines that hold a comment and nothing else


@cache
def module(path: str) -> Module:
    text = (PACKAGE / path).read_text(encoding="utf-8")
    comments = {
        token.start[0]: token.string.removeprefix("#").partition("noqa")[0].strip(" #")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    lines = text.splitlines()
    alone = frozenset(line for line in comments if lines[line - 1].lstrip().startswith("#"))
    return Module(ast.parse(text), comments, alone)


def definition(path: str, *names: str) -> ast.ClassDef | ast.FunctionDef:
    """The class or function of that name; further names lead into it."""
    found: ast.AST = module(path).tree
    for name in names:
        inner = (each for each in ast.walk(found) if isinstance(each, ast.ClassDef | ast.FunctionDef))
        found = next(each for each in inner if each.name == name)
    assert isinstance(found, ast.ClassDef | ast.FunctionDef)
    return found


def docstring(path: str, *names: str) -> str:
    return ast.get_docstring(definition(path, *names)) or ""


def fields(path: str, name: str) -> list[Field]:
    """Of a dataclass or an enum, in their order."""
    return list(_fields(path, definition(path, name)))


def _fields(path: str, owner: ast.ClassDef | ast.FunctionDef) -> Iterator[Field]:
    for each in owner.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                yield Field(
                    name=name,
                    type=ast.unparse(annotation),
                    default=_default(value),
                    note=_note(path, each),
                )
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield Field(name=name, default=str(value), note=_note(path, each))


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call):  # field(default_factory=dict): made anew, and empty
        return ""
    return "" if value is None else ast.unparse(value)


def _note(path: str, statement: ast.stmt) -> str:
    """The comment on its last line, else the lines of comments right above it."""
    known = module(path)
    end = statement.end_lineno or statement.lineno
    if end in known.comments:
        return known.comments[end]
    above = statement.lineno - 1
    lines: list[str] = []
    while above in known.alone:
        lines.insert(0, known.comments[above])
        above -= 1
    return " ".join(lines)


def arguments(path: str, *names: str) -> list[Field]:
    """What a function takes by name, but for itself and what is passed on."""
    function = definition(path, *names)
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    both = [*zip(positional, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [
        Field(
            name=argument.arg,
            type=ast.unparse(argument.annotation) if argument.annotation else "",
            default=_default(default),
        )
        for argument, default in both
        if argument.arg not in ("self", "cls")
    ]


def returned(path: str, *names: str) -> str:
    function = definition(path, *names)
    return ast.unparse(function.returns) if isinstance(function, ast.FunctionDef) and function.returns else ""


def decorated(path: str, decorator: str) -> list[ast.FunctionDef]:
    """Functions of a module that carry a decorator, called or not."""
    return [
        each
        for each in module(path).tree.body
        if isinstance(each, ast.FunctionDef)
        and any(ast.unparse(mark).partition("(")[0] == decorator for mark in each.decorator_list)
    ]


def literal(path: str, name: str) -> tuple[str, ...]:
    """A constant of a module that is written out."""
    for each in module(path).tree.body:
        if isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == [name]:
            return tuple(ast.literal_eval(each.value))
    raise LookupError(f"{path} has no {name}")
