"""Cost model of training steps: seconds and bytes. What other parts of the planner build on:

- `config.TrainingConfig` (frozen, hashable): `arch, machine, sequence_tokens, global_batch, micro_batch, tp, pp, vpp,
  cp, ep, etp, dp, zero_stage, zero_ranks, schedule, recompute, precision, task, overlap, offload, framework,
  layers_of_stage, ends_count_as_layers`; `.shard` is the small key of everything that a layer costs,
  `.num_micro_batches`, `.num_gpus`. `config.machine_of(node)` is the `Machine` of a node type (kept, hashes by
  identity). `config.stage_layers(config)` is the layout, `config.layer_runs(layers, counts)` cuts layers into stages.
- `layer_costs`, kept by their arguments: `layer_cost(machine, layer, shard, rates)`,
  `end_cost(end, machine, shard, vocab, rates, layer)` of "embedding", "loss" or "mtp" -> `LayerCost(forward_s,
  backward_input_s, backward_weight_s, exchange_s {"tp","cp","ep"}: what shows and is contained in the three,
  forward_of_module {module: s})`.
- `rates.load_rates(name)`: the rates of a calibration; `rates.rates_on(pool, arch, name, store)` with the products that
  kernel tables of the pool's GPU hold. Pass this one object: costs are kept by its identity.
- `stages.stage_contents(config)`: what each of the pp x vpp stages holds, as `StagePart(part, layer, count, full)`;
  `config.stages_of_rank(config)`: the stages of each pipeline rank under its schedule.
- `step.stage_passes(config, rates)`: seconds [S, 3] of one micro-batch in each stage, recomputation in the backward.
- `step.message_seconds(config, rates)`: one hand-over between neighbouring stages.
- `step.data_parallel(config, parameters.rank_parameters(config, rank), rates)` -> `DataParallel(reduce_s, gather_s,
  optimizer_s)`, each on its own; `zero_overlap` says what of it shows beside computing.
- `pipeline.pipeline_time(...)`: all micro-batches through a schedule, simulated; searched plans go through it too.
- `step.step_time(config)` -> `OptimizerStepTime(step_s, pipeline_s, bubble_s, data_parallel_s, optimizer_s, pass_R3)`,
  which is what `planner.kinds.train.evaluation` gives the same plan.
- `parameters.layer_parameters(layer, hidden, tp, ep, etp)`, `.rank_parameters(config, rank)`,
  `.state_bytes(config, parameters)` -> `StateBytes(weights_bytes, gradients_bytes, optimizer_bytes)` by ZeRO stage.
- `activations.layer_activations(layer, shard)` -> `LayerActivations(input_bytes, of_module)` with `.total_bytes` and
  `.without(modules)`: what one micro-batch keeps under no, selective or full recomputation.
- `memory.memory(config)` -> `RankBytes`, bytes of each rank of the pipeline with `.total_R`, what must fit;
  `memory.allocated_bytes(config)`, the peak of the allocator; what they are made of, for searches:
  `memory.in_flight_bytes(schedule, pp, vpp, micro_batches, kept_S)` and `memory.work_bytes(config)`.
- `shapes.MeasuredShapes.factor(shape)`: what runs of the same shape took over the formulas, in every `layer_cost`;
  `intervals.step_interval_s(config, step_s, rates)`: where 80 % of measured steps lie around a predicted one.
"""
