"""Prints errors as text: `error: where: what`, the line of the file with a caret, and an indented hint."""

import re

from planner.errors import PlannerError, UnknownKeyError, did_you_mean

_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::\s*(?P<path>\S+))?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def render_error(error: PlannerError) -> str:
    """The error as text for stderr; control characters of foreign files are shown, never sent to the terminal."""
    where = f"{error.where}: " if error.where else ""
    lines = [f"error: {where}{error.what}", *_excerpt(error)]
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return plain("\n".join(lines))


def plain(text: str) -> str:
    """`text` with control characters other than tab and newline written as escapes."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _excerpt(error: PlannerError) -> list[str]:
    """The line of the file that the error names and a caret under what is wrong in it, or nothing."""
    place = _PLACE.fullmatch(error.where)
    if place is None:
        return []
    number = int(place["line"])
    try:
        with open(place["file"], encoding="utf-8", errors="replace") as file:
            source = next((line.rstrip() for line_number, line in enumerate(file, 1) if line_number == number), "")
    except (OSError, ValueError):
        return []
    if not source.strip() or len(source) > 160:
        return []
    start, width = _span(source, (place["path"] or "").split("."), of_key=isinstance(error, UnknownKeyError))
    gutter = " " * len(str(number))
    return [f"  {number} | {source}", f"  {gutter} | {' ' * start}{'^' * width}"]


def _span(source: str, keys: list[str], *, of_key: bool) -> tuple[int, int]:
    """Start and width of the value of the last of `keys` in `source`, of the key where its value is below it or fine.

    The whole text of the line where it holds none of the keys.
    """
    for key in reversed(keys):
        match = re.search(rf"(?P<key>[\"']?{re.escape(key)}[\"']?)\s*:(?:\s+(?P<value>[^,}}\]#]*[^,}}\]#\s]))?", source)
        if key and match is not None:
            inline = match["value"] and match["value"][0] not in "{["
            group = "value" if inline and not of_key else "key"
            return match.start(group), len(match[group])
    start = len(source) - len(source.lstrip())
    return start, len(source.strip())


def usage_error(error: BaseException) -> PlannerError:
    """A mistake in the command line, as the parser found it, in our own words."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "planner"
    otherwise = f"see `{command} --help`"
    option = getattr(error, "option_name", None)
    if isinstance(option, str) and hasattr(error, "possibilities"):
        known = [name for parameter in context.command.params for name in parameter.opts] if context is not None else []
        return PlannerError(f"unknown option `{option}`", hint=did_you_mean(option, known, otherwise=otherwise))
    message = str(getattr(error, "message", None) or error).strip().split("\n")[0].removesuffix(".")
    parameter = getattr(error, "param", None)
    if parameter is not None:
        is_option = parameter.param_type_name == "option"
        names = " / ".join(
            f"`{name}`" for name in (parameter.opts if is_option else [parameter.metavar or parameter.name])
        )
        is_missing = hasattr(error, "param_type")
        return PlannerError(
            f"missing {parameter.param_type_name} {names}" if is_missing else f"invalid value for {names}: {message}",
            hint=otherwise,
        )
    if option is not None:
        message = message.replace(f"'{option}'", f"`{option}`")
    return PlannerError(message[:1].lower() + message[1:], hint=otherwise)
