"""Function heads with docstrings from Python's own standard library: code prompts without any data set.

The library is read as text and parsed with `ast`; nothing of it is imported. The heads depend on the Python
version that runs this.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SKIPPED_DIRS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}
MIN_DOC_CHARS = 40


@cache
def stdlib_heads(max_chars: int) -> tuple[tuple[str, str], ...]:
    """(name, head) of every documented function and method, in path order; heads are distinct.

    A head is the text from `def` to the end of the docstring, shorter than `max_chars` characters. The name is
    the dotted path, such as "bisect.insort_right". About 4,400 for Python 3.11 and 900 characters.

    Raises:
        ValueError: the standard library's sources are not there (zipped or compiled installations).
    """
    heads: dict[str, str] = {}
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED_DIRS.isdisjoint(parts):
            for name, head in _heads_of(path):
                if len(head) < max_chars:
                    heads.setdefault(head, ".".join((*parts, name)))
    if not heads:
        raise ValueError(f"Expected Python sources below {root}, got none; run this with a regular CPython.")
    return tuple((name, head) for head, name in heads.items())


def _heads_of(path: Path) -> Iterator[tuple[str, str]]:
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):  # a few library files are broken on purpose
        return
    lines = source.split("\n")  # as ast counts them; splitlines() also breaks at form feeds
    for prefix, function in _functions(tree):
        if len(ast.get_docstring(function) or "") >= MIN_DOC_CHARS and not function.name.startswith("__"):
            head = _head(lines, function)
            if head:
                yield prefix + function.name, head


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.", inner) for inner in node.body if isinstance(inner, ast.FunctionDef))


def _head(lines: list[str], function: ast.FunctionDef) -> str:
    """The dedented text from `def` to the docstring's last line; "" where that is not plain text of whole lines."""
    end = function.body[0].end_lineno or 0
    margin = " " * function.col_offset
    head = [line.removeprefix(margin).rstrip() for line in lines[function.lineno - 1 : end]]
    inside = all(line.startswith((" ", "def ", ")")) or not line for line in head)
    return "\n".join(head) if inside and head[-1].endswith(('"""', "'''")) else ""
