"""State columns of elastic sequence parallelism, beside those of every run."""

from typing import Final

MOST_INSTANCES: Final = 62  # sets of instances are bits of a number
MOST_JOBS: Final = 12  # requests that are cut into batches at once

# The run, whole numbers.
COMMON_FIELDS: Final = 7
(
    STEPPING,  # set of instances in a step
    FRONT,  # place of the first waiting request
    BACK,  # behind the last one
    NUM_DECODING,
    KNOWN,  # 1 if groups are as requests have them
    BORROWS,  # 1 if instances that decode may be taken for prefills while others are idle
    MASTERS,  # decoding sequences of an instance above which a group takes idle instances
) = range(COMMON_FIELDS)

# The run, seconds.
COMMON_SECONDS: Final = 5
(
    FIXED_S,  # of a prefill as the batching believes: for itself, a token, a token squared
    TOKEN_S,
    SQUARE_S,
    RING_RATE,  # tokens per second of keys and values from one instance to the next
    EXCHANGE,  # of a decode step that several instances share
) = range(COMMON_SECONDS)

# An instance: the group of decoding requests that it leads, being its first instance, and the step that it leads.
LED_FIELDS: Final = 11
(
    GROUP,  # set of instances; 0: leads none
    LED_BY,  # of the group that it is in; NONE
    HEAD,  # decoding request; the others follow as siblings, by number
    IN_STEP,  # of them that a step decodes, from the first
    IN_GROUP,  # of them
    CONTEXT_TOKENS,  # tokens that a step attends to
    STEPS_MADE,  # steps since the group was formed
    SOONEST,  # steps after which a request is finished
    LENGTHS,  # prompt and output tokens of all of them
    STEP,  # set of instances of the step; 0: leads none
    PROMPTS,  # first request that the step prefills, the others follow as siblings; NONE: it decodes the group
) = range(LED_FIELDS)
