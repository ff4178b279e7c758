"""Words of a command line as settings by name."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from planner.importing.values import is_unknown

Options = dict[str, Any]
POSITIONAL = ""
_SWITCHES = re.compile(
    r"(enable|disable|no|use|trust|skip|overlap|colocate|fp16|bf16|swiglu|sequence_parallel|enforce)(_|\Z)"
)
_SHORT = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "ep": "ep_size"}
_TAKES_VALUE = frozenset({"enable_auto_tool_choice_with", "no_proxy"})


def option_name(text: str) -> str:
    """`--max-num-seqs`, `max_num_seqs` and `maxNumSeqs` as one name."""
    text = text.strip().lstrip("-")
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return text.replace("-", "_").lower()


def read_options(words: Sequence[str], lists: Collection[str] = ()) -> Options:
    """Settings by name; a flag alone is True, `--no-x` is x False beside itself, the first free word is POSITIONAL.

    Later flags override earlier ones, as the parsers of all engines have it; `-x` of one dash counts where long. Of
    several values behind a flag the first counts, or all where `lists` names it.
    """
    options: Options = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not _is_flag(word):
            if POSITIONAL not in options:
                options[POSITIONAL] = word
            continue
        name, equals, value = word.partition("=")
        key = option_name(name)
        if equals:
            _put(options, key, value)
            continue
        follows = words[position] if position < len(words) else None
        switch = _SWITCHES.match(key) is not None and key not in _TAKES_VALUE
        if follows is None or _is_flag(follows) or (switch and follows.lower() not in ("true", "false")):
            _put(options, key, True)
            continue
        first = position
        while position < len(words) and not _is_flag(words[position]):
            position += 1
        _put(options, key, list(words[first:position]) if key in lists else follows)
    return options


def words_of(value: object) -> list[str]:
    """The values of a flag or field that takes several: a list, or words with blanks or commas between them."""
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    return [word for text in texts for word in str(text).replace(",", " ").split()]


def stated(options: Options, names: Iterable[str]) -> list[str]:
    """Those of the settings that ask for anything, as flags."""
    return [_as_flag(name, options[name]) for name in names if asks(name, options.get(name))]


def asks(name: str, value: object) -> bool:
    """Whether a setting asks for anything: it is neither absent nor off, nor a degree of 1."""
    nothing = ("", "0", "0.0", "false", "none", *(("1",) if name.endswith("_size") else ()))
    return value is not None and str(value).strip().lower() not in nothing


def _as_flag(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True or isinstance(value, Mapping) or is_unknown(value) else f"{flag} {value}"


def _is_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None and not is_unknown(word[:3])


def _put(options: Options, key: str, value: object) -> None:
    key = _SHORT.get(key, key)
    options.pop(key, None)
    options[key] = value
    if key.startswith("no_") and value in (True, "true", "True"):
        options.setdefault(key[3:], False)
        options[key[3:]] = False


def named(settings: Mapping[str, Any]) -> Options:
    """The settings of a configuration file by the names that flags have."""
    options: Options = {}
    for key, value in settings.items():
        _put(options, option_name(str(key)), value)
    return options
