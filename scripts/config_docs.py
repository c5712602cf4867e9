"""Write docs/configuration.md from the schema, so that the page never differs from the program.

python scripts/config_docs.py
"""

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from xltrain.config.load import section_within
from xltrain.config.schema import Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

This page is written by `python scripts/config_docs.py` from the sections in `xltrain/config/`; change it there.

A run is one YAML file with the sections below. Only `corpus.train` has to be given. Any key can be set on the command
line as well, as often as needed, and the last one counts:

    xltrain pretrain run.yaml --set optimizer.lr=5e-4 --set corpus.train='[a.txt, b/*.txt]'

`xltrain pretrain run.yaml --dry-run` prints every key with its final value, the number of parameters, the tokens per
update and the effective context, and stops. An unknown key is refused, and the nearest valid one named. All
unknown keys and values that are not allowed are listed at once. Whether the keys of a section fit together is told as
soon as each of its values is allowed by itself, and whether sections fit together as soon as all are. A key that is not
at its default is refused where it can do nothing, such as `objective.perm_size` with `objective.name: causal`, or
`objective.predict_fraction` beside a `num_predict`; only `objective.predict_fraction` with `objective.name: causal` and
`schedule.min_lr_ratio` are not, so that `--set objective.name=causal` or `--set schedule.name=constant` alone is enough
to compare.

YAML is read as people write it: `1e-4` is a number, `010` is ten, and `1:30` is no number. `yes`, `no`, `on`, `off`
are true and false. Underscores in numbers are ignored: `1_000_000`. Paths start at the working directory, and `~` is
your home.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, field in Config.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        parts.append(f"## {name}\n\n{summary(section)}\n\n" + "\n".join(entries(section)) + "\n")
    return "\n".join(parts)


def summary(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").split())


def entries(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """A list item per key; keys of a section within a section are dotted, once where several fields hold that one."""
    told = set()
    for name, field in section.model_fields.items():
        inner = section_within(field.annotation)
        what = " ".join((field.description or "").split())
        several = typing.get_origin(field.annotation) is list
        if inner is None or several or type(None) in typing.get_args(field.annotation):
            yield f"- **`{prefix}{name}`** ({kind(field)}; {default(field)})\\\n  {what}"
        if inner is not None and inner not in told:
            yield from entries(inner, f"{prefix}{name}{'[]' if several else ''}.")
            told.add(inner)


def kind(field: FieldInfo) -> str:
    """What a value may be: type or choices, then the limits."""
    return ", ".join([spelled(field.annotation), *limits(field.metadata)])


def spelled(annotation: Any) -> str:
    """A type as a person says it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return ", ".join([spelled(arguments[0]), *limits(arguments[1:])])
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (types.UnionType, Union):
        return " or ".join(spelled(choice) for choice in arguments if choice is not type(None))
    if origin is list:
        return f"list, each {spelled(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} values, each {spelled(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    names = {int: "integer", float: "number", bool: "yes/no", str: "text", dict: "mapping"}
    return names.get(annotation, str(annotation))


def limits(metadata: typing.Iterable[Any]) -> list[str]:
    """Bounds, from the annotations of pydantic; validators and patterns are left to the field's own words."""
    found = []
    for item in metadata:
        for inner in getattr(item, "metadata", None) or [item]:
            for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
                if (bound := getattr(inner, name, None)) is not None:
                    found.append(f"{words} {yaml_value(bound)}")
    return found


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not given by default"
    return f"default `{yaml_value(value)}`"


def yaml_value(value: Any) -> str:
    """A value as it is written in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_value(item) for item in value) + "]"
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
