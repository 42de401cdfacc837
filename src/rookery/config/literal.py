"""Values written as Python, such as "dict(net_arch=[256, 256], activation_fn=nn.ReLU)".

Nothing is run: the text is parsed, and its parts are read one by one. What may stand there is in
`READERS`; a name is no more than a word, and stays the text that it is.
"""

import ast
import warnings
from collections.abc import Callable
from typing import Any

from rookery.errors import ConfigError

NAMES = {
    f"{module}.{name}"
    for module in ("nn", "th.nn", "torch.nn")
    for name in ("ReLU", "Tanh", "ELU", "GELU", "SiLU", "LeakyReLU", "Sigmoid", "Mish")
} | {
    "RMSpropTFLike",
    *(
        f"{module}.{name}"
        for module in ("optim", "th.optim", "torch.optim")
        for name in ("Adam", "AdamW", "RMSprop", "SGD")
    ),
}
LONGEST_NAME = 3  # words: torch.nn.ReLU
ALLOWED = "dict(...), lists, tuples, numbers, text, True, False, None and names such as nn.ReLU"
LONGEST = 10_000  # characters
DEEPEST = 50  # parts inside parts


def read(given: str, where: str) -> Any:
    """Returns the value that `given` spells; `where` names it in errors."""
    if len(given) > LONGEST:
        raise ConfigError(f"{where} has {len(given)} characters; {LONGEST} are allowed; shorten it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a stray backslash is the author's affair
            tree = ast.parse(given.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(given, where, "cannot be read") from error
    try:
        return _value(tree.body, 0)
    except _Odd as odd:
        part = ast.get_source_segment(given.strip(), odd.node) or type(odd.node).__name__
        raise _refused(given, where, f"has {part[:60]!r}") from None


class _Odd(Exception):
    """A part of a value that is not read here."""

    def __init__(self, node: ast.AST):
        super().__init__()
        self.node = node


def _refused(given: str, where: str, why: str) -> ConfigError:
    shown = " ".join(given.split())
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ConfigError(
        f"{where} is {shown!r}, which {why}; it may hold {ALLOWED}, and nothing is run; "
        "write the value out, or take that part away"
    )


def _value(node: ast.AST, depth: int) -> Any:
    reader = READERS.get(type(node))
    if reader is None or depth > DEEPEST:
        raise _Odd(node)
    return reader(node, depth + 1)


def _constant(node: ast.Constant, depth: int) -> Any:
    if isinstance(node.value, bool | int | float | str | None):
        return node.value
    raise _Odd(node)


def _list(node: ast.List | ast.Tuple, depth: int) -> list[Any]:
    return [_value(part, depth) for part in node.elts]


def _mapping(node: ast.Dict, depth: int) -> dict[Any, Any]:
    found = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):  # None: **spread
            raise _Odd(key or value)
        found[key.value] = _value(value, depth)
    return found


def _call(node: ast.Call, depth: int) -> dict[str, Any]:
    """Reads dict(a=1); no other call."""
    if not (isinstance(node.func, ast.Name) and node.func.id == "dict") or node.args:
        raise _Odd(node)
    found = {}
    for word in node.keywords:
        if word.arg is None:  # **spread
            raise _Odd(word.value)
        found[word.arg] = _value(word.value, depth)
    return found


def _negative(node: ast.UnaryOp, depth: int) -> Any:
    value = _value(node.operand, depth) if isinstance(node.op, ast.USub) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Odd(node)
    return -value


def _name(node: ast.Name | ast.Attribute, depth: int) -> str:
    parts: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute) and len(parts) < LONGEST_NAME:
        parts, at = [at.attr, *parts], at.value
    name = ".".join([at.id, *parts]) if isinstance(at, ast.Name) else ""
    if name not in NAMES:
        raise _Odd(node)
    return name


READERS: dict[type[ast.AST], Callable[[Any, int], Any]] = {
    ast.Constant: _constant,
    ast.List: _list,
    ast.Tuple: _list,
    ast.Dict: _mapping,
    ast.Call: _call,
    ast.UnaryOp: _negative,
    ast.Name: _name,
    ast.Attribute: _name,
}
