# Plan "training", sha256:PLAN, by planner 0.1.0
"""Trains given weights as planned; the learning rate is an argument such as `optimizer.lr=5e-6`."""

import os
import sys
from pathlib import Path

from megatron.bridge import AutoBridge
from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs
from megatron.bridge.recipes.common import _sft_common
from megatron.bridge.training.config import FinetuningDatasetConfig
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.finetune import finetune
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

HERE = Path(__file__).parent
MODEL = 'meta-llama/Llama-3.1-8B'
PRECISION = 'bf16_mixed'


def main():
    config = _sft_common()
    config.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    config.mixed_precision = get_mixed_precision_config(PRECISION)
    config.mixed_precision.grad_reduce_in_fp32 = True
    config.tokenizer.tokenizer_model = MODEL
    config.checkpoint.pretrained_checkpoint = os.environ["PRETRAINED"]
    config.dataset = FinetuningDatasetConfig(
        dataset_root=os.environ["DATA"],
        seq_length=16384,
        dataset_kwargs={"pad_to_max_length": True},
        packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=16384, pad_seq_to_mult=4),
        do_test=False,
    )
    config = process_config_with_overrides(config, str(HERE / "overrides.yaml"), sys.argv[1:])
    finetune(config=config, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
