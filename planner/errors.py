"""The one exception type that users see."""


class PlannerError(Exception):
    """Anything the user can mend; becomes `error: where: what` and an indented hint on stderr, exit code 2.

    `where` is `file:line` or a dotted path into a document; `hint` is one imperative sentence.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__("".join((f"{where}: " if where else "", what, f"\n  hint: {hint}" if hint else "")))
        self.what = what
        self.where = where
        self.hint = hint


def nearest(name: str, known: list[str], *, count: int = 3) -> list[str]:
    """The known names closest to `name` (case-insensitive), best first, for `did you mean` hints."""
    import difflib

    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=count, cutoff=0.5)
    contained = [folded[key] for key in folded if name.casefold() in key and key not in close]
    return [folded[key] for key in close] + contained[: count - len(close)]


def did_you_mean(name: str, known: list[str], *, otherwise: str) -> str:
    """A hint naming the nearest known names, or `otherwise` when nothing is near."""
    close = nearest(name, known)
    return f"did you mean {' or '.join(f'`{candidate}`' for candidate in close)}? {otherwise}" if close else otherwise
