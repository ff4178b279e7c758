"""Context-length limit (`--max-model-len`): answers cut at it, or requests refused, as each engine does.

vLLM ends an answer when prompt and output reach `--max-model-len` (`check_stop`, vllm/v1/core/sched/utils.py) and
refuses a prompt that leaves no room for a token (`_validate_model_input`, vllm/v1/engine/processor.py). TensorRT-LLM
refuses prompts beyond `max_input_len` and lowers the output tokens to what is left of `max_seq_len` (`validate`,
cpp/include/tensorrt_llm/batch_manager/llmRequest.h). SGLang refuses prompts of `--context-length` and lowers the output
tokens alike, to two tokens less (`init_req_max_new_tokens`, python/sglang/srt/managers/scheduler.py). All three may be
asked for more output than there is room for; the front ends of vLLM and SGLang refuse such a request, where it names
its number itself. Requests here name none: their output is what the model would have to say. An engine that prefills
for others makes one token of an answer, so that its limit is on prompts alone.
"""

import numpy as np

from planner.arrays import Ints
from planner.simulate.fleet.instances import UNLIMITED, Fleet
from planner.simulate.requests.stream import Requests

ENDLESS = 2**40  # output tokens of a request that is refused: no cache holds them


def answer_tokens(fleet: Fleet, requests: Requests, first: Ints, last: Ints) -> Ints:
    """Output tokens of each request [R], cut at the limit of the instances that take it; ENDLESS where it is refused.

    `first` and `last` are the numbers of the instances of its way (`shares.instances_of`); of those with one number the
    largest limit counts.
    """
    if all(instance.most_context == UNLIMITED for instance in fleet.instances):
        return requests.output_tokens
    room = np.full(len(requests), UNLIMITED, dtype=np.int64)
    refused = np.zeros(len(requests), dtype=np.bool_)
    for taken, roles in ((first, ("colocated", "prefill")), (last, ("decode",)), (first, ("colocated",))):
        limits: dict[int, int] = {}
        for instance in fleet.instances:
            if instance.role in roles:
                limits[instance.model] = max(limits.get(instance.model, 0), instance.most_context)
        for number, tokens in limits.items():
            left = np.where(taken == number, tokens - requests.input_tokens, UNLIMITED)
            refused |= left < 1
            room = np.minimum(room, left) if "prefill" not in roles else room
    return np.where(refused, ENDLESS, np.minimum(requests.output_tokens, room)).astype(np.int64)
