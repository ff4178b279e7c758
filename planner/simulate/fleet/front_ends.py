"""Front ends of a fleet: processes that take requests by HTTP and make tokens of their prompts, in order of arrival.

SGLang has one for all attention ranks, whose event loop tokenises a prompt before it looks at the next
(sglang/srt/managers/tokenizer_manager.py: `_tokenize_texts`); so has trtllm-serve (tensorrt_llm/llmapi/llm.py:
`generate_async`). vLLM starts an API server for each rank (vllm/entrypoints/cli/serve.py: `api_server_count`), which
tokenises up to 32 prompts at once (vllm/utils/async_utils.py: `AsyncMicrobatchTokenizer`): sixteen of 10,000 tokens in
32 ms on a DGX H100, where one takes 11 (github.com/vllm-project/vllm/issues/19012). Routers of disaggregated engines
tokenise for them (docs.nvidia.com/dynamo, "Fastokens Tokenizer"), and are as many as it takes: none waits for them.
"""

from planner.arrays import Floats
from planner.simulate.fleet.instances import Fleet


def fronts_of(fleet: Fleet) -> list[int]:
    """The instance whose front end each instance shares: its own, the first of its group, or of all elastic ones."""
    if fleet.elastic is not None:
        return [0] * len(fleet.instances)
    sizes = (1,) * len(fleet.instances) if fleet.tokenises_together else fleet.groups or (1,) * len(fleet.instances)
    fronts: list[int] = []
    for size in sizes:
        fronts += [len(fronts)] * size
    return fronts


def entering(fleet: Fleet) -> int:
    """Front ends that requests come in by."""
    fronts = zip(fronts_of(fleet), fleet.instances, strict=True)
    return len({front for front, instance in fronts if instance.role != "decode"})


def turn_s(fleet: Fleet, prompt_tokens: Floats) -> Floats:
    """How long a front end is busy with each prompt [R], alone."""
    return fleet.frontend_s + (0.0 if fleet.tokenises_together else fleet.frontend_token_s) * prompt_tokens


def tokenised_s(fleet: Fleet, prompt_tokens: Floats) -> Floats:
    """How long prompts [R] take through an idle front end."""
    return fleet.frontend_s + fleet.frontend_token_s * prompt_tokens
