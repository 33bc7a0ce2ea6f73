"""What a strategy cannot combine is refused when a run is planned; its record can be read."""

import pytest

from ddl_core.combinations import check
from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.registry import COMMAND, FRAMEWORKS, Entry
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import RunRecord, read_record, write_record
from ddl_tools.study import Study

REFUSED = [
    ("ddp", {"accumulation": 6, "micro_batches_per_pass": 4}, "choose a divisor"),
    ("ddp", {"ddp_compression": "bf16", "device": "cpu"}, "'fp16' or 'none'"),
    ("fsdp", {"precision": "fp16"}, "'bf16' or 'fp32'"),
    ("fsdp", {"channels_last": True}, "channels_last = false"),
    ("fsdp", {"fsdp_shards": 3, "gpus_per_node": 8}, "choose a divisor"),
    ("fsdp", {"fsdp_shards": 8, "gpus_per_node": 4}, "choose a divisor"),
    ("fsdp", {"fsdp_shards": 4, "gpus_per_node": 4}, "leave it out"),
    ("fsdp", {"fsdp_shards": 4, "gpus_per_node": 6, "nodes": 2}, "multiple of gpus_per_node"),
    ("ddp", {"fsdp_shards": 2, "gpus_per_node": 4}, "leave it out"),
    ("fsdp", {"optimizer": "lars"}, "optimizer = 'sgd' or 'adamw'"),
    ("ddp", {"momentum": 0.8, "optimizer": "adamw"}, "optimizer = 'sgd' or 'lars'"),
    ("ddp", {"nesterov": True, "optimizer": "adamw"}, "'sgd' or 'lars'"),
    ("ddp", {"adam_beta2": 0.95}, "optimizer = 'adamw'"),
    ("ddp", {"clip_grad_norm": 0.5, "optimizer": "lamb"}, "leave it out"),
    ("deepspeed", {"deepspeed_overlap_comm": True}, "= 1 or 2 or 3"),
    ("deepspeed", {"deepspeed_bucket_elements": 9000}, "= 1 or 2 or 3"),
    ("deepspeed", {"deepspeed_zero_stage": 3, "compile": True}, "a lower stage"),
    ("deepspeed", {"deepspeed_zero_stage": 1, "precision": "fp16"}, "'bf16', or stage 0"),
    ("deepspeed", {"deepspeed_zero_stage": 2, "channels_last": True}, "channels_last = false"),
    ("deepspeed", {"deepspeed_zero_stage": 1, "optimizer": "lars"}, "optimizer = 'sgd'"),
    ("deepspeed", {"deepspeed_zero_stage": 2, "decay_norm_bias": False}, "decay_norm_bias = true"),
]
every_one = pytest.mark.parametrize(("strategy", "fields", "remedy"), REFUSED)


@every_one
def test_a_study_is_refused_when_it_is_planned(strategy, fields, remedy) -> None:
    axes = {"strategy": [strategy], **{name: [value] for name, value in fields.items()}}
    study = Study(name="refused", question="What is refused?", axes=[axes])
    with pytest.raises(SpecError) as caught:
        study.expand()
    for word in (next(iter(fields)), remedy):
        assert word in str(caught.value)


@every_one
def test_a_record_of_such_a_run_can_be_read(tmp_path, strategy, fields, remedy) -> None:
    record = RunRecord.plan("older", RunSpec(strategy=strategy, **fields))
    folder = Tree(tmp_path).runs
    folder.mkdir(parents=True)
    write_record(folder, record)
    assert read_record(folder).spec == record.spec


@pytest.mark.parametrize(("nodes", "ranks", "shards"), [(1, 4, 2), (4, 2, 2), (4, 2, 4), (2, 6, 3)])
def test_ranks_may_form_equal_groups_on_equally_many_nodes(nodes, ranks, shards) -> None:
    RunSpec.parse(
        {"strategy": "fsdp", "nodes": nodes, "gpus_per_node": ranks, "fsdp_shards": shards}
    )


@pytest.mark.parametrize(
    "fields",
    [{"clip_grad_norm": 1.0}, {"activation_checkpointing": True}],
)
@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "torch"])
def test_other_frameworks_refuse_what_torch_alone_has(framework, fields) -> None:
    with pytest.raises(SpecError, match=rf"{next(iter(fields))} = .* of framework 'torch' alone"):
        RunSpec.parse({"framework": framework, **fields})


@pytest.mark.parametrize("framework", [one for one in FRAMEWORKS if one not in ("torch", COMMAND)])
def test_other_frameworks_train_with_adamw_and_no_optimiser_of_timm(framework) -> None:
    RunSpec.parse({"framework": framework, "optimizer": "adamw", "adam_beta2": 0.95})
    for optimizer in ("lars", "lamb"):
        with pytest.raises(SpecError, match=f"{optimizer}.*choose one of: sgd, adamw; or .*torch"):
            RunSpec.parse({"framework": framework, "optimizer": optimizer})


def test_a_new_framework_trains_with_sgd_until_it_declares_more(monkeypatch) -> None:
    monkeypatch.setitem(FRAMEWORKS, "keras", Entry("ddl_tools.frameworks.plain:Plain"))
    RunSpec.parse({"framework": "keras", "optimizer": "sgd"})
    with pytest.raises(SpecError, match=r"'adamw'.*choose one of: sgd; or .*'tensorflow'"):
        RunSpec.parse({"framework": "keras", "optimizer": "adamw"})


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_adamw_and_clipping_are_allowed_at_each_stage(stage) -> None:
    of_deepspeed = {"strategy": "deepspeed", "deepspeed_zero_stage": stage}
    RunSpec.parse({**of_deepspeed, "optimizer": "adamw", "clip_grad_norm": 1.0})


def test_a_device_that_is_not_known_yet_refuses_nothing() -> None:
    run = RunSpec.parse({"strategy": "ddp", "ddp_compression": "bf16"})
    check(run, "cuda")
    with pytest.raises(SpecError, match="NCCL"):
        check(run, "cpu")
