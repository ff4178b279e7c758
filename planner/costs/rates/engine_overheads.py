"""What serving engines add to their kernels, and the section of a calibration file that holds it for a release."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.arrays import Floats


@dataclass(frozen=True, slots=True)
class EngineOverheads:
    """What an engine adds to its kernels, not hidden behind the device."""

    kernel_start: float = 1.0  # its kernels' starts, as a multiple of those of the roofline
    experts_start: float = 1.0  # those of routed experts once more: sorting and gathering tokens, where not fused
    latent_start: float = 1.0  # and those of latent attention,
    quantise_start: float = 1.0  # and of quantising the inputs of products, where not fused
    step_s: float = 0.0  # each step
    sequence_s: float = 0.0  # each sequence in the step
    prefill_s: float = 0.0  # each step that prefills (no CUDA graph)
    launch_s: float = 0.0  # of the host for each kernel of a step that prefills: it takes that long at least
    latent_launch_s: float = 0.0  # more of it for each layer of latent attention
    triton_launch_s: float = 0.0  # and for each layer of experts in Triton's kernels, which Python launches
    frontend_s: float = 0.0  # each request, one after the other: HTTP
    frontend_token_s: float = 0.0  # and each token of its prompt: tokenising, on one core
    tokenises_together: float = 0.0  # 1 where several prompts are tokenised at once, by a front end of each rank
    arrival_s: float = 0.0  # mean delay of a request on its way to the scheduler
    poll_steps: float = 1.0  # decode steps from one look at new requests to the next
    output_steps: float = 0.0  # decode steps from the end of a prefill to its token at the client
    handover_s: float = 0.0  # of a request between pools, beyond moving its cache
    router_s: float = 0.0  # each request of a disaggregated deployment, one after the other, in place of frontend_s
    captured_tokens: float = 0.0  # of the largest step that CUDA graphs hold: its launches hardly cost the host
    step_tokens: float = 8192.0  # prompt tokens that one step takes
    prefill_first: float = 0.0  # 1 where prompts take steps of their own while decoding waits
    workspace_bytes: float = 0.0  # context, graphs and communication buffers on each device

    def start_of(self, name: str) -> float:
        """The multiple of one of KERNEL_STARTS."""
        own = {"experts": self.experts_start, "latent": self.latent_start, "quantise": self.quantise_start}
        return self.kernel_start * own.get(name.partition("_")[0], 1.0)

    def launching_s(
        self, kernels: Floats | float, latent_layers: Floats | float, triton_layers: float
    ) -> Floats | float:
        """What the host needs to launch a step with prompts."""
        latent_s = self.latent_launch_s * latent_layers
        return self.launch_s * kernels + latent_s + self.triton_launch_s * triton_layers

    def unhurried(self) -> "EngineOverheads":
        """The same without what the host needs to launch."""
        return replace(self, launch_s=0.0, latent_launch_s=0.0, triton_launch_s=0.0)

    def turn_s(self, prompt_tokens: Floats | float) -> Floats | float:
        """What a front end takes for one request of so many prompt tokens [N] after another."""
        return self.frontend_s + (0.0 if self.tokenises_together else self.frontend_token_s) * prompt_tokens

    def request_s(self, prompt_tokens: Floats | float) -> Floats | float:
        """What lone requests of so many prompt tokens [N] take before the scheduler sees them."""
        return self.frontend_s + self.frontend_token_s * prompt_tokens + self.arrival_s

    def apart_s(self, prompt_tokens: Floats | float) -> Floats | float:
        """The same where prefill runs apart, up to the router of the instances that decode."""
        return self.router_s + self.frontend_token_s * prompt_tokens + self.arrival_s + self.handover_s


OLDER_RELEASES = {"vllm": "0.14"}
"""Before these, engines have overheads of their own: from there on vLLM schedules beside the device unasked."""


def section_of(engine: str, version: str | None) -> str:
    """Where the overheads of an engine stand: `vllm`, or `vllm<0.14`; a version that is no number is the newest."""
    release, bound = _release(version or ""), OLDER_RELEASES.get(engine)
    return f"{engine}<{bound}" if bound is not None and release and release < _release(bound) else engine


def neighbour_of(section: str) -> str:
    """The section of the engine's other releases; itself where it has one alone."""
    engine = section.partition("<")[0]
    if engine not in OLDER_RELEASES:
        return section
    return f"{engine}<{OLDER_RELEASES[engine]}" if section == engine else engine


def section_in(engines: Mapping[str, EngineOverheads], section: str) -> EngineOverheads:
    """What stands in a section, else in that of the engine's newest releases, else in `default`."""
    for name in (section, section.partition("<")[0], "default"):
        if name in engines:
            return engines[name]
    return EngineOverheads()


def _release(version: str) -> tuple[int, ...]:
    number = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, number.group().split("."))) if number else ()
