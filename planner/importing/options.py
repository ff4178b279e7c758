"""Words of a command line as settings by name."""

import re
from collections.abc import Mapping, Sequence
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


def read_options(words: Sequence[str]) -> Options:
    """Settings by name; a flag alone is True, `--no-x` is x False beside itself, the first free word is POSITIONAL.

    Later flags override earlier ones, as the parsers of all engines have it; `-x` of one dash counts where long.
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
        _put(options, key, follows)
        position += 1
        while position < len(words) and not _is_flag(words[position]):
            position += 1
    return options


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
