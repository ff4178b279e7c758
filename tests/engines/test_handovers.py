"""Ways of caches from prefill to decode, against every pair and every set of shapes."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engines.handover import (
    RULES,
    CacheTraits,
    Side,
    Way,
    broken_rule,
    connector_between,
    ways,
    why_apart,
)
from planner.engines.load import release_of
from planner.engines.release import Connector, Release, Rule
from planner.models.library import find_model

VLLM, SGLANG = release_of("vllm", None), release_of("sglang", None)
PLAIN = CacheTraits(kv_heads=4, windows=False, state=False, shared_indexer=False)
LATENT = replace(PLAIN, kv_heads=None)


def moved(release: Release, sent: tuple[int, int], received: tuple[int, int], traits: CacheTraits) -> str | None:
    connector = connector_between(release, [Side(*sent)], [Side(*received)], traits)
    return None if connector is None else connector.name


@pytest.mark.parametrize(
    ("sent", "received", "traits", "connector"),
    [
        ((2, 1), (2, 1), PLAIN, "NixlConnector"),
        ((4, 1), (1, 1), PLAIN, "NixlConnector"),
        ((1, 1), (8, 1), PLAIN, "NixlConnector"),  # 4 heads on 8 ranks, each reads its own from one
        ((8, 1), (8, 1), PLAIN, "NixlConnector"),
        ((8, 1), (4, 1), PLAIN, "NixlPushConnector"),  # a reader would have to merge copies of heads
        ((1, 2), (1, 1), PLAIN, "NixlPushConnector"),  # a reader would find half of its layers
        ((1, 16), (4, 1), PLAIN, "NixlPushConnector"),
        ((2, 2), (8, 1), PLAIN, None),
        ((8, 2), (8, 1), PLAIN, "NixlPushConnector"),
        ((2, 2), (8, 1), LATENT, "NixlPushConnector"),
        ((2, 1), (2, 2), PLAIN, None),
        ((2, 2), (2, 2), PLAIN, None),
        ((2, 1), (3, 1), PLAIN, None),
        ((2, 2), (2, 1), replace(PLAIN, state=True), None),
        ((2, 1), (4, 1), replace(PLAIN, state=True), "NixlConnector"),
        ((2, 2), (2, 1), replace(PLAIN, windows=True), "NixlPushConnector"),
        ((2, 2), (4, 1), replace(PLAIN, windows=True), None),
        ((2, 2), (2, 1), replace(LATENT, shared_indexer=True), None),
    ],
)
def test_vllm_reads_what_stands_in_one_place_and_writes_what_does_not(
    sent: tuple[int, int], received: tuple[int, int], traits: CacheTraits, connector: str | None
) -> None:
    assert moved(VLLM, sent, received, traits) == connector


@pytest.mark.parametrize(
    ("sent", "received", "traits", "can"),
    [
        ((2, 4), (4, 1), PLAIN, True),
        ((2, 4), (1, 1), PLAIN, True),
        ((2, 4), (2, 1), PLAIN, False),  # stages do not say which layers theirs are
        ((2, 4), (2, 1), LATENT, True),
        ((2, 4), (4, 1), replace(PLAIN, head_layers=62), False),  # stages of 15 and 16 layers
        ((2, 4), (4, 1), replace(PLAIN, head_layers=64), True),
        ((2, 4), (2, 4), PLAIN, True),
        ((2, 4), (2, 2), PLAIN, False),
        ((2, 1), (2, 2), PLAIN, False),
        ((2, 2), (2, 1), replace(PLAIN, state=True), True),
        ((2, 2), (2, 1), replace(PLAIN, windows=True), False),
        ((3, 1), (2, 1), PLAIN, False),
    ],
)
def test_sglang_decodes_in_one_stage_or_in_those_of_prefill(
    sent: tuple[int, int], received: tuple[int, int], traits: CacheTraits, can: bool
) -> None:
    assert moved(SGLANG, sent, received, traits) == ("nixl" if can else None)
    assert (why_apart(SGLANG, Side(*sent), Side(*received), traits) is None) == can


def test_traits_of_models() -> None:
    assert CacheTraits.of(find_model("Qwen/Qwen3-235B-A22B")) == replace(PLAIN, head_layers=94)
    assert CacheTraits.of(find_model("deepseek-ai/DeepSeek-V3")) == LATENT
    assert CacheTraits.of(find_model("openai/gpt-oss-120b")) == replace(PLAIN, kv_heads=8, windows=True, head_layers=36)
    assert CacheTraits.of(find_model("Qwen/Qwen3.5-27B")).state
    assert CacheTraits.of(find_model("zai-org/GLM-5.2")).shared_indexer


def subsets(sides: Iterable[Side]) -> list[frozenset[Side]]:
    listed = list(sides)
    return [frozenset(c) for size in range(1, len(listed) + 1) for c in combinations(listed, size)]


SIDES = [Side(tp, pp) for tp, pp in product((1, 2, 4), (1, 2))]


@given(
    st.lists(st.sets(st.sampled_from(sorted(RULES)), max_size=3), min_size=1, max_size=3),
    st.lists(st.sampled_from(("prefill", "decode")), min_size=3, max_size=3),
    st.sets(st.sampled_from(SIDES), min_size=1, max_size=4),
    st.sets(st.sampled_from(SIDES), min_size=1, max_size=4),
    st.builds(
        CacheTraits, st.sampled_from((None, 1, 2)), st.booleans(), st.booleans(), st.booleans(), st.sampled_from((3, 4))
    ),
)
def test_ways_hold_every_set_that_one_connector_joins_and_nothing_else(
    rules: list[set[str]], started: list[str], senders: set[Side], receivers: set[Side], traits: CacheTraits
) -> None:
    connectors = tuple(
        Connector(str(i), started[i], {}, {}, {}, tuple(Rule(name, name, "") for name in sorted(names)), "")
        for i, names in enumerate(rules)
    )
    release = replace(VLLM, connectors=connectors)
    by_name = {connector.name: connector for connector in connectors}

    def joined(connector: Connector, senders: Iterable[Side], receivers: Iterable[Side]) -> bool:
        return all(broken_rule(connector, a, b, traits) is None for a, b in product(senders, list(receivers)))

    stated = ways(release, senders, receivers, traits, most=64)
    few = ways(release, senders, receivers, traits, most=0)
    for sent, received in product(senders, receivers):
        legal = any(joined(connector, [sent], [received]) for connector in connectors)
        assert legal == any(sent in way.senders and received in way.receivers for way in few)
    assert all(joined(by_name[way.connector], way.senders, way.receivers) for way in stated)
    for some, others in product(subsets(senders), subsets(receivers)):
        legal = any(joined(connector, some, others) for connector in connectors)
        assert legal == any(Way("", some, others).within(way) for way in stated)
    for a, b in combinations(stated, 2):
        assert not a.within(b)
        assert not b.within(a)
