"""Secrets of artifacts hidden where their lines are shown: values of variables that are called so, and known tokens."""

import re

_NAME = r"[\w.-]*(?:token|secret|passw(?:or)?d|credential|api[_-]?key|access[_-]?key|private[_-]?key)\w*"
_VALUE = re.compile(rf"(?i)(\b{_NAME}[\"']?\s*[:=]\s*[\"']?)([^\s\"'#,}}]+)")
_NAMED = re.compile(rf"(?im)(name:\s*[\"']?{_NAME}[\"']?\s*(?:,\s*|\n[-+ ]*\s*)value:\s*[\"']?)([^\s\"'#,}}]+)")
_TOKEN = re.compile(r"\b(hf_[A-Za-z0-9]{6,}|sk-[\w-]{8,}|gh[pousr]_\w{8,}|AKIA[A-Z0-9]{8,}|xox[abp]-[\w-]{8,})")
_KEPT = re.compile(r"\A(?:\$.*|null|true|false|\d{1,7}|valueFrom:?)\Z", re.I)
HIDDEN = "***"


def hidden(text: str) -> str:
    """`text` without its secrets; references to variables, switches and counts stay."""
    for pattern in (_NAMED, _VALUE):
        text = pattern.sub(lambda match: match[0] if _KEPT.match(match[2]) else f"{match[1]}{HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)
