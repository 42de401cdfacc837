"""Reads and writes YAML as plain data: no tags, no aliases, no repeated keys.

Stricter than YAML: a key may stand only once in a mapping, tags (`!!python/...`) and aliases
(`*name`) are refused, and so is a file above `LIMIT` before it is parsed.
"""

from pathlib import Path
from typing import Any

import yaml

from rookery.errors import ConfigError

LIMIT = 1_000_000  # bytes
_WIDTH = 100  # columns


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            # A few lines of nested aliases stand for more data than fits into memory.
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(None, None, "an alias (*name); write its value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict, set)):
                continue  # the parent class has the message for a key that cannot be one
            if key in seen:
                problem = f"the key {key!r} stands here a second time; remove one of the two"
                raise yaml.MarkedYAMLError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # what is written must be readable by the loader above


def _refuse_tag(loader: _Loader, node: yaml.Node) -> None:
    problem = f"the tag {node.tag!r} is refused: settings are plain values; remove the tag"
    raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)


def _on_one_line(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Loader.add_constructor(None, _refuse_tag)
_Dumper.add_representer(list, _on_one_line)

# Beside its own errors PyYAML lets these through, for values such as `!!int x` or 2024-99-99.
_BAD_VALUE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)


def read(text: str, where: str) -> Any:
    """Parses YAML text to plain data; `where` names the text in errors."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} cannot be read: {_reason(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{where} is nested too deeply; settings need three levels") from error
    except _BAD_VALUE as error:
        raise ConfigError(f"{where} holds a value YAML cannot read: {error}; quote it") from error


def read_file(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML file; raises ConfigError for any other content."""
    data = read(_text(path), str(path))
    if data is None:
        raise ConfigError(
            f"{path} is empty; it needs at least one setting, such as env: {{id: CartPole-v1}}"
        )
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path} holds a {type(data).__name__}, but settings are a mapping; "
            "write lines such as `replay: {batch_size: 64}`"
        )
    return data


def write(data: dict[str, Any]) -> str:
    """Returns plain data as YAML text, with each list on one line."""
    try:
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"these settings cannot be written down: {error}; "
            "use numbers, text, lists and mappings only"
        ) from error


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read settings from {path}: {why}; check the path") from error
    if len(content) > LIMIT:
        raise ConfigError(
            f"{path} is larger than {LIMIT} bytes; settings are a page of text, "
            "is this the right file?"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from error


def _reason(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    reason = ", ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    return f"{reason} (line {mark.line + 1}, column {mark.column + 1})" if mark else reason
