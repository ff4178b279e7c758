"""Orders engine versions such as `1.3.0rc20`, `0.5.6.post2`, `2.23`, and measures how far two are apart."""

import re

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)[-_.]?(?:(dev|alpha|a|beta|b|rc|c|post)[-_.]?(\d*))?", re.IGNORECASE)
_PHASE = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "c": -1, "rc": -1, "post": 1}
_RELEASE_PARTS = 4

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """Four release numbers, the phase (negative before a release, 0 the release, 1 post) and its number.

    A local part (`+g1234`) is ignored; text without a leading number sorts below every version.
    """
    match = _VERSION.match(text.strip())
    if match is None:
        return (-1,) * _RELEASE_PARTS + (0, 0)
    release = [int(part) for part in match[1].split(".")][:_RELEASE_PARTS]
    phase = _PHASE[match[2].lower()] if match[2] else 0
    return (*release, *([0] * (_RELEASE_PARTS - len(release))), phase, int(match[3] or 0))


def distance(left: Version, right: Version) -> Version:
    """How far two versions lie apart, compared part by part: a major number outweighs every minor one."""
    return tuple(abs(a - b) for a, b in zip(left, right, strict=True))


def by_preference(wanted: str | None, known: list[str]) -> list[str]:
    """Known versions, best first: the wanted one, then the nearest, of two as near the newer; for None newest first."""
    newest_first = sorted(known, key=parse_version, reverse=True)
    if wanted is None:
        return newest_first
    target = parse_version(wanted)
    return sorted(newest_first, key=lambda version: (version != wanted, distance(target, parse_version(version))))
