"""The first rollout of an RL plan, sample by sample: who makes each, and how long the last ones are waited for."""

from collections.abc import Iterator, Sequence

from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope
from planner.report.charts import threads
from planner.report.page import Section
from planner.rl.sample_spans import SampleSpan

_MOST = 200  # samples that are drawn


def rollout_section(envelope: Envelope, decision: Decision) -> Iterator[Section]:
    """Nothing of other kinds, nor of a plan that was stated and not solved."""
    if envelope.kind != "rl":
        return
    own = find_kind(envelope.kind).timeline()
    try:
        drawn: list[SampleSpan] = own.samples(envelope, decision)
    except PlannerError:
        return
    by_sample: dict[int, list[SampleSpan]] = {}
    for span in drawn:
        by_sample.setdefault(span.sample, []).append(span)
    samples = sorted(by_sample.values(), key=_replica)
    count = min(len(samples), _MOST)
    shown = [samples[place * len(samples) // count] for place in range(count)]
    replicas = {name: place for place, name in enumerate(dict.fromkeys(own.span_replica(s, decision) for s in drawn))}

    def row(spans: Sequence[SampleSpan]) -> list[tuple[float, float, int, str]]:
        names = [own.span_replica(span, decision) for span in spans]
        return [
            (span.start_s, span.end_s - span.start_s, replicas[name], _words(span, name))
            for span, name in zip(spans, names, strict=True)
        ]

    body = threads("samples of a rollout", [row(spans) for spans in shown], "s")
    yield Section("A rollout, sample by sample", body, _note(samples, len(shown), len(replicas)))


def _replica(spans: Sequence[SampleSpan]) -> tuple[int, int, float, int]:
    first = spans[0]
    return first.group, first.replica, first.start_s, first.sample


def _words(span: SampleSpan, name: str) -> str:
    turn = f", turn {span.turn + 1}" if span.turn else ""
    ends = "done at" if span.finished else "until"
    times = f"from {format_si(span.start_s, 's')}, {ends} {format_si(span.end_s, 's')}"
    return f"sample {span.sample}{turn} on {name}: {span.output_tokens} tokens behind {span.prompt_tokens}, {times}"


def _note(samples: Sequence[Sequence[SampleSpan]], shown: int, replicas: int) -> str:
    ends_s = sorted(max(span.end_s for span in spans) for spans in samples)
    half, most, last = (format_si(ends_s[int(share * (len(ends_s) - 1))], "s") for share in (0.5, 0.9, 1.0))
    told = f"Half of the samples are done after {half}, 90 % after {most}, the last after {last}."
    drawn = "every one" if shown == len(samples) else f"{shown:,} of {len(samples):,} samples"
    colours = f"a line each, the colour says which of {replicas} replicas"
    return f"{told} Drawn are {drawn} of the first batch of lengths, {colours}; `--perfetto` has all."
