"""vLLM's own Scheduler and KV-cache manager over streams of requests, on a clock whose step times are handed over.

vllm_engine.py IN.json OUT.json, by the interpreter of an environment that has vLLM (../shared/validators); it imports
nothing of planner. IN: `tables` of step times (axes and values as in planner.simulate.fleet.step_grid.StepGrid) and
`streams`, each of `engines` (fields of `EngineSpec`), the `routing` to them, and their requests; OUT: the release, and
of each stream what the scheduler did (`Outcome`). The loop is that of EngineCore (vllm/v1/engine/core.py, release
0.33.0): `step` (667), or with more than one batch in flight `step_with_batch_queue` (708), whose empty batches take
places of the queue, so that who arrives meanwhile waits for the head. Scheduling takes no time; a pass takes what the
table says, in equal parts of the pipeline's stages. What is scheduled is executed by making up tokens, all different.
"""

import json
import math
import os
import sys
import tempfile
from bisect import bisect_right
from collections import deque
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 2**20,
    "torch_dtype": "bfloat16",
}
NAMED, OWN, SAMPLED = 2**40, 2**50, 2**51  # token ids: of named prompt blocks, of one prompt alone, of answers
STRIDE = 2**21  # token ids of a block or a prompt


@dataclass(frozen=True)
class EngineSpec:
    """An engine of a stream; `kv_blocks` are those that requests can have (vLLM keeps one more that stays empty)."""

    token_budget: int
    most_sequences: int
    kv_blocks: int
    block_tokens: int = 16
    prefix_caching: bool = False
    watermark: float = 0.0
    most_context: int = 2**20
    stages: int = 1
    asynchronous: bool = False
    idle_sleep_s: float = 0.0  # EngineCore sleeps for 1 ms after a turn that executed nothing (core.py 1694)


@dataclass
class Outcome:
    """What became of the requests of a stream, by their number; and its steps in order of scheduling."""

    token_s: list[list[float]]
    preempted: list[int]
    cached: list[int]  # tokens of the prompt found in the cache when first admitted
    steps: list[tuple[float, float, list[tuple[int, int]], int]] = field(
        default_factory=list
    )  # start, end, tokens scheduled, engine


class Table:
    """Step times by the same lookups, in the same order of operations, as the simulator's."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.axes: list[list[float]] = [values[name] for name in ("batches", "contexts", "tokens", "attended")]
        self.decode_s, self.mixed_s = values["decode_s"], values["mixed_s"]

    def step_s(self, decodes: int, context: int, tokens: int, pairs: float) -> float:
        """Seconds of a step that decodes sequences of `context` tokens in all, and prefills tokens with `pairs`."""
        mean = context / decodes if decodes else self.axes[1][0]
        if tokens == 0:
            axis, row = self.axes[1], self.decode_s[decodes]
            low = place(axis, mean)
            slope = (row[low + 1] - row[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
            return float(row[low] + slope * (mean - axis[low]))
        point = (float(decodes), mean, float(tokens), pairs / tokens)
        lows = [place(axis, value) for axis, value in zip(self.axes, point, strict=True)]
        shares = [
            (value - axis[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
            for axis, value, low in zip(self.axes, point, lows, strict=True)
        ]
        seconds = 0.0
        for attended, count, mean_up, batch in product((0, 1), repeat=4):
            corner, weight = (batch, mean_up, count, attended), 1.0
            for up, share in zip(corner, shares, strict=True):
                weight *= share if up else 1.0 - share
            if weight != 0.0:
                value = self.mixed_s
                for low, up in zip(lows, corner, strict=True):
                    value = value[low + up]
                seconds += weight * value
        return seconds


def place(axis: list[float], point: float) -> int:
    """After which value of an axis that has one behind it a point lies."""
    return min(max(bisect_right(axis, point) - 1, 0), max(len(axis) - 2, 0))


def make_scheduler(spec: EngineSpec, folder: str) -> tuple[Any, int, Any]:
    """vLLM's scheduler for an engine, how many batches it has in flight at most, and its hash of prompt blocks."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    scheduling = SchedulerConfig(
        max_num_seqs=spec.most_sequences,
        max_num_batched_tokens=spec.token_budget,
        max_model_len=spec.most_context,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        watermark=spec.watermark,
        async_scheduling=spec.asynchronous,
    )
    cache = CacheConfig(block_size=spec.block_tokens, enable_prefix_caching=spec.prefix_caching)
    model = ModelConfig(
        model=folder, skip_tokenizer_init=True, max_model_len=spec.most_context, dtype="bfloat16", enforce_eager=True
    )
    parallel = ParallelConfig()
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduling,
        cache_config=cache,
        parallel_config=parallel,
        device_config=DeviceConfig("cpu"),
    )
    parallel.pipeline_parallel_size = spec.stages
    cache.num_gpu_blocks = spec.kv_blocks + 1
    layer = FullAttentionSpec(block_size=spec.block_tokens, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    groups = [KVCacheGroupSpec(["layer"], layer)]
    kv = KVCacheConfig(num_blocks=spec.kv_blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)
    scheduler = scheduling.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=spec.block_tokens,
    )
    hasher = None
    if spec.prefix_caching:
        hash_function = get_hash_fn_by_name(cache.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        hasher = get_request_block_hasher(spec.block_tokens, hash_function)
    return scheduler, config.max_concurrent_batches, hasher


@dataclass
class Batch:
    """A batch in flight: what was scheduled, when it is out of the last stage, and who gets a token."""

    output: Any
    end_s: float
    sampled: list[bool]


class Engine:
    """The core of an engine: a queue of batches in flight, and what has come in meanwhile."""

    def __init__(
        self, spec: EngineSpec, table: Table, requests: dict[str, Any], folder: str, outcome: Outcome, number: int
    ) -> None:
        self.spec, self.table, self.outcome, self.number = spec, table, outcome, number
        self.scheduler, self.most_batches, self.hasher = make_scheduler(spec, folder)
        self.outstanding: set[int] = set()  # requests sent here that have no last token yet
        self.given, self.wake_s, self.asleep = requests, math.inf, False
        self.incoming: list[Any] = []
        self.flight: deque[Batch] = deque()
        self.free_s = [0.0] * spec.stages
        self.whole: dict[str, int] = {}  # tokens of a request that are prefilled before it decodes

    def request(self, number: int) -> Any:  # noqa: ANN401 - of vLLM
        """A request as vLLM has it."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        given, tokens = self.given, list[int]()
        for block in given["prefix"][number] if given["prefix"] else []:
            first = NAMED + block * STRIDE
            tokens += range(first, first + given["prefix_tokens"][block])
        first = OWN + number * STRIDE
        tokens += range(first, first + given["input_tokens"][number] - len(tokens))
        answer = SamplingParams(max_tokens=given["output_tokens"][number], ignore_eos=True)
        return Request(str(number), tokens, answer, None, arrival_time=float(number), block_hasher=self.hasher)

    def turn(self, now_s: float) -> None:
        """Turns of EngineCore from now until it waits: for a batch, for the end of a sleep, or for requests."""
        while True:
            for request in self.incoming:
                self.scheduler.add_request(request)
            self.incoming.clear()
            executed = False
            if self.scheduler.has_requests():
                executed = self.schedule(now_s)
                if len(self.flight) < self.most_batches and (executed or self.scheduler.has_requests()):
                    if not executed and self.sleep(now_s):
                        return
                    continue
            elif not self.flight:
                self.wake_s = math.inf
                return
            if not any(batch.output.total_num_scheduled_tokens for batch in self.flight):
                while self.flight:
                    self.update(now_s)
                if self.scheduler.has_finished_requests():
                    continue
                self.wake_s = math.inf  # nothing fits: an engine that could never go on is of no interest here
                return
            self.wake_s = max(self.flight[0].end_s, now_s)
            if self.wake_s > now_s:
                return
            self.update(now_s)
            if not executed and self.scheduler.has_requests() and self.sleep(now_s):
                return

    def sleep(self, now_s: float) -> bool:
        """Whether it sleeps now, after a turn without anything executed."""
        self.asleep = self.spec.idle_sleep_s > 0.0
        self.wake_s = now_s + self.spec.idle_sleep_s
        return self.asleep

    def end(self, now_s: float) -> None:
        """The wait is over: for the batch at the head, or a sleep."""
        if self.asleep:
            self.asleep = False
            return
        self.update(now_s)

    def schedule(self, now_s: float) -> bool:
        """Forms a batch and sends it through the stages; whether it has anything in it."""
        output = self.scheduler.schedule()
        tokens = output.num_scheduled_tokens
        for name in output.preempted_req_ids or ():
            self.outcome.preempted[int(name)] += 1
        if not tokens:
            self.flight.append(Batch(output, now_s, []))
            return False
        admitted = {request.req_id for request in output.scheduled_new_reqs}
        for name in admitted | output.scheduled_cached_reqs.resumed_req_ids:
            self.admitted(name, tokens[name])
        decodes = context = prefilled = 0
        pairs, sampled = 0.0, []
        for name, count in tokens.items():
            request = self.scheduler.requests[name]
            before = request.num_computed_tokens - count
            sampled.append(not request.is_prefill_chunk)
            if before >= self.whole[name]:
                decodes, context = decodes + 1, context + before + 1
            else:
                prefilled, pairs = prefilled + count, pairs + count * (before + (count + 1) / 2)
        end_s = start_s = max(now_s, self.free_s[0])
        pass_s = self.table.step_s(decodes, context, prefilled, pairs)
        for stage, free_s in enumerate(self.free_s):
            end_s = self.free_s[stage] = max(end_s, free_s) + pass_s / self.spec.stages
        self.flight.append(Batch(output, end_s, sampled))
        self.outcome.steps.append((start_s, end_s, [(int(name), count) for name, count in tokens.items()], self.number))
        return True

    def admitted(self, name: str, count: int) -> None:
        """A request that was waiting is scheduled."""
        request, number = self.scheduler.requests[name], int(name)
        self.whole[name] = request.num_tokens
        if self.outcome.cached[number] < 0:
            self.outcome.cached[number] = request.num_computed_tokens - count

    def update(self, now_s: float) -> None:
        """The batch at the head of the queue is done: its tokens are made up and handed to the scheduler."""
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

        batch = self.flight.popleft()
        names = list(batch.output.num_scheduled_tokens)
        made = EMPTY_MODEL_RUNNER_OUTPUT
        if names:
            tokens = [
                [SAMPLED + int(name) * STRIDE + len(self.outcome.token_s[int(name)])] if sampled else []
                for name, sampled in zip(names, batch.sampled, strict=True)
            ]
            made = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, tokens)
        for outputs in self.scheduler.update_from_output(batch.output, made).values():
            for answer in outputs.outputs:
                self.outcome.token_s[int(answer.request_id)] += [now_s] * len(answer.new_token_ids)
                if answer.finish_reason is not None:
                    self.outstanding.discard(int(answer.request_id))


def route(engines: list[Engine], routing: str, request: int) -> Engine:
    """Where a request goes: in turn, or to the engine with the fewest that are not answered, the first of equals."""
    if routing == "round-robin":
        return engines[request % len(engines)]
    return min(engines, key=lambda engine: (len(engine.outstanding), engine.number))


def run(specs: list[EngineSpec], tables: list[Table], routing: str, requests: dict[str, Any], folder: str) -> Outcome:
    """A stream from its first arrival until nothing more will happen.

    At one moment batches end, then requests come, then batches are formed.
    """
    arrivals = requests["arrival_s"]
    outcome = Outcome([[] for _ in arrivals], [0] * len(arrivals), [-1] * len(arrivals))
    engines = [
        Engine(spec, table, requests, folder, outcome, number)
        for number, (spec, table) in enumerate(zip(specs, tables, strict=True))
    ]
    coming = 0
    while True:
        now_s = min([engine.wake_s for engine in engines] + arrivals[coming : coming + 1])
        if now_s == math.inf:
            return outcome
        ready = [engine for engine in engines if engine.wake_s == math.inf or engine.wake_s <= now_s]
        for engine in ready:
            if engine.wake_s <= now_s:
                engine.end(now_s)
        while coming < len(arrivals) and arrivals[coming] <= now_s:
            engine = route(engines, routing, coming)
            engine.outstanding.add(coming)
            engine.incoming.append(engine.request(coming))
            coming += 1
        for engine in ready:
            engine.turn(now_s)


def main() -> None:
    import vllm

    given = json.loads(Path(sys.argv[1]).read_text())
    tables = [Table(values) for values in given["tables"]]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        for stream in given["streams"]:
            specs = [EngineSpec(**engine) for engine in stream["engines"]]
            steps = [tables[number] for number in stream["tables"]]
            outcomes.append(asdict(run(specs, steps, stream["routing"], stream["requests"], folder)))
    Path(sys.argv[2]).write_text(json.dumps({"release": vllm.__version__, "streams": outcomes}))


if __name__ == "__main__":
    main()
