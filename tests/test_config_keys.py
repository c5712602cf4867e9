"""No key of the configuration is accepted and then ignored, and each is documented where it is declared."""

import ast
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from xltrain.config.base import Section
from xltrain.config.schema import Config

PACKAGE = Path(__file__).parent.parent / "xltrain"
READ_BY_NAME = {"corpus": {"train", "validation", "test"}}  # data/prepare.py: getattr(config.corpus, name)


def section_of(kind: Any) -> dict[str, type[Section]]:
    """Fields of a section that are sections themselves."""
    found = {name: field.annotation for name, field in kind.model_fields.items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Section)}


def all_keys() -> set[tuple[str, str]]:
    """(section, key) of everything that can be set to more than one value."""
    keys = set()
    for name, kind in section_of(Config).items():
        for owner_name, owner in [(name, kind), *section_of(kind).items()]:
            for key, field in owner.model_fields.items():
                only_value = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
                if key not in section_of(owner) and not only_value:
                    keys.add((owner_name, key))
    return keys


def read_keys() -> set[tuple[str, str]]:
    """(section, key) of every ``section.key`` in the program, also through a local name such as ``wanted``."""
    sections = set(section_of(Config)) | {inner for kind in section_of(Config).values() for inner in section_of(kind)}
    kinds = [section_of(Config), *(section_of(kind) for kind in section_of(Config).values())]
    owners = {kind.__name__: name for level in kinds for name, kind in level.items()}
    found: set[tuple[str, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        aliases = local_names(tree, sections, owners)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                base = node.value
                if isinstance(base, ast.Attribute) and base.attr in sections:
                    found.add((base.attr, node.attr))
                elif isinstance(base, ast.Name):
                    found |= {(section, node.attr) for section in aliases[base.id]}
            elif isinstance(node, ast.ClassDef) and node.name in owners:
                inside = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
                found |= {(owners[node.name], part.attr) for part in inside if is_name(part.value, "self")}
    return found


def local_names(tree: ast.AST, sections: set[str], owners: dict[str, str]) -> dict[str, set[str]]:
    """Local names of a module that stand for a section: assigned from one, or annotated as one."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, values = node.targets[0], node.value
            pairs = (
                zip(targets.elts, values.elts, strict=True)
                if isinstance(targets, ast.Tuple) and isinstance(values, ast.Tuple)
                else [(targets, values)]
            )
            for target, value in pairs:
                if isinstance(target, ast.Name) and isinstance(value, ast.Attribute) and value.attr in sections:
                    found[target.id].add(value.attr)
        elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id in owners:
            found[node.arg].add(owners[node.annotation.id])
    return found


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_every_key_is_read_somewhere():
    by_name = {(section, key) for section, keys in READ_BY_NAME.items() for key in keys}
    assert all_keys() - read_keys() - by_name == set()


def test_the_search_for_unread_keys_would_find_one():
    assert ("model", "num_layers") in read_keys()
    assert ("logging", "num_layers") not in read_keys()


def test_every_key_is_documented_where_it_is_declared():
    for name, kind in section_of(Config).items():
        for owner in (kind, *section_of(kind).values()):
            missing = [key for key, field in owner.model_fields.items() if not field.description]
            assert missing == [], name
