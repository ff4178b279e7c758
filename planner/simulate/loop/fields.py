"""Column numbers of the simulator's state arrays, and integer codes of roles, policies and states.

A request is a row of `request` (whole numbers) and `request_s` (seconds, and the key of its queue); an instance is a
row of `instance` and `instance_s`. Rows, not columns, are contiguous: an event touches one request and one instance.
An engine of several stages has a row for each batch that it may have in flight: the first of them is its own, with the
queue, the memory and the links; the others have a running batch and its step alone, and `ENGINE` says whose.
"""

from typing import Final

NONE: Final = -1  # no request, no block, no place

# A request, whole numbers.
REQUEST_FIELDS: Final = 28
(
    INPUT,  # prompt tokens
    OUTPUT,  # tokens to generate, at least 1
    PREDICTED,  # output tokens that schedulers believe in
    PRIORITY,  # lower goes first
    SUCCESSOR,  # request that the same session sends when this one has finished; NONE
    STATE,
    GENERATED,  # tokens generated when it last left the decoding batch or ended a prefill
    DONE,  # tokens in the cache of the prefill under way
    CHUNK,  # tokens of it that the last step with some prefilled
    CACHED,  # prompt tokens found in the prefix cache at its first admission
    FINISH,  # decode iteration of its instance after which it is finished
    SHARED,  # leading prefix blocks that it holds together with others
    SHARED_BLOCKS,  # KV blocks of those
    CHAIN,  # KV blocks before those that stayed cached when it let them go, and that nobody shares
    PLACE,  # in the decoding batch of its instance
    ENTRY,  # instance that prefilled it
    HOME,  # instance that holds it now; the row of its batch while it decodes
    PREEMPTED,  # times that it was preempted
    CHILD,  # first child in a queue
    SIBLING,  # next child of the same parent; next in a list
    MODEL,  # that it is for, or number of the instances that take it first
    ADAPTER,  # of that model; NONE
    LAST,  # model that it is for, or number of the instances that take it when it was prefilled elsewhere
    DEGREE,  # instances that prefill it together
    STATED_HITS,  # prompt tokens that the prefix cache of every instance which prefills holds
    WORKLOAD,
    FETCH_FROM,  # leading prefix blocks that its instance had when it asked memory tiers for more; NONE before
    FETCHED,  # prompt tokens that are there once what it asked for has come; 0 when they have been used
) = range(REQUEST_FIELDS)

# A request, seconds.
REQUEST_SECONDS: Final = 12
(
    ARRIVAL,  # at the front door, seen by the client
    KEY,  # what its queue is ordered by
    STARTED,  # first scheduled
    PREFILLED,  # first prefill ended
    FIRST,  # first token at the client
    FINISHED,
    THINK,  # between the request before it and its own arrival, in closed loops and sessions
    RANK,  # its key in the queue, kept while it stands in the heap of transfers
    DUE,  # when it has used up its quantum; negative while it is not decoding
    LEFT,  # of its quantum while it is not decoding
    LAST_TOKEN,  # at the client, while it is not in a decoding batch or has joined one since the last step of that
    ENCODED,  # tokens of a tower that it has encoded before its prompt
) = range(REQUEST_SECONDS)

# States of a request.
(
    TO_COME,
    WAITING,  # for its prefill
    PREFILLING,
    HANDED,  # prefilled elsewhere; waits for room where it is to be decoded
    MOVING,  # its cache is under way
    READY,  # its cache has arrived; joins at the next step
    DECODING,
    SWAPPED,  # preempted, its cache in host memory
    COMPLETE,
    REJECTED,  # can never fit into any instance
    LOST,  # its cache has gone with an instance; about to be sent again
    ENDING,  # in its last step here, while the one after that is formed
    FETCHING,  # memory tiers give what they have of its prompt; joins the queue of its home then
    TOKENISED,  # a front end makes tokens of its prompt; comes to the router then
) = range(14)

# An instance, whole numbers. What routing and steps look at stands together, since a row has many cache lines.
INSTANCE_FIELDS: Final = 71
(
    ROLE,
    LIFE,
    SERVES,  # model, or number
    LOAD_TOKENS,  # prompt and predicted output tokens of the requests sent here and not yet gone
    QUEUED,
    QUEUED_BLOCKS,  # that the waiting requests will ask for
    RESERVED,  # whose caches are on their way here
    STEPS,  # of the stretch under way; 0 if idle
    SEQUENCES,  # decoding
    CONTEXT,  # tokens that the next decode step attends to, all sequences
    ITERATION,  # decode iterations done
    LISTED,  # requests that the running step prefills
    CUT,  # 1 if the running step ends before the last prompt that it prefills does
    STEP_TOKENS,  # that the running step prefills
    STALLED,  # 1 if the running step leaves the decoding batch out
    ENGINE,  # row of the engine whose running batch it is: itself, but for the further batches of a pipeline
    STAGES,  # of its pipeline, and running batches that it may have at once
    LEADER,  # first of the instances that step together with it
    MEMBERS,  # how many those are
    SINGLE,  # 1 if it looks ahead a step only
    DIRTY,  # 1 if it is to be scheduled now
    TABLE,  # its step times
    POLICY,
    QUEUE,  # first of the waiting requests
    PARTIAL,  # request whose prefill is cut between steps
    ARRIVED,  # first of the requests whose caches have arrived
    FREE,  # blocks
    EVICTABLE,  # blocks of cached prefixes that nobody holds
    MOST_SEQUENCES,
    TOKEN_BUDGET,  # of a step
    WATERMARK,  # blocks that admission leaves free
    RESERVES,  # 1 if a request takes the blocks of its whole length when admitted
    CAPACITY,  # KV blocks
    PEAK_BLOCKS,
    DRAFTS,  # tokens that a draft model proposes a sequence and step
    DRAFT_BLOCKS,  # taken for the drafts of the running step; NONE if it has no drafts
    PLAIN_TABLE,  # step times without drafts
    MIGRANT,  # decoding request whose cache is being copied to another instance; NONE
    CHUNKED,  # 1 if a prompt may be prefilled in parts
    STEP_COUNT,
    PREFILL_STEP_COUNT,
    DECODE_TOKENS,
    PREFILL_TOKENS,
    HIT_TOKENS,
    PREEMPTION_COUNT,
    SWAPS,  # 1 if preemption moves caches to host memory as long as that has room
    HOST_FREE,  # blocks of host memory
    OLDEST,  # evictable prefix block that goes first
    NEWEST,
    GOAL,  # that instance
    GOAL_BLOCKS,  # taken there
    MIGRANT_PREEMPTED,  # how often it had been preempted when the copy began
    MIGRATION_COUNT,  # requests that left for another instance
    TURNS,  # of a leader: steps that the group has made
    VERIFY_TABLE,  # with
    ACCEPTED_TOKENS,  # drafts that were right
    NEXT_ROLE,  # that it takes on when its requests are gone; NONE
    RESERVING,  # 1 if it reserves whole lengths while it is not of the role prefill
    HOST_CAPACITY,  # blocks of host memory
    POOL,
    SLOTS,  # adapters that it holds at once
    LOADED,  # adapters
    LOAD_COUNT,  # loads of adapters
    FURTHER,  # row of its second running batch; those of the engines of a group stand one after another
    ROTATION,  # of a leader: which of its batches is formed next, where they take turns
    ASYNCHRONOUS,  # 1 if a step is formed while the one before it runs
    NUM_ENDING,  # requests in their last step here, while the one after that is formed
    HOLDING,  # of those, requests that still have their place and their blocks
    FRESH,  # requests of its decoding batch whose last token did not come with the last step of that
    HEAPED,  # leaves in the heap of a memory tier
    FRONT,  # row of the instance whose front end it shares, or its own
) = range(INSTANCE_FIELDS)

# An instance, seconds.
SECONDS_FIELDS: Final = 25
(
    START,  # of the stretch under way
    ENDS,  # when that ends
    FORMS,  # when the one after it is formed
    PASS,  # seconds of work of the running step in all stages of a pipeline
    PENALTY,  # swapping that lengthens the next step
    PREFILL_PAIRS,  # mean tokens that a token of the running step's prefill attends to
    BUSY,
    BUSY_PREFILL,  # of steps that prefill
    SEQUENCE_SECONDS,  # decoding sequences x time
    SENT,  # its outgoing link is free from then on
    RECEIVED,  # its incoming link
    LINK_RATE,  # tokens per second of KV cache over its link
    LINK_LATENCY,
    SWAP_RATE,  # blocks per second to and from host memory
    COPIED,  # when the copy under way is complete
    ACCEPTANCE,  # chance of a draft to be right where those before it are
    ADAPTER_SECONDS,  # that loading an adapter lengthens a step by
    UP_SINCE,  # of an instance that is not off
    UP_SECONDS,  # before that
    OPENS,  # when it will have started; inf
    LAST_STEP,  # end of the last step that gave its decoding batch tokens
    REQUEST_RATE,  # tokens per second that a memory tier gives to one request
    CLOCK,  # of a memory tier: what the block was worth that it evicted last
    FRONT_FREE,  # its front end is free from then on
    FRONT_READY,  # the last prompt of its front end comes to the router
) = range(SECONDS_FIELDS)

# Roles.
(
    COLOCATED,
    PREFILL,
    DECODE,
) = range(3)

# Life of an instance.
(
    OFF,
    STARTING,
    OPEN,
    DRAINING,  # takes no more requests; off, or of its next role, when those that it has are gone
) = range(4)

# Changes of an instance that are known beforehand.
(
    TO_START,
    TO_FAIL,
    TO_DRAIN,
    TO_PREFILL,
    TO_DECODE,
) = range(5)

# Policies of an engine.
(
    MIXED,  # prefill rides on decode steps (vLLM)
    PREFILL_FIRST,  # steps that prefill do nothing else (SGLang, TensorRT-LLM without mixing)
) = range(2)

# Routing.
(
    ROUND_ROBIN,
    LEAST_LOADED,  # fewest requests
    POWER_OF_TWO,  # the less loaded of two drawn at random
    CACHE_AWARE,  # longest cached prefix, while loads are balanced
    LENGTH_AWARE,  # fewest prompt and predicted output tokens
    FREENESS,  # most free blocks a sequence (Llumnix)
) = range(6)

# Queueing.
(
    FCFS,
    BY_PRIORITY,
    SHORTEST,  # shortest predicted output
    FEEDBACK,  # skip-join multi-level feedback queue (FastServe)
) = range(4)

# The run, whole numbers.
RUN_FIELDS: Final = 28
(
    NEXT_ARRIVAL,  # of the requests that come at given times
    NUM_OPEN,
    NEXT_CLIENT,  # request that the next free client of a closed loop sends
    NUM_CLOSED,
    PENDING,  # first of the requests that come at times known by now
    TRANSFERS,  # first of the transfers to end
    NUM_DIRTY,
    NUM_COMPLETE,
    NUM_REJECTED,
    ROUTING,
    DECODE_ROUTING,
    QUEUEING,
    SEED,
    BLOCK_TOKENS,
    FIRST_AT_DECODE,  # 1 if the client gets its first token from the decoding instance
    MOST_EVENTS,
    NUM_EVENTS,
    CACHES,  # 1 if prefixes are cached
    UNROUTED,  # first of the requests that no open instance takes
    NEXT_CHANGE,
    NUM_DRAINING,
    CHANGES,  # 1 if instances may start, drain, fail or change role
    LEAST_OPEN,  # instances of a role and model that autoscaling leaves
    NUM_MODELS,
    LAST_LOOK,  # 1 if the autoscaler has looked while nothing else was to happen
    TIER,  # the row of instances that stands for the first memory tier of prefixes; NONE
    NUM_TIERS,  # rows from there on, fastest first
    EVICTION,  # what tiers evict
) = range(RUN_FIELDS)

# The run, seconds.
RUN_SECONDS: Final = 18
(
    REQUEST_OVERHEAD,  # between client and engine
    LIMIT,  # the run stops there
    NOW,
    QUANTUM,  # decode time of the first level of the feedback queue; each level has twice that of the one before
    PERIOD,  # between two looks for requests to migrate; inf: never
    TICK,  # the next one
    CROWDED,  # freeness below which an instance gives requests away
    SPARE,  # freeness above which an instance takes them
    CONTROL,  # between two looks of the autoscaler; inf: never
    NEXT_CONTROL,
    CROWDED_ABOVE,  # requests an instance above which one more is started
    IDLE_BELOW,  # requests an instance below which one is drained
    START_SECONDS,  # from the decision to the first request
    FLIP_ABOVE,  # requests waiting an instance above which a role gets one of the other; inf: never
    FRONT_REQUEST,  # of a front end for each request in turn
    FRONT_TOKEN,  # and for each token of its prompt
    FRONT_BESIDE,  # for each token of a prompt beside those of others
    HANDOVER,  # from the end of a prefill to the router of the instances that decode
) = range(RUN_SECONDS)

# A link between pools.
(
    RATE,  # tokens per second
    LATENCY,
    FREE_FROM,
) = range(3)

# An adapter on an instance.
(
    USERS,
    LAST_USE,  # NONE: not loaded
) = range(2)

# What memory tiers evict first.
(
    LEAST_RECENT,  # what was used least recently
    PGDSF,  # the leaf of least worth
    FARTHEST,  # the leaf that is used again last
) = range(3)

# A prefix block in memory tiers.
TIER_FIELDS: Final = 5
(
    ABOVE,  # the block before it in its prompt; NONE
    DEPTH,  # blocks before it
    USES,  # prompts with it that were prefilled
    NEXT_USE,  # the place in `use` of the next request with it
    PLACE_IN_HEAP,
) = range(TIER_FIELDS)

# A cached prefix block on an instance.
(
    REFERENCES,  # NONE: not cached
    OLDER,
    NEWER,
) = range(3)

LONGEST_STRETCH: Final = 128  # decode steps looked ahead at once
GAP_PARTS: Final = 32  # of a run, by requests that are complete
FINEST: Final = 256  # bins of gaps between two powers of two seconds: a width of .4 % or less
LEAST_EXPONENT: Final = -13  # of the first of them, which begins at 2**-14 s
GAP_BINS: Final = 23 * FINEST  # up to 512 s
IMBALANCE: Final = 32  # requests between the most and the least loaded instance; beyond it cache-aware routing balances
