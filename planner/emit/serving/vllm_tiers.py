"""Who keeps prefixes of vLLM in memory beside the device, where vLLM's own host memory is not all that there is.

A store that engines share, or a pool, is one of Mooncake, which vLLM reads by its own `MooncakeStoreConnector` and a
file of settings that `MOONCAKE_CONFIG_PATH` names; with `standalone-store` an engine lends nothing to it, with
`embedded` every rank lends `global_segment_size` (vllm/distributed/mooncake_store.py of 0.33.0). LMCache keeps prefixes
on SSDs of an engine, and in host memory of its own before a pool.
"""

from collections.abc import Iterator, Mapping

from planner.emit.names import label_of
from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.scene import SSD_FOLDER, STORE, PrefixTiers, Scene, prefix_tiers, refuse_shared_ssd
from planner.emit.shell import Word, word

CONFIG_PATH = "MOONCAKE_CONFIG_PATH"
_GB = 10**9
_LMCACHE = "LMCacheConnectorV1"
_MOONCAKE = "MooncakeStoreConnector"
_LMCACHE_CHUNK = 256  # tokens, LMCache's own default
_LMCACHE_BUFFER_GB = 5  # of a rank, through which blocks pass to and from a store: its own default


def beside_engine(tiers: PrefixTiers) -> bool:
    """Whether a connector keeps prefixes: on SSDs, or in a store."""
    return tiers.stored or tiers.ssd_bytes is not None


def connector_of(tiers: PrefixTiers) -> dict[str, object]:
    """That connector, of tiers beside the engine."""
    return {"kv_connector": _MOONCAKE if _store_alone(tiers) else _LMCACHE, "kv_role": "kv_both"}


def variables_of(instance: EngineInstance) -> Iterator[tuple[str, Word]]:
    """The variables that an engine reads of its tiers; raises PlannerError for SSDs that several would share."""
    tiers = prefix_tiers(instance)
    if not beside_engine(tiers):
        return
    refuse_shared_ssd(instance, tiers, "vLLM")
    if _store_alone(tiers):
        yield CONFIG_PATH, word(_file_of(instance))
    else:
        yield from _lmcache(tiers)


def files_of(scene: Scene, instance: EngineInstance) -> Mapping[str, Mapping[str, object]]:
    """By name, the settings of a store that the engine reads by itself."""
    tiers = prefix_tiers(instance)
    if not _store_alone(tiers):
        return {}
    lent = (tiers.host_bytes if tiers.shared else None) or 0
    return {
        _file_of(instance): {
            "mode": "embedded" if lent else "standalone-store",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": STORE,
            "global_segment_size": lent,
            "protocol": "rdma",
        }
    }


def _store_alone(tiers: PrefixTiers) -> bool:
    """Whether nothing but a store keeps prefixes beside the device: no memory is an engine's own."""
    own_host = tiers.host_bytes is not None and not tiers.shared
    return tiers.stored and tiers.ssd_bytes is None and not own_host


def _file_of(instance: EngineInstance) -> str:
    return f"mooncake-{label_of(instance.role.name, 40)}.json"


def _lmcache(tiers: PrefixTiers) -> Iterator[tuple[str, Word]]:
    """What LMCache is told of a rank: its own host memory and SSD, and the pool behind them."""
    yield "LMCACHE_CHUNK_SIZE", word(_LMCACHE_CHUNK)
    yield "LMCACHE_LOCAL_CPU", word("False" if tiers.host_bytes is None else "True")
    yield "LMCACHE_MAX_LOCAL_CPU_SIZE", word(_LMCACHE_BUFFER_GB if tiers.host_bytes is None else tiers.host_bytes / _GB)
    if tiers.ssd_bytes is not None:
        yield "LMCACHE_LOCAL_DISK", word(f"file://{SSD_FOLDER}/")
        yield "LMCACHE_MAX_LOCAL_DISK_SIZE", word(tiers.ssd_bytes / _GB)
    if tiers.stored:
        yield "LMCACHE_REMOTE_URL", word(f"mooncakestore://{STORE}/")
        yield "LMCACHE_EXTRA_CONFIG", word({"global_segment_size": 0, "metadata_server": "P2PHANDSHAKE"})
