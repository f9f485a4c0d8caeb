"""What `make gpu` runs and makes of it: parts, a failed one, tables, profiles. The CPU stands for the accelerator."""

import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import helpers
import jax
import pytest

from benchmarks.accelerator import kernels as profile_table
from benchmarks.accelerator import python as accelerator_python
from benchmarks.accelerator import table as accelerator_table
from benchmarks.accelerator.checks import Checks
from configs import quickstart
from jmoe.config.check import check_config
from jmoe.cost import chips, memory, report, report_text
from results.third import cells as study_cells

ROOT = pathlib.Path(__file__).parent.parent


def measure(out, *flags):
    compiled = pathlib.Path(f"{out}-traces/compiled")  # else each folder of traces has its own
    if not compiled.is_symlink():
        compiled.parent.mkdir(exist_ok=True)
        compiled.symlink_to(pathlib.Path(os.environ["JMOE_CACHE"]) / "compiled")
    return helpers.run("benchmarks.accelerator", "--kind=cpu", f"--out={out}", *flags, timeout=600)


def test_a_failed_part_costs_no_other_and_is_all_that_is_tried_again(tmp_path):
    out = tmp_path / "out"
    only = ("--only=peak", "--only=step 8", "--only=profile 8")
    (tmp_path / "out-traces").mkdir()
    in_the_way = tmp_path / "out-traces" / "profile-8"
    in_the_way.write_text("a file where the trace's folder should be")
    done = measure(out, *only)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "error: part profile 8: " in done.stderr and "Traceback" not in done.stderr
    first = json.loads((out / "results.json").read_text())["parts"]
    failed = {"peak": False, "step 8": False, "profile 8": True}
    assert {name: "error" in part for name, part in first.items()} == failed

    in_the_way.unlink()
    done = measure(out, *only)
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((out / "results.json").read_text())
    assert {name: part for name, part in state["parts"].items() if name != "profile 8"} == {
        name: part for name, part in first.items() if name != "profile 8"
    }
    profile = state["parts"]["profile 8"]["result"]
    assert sum(kind["ms"] for kind in profile["kinds"]) > 0 and profile["longest"] and profile["span ms"] > 0
    assert {kind["kind"]: kind["ms"] > 0 for kind in profile["kinds"]} == dict.fromkeys(
        ("matmul", "attention", "else"), True
    )
    table = (out / "table.md").read_text()
    assert table == accelerator_table.section(state)
    for words in "No data sheet", "bfloat16 product of 256", "| E=8 | 1,024 |", "| unrolled |", "Profile of E=8, 1,024":
        assert words in table, table
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "results.json", "table.md"]

    state["machine"]["kind"] = "another chip"
    (out / "results.json").write_text(json.dumps(state))
    done = measure(out)
    assert done.returncode == 1 and "results of another chip, and this is cpu" in done.stderr


def test_the_checks_against_the_cpu_pass_on_the_cpu_and_wait_for_their_turn(tmp_path):
    done = measure(tmp_path, "--only=check layer", "--minutes=0.01")
    assert done.returncode == 3 and "parts left: check layer" in done.stdout, done.stdout + done.stderr
    done = measure(tmp_path, "--only=check layer")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["parts"]["check layer"]["result"]
    assert len(rows) == 8 and all(row["passed"] and 0 < row["tolerance"] < 0.1 for row in rows)


def test_a_check_fails_beyond_its_tolerance_and_for_what_is_no_number():
    checks = Checks()
    with checks.named("a") as compare:
        compare("near", {"x": [3.0, 4.0], "y": 12.0}, {"x": [3.0, 4.0], "y": 12.13}, 0.0101)  # 0.13 of nearly 13
        compare("far", {"x": [3.0, 4.0], "y": 12.0}, {"x": [3.0, 4.0], "y": 12.13}, 0.0099)
        compare("nan", [1.0, float("nan")], [1.0, 1.0], 1.0)
        raise ArithmeticError("lost")
    result = [(row["check"], row["passed"], row["reason"]) for row in checks.rows]
    assert result == [
        ("a: near", True, ""),
        ("a: far", False, ""),
        ("a: nan", False, ""),
        ("a", False, "ArithmeticError: lost"),
    ]


def test_an_absent_accelerator_is_one_sentence(tmp_path):
    flags = "--kind=cuda", f"--out={tmp_path}"
    done = helpers.run("benchmarks.accelerator", *flags, timeout=200)
    assert done.returncode == 1 and "error: no cuda device can be used" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_the_study_goes_on_from_the_runs_that_it_has(tmp_path):
    path = tmp_path / "rows.json"
    flags = ("--toy", f"--folder={tmp_path / 'runs'}", f"--json={path}")
    assert helpers.run("benchmarks.accelerator.study", *flags, timeout=300).returncode == 0
    first = json.loads(path.read_text())
    assert first["complete"] and [row["n_tokens"] for row in first["rows"]] == [16_384, 32_768]
    assert all(row["flops"] == 6 * row["n_active"] * row["n_tokens"] for row in first["rows"])

    path.write_text(json.dumps(first | {"rows": first["rows"][:1]}))
    done = helpers.succeeds("benchmarks.accelerator.study", *flags, "--seconds=0", timeout=300)
    assert "1 of 2 runs are done" in done.stdout
    assert not json.loads(path.read_text())["complete"]
    (tmp_path / "runs").rename(tmp_path / "gone")  # another machine: the last run's trunk is trained anew
    assert helpers.run("benchmarks.accelerator.study", *flags, timeout=300).returncode == 0
    again = json.loads(path.read_text())
    assert again["complete"] and again["rows"][0] == first["rows"][0]
    assert again["rows"][1]["loss"] == pytest.approx(first["rows"][1]["loss"], rel=1e-4)


def test_the_predictions_are_those_that_were_committed():
    """They are of every run but the fine-grained ones, and nothing was written again after a run was seen."""
    folder = ROOT / "results" / "third"
    text = (folder / "predictions.csv").read_bytes()
    assert hashlib.sha256(text).hexdigest() in (folder / "README.md").read_text()
    predicted = [line.split(",")[0] for line in text.decode().splitlines()[1:]]
    assert predicted == [cell.name for cell in study_cells.cells() if cell.trunk.top_k == 1]


def test_each_run_of_the_study_is_a_valid_config_and_stands_once():
    cells = study_cells.cells()
    assert len({cell.name for cell in cells}) == len(cells)
    flops = [cell.columns()["flops"] for cell in cells]
    assert 8e13 < min(flops) < 1e14 and 3e16 < max(flops) < 3.1e16
    for cell in cells:
        check_config(cell.trunk.config())


def results(**parts):
    """A file of results/accelerators/ of an H100."""
    on = {"kind": "NVIDIA H100 80GB HBM3", "name": "H100", "date": "2026-01-02", "jax_version": "0.11.2"}
    peak = {"flops": 700e12, "bandwidth": 3e12, "n": 8192, "bytes": 4 * 10**9}
    machine = on | {"published": vars(chips.CHIPS["H100"])}
    return {"machine": machine, "parts": {"peak": {"result": peak, "seconds": 1}} | parts}


def test_the_readme_holds_the_tables_of_what_was_measured():
    text = accelerator_table.README.read_text(encoding="utf-8")
    between = text.partition(accelerator_table.BEGIN + "\n")[2].partition(accelerator_table.END)[0]
    assert between == accelerator_table.measured()


def test_measured_peaks_stand_beside_the_published(tmp_path):
    device = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
    assert chips.measured(device, tmp_path) is None
    (tmp_path / "H100.json").write_text(json.dumps(results()))
    peaks = chips.measured(device, tmp_path)
    assert peaks == {"flops": 700e12, "bandwidth": 3e12, "file": "H100.json"}

    config = quickstart.get_config()
    config.model.d_model = 16
    config.model.n_blocks = 1
    mesh, compiled = memory.compile_step(config, jax.devices()[:1])
    chip = chips.CHIPS["H100"]
    both = report.report(config, mesh, compiled, chip, peaks)
    published = both["roofline_seconds"]
    result = both["measured_peaks"]["roofline_seconds"]
    assert result["compute"] == pytest.approx(published["compute"] * 989 / 700)
    assert result["memory"] == pytest.approx(published["memory"] * 3350 / 3000)
    assert both["mfu"]["overlapped"] / both["measured_peaks"]["mfu"]["overlapped"] == pytest.approx(
        result["overlapped"] / published["overlapped"]  # both are shares of the data sheet's
    )
    assert "as measured" in report_text.table(both, "x") and "3 TB/s of H100.json" in report_text.table(both, "x")
    unknown = report.report(config, mesh, compiled, None, peaks)
    assert unknown["measured_peaks"]["roofline_seconds"] == result and "mfu" not in unknown
    assert "roofline     unknown" in report_text.table(unknown, "x")


PROGRAM = """HloModule step

%fused (p: f32[4,4]) -> f32[4,4] {
  %p = f32[4,4]{1,0} parameter(0)
  %scaled = f32[4,4]{1,0} add(%p, %p), metadata={op_name="jit(f)/jvp(attention)/add"}
  ROOT %inner = f32[4,4]{1,0} dot(%scaled, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  %gemm_fusion.1 = f32[4,4]{1,0} fusion(%a), kind=kCustom, calls=%fused
  %custom-call.2 = f32[4,4]{1,0} custom-call(%a, %a), custom_call_target="__cublas$lt$matmul"
  %custom-call.3 = f32[4,4]{1,0} custom-call(%a), custom_call_target="__cudnn$fmhaSoftmax"
  %scores = f32[4,4]{1,0} dot(%a, %a), lhs_contracting_dims={1}, metadata={op_name="jit(f)/jvp(attention)/dot_general"}
  ROOT %add.4 = f32[4,4]{1,0} add(%gemm_fusion.1, %custom-call.3)
}
"""


def test_kernels_are_told_by_their_instructions_else_by_their_names():
    kind = profile_table.kinds_of(PROGRAM)
    for instruction, expected in {
        "gemm_fusion.1": "matmul",
        "custom-call.2": "matmul",
        "custom-call.3": "attention",
        "scores": "attention",
        "add.4": "else",
    }.items():
        assert kind("a kernel whose name says nothing", instruction) == expected, instruction
    assert kind("%add.4 = f32[4,4] add(...)", "") == "else"  # as a TPU's trace names it
    assert kind("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT", "") == "matmul"
    assert kind("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "") == "attention"
    assert kind("loop_add_fusion", "") == "else"


def event(number, start_us, us, stat=""):
    return f"events {{ metadata_id: {number} offset_ps: {start_us}000000 duration_ps: {us}000000 {stat} }}"


def test_a_gpus_trace_is_reduced_by_hand_worked_times():
    """Two streams of one GPU: 10 us of matmul, a gap of 5, 20 of attention beside which 4 of copies run, a gap of 1."""
    stat = "stats { metadata_id: 1 str_value: 'custom-call.2' }"
    names = {1: "nvjet", 2: "cudnn_sdpa", 3: "MemcpyD2D", 4: "step 0", 5: "loop_add"}
    metadata = [f"event_metadata {{ key: {n} value {{ id: {n} name: '{name}' }} }}" for n, name in names.items()]
    text = f"""
planes {{
  name: "/device:GPU:0"
  {" ".join(metadata)}
  stat_metadata {{ key: 1 value {{ id: 1 name: "hlo_op" }} }}
  lines {{ name: "Stream #13(Compute)" {event(1, 0, 10, stat)} {event(2, 15, 20)} {event(5, 36, 2)} }}
  lines {{ name: "Stream #14(MemcpyD2D)" {event(3, 20, 4)} }}
  lines {{ name: "Steps" {event(4, 0, 40)} }}
}}
planes {{ name: "/device:GPU:1" }}
"""
    profile = jax.profiler.ProfileData.from_serialized_xspace(
        jax.profiler.ProfileData.text_proto_to_serialized_xspace(text)
    )
    result = profile_table.table(profile_table.kernels(profile), profile_table.kinds_of(PROGRAM), 2)
    assert result["span ms"] == pytest.approx(0.038 / 2) and result["idle ms"] == pytest.approx(0.006 / 2)
    assert {k["kind"]: k["ms"] for k in result["kinds"]} == pytest.approx(
        {"matmul": 0.005, "attention": 0.01, "else": 0.003}
    )
    assert [row["kernel"] for row in result["longest"]] == ["cudnn_sdpa", "nvjet", "MemcpyD2D", "loop_add"]
    assert [(g["us"], g["after"], g["before"]) for g in result["gaps"]] == [
        (5, "nvjet", "cudnn_sdpa"),
        (1, "cudnn_sdpa", "loop_add"),
    ]


def test_a_loop_is_not_counted_beside_its_body():
    events = [
        (0, 100, "while", ""),
        (10, 40, "dot", ""),
        (20, 30, "inner", ""),
        (50, 90, "add", ""),
        (100, 110, "b", ""),
    ]
    assert profile_table.self_times(events) == [30, 20, 10, 40, 10]


@pytest.mark.parametrize(
    "said, extra",
    [
        ("CUDA Version: 13.0 ", "cuda13"),
        ("CUDA Version: 12.4 ", "cuda12"),
        ("CUDA Version: 11.8 ", None),
        ("no devices were found", None),
    ],
)
def test_the_extra_follows_the_driver(tmp_path, monkeypatch, said, extra):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '| Driver Version: 580.1  {said}|'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    if extra:
        assert accelerator_python.cuda() == extra
    else:
        with pytest.raises(SystemExit, match="CUDA 12 or 13"):
            accelerator_python.cuda()


def test_the_packages_that_a_host_may_lack_are_those_of_setup_cfg():
    result = accelerator_python.requirements((*accelerator_python.NEEDED, *accelerator_python.ALONE_ON_GPUS))
    assert len(result) == len(accelerator_python.NEEDED) + 2 and any(line.startswith("tokamax >=") for line in result)
    assert any(line.startswith("flax >=") for line in result)
    assert any(line.startswith("etils[epath]") for line in result)
    assert accelerator_python.sees("cpu") and not accelerator_python.sees("cuda")


@pytest.mark.skipif(importlib.util.find_spec("tokamax") is None, reason="tokamax needs Python 3.12")
def test_tokamax_computes_without_its_profiler(tmp_path):
    """With the module that stands for xprof, in a process that would fail on any other part of it."""
    accelerator_python.put_stub(tmp_path)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.modules["duckdb"] = None  # which xprof needs
import tokamax, xprof.cli.tools
print(xprof.cli.tools.__file__)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(str(tmp_path)), done.stdout + done.stderr


def test_a_folder_without_wheels_is_refused(tmp_path):
    command = [sys.executable, "benchmarks/accelerator/python.py", "--kind=cuda", f"--wheels={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "holds no wheels; `make wheels`" in done.stderr
