"""Memory beside the device for prefixes, as launches of engines set it up: by flags, variables and files of stores.

Names: SGLang's HiCache `sglang/srt/server_args.py`; vLLM `--kv-offloading-size` and `--kv-transfer-config`
(`vllm/config/kv_transfer.py`), with LMCache's variables `LMCACHE_*` and Mooncake's file that `MOONCAKE_CONFIG_PATH`
names (`vllm/distributed/mooncake_store.py`); Dynamo's block manager `DYN_KVBM_*`; TensorRT-LLM
`kv_cache_config.host_cache_size`.
What a launch sets up without its size is named, and never guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.importing.engines import first
from planner.importing.launches import Launch
from planner.importing.options import Options
from planner.importing.values import Values

GB, GIB = 10**9, 2**30
OWN, STORE = "host_bytes_per_gpu", "pool"
SSD, SHARED, UNREAD = "ssd_bytes_per_gpu", "shared", "unread"


@dataclass(slots=True)
class _Tiers:
    """What was read so far."""

    values: Values
    told: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def size(self, name: str, value: object, unit: int, what: str, parts: int = 1) -> None:
        """A size of so many units, of which each GPU has a part; one that is no number is named."""
        number = self.values.number(value)
        if number is not None and number > 0.0:
            self.told[name] = round(number * unit / parts)
        elif number is None:
            self.unread.append(what)

    def store(self, lent: object) -> None:
        """A store that all engines read, to which every GPU lends so many bytes."""
        number = self.values.integer(lent, 0)
        if number:
            self.told |= {OWN: number, SHARED: True}
        else:
            self.told[STORE] = True


def prefix_tiers_of(launch: Launch, options: Options, gpus: int | None, values: Values) -> dict[str, Any] | None:
    """The tiers of a launch of so many GPUs, by GPU, and what of them has no size; None without any."""
    tiers, environment = _Tiers(values), {**launch.variables, **launch.environment}
    if launch.engine == "sglang":
        _hicache(tiers, options, environment)
    elif launch.engine == "trtllm":
        size = first(options, ("kv_cache_config.host_cache_size", "host_cache_size"))
        if size is not None:
            tiers.size(OWN, values.integer(size), 1, "host_cache_size")
    else:
        offloaded = options.get("kv_offloading_size")
        if offloaded is not None:
            tiers.size(OWN, offloaded, GIB, "--kv-offloading-size", gpus or 1)
        for connector in _connectors(values.mapping(options.get("kv_transfer_config"))):
            _connected(tiers, connector, launch, environment, gpus or 1)
    unread = {UNREAD: list(dict.fromkeys(tiers.unread))} if tiers.unread else {}
    return {**tiers.told, **unread} or None


def _hicache(tiers: _Tiers, options: Options, environment: Mapping[str, str]) -> None:
    if not tiers.values.switch(options.get("enable_hierarchical_cache")):
        return
    backend = tiers.values.text(options.get("hicache_storage_backend"))
    lent = environment.get("MOONCAKE_GLOBAL_SEGMENT_SIZE")
    if options.get("hicache_size") is not None:
        tiers.size(OWN, options["hicache_size"], GB, "--hicache-size")
    elif backend != "mooncake" or options.get("hicache_ratio") is not None:
        tiers.unread.append("--hicache-ratio, a share of the device's cache")
    if backend == "mooncake":
        tiers.store(lent)
    elif backend == "file":
        tiers.unread.append("the size of what `--hicache-storage-backend file` keeps")
    elif backend is not None:
        tiers.unread.append(f"the store of `--hicache-storage-backend {backend}`")


def _connectors(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The connector of a configuration, or those inside it."""
    inner = config.get("kv_connector_extra_config")
    below = inner.get("connectors") if isinstance(inner, Mapping) else None
    if isinstance(below, list):
        for each in below:
            yield from _connectors(each if isinstance(each, Mapping) else {})
    elif config:
        yield config


def _connected(
    tiers: _Tiers, connector: Mapping[str, Any], launch: Launch, environment: Mapping[str, str], gpus: int
) -> None:
    name = str(connector.get("kv_connector") or "")
    if name.startswith("LMCache"):
        _lmcache(tiers, environment)
    elif name == "MooncakeStoreConnector":
        path = environment.get("MOONCAKE_CONFIG_PATH")
        text = launch.file(path)
        if text is None:
            tiers.unread.append(f"the store that MOONCAKE_CONFIG_PATH names{f', {path}' if path else ''}")
        else:
            tiers.store(tiers.values.mapping(text).get("global_segment_size"))
    elif name == "DynamoConnector":
        for tier, variable in ((OWN, "DYN_KVBM_CPU_CACHE_GB"), (SSD, "DYN_KVBM_DISK_CACHE_GB")):
            if variable in environment:
                tiers.size(tier, environment[variable], GB, variable)
    elif name == "OffloadingConnector":
        told = connector.get("kv_connector_extra_config")
        size = told.get("cpu_bytes_to_use") if isinstance(told, Mapping) else None
        tiers.size(OWN, size, 1, "the memory of `OffloadingConnector`", gpus)


def _lmcache(tiers: _Tiers, environment: Mapping[str, str]) -> None:
    if "LMCACHE_CONFIG_FILE" in environment:
        tiers.unread.append("LMCACHE_CONFIG_FILE")
    if tiers.values.switch(environment.get("LMCACHE_LOCAL_CPU")):
        tiers.size(OWN, environment.get("LMCACHE_MAX_LOCAL_CPU_SIZE"), GB, "LMCACHE_MAX_LOCAL_CPU_SIZE")
    if environment.get("LMCACHE_LOCAL_DISK"):
        tiers.size(SSD, environment.get("LMCACHE_MAX_LOCAL_DISK_SIZE"), GB, "LMCACHE_MAX_LOCAL_DISK_SIZE")
    remote = environment.get("LMCACHE_REMOTE_URL", "")
    if remote.startswith("mooncakestore://"):
        tiers.told[STORE] = True
    elif remote:
        tiers.unread.append(f"the store of LMCACHE_REMOTE_URL, {remote.partition(':')[0]}")  # the rest may be secret
