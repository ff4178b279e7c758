"""How prefill may hand KV caches to decode: connectors of an engine, and which shapes each can stand between.

A connector joins every prefill role of a group with every decode role of it: routers choose among all of them.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.engines.release import Connector, Release, Rule
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, LinearAttention


class Side(NamedTuple):
    """Tensor and pipeline parallel sizes of a role, which its cache is cut by."""

    tp: int
    pp: int


@dataclass(frozen=True, slots=True)
class CacheTraits:
    """What of a model's cache decides how it can be moved."""

    kv_heads: int | None  # least of a layer; None where heads are not cached
    windows: bool  # layers that cache a window or chunk only
    state: bool  # layers that keep a recurrent state
    shared_indexer: bool  # layers that read the tokens which another layer's indexer chose
    head_layers: int = 0  # that cache heads

    @classmethod
    def of(cls, arch: Architecture) -> "CacheTraits":
        """Those of an architecture."""
        mixers = [layer.mixer for layer in arch.layers]
        grouped = [mixer for mixer in mixers if isinstance(mixer, GroupedQueryAttention)]
        latent = [mixer for mixer in mixers if isinstance(mixer, LatentAttention)]
        return cls(
            kv_heads=min((mixer.num_kv_heads for mixer in grouped), default=None),
            windows=any(mixer.window_tokens for mixer in grouped),
            state=any(isinstance(mixer, LinearAttention) for mixer in mixers),
            shared_indexer=any(mixer.indexer is not None and mixer.indexer.shared for mixer in latent),
            head_layers=len(grouped),
        )


def _wider_and_repeated(starts: Side, peer: Side, traits: CacheTraits) -> bool:
    """Whether the peer of the side that starts the transfer has more ranks than that, and than there are KV heads."""
    return traits.kv_heads is not None and not traits.state and peer.tp > max(starts.tp, traits.kv_heads)


def _repeats(sent: Side, received: Side, traits: CacheTraits, connector: Connector) -> bool:
    reads = connector.started_by == "decode"
    return _wider_and_repeated(received, sent, traits) if reads else _wider_and_repeated(sent, received, traits)


def _joins_stages_of_heads(sent: Side, received: Side, traits: CacheTraits) -> bool:
    """Whether stages whose layers cache heads hand over to decode of another number of stages."""
    return traits.kv_heads is not None and sent.pp > 1 and received.pp != sent.pp


Broken = Callable[[Side, Side, CacheTraits, Connector], bool]
RULES: dict[str, Broken] = {
    "tp-divides": lambda sent, received, _, __: bool(max(sent.tp, received.tp) % min(sent.tp, received.tp)),
    "decode-in-one-stage": lambda _, received, __, ___: received.pp > 1,
    "decode-in-one-stage-or-those-of-prefill": lambda sent, received, _, __: received.pp not in (1, sent.pp),
    "prefill-in-one-stage": lambda sent, _, __, ___: sent.pp > 1,
    "no-repeated-heads-on-the-wider-peer": _repeats,
    "no-state-in-stages": lambda sent, _, traits, __: sent.pp > 1 and traits.state,
    "no-windows-in-stages": lambda sent, _, traits, __: sent.pp > 1 and traits.windows,
    "windows-in-stages-to-no-wider-decode": (
        lambda sent, received, traits, __: sent.pp > 1 and traits.windows and received.tp > sent.tp
    ),
    "heads-in-stages-to-another-tp": (
        lambda sent, received, traits, __: (
            _joins_stages_of_heads(sent, received, traits) and not traits.state and received.tp == sent.tp
        )
    ),
    "heads-in-equal-stages-to-another-tp": (
        lambda sent, received, traits, __: (
            _joins_stages_of_heads(sent, received, traits)
            and received.tp != sent.tp
            and bool(traits.head_layers % sent.pp)
        )
    ),
    "no-shared-indexer-in-stages": lambda sent, _, traits, __: sent.pp > 1 and traits.shared_indexer,
}
"""Whether a rule is broken by a prefill and a decode role of a model, moved by a connector."""


def broken_rule(connector: Connector, sent: Side, received: Side, traits: CacheTraits) -> Rule | None:
    """The first rule by which the connector cannot move a cache; None where it can."""
    return next((rule for rule in connector.rules if RULES[rule.name](sent, received, traits, connector)), None)


def connector_between(
    release: Release, senders: Iterable[Side], receivers: Iterable[Side], traits: CacheTraits
) -> Connector | None:
    """The first connector that joins every sender with every receiver; None where no one does."""
    pairs = [(sent, received) for sent in senders for received in list(receivers)]
    for connector in release.connectors:
        if not any(broken_rule(connector, *pair, traits) for pair in pairs):
            return connector
    return None


def why_apart(release: Release, sent: Side, received: Side, traits: CacheTraits) -> Rule | None:
    """The rule by which the last connector that could have joined two roles does not; None where one does."""
    rule = None
    for connector in release.connectors:
        rule = broken_rule(connector, sent, received, traits)
        if rule is None:
            return None
    return rule


@dataclass(frozen=True, slots=True)
class Way:
    """A connector, with prefill and decode shapes all of which it joins."""

    connector: str
    senders: frozenset[Side]
    receivers: frozenset[Side]

    def within(self, other: "Way") -> bool:
        """Whether all that it joins is joined the other way too."""
        return self.senders <= other.senders and self.receivers <= other.receivers

    @property
    def text(self) -> str:
        """Such as `NixlConnector: tp1, tp2 to tp1, tp2, tp4`."""
        senders, receivers = (
            ", ".join(f"tp{tp}{f' pp{pp}' if pp > 1 else ''}" for tp, pp in sorted(sides))
            for sides in (self.senders, self.receivers)
        )
        return f"{self.connector}: {senders} to {receivers}"

    def takes(self, function: str, side: Side) -> bool:
        """Whether a prefill or decode role of that shape can go this way."""
        return side in (self.senders if function == "prefill" else self.receivers)


MOST_WAYS = 8
NO_WAY = Way("", frozenset(), frozenset())
"""What joins nothing."""


def ways(
    release: Release,
    senders: Collection[Side],
    receivers: Collection[Side],
    traits: CacheTraits,
    *,
    most: int = MOST_WAYS,
) -> tuple[Way, ...]:
    """The fewest ways that let every legal set of prefill and decode shapes stand together.

    A legal set is a complete bipartite graph of the pairs that one connector joins, so that the largest of them are
    enough: for each set of receivers that some senders share, all senders that reach all of it. Where that makes more
    than `most`, only sets that are all that some sender reaches are taken: every pair stands together then, and not
    every set does.
    """
    for together in (True, False):
        largest: list[Way] = []
        for connector in release.connectors:
            largest += _of_connector(connector, sorted(senders), sorted(receivers), traits, together)
        kept = tuple(way for i, way in enumerate(largest) if not _covered(way, i, largest))
        if len(kept) <= most:
            break
    return kept


def _covered(way: Way, index: int, all_ways: Sequence[Way]) -> bool:
    """Whether another way joins all that this one does, and more, or as much and stands before it."""
    return any(
        way.within(wider) and (j < index or not wider.within(way)) for j, wider in enumerate(all_ways) if j != index
    )


def _of_connector(
    connector: Connector, senders: Sequence[Side], receivers: Sequence[Side], traits: CacheTraits, together: bool
) -> list[Way]:
    reach = {
        sent: frozenset(to for to in receivers if broken_rule(connector, sent, to, traits) is None) for sent in senders
    }
    shared = {joined for joined in reach.values() if joined}
    while together:
        more = {a & b for a in shared for b in shared} - shared - {frozenset[Side]()}
        if not more:
            break
        shared |= more
    return [
        Way(connector.name, frozenset(sent for sent in senders if reach[sent] >= joined), joined)
        for joined in sorted(shared, key=lambda joined: (-len(joined), sorted(joined)))
    ]
