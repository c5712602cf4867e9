"""YAML and ``--set`` in, one frozen :class:`Config` out; or every mistake at once, before any work."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from xltrain.config import init_from
from xltrain.config.base import Problem, Section
from xltrain.config.idle import idle_keys
from xltrain.config.schema import Config, RunConfig
from xltrain.config.text import ENTRY_KINDS
from xltrain.errors import UsageError


class _Loader(yaml.SafeLoader):
    """YAML as a person reads it.

    PyYAML follows YAML 1.1, where `1e-4` is text, `010` is eight and `1:30` is ninety. Here numbers are decimal
    (a leading zero changes nothing), an exponent needs no dot, and `1:30` stays text, which a numeric key refuses.
    """

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (shadows the parent's table on purpose)


_NUMBER = r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)"
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?\d[\d_]*$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(rf"^(?:{_NUMBER}(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool",
    re.compile(r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$"),
    list("yYnNtTfFoO"),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])
_Loader.add_constructor(
    "tag:yaml.org,2002:int",
    lambda loader, node: int(str(loader.construct_scalar(node)).replace("_", "")),  # type: ignore[arg-type]
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:  # before merges (`<<`) are filled in: what is written here may replace merged keys
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, f"a key must be a name (line {line})", None)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"'{key}' is given twice (line {line})", None)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that either YAML 1.1 or :class:`_Loader` would read as something else."""


for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
    for _tag, _pattern in _resolvers:
        _Dumper.add_implicit_resolver(_tag, _pattern, [_first])


_SECTION = "a section holds keys, one per line and indented"


def parse_yaml(text: str) -> Any:
    """Plain data from YAML text; raises ``yaml.YAMLError``."""
    return yaml.load(text, Loader=_Loader)


def load_config(path: str | Path, overrides: Sequence[str] = (), *, resolved: bool = False) -> Config:
    """Read a configuration file and apply ``a.b=c`` overrides, later ones last.

    Args:
        path: a YAML file.
        overrides: as given to ``--set``.
        resolved: the file is a checkpoint's own, complete in itself: where its weights started from does not matter,
            and keys that do nothing are not refused.

    Raises:
        UsageError: with every mistake of the file and of the overrides, one line each.
    """
    path = Path(path)
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such configuration file (working directory {Path.cwd()})") from None
    except IsADirectoryError:
        own = path / "config.yaml"
        hint = f", as that of this run, {own}" if own.is_file() else ""
        raise UsageError(f"{path} is a folder; give a YAML file{hint}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: not valid YAML: {_one_line(error)}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "text or a number"
        raise UsageError(f"{path}: is no configuration: it must hold sections such as 'corpus:', and is {kind}")
    problems = _apply_overrides(data, overrides)
    source, found = (None, []) if resolved else _init_from(data)
    problems += found
    config, found = validate(data)
    problems += found
    if config is not None and source is not None:
        problems += init_from.contradictions(config, *source)
    if config is not None and not resolved:
        problems += idle_keys(config, None if source is None else source[0])
    if problems or config is None:
        raise UsageError(_report(path, problems))
    return config


def _init_from(data: dict[str, Any]) -> tuple[tuple[Config, Path] | None, list[Problem]]:
    """Take over what ``run.init_from`` says; the configuration found there and its folder, if it is given."""
    run = data.get("run")
    run = run if isinstance(run, dict) else {}
    given = run.get("init_from")
    if not isinstance(given, str):
        return None, []  # none, or something that validation refuses
    path = Path(given).expanduser()
    folder = init_from.checkpoint_folder(path)
    if folder is None or not (folder / "config.yaml").is_file():
        return None, [
            (init_from.KEY, f"{given} is no run and no checkpoint{_way_in(path)} (working directory {Path.cwd()})")
        ]
    problems: list[Problem] = []
    output = Path(str(run.get("output_dir") or RunConfig(name=str(run.get("name") or "run")).folder)).expanduser()
    if output.resolve() == path.resolve() or output.resolve() / "checkpoints" in path.resolve().parents:
        problems.append((init_from.KEY, f"{given} lies in this run's own folder; choose another run.output_dir"))
    origin = load_config(folder / "config.yaml", resolved=True)
    run["init_from"] = str(folder)  # the weights are those of the same checkpoint, whatever the run does meanwhile
    return (origin, folder), problems + init_from.take_over(data, origin, folder)


def _way_in(path: Path) -> str:
    """What to do with what is there all the same."""
    return (
        "; if it is an export or another program's, xltrain import-checkpoint makes one of it" if path.exists() else ""
    )


def validate(data: dict[str, Any]) -> tuple[Config | None, list[Problem]]:
    """Build the configuration, or list what is wrong with it.

    Sections are checked one by one, so that a mistake in one does not hide a mistake in another.
    """
    problems: list[Problem] = []
    for name in data:
        if name not in Config.model_fields:
            problems.append((str(name), _unknown(str(name), Config)))
    sections: dict[str, Section] = {}
    for name, field in Config.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        value = data.get(name)
        if value is not None and not isinstance(value, dict):
            problems.append((name, f"{value!r} is not allowed; {_SECTION}"))
            continue
        try:
            sections[name] = kind.model_validate(value or {})
        except ValidationError as error:
            problems += [_explain(name, kind, detail) for detail in error.errors()]
        else:
            problems += [(f"{name}.{key}", text) for key, text in sections[name].problems()]
    if len(sections) < len(Config.model_fields):
        return None, problems
    config = Config(**sections)
    return config, problems + config.problems()


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML, every key written out."""
    return yaml.dump(config.as_dict(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> list[Problem]:
    problems: list[Problem] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            problems.append((f"--set {override}", "must have the form section.key=value"))
            continue
        if len(parts) == 1:
            problems.append((f"--set {override}", f"'{parts[0]}' names no key; write section.key=value"))
            continue
        try:
            value = parse_yaml(text)
        except (yaml.YAMLError, ValueError) as error:
            problems.append((f"--set {override}", f"the value is not valid YAML: {_one_line(error)}"))
            continue
        place: Any = data
        for part in parts[:-1]:
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
            if not isinstance(place, dict):
                problems.append((f"--set {override}", f"'{part}' is a value, not a section"))
                break
        else:
            place[parts[-1]] = value
    return problems


def _explain(section: str, kind: type[BaseModel], detail: ErrorDetails) -> Problem:
    location = [str(part) for part in _untagged(detail["loc"])]
    dotted = ".".join([section, *location])
    owner, value = _owner(kind, location), detail["input"]
    if detail["type"] == "extra_forbidden":
        return dotted, _unknown(location[-1], owner)
    if detail["type"] == "missing" and location[-1] in owner.model_fields:
        field = owner.model_fields[location[-1]]
        return dotted, f"is missing ({' '.join((field.description or '').split()).rstrip('.')})"
    if detail["type"] == "missing":  # an entry of a list of two
        dotted, value = ".".join([section, *location[:-1]]), list(value)
    if detail["type"] == "model_type":
        return dotted, f"{value!r} is not allowed; {_SECTION}"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    hint = ""
    if detail["type"] == "int_parsing":
        message = "give a whole number, written like 1000"
    elif detail["type"] == "float_parsing":
        message = "give a number, written like 0.5 or 1e-4"
    elif detail["type"] in ("tuple_type", "too_long", "missing"):
        message = "give a list of two numbers"
        hint = _example(owner, location)
    elif detail["type"].startswith("bool_"):
        hint = "; write true or false"
    elif detail["type"] == "string_type":
        hint = "; put it in quotes"
    elif detail["type"] == "list_type":
        hint = ", such as [a.txt, b.txt]"
    return dotted, f"{value!r} is not allowed: {message}{hint}"


def _example(owner: type[BaseModel], location: Sequence[str]) -> str:
    """The default of the field at ``location``, or around it, where that is a list of numbers."""
    named = [part for part in location if not part.isdigit()]
    default = owner.model_fields[named[-1]].default
    return f", such as {list(default)}" if isinstance(default, tuple) else ""


def _untagged(location: Sequence[int | str]) -> list[int | str]:
    """A place in the configuration without pydantic's name for the kind of a list's entry."""
    return [
        part
        for number, part in enumerate(location)
        if not (number and isinstance(location[number - 1], int) and part in ENTRY_KINDS)
    ]


def _owner(kind: type[BaseModel], location: Sequence[str]) -> type[BaseModel]:
    """The section that the last part of ``location`` belongs to."""
    for part in location[:-1]:
        if part.isdigit():  # the number of a list's entry
            continue
        field = kind.model_fields.get(part)
        if field is None:
            break
        kind = section_within(field.annotation) or kind
    return kind


def section_within(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, itself or as the entries of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_within(part)) is not None), None)


def _unknown(name: str, kind: type[BaseModel]) -> str:
    known = list(kind.model_fields)
    elsewhere = [
        f"{section}.{name}"
        for section, field in Config.model_fields.items()
        if kind is not field.annotation
        and isinstance(field.annotation, type)
        and name in getattr(field.annotation, "model_fields", {})
    ]
    if elsewhere:
        return f"no such key; did you mean '{elsewhere[0]}'?"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"no such key; did you mean '{near[0]}'?"
    return f"no such key; allowed here: {', '.join(known)}"


def _one_line(error: Exception) -> str:
    """What is wrong with YAML, and where, without the lines that PyYAML draws."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        problem = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        if error.context and error.context_mark is not None:
            problem += f" ({error.context} that begins in line {error.context_mark.line + 1})"
        if "'\\t'" in problem:
            problem += "; indent with spaces, not with tabs"
        if "alias" in problem or "flow sequence" in problem or _after_bracket(mark):
            problem += "; put patterns that begin with * or hold [ ] into quotes"
        return problem
    return " ".join(str(error).replace('"<unicode string>", ', "").split())


def _after_bracket(mark: yaml.Mark) -> bool:
    """Whether what is wrong stands directly behind a ], as in ``[ab].txt``, which begins like a list."""
    return mark.buffer is not None and mark.pointer > 0 and mark.buffer[mark.pointer - 1] == "]"


def _report(path: Path, problems: Sequence[Problem]) -> str:
    if len(problems) == 1:
        return f"{path}: {problems[0][0]}: {problems[0][1]}"
    lines = [f"{path}: {len(problems)} mistakes"]
    return "\n".join(lines + [f"  {key}: {text}" for key, text in problems])
