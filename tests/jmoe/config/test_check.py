"""Configs that no run can have: found before anything starts, by field, value and what is allowed."""

import hashlib
import json

import helpers
import pytest

from configs import deepseek_v3_like, fine_grained, joint_moe, mixtral, olmoe, quickstart, qwen3_moe
from jmoe import cli, huggingface
from jmoe.config import check, schema
from jmoe.config.schedule import Schedule
from jmoe.errors import UserError
from jmoe.run import divergence
from jmoe.run import record as record_lib
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
    "model.n_kv_heads": -1,
    "model.head_dim": -2,
    "model.qk_norm": "rms",
    "remat": "some",
    "mesh.expert": 0,
    "microbatch_tokens": -1,
    "chip.flops": -1.0,
    "n_tokens": (2.5,),
    "eval_every": -1,
    "checkpoint_minutes": -1.0,
    "keep_newest": 0,
    "keep_every": -1,
    "snapshot_every": -1,
    "data.on_bad_document": "ignore",
    "data.validation_sets": "books",
    "data.mixture": (("a.txt", 1.0), ("a.txt", 2.0)),
    "model.top_k": 0,
    "model.d_expert": -1,
    "model.scores": "relu",
    "model.balance": "luck",
    "optimizer.bias_rate": 1e300,
    "optimizer.skip_above": 0.5,
    "loss.logit_z": -1.0,
}
TOO_FAR = {  # beyond any use
    "model.init_scale": (1e30, 1e-30, 101.0),
    "model.capacity_factor": (1e300, 1001.0, float("inf")),
    "model.rope_base": (1e300,),
    "optimizer.bias_rate": (1.5, -0.1),
}
REFUSED = [*WRONG.items(), *((name, value) for name, values in TOO_FAR.items() for value in values)]


@pytest.mark.parametrize("name, value", REFUSED)
def test_a_value_that_no_run_can_have_is_refused_with_what_is_allowed(name, value):
    config = joint_moe.get_config()
    config.update_from_flattened_dict({name: value})
    with pytest.raises(UserError) as told:
        Schedule(config)
    description = schema.FIELDS[name].constraint.description
    assert str(told.value) == f"config.{name}={value!r} must be {description}"
    assert name not in TOO_FAR or any(character.isdigit() for character in description)


@pytest.mark.parametrize("config", [joint_moe, quickstart, mixtral, fine_grained, olmoe, qwen3_moe, deepseek_v3_like])
def test_every_field_says_what_it_may_be(config):
    config = config.get_config()
    assert schema.flat(config).keys() == schema.FIELDS.keys()
    check.check_config(config)


def test_quickstart_is_the_papers_recipe_but_for_its_size():
    """What the two configs differ in is what quickstart.py says, and no more."""
    paper = schema.flat(joint_moe.get_config())
    quick = schema.flat(quickstart.get_config())
    assert paper.keys() == quick.keys()
    differences = {name for name in paper if paper[name] != quick[name]}
    assert "model.capacity_factor" not in differences and "optimizer.decay_fraction" not in differences
    assert {name for name in differences if name.startswith(("loss.", "optimizer."))} == {
        "optimizer.lr_law.constant",
        "optimizer.warmup_tokens",
    }


@pytest.mark.parametrize(
    "n_experts, qk_norm, change",
    [
        (1, "none", dict(qk_norm="projection")),
        (8, "head", dict(n_shared_experts=1)),
        (8, "none", dict(balance="bias")),
        (8, "head", dict(scores="sigmoid")),
        (8, "projection", dict(n_dense_blocks=1)),
        (8, "projection", dict(head_dim=12)),
    ],
)
def test_a_model_without_an_equal_in_transformers_is_not_exported(n_experts, qk_norm, change):
    model = quickstart.get_config().model
    model.update(dict(n_experts=n_experts, norm="rms", qk_norm=qk_norm) | change)
    ((name, value),) = change.items()
    with pytest.raises(UserError, match=rf"config.model.{name}={value!r} has no equal among"):
        huggingface.check(model)


@pytest.mark.parametrize(
    "change, flag", [(dict(norm="layer"), "norm=rms"), (dict(final_norm=False), "final_norm=True")]
)
def test_the_refusal_names_the_flag_of_a_model_that_can_be_exported(change, flag):
    model = quickstart.get_config().model
    model.update(dict(n_experts=8, norm="rms") | change)
    with pytest.raises(UserError, match=rf"has no equal among .* trained with --config.model.{flag} can be exported$"):
        huggingface.check(model)


@pytest.mark.parametrize("config", [olmoe, qwen3_moe])
def test_a_config_of_transformers_says_the_model_again(config):
    model = config.get_config().model
    written = huggingface.config_json(model, 4_096)
    assert huggingface.model_fields(json.loads(json.dumps(written))) == huggingface.comparable_fields(model)
    assert written["model_type"] == config.__name__.rpartition(".")[2]
    with pytest.raises(UserError, match="num_experts is missing"):
        huggingface.model_fields({name: value for name, value in written.items() if name != "num_experts"})


def test_none_is_a_value_that_a_flag_can_give(tmp_path):
    """To config.model.capacity_factor, which may be None, and to a field that may not."""
    flags = "--config.model.capacity_factor=None", "--config.log_every=None"
    said = helpers.fails("jmoe.train", "--config=configs/quickstart.py", f"--workdir={tmp_path / 'run'}", *flags)
    assert said == "error: config.log_every=None must be a whole number, at least 1\n"


def test_a_table_gets_the_columns_that_any_of_its_rows_has():
    narrow, switch = joint_moe.get_config(), joint_moe.get_config()
    narrow.model.update(n_experts=64, top_k=8, d_expert=192)
    configs = [json.loads(config.to_json()) for config in (switch, narrow)]
    del configs[0]["model"]["top_k"], configs[0]["model"]["d_expert"], configs[0]["optimizer"]  # as in a record
    rows = [dict(n_experts=8) | schema.columns(config) for config in (switch, narrow)]
    assert rows == [dict(n_experts=8), dict(n_experts=8, top_k=8, d_expert=192)]
    schema.with_columns(rows, configs)
    assert rows == [dict(n_experts=8, top_k=1, d_expert=1536), dict(n_experts=8, top_k=8, d_expert=192)]
    grouped = joint_moe.get_config()
    grouped.model.update(n_kv_heads=2, head_dim=96, tied_embeddings=True)
    grouped.optimizer.name = "muon"
    configs = [configs[0], json.loads(grouped.to_json())]
    rows = [schema.columns(config) for config in (switch, grouped)]
    schema.with_columns(rows, configs)
    shared = dict(n_kv_heads=8, head_dim=64), dict(n_kv_heads=2, head_dim=96)
    others = dict(tied_embeddings=False, optimizer="adamw"), dict(tied_embeddings=True, optimizer="muon")
    assert rows == [heads | other for heads, other in zip(shared, others, strict=True)]
    alone = [dict(n_experts=8)]
    schema.with_columns(alone, configs[:1])
    assert alone == [dict(n_experts=8)]


@pytest.mark.parametrize(
    "change, words",
    [
        # microbatches are whole rows and groups, and divide every batch
        ({"microbatch_tokens": 1_000}, "config.microbatch_tokens=1000 is no multiple of config.data.seq_len=512"),
        ({"microbatch_tokens": 16_896}, "config.microbatch_tokens=16896 is no multiple of config.model.group_tokens"),
        ({"microbatch_tokens": 131_072}, "must divide each batch of config.batch_tokens, and 65536 tokens"),
        ({"batch_tokens": ((0, 65_536), (9, -1))}, r"\(9, -1\)\) must be pairs"),
        # heads
        ({"model.n_kv_heads": 3}, "config.model.n_kv_heads=3 must divide config.model.n_heads=8"),
        ({"model.n_kv_heads": 16}, "config.model.n_kv_heads=16 must divide config.model.n_heads=8"),
        ({"model.head_dim": 7}, "config.model.head_dim=7 must be even"),
        ({"model.d_model": 500, "model.n_heads": 8}, "config.model.d_model=500 must be an even multiple of n_heads=8"),
        # experts
        ({"model.top_k": 9}, "config.model.top_k=9 must be at most n_experts=8"),
        ({"model.n_experts": 1, "model.top_k": 2}, "config.model.top_k=2 must be at most n_experts=1"),
        ({"model.n_experts": 1, "model.n_shared_experts": 1}, "config.model.n_shared_experts=1 needs a mixture"),
        ({"model.n_experts": 1, "model.balance": "bias"}, "config.model.balance='bias' needs a mixture"),
        ({"model.n_dense_blocks": 8}, "config.model.n_dense_blocks=8 must be below n_blocks=8"),
        ({"model.capacity_factor": 0.0009}, "config.model.capacity_factor=0.0009 leaves no slot"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused_by_name(change, words):
    config = joint_moe.get_config()
    config.model.n_experts = 8
    config.update_from_flattened_dict(change)
    with pytest.raises(UserError, match=words):
        check.check_config(config)


def test_heads_of_their_own_size_need_nothing_of_the_width():
    config = joint_moe.get_config()
    config.model.update(d_model=500, n_heads=8, n_kv_heads=2, head_dim=6)
    check.check_config(config)
    config.mesh.model = 4
    with pytest.raises(UserError, match="config.model.n_kv_heads=2 does not divide over config.mesh.model=4"):
        check.check_mesh(config, 4)


def test_the_model_axis_divides_the_width_that_is_used():
    config = joint_moe.get_config()
    config.model.n_experts, config.model.d_ff, config.model.d_expert, config.mesh.model = 8, 769, 96, 8
    check.check_mesh(config, 8)  # no layer is as wide as d_ff
    config.model.n_dense_blocks = 1
    with pytest.raises(UserError, match=r"config.model.d_ff=769 does not divide over config.mesh.model=8"):
        check.check_mesh(config, 8)
    config.model.d_ff, config.model.d_expert = 768, 100
    with pytest.raises(UserError, match=r"config.model.d_expert=100 does not divide over config.mesh.model=8"):
        check.check_mesh(config, 8)


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
    del old["checkpoint_minutes"], old["keep_newest"], old["keep_every"], old["snapshot_every"]
    del old["eval_every"], old["wandb"], old["data"]["validation_sets"], old["data"]["mixture"]
    del old["model"]["final_norm"], old["optimizer"]["bias_rate"], old["optimizer"]["name"]
    del old["data"]["document_mask"], old["loss"]["logit_z"], old["optimizer"]["skip_above"], old["router_health"]
    del old["optimizer"]["lr_law"]["n_tokens"], old["optimizer"]["lr_law"]["batch_tokens"]
    for name in ("n_kv_heads", "head_dim", "qk_norm", "tied_embeddings"):
        del old["model"][name]
    for name in ("top_k", "normalize_gates", "d_expert", "n_shared_experts", "n_dense_blocks", "scores", "balance"):
        del old["model"][name]
    record = record_lib.make_record(config, "0" * 16)
    assert {name: old[name] for name in record["config"] if name in old} == record["config"]
    before = hashlib.sha256(json.dumps(record["config"], sort_keys=True).encode()).hexdigest()[:8]
    assert jobs.digest(schema.record_of(config)) == before
    config.microbatch_tokens, config.chip.flops = 512, 1e12
    assert schema.record_of(config) == record["config"] | {"microbatch_tokens": 512, "chip": {"flops": 1e12}}
    # neither changes the mathematics, so a run may go on with it; nor does a field that chips had in an older version
    record["config"]["chip"] = {"memory": 8e9}
    record_lib.check_record(record, record_lib.make_record(config, "0" * 16), "somewhere")


def test_a_config_that_is_older_than_fields_is_read_with_their_neutral_values(tmp_path):
    """Neutral values are not always defaults: runs from before model.norm had RMSNorm."""
    path = tmp_path / "old.py"
    path.write_text(
        "from configs import quickstart\n"
        "def get_config():\n"
        "    config = quickstart.get_config()\n"
        "    for section, name in (('model', 'norm'), ('model', 'top_k'), ('optimizer', 'name')):\n"
        "        del config[section][name]\n"
        "    for name in ('chip', 'predicted', 'mup_base', 'eval_every'):\n"
        "        del config[name]\n"
        "    return config\n"
    )
    read = cli.config_in(str(path))
    check.check_config(read)
    full = quickstart.get_config()
    assert schema.flat(read) == schema.flat(full) | {"model.norm": "rms"}
    assert (read.model.top_k, read.optimizer.name, read.eval_every) == (1, "adamw", 0)
    assert read.chip.flops == 0 and read.mup_base.d_model == 512 and read.predicted.law == ""

    path.write_text("from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({'seeds': 1})\n")
    with pytest.raises(UserError, match="config.seeds is no field of a config: did you mean config.seed?"):
        check.check_config(cli.config_in(str(path)))


def test_a_record_is_read_back_as_the_config_that_it_is_of():
    config = quickstart.get_config()
    config.model.update(n_experts=8, top_k=2, norm="rms")
    config.mesh.expert = 4
    record = json.loads(json.dumps(schema.record_of(config)))
    read = schema.config_of_record(record)
    config.mesh.expert = 1  # the reader's own
    assert json.loads(read.to_json()) == json.loads(config.to_json())  # which have lists for tuples


@pytest.mark.parametrize("field", ["d_model", "n_experts", "n_heads"])
def test_a_model_that_no_memory_holds_is_refused_by_its_sizes(field):
    value = 10**1500
    config = joint_moe.get_config()
    config.model.update(n_experts=8, capacity_factor=None, head_dim=64)
    config.model[field] = value
    if field == "n_heads":
        config.model.n_kv_heads = 0
    with pytest.raises(UserError, match=r"config.model has about 10\^\d+ parameters \(d_model=.* 10\^15 are the most"):
        check.check_config(config)


def test_a_config_that_is_empty_is_one_sentence(tmp_path):
    said = helpers.fails("jmoe.train", f"--workdir={tmp_path}/run", "--config=")
    words = "--config= is empty: name a configuration, such as --config=configs/quickstart.py"
    assert said.splitlines()[-1].startswith(f"error: {words}")


def test_a_misspelt_flag_is_answered_as_a_misspelt_field_of_a_file(tmp_path):
    flag, name, meant = "modle.n_experts=None", "modle.n_experts", "--config.model.n_experts"
    wanted = f"error: --config.{name} is no field of a config: did you mean {meant}?\n"
    flags = f"--workdir={tmp_path}/run", "--config=configs/quickstart.py", f"--config.{flag}"
    assert helpers.fails("jmoe.train", *flags) == wanted
    assert helpers.fails("jmoe.evaluate", f"--workdir={tmp_path}/run", f"--config.{flag}") == wanted
    sweep = "--sweep=configs/sweeps/quickstart.py", f"--workdir={tmp_path}/sweep", f"--config.{flag}"
    assert helpers.fails("launch.sweep", *sweep) == wanted
    (tmp_path / "sweep.py").write_text(f"get_sweep = lambda: ('configs/quickstart.py', {{{name!r}: (1, 2)}})")
    said = helpers.fails("launch.sweep", f"--sweep={tmp_path}/sweep.py", f"--workdir={tmp_path}/sweep")
    assert f"config.{name} is no field of a config: did you mean {meant.removeprefix('--')}?" in said
    for name, meant in (("data.pth", "data.path"), ("weight_decay", "optimizer.weight_decay")):
        config = quickstart.get_config()
        with config.unlocked():
            config.update_from_flattened_dict({name: "x"})
        with pytest.raises(UserError, match=rf"^config.{name} is no field of a config: did you mean config.{meant}\?$"):
            check.check_config(config)


def test_a_field_left_out_of_a_record_is_named_by_its_neutral_value():
    muon = joint_moe.get_config()
    muon.update_from_flattened_dict({"optimizer.name": "muon", "model.top_k": 2, "model.n_experts": 8})
    plain = joint_moe.get_config()
    plain.model.n_experts = 8
    both = schema.record_of(muon), schema.record_of(plain)
    assert schema.differences(*both) == ["config.model.top_k was 2, is 1", "config.optimizer.name was muon, is adamw"]
    assert schema.differences(*both[::-1]) == [
        "config.model.top_k was 1, is 2",
        "config.optimizer.name was adamw, is muon",
    ]
    assert schema.differences(both[1], both[1] | {"parametrization": "standard"}) == []


@pytest.mark.parametrize(
    "change, named",
    [
        ({"loss.load_balance": 1e300}, ["loss.load_balance: 1e+300"]),
        ({"loss.router_z": 1e9}, ["loss.router_z: 1e+09"]),
        ({"loss.logit_z": 1e9, "model.n_experts": 1}, ["loss.logit_z: 1e+09"]),
        ({"optimizer.weight_decay": 1e9}, ["optimizer.weight_decay: 1e+09"]),
        ({"loss.load_balance": 50.0, "optimizer.weight_decay": 1e9}, ["loss.load_balance", "optimizer.weight_decay"]),
        ({"loss.load_balance": 1e300, "model.n_experts": 1}, ["optimizer.lr_law.constant"]),
        ({}, ["optimizer.lr_law.constant", "optimizer.warmup_tokens"]),
    ],
)
def test_an_infinite_loss_is_answered_by_the_field_that_is_likely(change, named):
    config = quickstart.get_config()
    config.model.n_experts = 8
    config.update_from_flattened_dict(change)
    said = divergence.remedy(config, Schedule(config).peak)
    assert all(f"config.{name}" in said for name in named)
    assert ("lr_law" in said) == ("optimizer.lr_law.constant" in named)
