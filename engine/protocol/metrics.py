"""Every metric that exists, as data: its name as scraped, its help, its labels and its buckets.

Dashboards, alerts and tests rely on these names. A spec unpacks into the method of
`instruments.Registry` of its kind: `registry.counter(*REQUESTS)`. The GenAI instruments of
OpenTelemetry's semantic conventions are at the end; they go to OTLP only.
"""

from typing import Final, NamedTuple

Buckets = tuple[float, ...]


class CounterSpec(NamedTuple):
    """A number that only rises."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


class GaugeSpec(NamedTuple):
    """A number that rises and falls."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


class HistogramSpec(NamedTuple):
    """A distribution over fixed upper bounds, each inclusive."""

    name: str
    help: str
    buckets: Buckets
    labels: tuple[str, ...] = ()
    unit: str = ""


# --- buckets -----------------------------------------------------------------------------------

# vLLM's own, so that its dashboards and alerts read ours.
TIME_TO_FIRST_TOKEN_BUCKETS: Final[Buckets] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BUCKETS: Final[Buckets] = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_DURATION_BUCKETS: Final[Buckets] = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
BATCH_TOKENS_BUCKETS: Final[Buckets] = tuple(
    float(bound) for bound in (1, 8, *(2**power for power in range(4, 15)))
)
# llm-d's flow-control queue, up to our queue TTL.
QUEUE_BUCKETS: Final[Buckets] = (
    *(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
OVERHEAD_BUCKETS: Final[Buckets] = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
STEP_BUCKETS: Final[Buckets] = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
SYNC_BUCKETS: Final[Buckets] = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
SCHEDULER_BUCKETS: Final[Buckets] = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0),
)

# --- both processes ----------------------------------------------------------------------------

BUILD_INFO: Final = GaugeSpec("evenhand_build_info", "Always 1; what runs here.", ("version",))
TELEMETRY_DROPPED: Final = CounterSpec(
    "evenhand_telemetry_dropped_total",
    "Spans, and collections of metrics, that never reached the OTLP collector.",
    ("signal", "reason"),
)

# --- gateway -----------------------------------------------------------------------------------

REQUESTS: Final = CounterSpec(
    "evenhand_requests_total",
    "Requests answered, by HTTP status; 499 is a client that left.",
    ("tenant", "model", "route", "code"),
)
REQUEST_DURATION: Final = HistogramSpec(
    "evenhand_request_duration_seconds",
    "From the first byte of a request to the last of its answer.",
    REQUEST_DURATION_BUCKETS,
    ("model",),
)
TIME_TO_FIRST_TOKEN: Final = HistogramSpec(
    "evenhand_time_to_first_token_seconds",
    "From the arrival of a request to its first output token, the queue included.",
    TIME_TO_FIRST_TOKEN_BUCKETS,
    ("tenant", "model"),
)
INTER_TOKEN_LATENCY: Final = HistogramSpec(
    "evenhand_inter_token_latency_seconds",
    "Between two output tokens of one request, as the gateway received them.",
    INTER_TOKEN_BUCKETS,
    ("model",),
)
GATEWAY_OVERHEAD: Final = HistogramSpec(
    "evenhand_gateway_overhead_seconds",
    "Time a request spent in the gateway apart from its queue and its engine.",
    OVERHEAD_BUCKETS,
)
QUEUE_WAIT: Final = HistogramSpec(
    "evenhand_queue_wait_seconds",
    "How long requests waited in the fair queue, by how the wait ended.",
    QUEUE_BUCKETS,
    ("pool", "outcome"),
)
QUEUE_DEPTH: Final = GaugeSpec(
    "evenhand_queue_depth", "Requests waiting in the fair queue.", ("pool", "tenant")
)
HEAD_AGE: Final = GaugeSpec(
    "evenhand_head_age_seconds",
    "How long the request at the head of a tenant's queue has waited.",
    ("pool", "tenant"),
)
HEAD_DEADLINE: Final = GaugeSpec(
    "evenhand_head_deadline_seconds",
    "Time left until the head of a tenant's queue is to be granted; negative when past.",
    ("pool", "tenant"),
)
MISSED_DEADLINES: Final = CounterSpec(
    "evenhand_missed_deadlines_total",
    "Heads that were not granted by their deadline, by what held them back.",
    ("pool", "reason"),
)
URGENT_GRANTS: Final = CounterSpec(
    "evenhand_urgent_grants_total", "Heads granted for being past their deadline.", ("pool",)
)
PASSES: Final = CounterSpec(
    "evenhand_passes_total",
    "Times a waiting request was passed: it fitted nowhere, or a sibling's prompt was cached.",
    ("pool", "reason"),
)
OVERTAKES_MAX: Final = GaugeSpec(
    "evenhand_overtakes_max", "The most times any request was passed for one reason.", ("pool",)
)
PINNED: Final = GaugeSpec(
    "evenhand_pinned", "Whether a replica is held for a request that fitted nowhere.", ("pool",)
)
DROPS: Final = CounterSpec(
    "evenhand_drops_total",
    "Requests that the fair queue refused or gave up, by reason.",
    ("pool", "reason"),
)
SERVICE_UNITS: Final = CounterSpec(
    "evenhand_service_units_total", "Service given, in service units.", ("pool", "tenant")
)
VTC_COUNTER: Final = GaugeSpec(
    "evenhand_vtc_counter",
    "The tenant's virtual token counter, in service units per unit of weight.",
    ("pool", "tenant"),
)
SERVICE_SPREAD: Final = GaugeSpec(
    "evenhand_service_spread",
    "Largest difference in counters between tenants that wait, in service units.",
    ("pool",),
)
SERVICE_SPREAD_BOUND: Final = GaugeSpec(
    "evenhand_service_spread_bound",
    "What the spread is proved never to exceed, under the limits in force.",
    ("pool",),
)
SERVICE_SPREAD_BOUND_TERM: Final = GaugeSpec(
    "evenhand_service_spread_bound_term", "The bound's parts.", ("pool", "term")
)
JAIN_INDEX: Final = GaugeSpec(
    "evenhand_jain_index", "Jain's index of service per weight; 1 is even.", ("pool",)
)
REJECTIONS: Final = CounterSpec(
    "evenhand_rejections_total", "Requests refused, by the limit that refused them.", ("dimension",)
)
TOKENS: Final = CounterSpec(
    "evenhand_tokens_total",
    "Tokens billed; type is uncached, cached (both of prompts) or output.",
    ("tenant", "model", "type"),
)
REPLICA_INFLIGHT: Final = GaugeSpec(
    "evenhand_replica_inflight", "Sequences granted to a replica and not ended.", ("replica",)
)
REPLICA_UP: Final = GaugeSpec(
    "evenhand_replica_up", "Whether a replica answers: 1 or 0.", ("replica",)
)
DISCONNECTS: Final = CounterSpec(
    "evenhand_disconnects_total",
    "Clients that left early; phase is queued, before_first_byte or streaming.",
    ("phase",),
)
AUTH_FAILURES: Final = CounterSpec(
    "evenhand_auth_failures_total", "Requests without a good key, by reason.", ("reason",)
)
STORE_UP: Final = GaugeSpec("evenhand_store_up", "Whether a store answers: 1 or 0.", ("store",))
DEGRADED: Final = GaugeSpec(
    "evenhand_degraded",
    "Whether something is missing that the promises rest on: 1 or 0.",
    ("reason",),
)
JOURNAL_BACKLOG: Final = GaugeSpec(
    "evenhand_journal_backlog", "Events of the fair queues that are not written yet."
)
LOG_BYTES: Final = CounterSpec(
    "evenhand_log_bytes_total", "Bytes written to the event log.", ("pool",)
)
LOG_SYNC: Final = HistogramSpec(
    "evenhand_log_sync_seconds", "Bringing the event log to disk, once.", SYNC_BUCKETS, ("pool",)
)
STRIPPED_HEADERS: Final = CounterSpec(
    "evenhand_stripped_headers_total",
    "Identity and fairness headers taken off inbound requests.",
    ("header",),
)
CONFIG_VERSION: Final = GaugeSpec(
    "evenhand_config_version", "The revision of tenants, keys and limits in force."
)

# --- engine ------------------------------------------------------------------------------------

ENGINE_REQUESTS_RUNNING: Final = GaugeSpec(
    "evenhand_engine_requests_running", "Requests that have a place in the batch."
)
ENGINE_REQUESTS_WAITING: Final = GaugeSpec(
    "evenhand_engine_requests_waiting", "Requests in the engine's own queue, preempted included."
)
ENGINE_KV_BLOCKS: Final = GaugeSpec(
    "evenhand_engine_kv_blocks",
    "KV blocks by state: free, cached (idle, reusable) or held.",
    ("state",),
)
ENGINE_KV_USAGE: Final = GaugeSpec(
    "evenhand_engine_kv_usage_ratio", "Held KV blocks over all of them."
)
ENGINE_PREEMPTIONS: Final = CounterSpec(
    "evenhand_engine_preemptions_total", "Requests pushed out of the batch to free blocks."
)
ENGINE_TOKENS_RECOMPUTED: Final = CounterSpec(
    "evenhand_engine_preempted_tokens_recomputed_total",
    "Tokens computed again because their request had been preempted.",
)
ENGINE_TOKENS_COMPUTED: Final = CounterSpec(
    "evenhand_engine_computed_tokens_total", "Tokens the model computed, of every kind."
)
ENGINE_PREFIX_QUERIES: Final = CounterSpec(
    "evenhand_engine_prefix_cache_queries_tokens_total",
    "Prompt tokens looked up in the prefix cache, once per request.",
)
ENGINE_PREFIX_HITS: Final = CounterSpec(
    "evenhand_engine_prefix_cache_hits_tokens_total",
    "Prompt tokens found in the prefix cache, once per request.",
)
ENGINE_RESERVE_BLOCKS: Final = GaugeSpec(
    "evenhand_engine_reserve_blocks",
    "Blocks that admission leaves free now; the thrash governor moves it.",
)
ENGINE_BLOCKS_PINNED: Final = GaugeSpec(
    "evenhand_engine_pinned_blocks", "Cached KV blocks that are kept from eviction."
)
ENGINE_BLOCKS_COPIED: Final = CounterSpec(
    "evenhand_engine_copied_blocks_total",
    "KV blocks copied so that a sample could write what it shared.",
)
ENGINE_BLOCKS_EVICTED: Final = CounterSpec(
    "evenhand_engine_evicted_blocks_total", "Cached KV blocks given up for other requests."
)
ENGINE_STEP: Final = HistogramSpec(
    "evenhand_engine_step_seconds", "One engine step, all of it.", STEP_BUCKETS
)
ENGINE_SCHEDULER: Final = HistogramSpec(
    "evenhand_engine_scheduler_seconds", "The scheduler's part of a step.", SCHEDULER_BUCKETS
)
ENGINE_BATCH_TOKENS: Final = HistogramSpec(
    "evenhand_engine_batch_tokens", "Tokens computed in one step.", BATCH_TOKENS_BUCKETS
)
ENGINE_NO_PROGRESS_STEPS: Final = CounterSpec(
    "evenhand_engine_no_progress_steps_total", "Steps with requests waiting and none running."
)
ENGINE_REQUEST_ERRORS: Final = CounterSpec(
    "evenhand_engine_request_errors_total",
    "Requests ended by a fault of the engine, by the place it happened.",
    ("hook",),
)
ENGINE_PROMPT_TOKENS: Final = CounterSpec(
    "evenhand_engine_prompt_tokens_total", "Prompt tokens of requests that began to run."
)
ENGINE_GENERATION_TOKENS: Final = CounterSpec(
    "evenhand_engine_generation_tokens_total", "Output tokens emitted."
)
ENGINE_TIME_TO_FIRST_TOKEN: Final = HistogramSpec(
    "evenhand_engine_time_to_first_token_seconds",
    "From a request's arrival at the engine to its first output token.",
    TIME_TO_FIRST_TOKEN_BUCKETS,
)
ENGINE_INTER_TOKEN_LATENCY: Final = HistogramSpec(
    "evenhand_engine_inter_token_latency_seconds",
    "Between two output tokens of one request, preemptions included.",
    INTER_TOKEN_BUCKETS,
)
ENGINE_REQUEST_QUEUE: Final = HistogramSpec(
    "evenhand_engine_request_queue_seconds",
    "From a request's arrival at the engine to its first step.",
    QUEUE_BUCKETS,
)

# --- OpenTelemetry GenAI semantic conventions (development status, version 1.44) ------------------

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - an attribute name
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE: Final = "error.type"

OPERATION_CHAT: Final = "chat"
OPERATION_COMPLETION: Final = "text_completion"
PROVIDER: Final = "evenhand"

_GEN_AI_LABELS: Final = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL)
_GEN_AI_DURATION_BUCKETS: Final[Buckets] = tuple(0.01 * 2**power for power in range(14))

GEN_AI_TOKEN_USAGE: Final = HistogramSpec(
    "gen_ai.client.token.usage",
    "Tokens billed per request.",
    tuple(float(4**power) for power in range(14)),
    (*_GEN_AI_LABELS, TOKEN_TYPE),
    "{token}",
)
GEN_AI_REQUEST_DURATION: Final = HistogramSpec(
    "gen_ai.server.request.duration",
    "From a request's arrival to its end.",
    _GEN_AI_DURATION_BUCKETS,
    _GEN_AI_LABELS,
    "s",
)
GEN_AI_TIME_PER_OUTPUT_TOKEN: Final = HistogramSpec(
    "gen_ai.server.time_per_output_token",
    "Mean time per output token after the first.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    _GEN_AI_LABELS,
    "s",
)
GEN_AI_TIME_TO_FIRST_TOKEN: Final = HistogramSpec(
    "gen_ai.server.time_to_first_token",
    "From a request's arrival to its first output token.",
    TIME_TO_FIRST_TOKEN_BUCKETS[:16],
    _GEN_AI_LABELS,
    "s",
)
