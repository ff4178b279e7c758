"""Columns of the arrays that instances with a common cache have beside those of every run."""

from typing import Final

MOST_INSTANCES: Final = 62  # sets of instances are bits of a number
MOST_JOBS: Final = 12  # requests that are cut into batches at once

# The run, whole numbers.
STEPPING: Final = 0  # set of instances in a step
FRONT: Final = 1  # place of the first waiting request
BACK: Final = 2  # behind the last one
NUM_DECODING: Final = 3
KNOWN: Final = 4  # 1 if groups are as requests have them
BORROWS: Final = 5  # 1 if instances that decode may be taken for prefills while others are idle
MASTERS: Final = 6  # decoding sequences of an instance above which a group takes idle instances
COMMON_FIELDS: Final = 7

# The run, seconds.
FIXED_S: Final = 0  # of a prefill as the batching believes: for itself, a token, a token squared
TOKEN_S: Final = 1
SQUARE_S: Final = 2
RING_RATE: Final = 3  # tokens per second of keys and values from one instance to the next
EXCHANGE: Final = 4  # of a decode step that several instances share
COMMON_SECONDS: Final = 5

# An instance: the group of decoding requests that it leads, being its first instance, and the step that it leads.
GROUP: Final = 0  # set of instances; 0: leads none
LED_BY: Final = 1  # of the group that it is in; NONE
HEAD: Final = 2  # decoding request; the others follow as siblings, by number
IN_STEP: Final = 3  # of them that a step decodes, from the first
IN_GROUP: Final = 4  # of them
CONTEXT_TOKENS: Final = 5  # tokens that a step attends to
STEPS_MADE: Final = 6  # steps since the group was formed
SOONEST: Final = 7  # steps after which a request is finished
LENGTHS: Final = 8  # prompt and output tokens of all of them
STEP: Final = 9  # set of instances of the step; 0: leads none
PROMPTS: Final = 10  # first request that the step prefills, the others follow as siblings; NONE: it decodes the group
LED_FIELDS: Final = 11
