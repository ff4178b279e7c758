"""What Dynamo's block manager (KVBM) is told of memory beside the device, where vLLM would have its own or LMCache.

Sizes are of a rank: the leader takes the bytes of a block from the layout of one worker and gives every worker as many
blocks (ai-dynamo/dynamo, KVBM's connector leader: `bytes_per_block`, `host_block_count`). Where caches are handed over,
`PdConnector` has the block manager first and the transfer second (docs.nvidia.com/dynamo, KVBM with vLLM).
"""

import json
from collections.abc import Mapping
from typing import Any

from planner.emit.serving.scene import SSD_FOLDER
from planner.emit.shell import Word, word
from planner.plan.schema import Role

OFFLOADING, TRANSFER = "--kv-offloading-size", "--kv-transfer-config"
LMCACHE = "LMCACHE_"
_GB = 10**9
_MODULE = "kvbm.vllm_integration.connector"
_OWN: Mapping[str, Any] = {
    "kv_connector": "DynamoConnector",
    "kv_connector_module_path": _MODULE,
    "kv_role": "kv_both",
}
Flags = tuple[tuple[str, tuple[Word, ...]], ...]
Settings = tuple[tuple[str, Word], ...]


def manages(role: Role) -> bool:
    """Whether an engine of a role keeps prefixes in host memory or on an SSD of its own, which KVBM can hold."""
    limits = role.limits
    apart = limits.get("prefix_store") == "shared" or "pool_cache_bytes" in limits
    return not apart and any(f"{name}_cache_bytes" in limits for name in ("host", "ssd"))


def flags_of(flags: Flags) -> Flags:
    """The flags of `vllm serve` with the block manager where offloading or LMCache was."""
    told = dict(flags).get(TRANSFER)
    transfer = None if told is None else _handed_over(json.loads(str(told[0].parts[0])))
    connector: dict[str, Any] = dict(_OWN)
    if transfer is not None:
        both = {"connectors": [connector, transfer]}
        connector = {**_OWN, "kv_connector": "PdConnector", "kv_connector_extra_config": both}
    kept = tuple(each for each in flags if each[0] not in (OFFLOADING, TRANSFER))
    return (*kept, (TRANSFER, (word(connector),)))


def _handed_over(told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The connector by which caches are handed over; None where there is none."""
    if told["kv_connector"] == "MultiConnector":
        transfer: Mapping[str, Any] = told["kv_connector_extra_config"]["connectors"][0]
        return transfer
    return None if told["kv_connector"] == "LMCacheConnectorV1" else told


def settings_of(role: Role, settings: Settings) -> Settings:
    """The variables of an engine, with sizes of the block manager in place of LMCache's."""
    kept = tuple(each for each in settings if not each[0].startswith(LMCACHE))
    sizes = {name: role.limits.get(f"{name}_cache_bytes") for name in ("host", "ssd")}
    own = [("DYN_KVBM_CPU_CACHE_GB", word(float(sizes["host"]) / _GB))] if sizes["host"] is not None else []
    if sizes["ssd"] is not None:
        own += [
            ("DYN_KVBM_DISK_CACHE_GB", word(float(sizes["ssd"]) / _GB)),
            ("DYN_KVBM_DISK_CACHE_DIR", word(SSD_FOLDER)),
        ]
    return (*kept, *own)
