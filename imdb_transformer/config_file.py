"""Config files. `load` reads a TOML or YAML file, applies `--set section.key=value` overrides, and checks it.

`dump` writes the whole config, with all defaults, for a run directory.
"""

import copy
import difflib
import hashlib
import json
import re
import reprlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from imdb_transformer.config import Config
from imdb_transformer.errors import ConfigError, check_utf8, reason_of, shortened

# A larger file is not a config, and parsing it would take much memory.
MAX_CONFIG_BYTES = 1_000_000
OF_TABLES = ("data.text_column", "data.label_column", "data.encoding", "data.bad_rows")


def find(name: str | PathLike[str]) -> Path:
    """Path of a config: a file of that name, or else a config of the package."""
    path, files = Path(name), shipped()
    if path.is_file():
        return path
    for key in (str(name), f"{name}.toml"):
        if key in files:
            return files[key]
    names = ", ".join(sorted(files))
    raise ConfigError(f"There is no config '{name}', as a file or in the package. The package has {names}.")


def shipped() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    # In an installed wheel the configs lie inside the package, in a checkout beside it.
    inside = Path(__file__).parent / "configs"
    folder = inside if inside.is_dir() else inside.parent.parent / "configs"
    return {file.name: file for file in folder.glob("*.toml")}


def load(name: str | PathLike[str], overrides: Iterable[str] | None = ()) -> Config:
    """The config in a file (see `find`), with one override or several: `section.key=value` in TOML.

    Raises ConfigError, and TypeError for overrides that are not strings.
    """
    path, listed = find(name), [overrides] if isinstance(overrides, str) else list(overrides or ())
    if isinstance(overrides, Mapping) or not all(isinstance(each, str) for each in listed):
        raise TypeError("Overrides are strings in a list, such as ['train.epochs=3'].")
    for override in listed:
        check_utf8(override)
    return parse(read(path), listed, origin=str(path))


def parse(tree: dict[str, Any], overrides: Iterable[str] = (), *, origin: str) -> Config:
    """The config in nested dicts, with overrides applied; `origin` names it in messages."""
    overridden, set_by = copy.deepcopy(tree), {}
    for override in overrides:
        set_by[_apply(overridden, override)] = f"--set {shortened(override, 80)}"
    lines, in_file = [], _problems(tree)
    for sentence, where in _problems(overridden).items():
        # If a section or the whole config is wrong, all overrides in it may be to blame.
        culprits = [each for key, each in set_by.items() if key.split(".", 1)[: len(where)] == where]
        lines.append(f"{origin if sentence in in_file else ' '.join(culprits)}: {sentence}")
    if lines:
        raise ConfigError("\n".join(lines))
    config = Config.model_validate(overridden)
    of_tables, source = [key for key in set_by if key in OF_TABLES], config.data.source
    if of_tables and source in ("hub", "demo"):
        raise ConfigError(f"{of_tables[0]} is for tables, and the source is {source!r}: name your file.")
    return config


def _problems(tree: dict[str, Any]) -> dict[str, list[str]]:
    """Each problem of a config as a sentence, with the section and the key that it is about."""
    try:
        Config.model_validate(tree)
    except ValidationError as error:
        # A third part of the place would be an item of a list.
        return {_sentence(each): [str(part) for part in each["loc"][:2]] for each in error.errors()}
    return {}


def dump(config: Config) -> str:
    """The whole config as TOML; `parse` of it gives the same config back."""
    return tomli_w.dumps(config.model_dump())


def differences(
    config: Config, base: Config, excluded: Mapping[str, set[str]]
) -> Iterator[tuple[str, Any, Any]]:
    """The keys of some sections that differ, but for `excluded` ones, each with its value in both configs."""
    for section, keys in excluded.items():
        usual = getattr(base, section).model_dump()
        for key, value in getattr(config, section).model_dump(exclude=keys).items():
            if value != usual[key]:
                yield f"{section}.{key}", value, usual[key]


def set_options(config: Config, base: Config, excluded: Mapping[str, set[str]]) -> list[str]:
    """Options `--set` that give `base` the values of `config` in some sections, but for `excluded` keys."""
    options = []
    for key, value, _ in differences(config, base, excluded):
        is_plain = isinstance(value, str) and toml_value(value) == value
        options += ["--set", f"{key}={value if is_plain else json.dumps(value, ensure_ascii=False)}"]
    return options


def hash_of(config: Config) -> str:
    """A hash of the keys that differ from their defaults."""
    return hashlib.sha256(tomli_w.dumps(config.model_dump(exclude_defaults=True)).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """The sections of a config file. Raises ConfigError if it cannot be read or does not parse."""
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} has {size:,} bytes. A config has at most {MAX_CONFIG_BYTES:,}.")
        text = path.read_text(encoding="utf-8-sig")
        tree = _parsed_yaml(text) if path.suffix.lower() in (".yaml", ".yml") else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # of UTF-8 and TOML, too
        raise ConfigError(f"{path} does not parse: {reason_of(error, 1000)}.") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds no sections such as [train].")
    return tree


def _parsed_yaml(text: str) -> Any:
    """The content of a YAML file. Numbers are decimal, as in YAML 1.2. Raises ValueError."""
    import yaml  # not at the top: predictions start faster without it

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few of them spell gigabytes
                raise yaml.YAMLError(f"line {self.line + 1} has an alias (*name), which a config may not")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                name = str(key.value)
                if name in seen:
                    raise yaml.YAMLError(f"line {key.start_mark.line + 1} has {name!r} a second time")
                seen.add(name)
            return super().construct_mapping(node, deep)

    fraction, exponent = r"(\d[\d_]*\.\d*|\.\d+)", r"[eE][-+]?\d+"
    numbers = rf"({fraction}({exponent})?|\d[\d_]*{exponent}|\.(inf|Inf|INF|nan|NaN|NAN))"
    kinds = {"int": r"[-+]?(0|[1-9][\d_]*)$", "float": rf"[-+]?{numbers}$"}
    Loader.yaml_implicit_resolvers = {
        first: [each for each in each_kind if each[0].rpartition(":")[2] not in kinds]
        for first, each_kind in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for kind, number in kinds.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(number), list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, LookupError, AttributeError) as error:  # `!!bool maybe`, `!!timestamp soon`
        raise ValueError(str(error)) from None


def _apply(tree: dict[str, Any], override: str) -> str:
    """Sets a key in nested dicts, and returns its name."""
    name, equals, value = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"--set {override}: write it as section.key=value, for example train.lr=3e-4.")
    values = tree.setdefault(section, {})
    if not isinstance(values, dict):
        raise ConfigError(f"--set {override}: {section} is not a section: the config gives it a value.")
    values[key] = toml_value(value.strip())
    return f"{section}.{key}"


def toml_value(text: str) -> Any:
    """The TOML value in `text`; text that is not TOML, such as a bare path, is a string.

    >>> toml_value("3e-4"), toml_value("true"), toml_value("../shared/imdb")
    (0.0003, True, '../shared/imdb')
    """
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if len(document) == 1 else text


def _shown(value: Any) -> str:
    """The beginning of a value. A large value is shortened before it becomes text."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 80
    try:
        return shortened(short.repr(value), 80)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"


def _sentence(problem: Any) -> str:
    """One pydantic error as a sentence that names the key, and the nearest one if it is unknown."""
    location = [str(part) for part in problem["loc"]]
    where = ".".join(location) or "config"
    if problem["type"] != "extra_forbidden":
        value = "" if problem["type"] in ("value_error", "missing") else f" (got {_shown(problem['input'])})"
        return f"{where}: {problem['msg'].removeprefix('Value error, ')}{value}."
    known = Config.model_fields
    if len(location) > 1:
        known = getattr(Config(), location[0]).__class__.model_fields
    near = difflib.get_close_matches(location[-1], known, n=1)
    hint = f" Did you mean {'.'.join([*location[:-1], near[0]])}?" if near else f" Known: {', '.join(known)}."
    section = f"in section [{location[0]}]" if len(location) > 1 else "at the top"
    return f"unknown key {where} {section}.{hint}"
