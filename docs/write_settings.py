"""Writes docs/settings.md, the reference of all settings, from their JSON Schema.

python docs/write_settings.py
"""

from pathlib import Path
from typing import Any

from rookery.config.describe import json_schema, type_name

PAGE = Path(__file__).parent / "settings.md"
HEAD = """# Settings

<!-- Written by docs/write_settings.py from the comments and limits in src/rookery/config. -->

Every setting of a run, with its type, allowed values, default and meaning.
`rookery list --settings` prints them too. A setting is changed in a scenario file or with
`--set section.key=value`. Their names in other libraries are on the page
[names of settings](names.md).

## In an editor

An editor that knows JSON Schema completes settings, shows what they mean and underlines mistakes.
Write the schema once, and name it in the first line of a scenario file:

```bash
rookery list --schema > rookery.schema.json
```

```yaml
# yaml-language-server: $schema=rookery.schema.json
env: {id: CartPole-v1}
```

The first line is for the YAML language server, which VS Code (extension YAML), Neovim and Emacs
use. Settings that do not go together are refused when a run starts, not in the editor.
"""
COLUMNS = "| setting | type | allowed | default | meaning |\n|---|---|---|---|---|"
RANGES = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}"}


def page() -> str:
    """Returns the text of the page."""
    schema = json_schema()
    sections = {
        name: found for name, found in schema["properties"].items() if "properties" in found
    }
    alone = {name: found for name, found in schema["properties"].items() if name not in sections}
    parts = [HEAD, "## At the top", COLUMNS + rows("", alone)]
    for name, section in sections.items():
        parts += [
            f"## `{name}`",
            section["description"],
            COLUMNS + rows(f"{name}.", section["properties"]),
        ]
        for branch in section.get("allOf", ()):
            parts += algorithm(branch, set(section["properties"]) - {"n_step"})
    return "\n\n".join(part.strip() for part in parts) + "\n"


def algorithm(branch: dict[str, Any], common: set[str]) -> list[str]:
    """Returns the part about one algorithm, without the settings that all have."""
    name, section = branch["if"]["properties"]["name"]["const"], branch["then"]
    own = {key: found for key, found in section["properties"].items() if key not in common}
    return [f"### `algo.name: {name}`", section["description"], COLUMNS + rows("algo.", own)]


def rows(where: str, properties: dict[str, Any]) -> str:
    return "".join("\n" + row(f"{where}{name}", found) for name, found in properties.items())


def row(key: str, found: dict[str, Any]) -> str:
    """Returns the line of one setting."""
    value = found["anyOf"][0] if "anyOf" in found else found
    allowed = [words.format(value[word]) for word, words in RANGES.items() if word in value]
    type_ = type_name({**found, "enum": ["str"]} if "enum" in value else found)
    choices = [f"`{choice}`" for choice in value.get("enum", ())]
    cells = (
        f"`{key}`",
        "choice" if choices else type_,
        ", ".join(choices) or " and ".join(allowed),
        f"`{yaml(found['default'])}`",
        found["description"].replace("|", "\\|"),
    )
    return "| " + " | ".join(cells) + " |"


def yaml(value: Any) -> str:
    """Returns a default as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
