"""Configs that no run can have: found before anything starts, by field, value and what is allowed."""

import hashlib
import json

import helpers
import pytest

from configs import joint_moe, mixtral, quickstart
from jmoe.config import check, fields
from jmoe.errors import UserError
from jmoe.run import record as record_lib
from jmoe.run.schedule import Schedule
from launch import jobs

WRONG = {
    "log_every": 0,
    "checkpoint_every": 0,
    "data.seq_len": 0,
    "seed": -1,
    "model.dtype": "float7",
    "profile_steps": (3,),
    "batch_tokens": ((0, 65_536, 1),),
    "model.capacity_factor": float("nan"),
    "optimizer.grad_clip": 0.0,
    "model.init_scale": 0.0,
    "optimizer.warmup_tokens": -1,
    "model.rope_base": -1.0,
    "optimizer.b1": 1.0,
    "optimizer.b2": -0.1,
    "optimizer.decay_fraction": 1.0,
    "optimizer.weight_decay": -0.1,
    "optimizer.lr_law.constant": float("inf"),
    "loss.load_balance": -1.0,
    "model.vocab_size": 0,
    "model.attention": "flush",
    "remat": "some",
    "mesh.expert": 0,
    "microbatch_tokens": -1,
    "chip.flops": -1.0,
    "n_tokens": (2.5,),
    "eval_every": -1,
    "data.validation_sets": "books",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_no_run_can_have_is_refused_with_what_is_allowed(name):
    config = joint_moe.get_config()
    config.update_from_flattened_dict({name: WRONG[name]})
    with pytest.raises(UserError) as told:
        Schedule(config)
    assert str(told.value) == f"config.{name}={WRONG[name]!r} must be {fields.FIELDS[name].allowed[0]}"


@pytest.mark.parametrize("config", [joint_moe, quickstart, mixtral])
def test_every_field_says_what_it_may_be(config):
    config = config.get_config()
    assert fields.flat(config).keys() == fields.FIELDS.keys()
    check.check_config(config)


def test_what_the_command_line_makes_of_it_is_one_sentence(tmp_path):
    flags = "--config=configs/quickstart.py", f"--workdir={tmp_path / 'run'}", "--config.batch_tokens=1024"
    said = helpers.fails("jmoe.train", *flags)
    assert said == "error: config.batch_tokens=(1024,) must be " + fields.FIELDS["batch_tokens"].allowed[0] + "\n"
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(microbatch_tokens=1_000), "config.microbatch_tokens=1000 is no multiple of config.data.seq_len=512"),
        (dict(microbatch_tokens=16_896), "config.microbatch_tokens=16896 is no multiple of config.model.group_tokens"),
        (dict(microbatch_tokens=131_072), "must divide each batch of config.batch_tokens, and 65536 tokens"),
        (dict(batch_tokens=((0, 65_536), (9, -1))), r"\(9, -1\) are no whole numbers"),
    ],
)
def test_microbatches_are_whole_rows_and_groups_and_divide_every_batch(change, words):
    config = joint_moe.get_config()
    config.model.n_experts = 8
    config.update(change)
    with pytest.raises(UserError, match=words):
        check.check_config(config)


def test_a_mesh_is_checked_without_devices():
    config = joint_moe.get_config()
    config.model.n_experts, config.mesh.expert, config.mesh.model = 8, 4, 2
    assert check.check_mesh(config, 16) == (2, 4, 2)
    config.microbatch_tokens = 32_768
    with pytest.raises(UserError, match="config.microbatch_tokens: 32768 tokens are 4 groups of .* over 8 devices"):
        check.check_mesh(config, 16)
    config.mesh.expert = 3
    with pytest.raises(UserError, match="does not divide the 16 devices"):
        check.check_mesh(config, 16)


def test_neutral_fields_are_in_no_record_and_no_job_name():
    """As a config was written before they came; any other value is."""
    config = quickstart.get_config()
    old = json.loads(config.to_json())
    del old["microbatch_tokens"], old["chip"], old["data"]["max_epochs"], old["data"]["on_bad_document"]
    del old["eval_every"], old["wandb"], old["data"]["validation_sets"]
    del old["model"]["final_norm"]
    record = record_lib.make_record(config, "0" * 16)
    assert {name: old[name] for name in record["config"] if name in old} == record["config"]
    before = hashlib.sha256(json.dumps(record["config"], sort_keys=True).encode()).hexdigest()[:8]
    assert jobs.digest(fields.record_of(config)) == before
    config.microbatch_tokens, config.chip.flops = 512, 1e12
    assert fields.record_of(config) == record["config"] | {"microbatch_tokens": 512, "chip": {"flops": 1e12}}
    # neither changes the mathematics, so a run may go on with it; nor does a field that chips had in an older version
    record["config"]["chip"] = {"memory": 8e9}
    record_lib.check_record(record, record_lib.make_record(config, "0" * 16), "somewhere")
