"""Columns of the arrays that hold the state of a run, and the numbers that stand for roles, policies and states.

A request is a row of `request` (whole numbers) and `request_s` (seconds, and the key of its queue); an instance is a
row of `instance` and `instance_s`. Rows, not columns, are contiguous: an event touches one request and one instance.
"""

from typing import Final

NONE: Final = -1  # no request, no block, no place

# A request, whole numbers.
INPUT: Final = 0  # prompt tokens
OUTPUT: Final = 1  # tokens to generate, at least 1
PREDICTED: Final = 2  # output tokens that schedulers believe in
PRIORITY: Final = 3  # lower goes first
SUCCESSOR: Final = 4  # request that the same session sends when this one has finished; NONE
STATE: Final = 5
GENERATED: Final = 6  # tokens generated when it last left the decoding batch or ended a prefill
DONE: Final = 7  # tokens in the cache of the prefill under way
CACHED: Final = 8  # prompt tokens found in the prefix cache at its first admission
FINISH: Final = 9  # decode iteration of its instance after which it is finished
SHARED: Final = 10  # leading prefix blocks that it holds together with others
SHARED_BLOCKS: Final = 11  # KV blocks of those
PLACE: Final = 12  # in the decoding batch of its instance
ENTRY: Final = 13  # instance that prefilled it
HOME: Final = 14  # instance that holds it now
PREEMPTED: Final = 15  # times that it was preempted
CHILD: Final = 16  # first child in a queue
SIBLING: Final = 17  # next child of the same parent; next in a list
MODEL: Final = 18  # that it is for, or number of the instances that take it first
ADAPTER: Final = 19  # of that model; NONE
LAST: Final = 20  # model that it is for, or number of the instances that take it when it was prefilled elsewhere
DEGREE: Final = 21  # instances that prefill it together
REQUEST_FIELDS: Final = 22

# A request, seconds.
ARRIVAL: Final = 0  # at the front door, seen by the client
KEY: Final = 1  # what its queue is ordered by
STARTED: Final = 2  # first scheduled
PREFILLED: Final = 3  # first prefill ended
FIRST: Final = 4  # first token at the client
FINISHED: Final = 5
THINK: Final = 6  # between the request before it and its own arrival, in closed loops and sessions
RANK: Final = 7  # its key in the queue, kept while it stands in the heap of transfers
DUE: Final = 8  # when it has used up its quantum; negative while it is not decoding
LEFT: Final = 9  # of its quantum while it is not decoding
REQUEST_SECONDS: Final = 10

# States of a request.
TO_COME: Final = 0
WAITING: Final = 1  # for its prefill
PREFILLING: Final = 2
HANDED: Final = 3  # prefilled elsewhere; waits for room where it is to be decoded
MOVING: Final = 4  # its cache is under way
READY: Final = 5  # its cache has arrived; joins at the next step
DECODING: Final = 6
SWAPPED: Final = 7  # preempted, its cache in host memory
COMPLETE: Final = 8
REJECTED: Final = 9  # can never fit into any instance
LOST: Final = 10  # its cache has gone with an instance; about to be sent again

# An instance, whole numbers.
ROLE: Final = 0
TABLE: Final = 1  # its step times
POLICY: Final = 2
TOKEN_BUDGET: Final = 3  # of a step
MOST_SEQUENCES: Final = 4
CHUNKED: Final = 5  # 1 if a prompt may be prefilled in parts
RESERVES: Final = 6  # 1 if a request takes the blocks of its whole length when admitted
SWAPS: Final = 7  # 1 if preemption moves caches to host memory as long as that has room
CAPACITY: Final = 8  # KV blocks
WATERMARK: Final = 9  # blocks that admission leaves free
FREE: Final = 10  # blocks
EVICTABLE: Final = 11  # blocks of cached prefixes that nobody holds
HOST_FREE: Final = 12  # blocks of host memory
QUEUE: Final = 13  # first of the waiting requests
QUEUED: Final = 14
QUEUED_BLOCKS: Final = 15  # that the waiting requests will ask for
SEQUENCES: Final = 16  # decoding
RESERVED: Final = 17  # whose caches are on their way here
CONTEXT: Final = 18  # tokens that the next decode step attends to, all sequences
ITERATION: Final = 19  # decode iterations done
PARTIAL: Final = 20  # request whose prefill is cut between steps
LISTED: Final = 21  # requests that the running step prefills
STEPS: Final = 22  # of the stretch under way; 0 if idle
STALLED: Final = 23  # 1 if the running step leaves the decoding batch out
ARRIVED: Final = 24  # first of the requests whose caches have arrived
OUTSTANDING: Final = 25  # requests sent here and not yet gone
LOAD_TOKENS: Final = 26  # prompt and predicted output tokens of those
EVENT: Final = 27  # place in the heap of events
DIRTY: Final = 28  # 1 if it is to be scheduled now
OLDEST: Final = 29  # evictable prefix block that goes first
NEWEST: Final = 30
STEP_COUNT: Final = 31
PREFILL_STEP_COUNT: Final = 32
DECODE_TOKENS: Final = 33
PREFILL_TOKENS: Final = 34
PEAK_BLOCKS: Final = 35
PREEMPTION_COUNT: Final = 36
HIT_TOKENS: Final = 37
STEP_TOKENS: Final = 38  # that the running step prefills
MIGRANT: Final = 39  # decoding request whose cache is being copied to another instance; NONE
GOAL: Final = 40  # that instance
GOAL_BLOCKS: Final = 41  # taken there
MIGRANT_PREEMPTED: Final = 42  # how often it had been preempted when the copy began
MIGRATION_COUNT: Final = 43  # requests that left for another instance
SERVES: Final = 44  # model, or number
LEADER: Final = 45  # first of the instances that step together with it
MEMBERS: Final = 46  # how many those are
SINGLE: Final = 47  # 1 if it looks ahead a step only
TURNS: Final = 48  # of a leader: steps that the group has made
DRAFTS: Final = 49  # tokens that a draft model proposes a sequence and step
PLAIN_TABLE: Final = 50  # step times without drafts
VERIFY_TABLE: Final = 51  # with
DRAFT_BLOCKS: Final = 52  # taken for the drafts of the running step; NONE if it has no drafts
ACCEPTED_TOKENS: Final = 53  # drafts that were right
LIFE: Final = 54
NEXT_ROLE: Final = 55  # that it takes on when its requests are gone; NONE
RESERVING: Final = 56  # 1 if it reserves whole lengths while it is not of the role prefill
HOST_CAPACITY: Final = 57  # blocks of host memory
POOL: Final = 58
SLOTS: Final = 59  # adapters that it holds at once
LOADED: Final = 60  # adapters
LOAD_COUNT: Final = 61  # loads of adapters
INSTANCE_FIELDS: Final = 62

# An instance, seconds.
START: Final = 0  # of the stretch under way
END: Final = 1
BUSY: Final = 2
BUSY_PREFILL: Final = 3  # of steps that prefill
SENT: Final = 4  # its outgoing link is free from then on
RECEIVED: Final = 5  # its incoming link
LINK_RATE: Final = 6  # tokens per second of KV cache over its link
LINK_LATENCY: Final = 7
SWAP_RATE: Final = 8  # blocks per second to and from host memory
PENALTY: Final = 9  # swapping that lengthens the next step
SEQUENCE_SECONDS: Final = 10  # decoding sequences x time
PREFILL_PAIRS: Final = 11  # mean tokens that a token of the running step's prefill attends to
COPIED: Final = 12  # when the copy under way is complete
ACCEPTANCE: Final = 13  # chance of a draft to be right where those before it are
ADAPTER_SECONDS: Final = 14  # that loading an adapter lengthens a step by
UP_SINCE: Final = 15  # of an instance that is not off
UP_SECONDS: Final = 16  # before that
OPENS: Final = 17  # when it will have started; inf
SECONDS_FIELDS: Final = 18

# Roles.
COLOCATED: Final = 0
PREFILL: Final = 1
DECODE: Final = 2

# Life of an instance.
OFF: Final = 0
STARTING: Final = 1
OPEN: Final = 2
DRAINING: Final = 3  # takes no more requests; off, or of its next role, when those that it has are gone

# Changes of an instance that are known beforehand.
TO_START: Final = 0
TO_FAIL: Final = 1
TO_DRAIN: Final = 2
TO_PREFILL: Final = 3
TO_DECODE: Final = 4

# Policies of an engine.
MIXED: Final = 0  # prefill rides on decode steps (vLLM)
PREFILL_FIRST: Final = 1  # steps that prefill do nothing else (SGLang, TensorRT-LLM without mixing)

# Routing.
ROUND_ROBIN: Final = 0
LEAST_LOADED: Final = 1  # fewest requests
POWER_OF_TWO: Final = 2  # the less loaded of two drawn at random
CACHE_AWARE: Final = 3  # longest cached prefix, while loads are balanced
LENGTH_AWARE: Final = 4  # fewest prompt and predicted output tokens
FREENESS: Final = 5  # most free blocks a sequence (Llumnix)

# Queueing.
FCFS: Final = 0
BY_PRIORITY: Final = 1
SHORTEST: Final = 2  # shortest predicted output
FEEDBACK: Final = 3  # skip-join multi-level feedback queue (FastServe)

# The run, whole numbers.
NEXT_ARRIVAL: Final = 0  # of the requests that come at given times
NUM_OPEN: Final = 1
NEXT_CLIENT: Final = 2  # request that the next free client of a closed loop sends
NUM_CLOSED: Final = 3
PENDING: Final = 4  # first of the requests that come at times known by now
TRANSFERS: Final = 5  # first of the transfers to end
NUM_DIRTY: Final = 6
NUM_COMPLETE: Final = 7
NUM_REJECTED: Final = 8
ROUTING: Final = 9
DECODE_ROUTING: Final = 10
QUEUEING: Final = 11
SEED: Final = 12
TURN: Final = 13  # of round robin, requests
DECODE_TURN: Final = 14
BLOCK_TOKENS: Final = 15
FIRST_AT_DECODE: Final = 16  # 1 if the client gets its first token from the decoding instance
MOST_EVENTS: Final = 17
NUM_EVENTS: Final = 18
CACHES: Final = 19  # 1 if prefixes are cached
HELD: Final = 20  # first of the requests that no open instance takes
NEXT_CHANGE: Final = 21
NUM_DRAINING: Final = 22
CHANGES: Final = 23  # 1 if instances may start, drain, fail or change role
LEAST_OPEN: Final = 24  # instances of a role and model that autoscaling leaves
NUM_MODELS: Final = 25
LAST_LOOK: Final = 26  # 1 if the autoscaler has looked while nothing else was to happen
STORE: Final = 27  # the row of instances that stands for the pooled prefix cache; NONE
RUN_FIELDS: Final = 28

# The run, seconds.
REQUEST_OVERHEAD: Final = 0  # between client and engine
LIMIT: Final = 1  # the run stops there
NOW: Final = 2
QUANTUM: Final = 3  # decode time of the first level of the feedback queue; each level has twice that of the one before
PERIOD: Final = 4  # between two looks for requests to migrate; inf: never
TICK: Final = 5  # the next one
CROWDED: Final = 6  # freeness below which an instance gives requests away
SPARE: Final = 7  # freeness above which an instance takes them
CONTROL: Final = 8  # between two looks of the autoscaler; inf: never
NEXT_CONTROL: Final = 9
CROWDED_ABOVE: Final = 10  # requests an instance above which one more is started
IDLE_BELOW: Final = 11  # requests an instance below which one is drained
START_SECONDS: Final = 12  # from the decision to the first request
FLIP_ABOVE: Final = 13  # requests waiting an instance above which a role gets one of the other; inf: never
STORE_RATE: Final = 14  # tokens per second that come from the pooled prefix cache
RUN_SECONDS: Final = 15

# A link between pools.
RATE: Final = 0  # tokens per second
LATENCY: Final = 1
FREE_FROM: Final = 2

# An adapter on an instance.
USERS: Final = 0
LAST_USE: Final = 1  # NONE: not loaded

# A cached prefix block on an instance.
REFERENCES: Final = 0  # NONE: not cached
OLDER: Final = 1
NEWER: Final = 2

LONGEST_STRETCH: Final = 128  # decode steps looked ahead at once
IMBALANCE: Final = 32  # requests between the most and the least loaded instance; beyond it cache-aware routing balances
