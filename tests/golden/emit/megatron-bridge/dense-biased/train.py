# Plan "training", sha256:PLAN, by planner 0.1.0
"""Trains as planned; tokenizer, data and learning rate are arguments such as `optimizer.lr=3e-4`."""

import sys
from pathlib import Path

from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

HERE = Path(__file__).parent
MODEL = 'openai/gpt-3-175b'
PRECISION = 'bf16_mixed'


def main():
    config = _pretrain_common()
    config.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    config.mixed_precision = get_mixed_precision_config(PRECISION)
    config.mixed_precision.grad_reduce_in_fp32 = True
    config = process_config_with_overrides(config, str(HERE / "overrides.yaml"), sys.argv[1:])
    pretrain(config=config, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
