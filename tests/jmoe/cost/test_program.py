"""What is read from a compiled program: products, bytes sent, and loops, against XLA's own count on the CPU."""

import json
import lzma

import helpers
import jax
import pytest

from configs import quickstart
from jmoe.config import counts
from jmoe.cost import instruction_flops, needs
from jmoe.cost.memory import compile_step
from jmoe.cost.program import Program
from tests.jmoe.cost.test_compile import expected_flops

COMPILED = helpers.ROOT / "tests" / "data" / "compiled"


def test_cudnn_attention_counts_its_products():
    """Text as XLA prints it, shortened."""
    call = """
ENTRY %main (q: bf16[2,64,3,16]) -> bf16[2,64,3,16] {{
  %q = bf16[2,64,3,16]{{3,2,1,0}} parameter(0)
  ROOT %a = (bf16[2,3,64,16]{{3,1,2,0}}, f32[2,3,64]{{2,1,0}}) custom-call(%q, %q, %q), custom_call_target="{target}", \
backend_config={{"cudnn_fmha_backend_config": {{"intermediate_tensor_shape": {{"element_type": "BF16", \
"dimensions": ["2", "3", "64", "64"], "tuple_shapes": []}}, "mask_type": "{mask}"}}}}
}}
"""

    def flops(target, mask):
        return Program(call.format(target=target, mask=mask)).matmul_flops()

    product = 2 * 2 * 3 * 64 * 64 * 16
    assert flops("__cudnn$fmhaSoftmax", "NO_MASK") == 2 * product
    assert flops("__cudnn$fmhaSoftmax", "CAUSAL") == product
    assert flops("__cudnn$fmhaSoftmaxBackward", "CAUSAL") == 5 * product // 2


KERNEL = """
ENTRY %main (a: bf16[8,64,16], b: bf16[8,96,16]) -> bf16[8,64,16] {{
  %a = bf16[8,64,16]{{2,1,0}} parameter(0)
  %b = bf16[{b}]{{2,1,0}} parameter(1)
  %n = s32[8]{{0}} parameter(2)
  ROOT %y = bf16[8,64,{n}]{{2,1,0}} custom-call(%n, %a, {operands}), custom_call_target="tpu_custom_call", \
frontend_attributes={{kernel_metadata={{
 "name": "x"
}}}}, backend_config={{"custom_call_config": {{{declared}"serialization_format":"1"}}}}
}}
"""


@pytest.mark.parametrize(
    "operands, b, n, declared, flops, estimated",
    [
        ("%b, %b", "8,96,16", 16, '"cost_estimate":{"flops":"7","bytes_accessed":"1"},', 7, 0),
        ("%b, %b", "8,96,16", 16, "", 2 * 2 * 8 * 64 * 16 * 96, 2 * 2 * 8 * 64 * 16 * 96),
        ("%b", "4,16,24", 24, "", 2 * 8 * 64 * 16 * 24, 2 * 8 * 64 * 16 * 24),
        ("%b", "8,96,16", 16, "", 0, 0),
    ],
    ids=["declared, after metadata of several lines", "attention", "rows by one of several matrices", "neither"],
)
def test_a_kernel_counts_as_it_declares_and_else_by_its_shapes(operands, b, n, declared, flops, estimated):  # noqa: PLR0913
    program = Program(KERNEL.format(operands=operands, b=b, n=n, declared=declared))
    assert (program.matmul_flops(), program.estimated_flops()) == (flops, estimated)


GROUPED = """
ENTRY %main (a: bf16[64,16], b: bf16[4,16,24], t: bf16[16,64], y: bf16[64,24], n: s32[4]) -> bf16[64,24] {{
  %a = bf16[64,16]{{1,0}} parameter(0)
  %b = bf16[4,16,24]{{2,1,0}} parameter(1)
  %t = bf16[16,64]{{1,0}} parameter(2)
  %y = bf16[64,24]{{1,0}} parameter(3)
  %n = s32[4]{{0}} parameter(4)
  ROOT %z = bf16[{out}] custom-call({operands}), custom_call_target="{target}", \
metadata={{op_name="jit(step)/ragged_dot"}}
}}
"""


@pytest.mark.parametrize("target", ["mosaic_gpu_v2", "triton_kernel_call_ffi"])
@pytest.mark.parametrize(
    "operands, out, moved",
    [
        ("%a, %b, %n", "64,24", 2 * (64 * 16 + 4 * 16 * 24 + 64 * 24) + 4 * 4),
        ("%n, %t, %y", "4,16,24", 2 * (16 * 64 + 64 * 24 + 4 * 16 * 24) + 4 * 4),
    ],
    ids=["rows by matrices", "the gradient of the matrices"],
)
def test_a_grouped_product_for_gpus_counts_by_its_shapes_and_says_so(operands, out, moved, target):
    """Each row by one matrix, in both: 64 rows of 16 x 24; of rows for 96, two thirds."""
    program = Program(GROUPED.format(operands=operands, out=out, target=target))
    flops = 2 * 64 * 16 * 24
    assert (program.matmul_flops(), program.estimated_flops()) == (flops, flops)
    assert program.matmul_flops(filled=2 / 3) == int(flops * 2 / 3)
    in_a_loop = GROUPED.format(operands=operands, out=out, target=target).replace("ragged_dot", "triton_kernel_call")
    assert Program(in_a_loop).matmul_flops(filled=2 / 3) == int(flops * 2 / 3)
    assert program.main_memory_bytes() == program.estimated_bytes() == moved
    assert program.flops_by_source() == {"jit(step)/ragged_dot": flops}


def small_step(**model):
    """A config, and the program of its step on a CPU."""
    config = quickstart.get_config()
    config.model.update(d_model=16, n_blocks=1, **model)
    _, compiled = compile_step(config, jax.devices()[:1])
    return config, compiled.as_text()


def test_a_step_that_moves_far_more_than_its_model_needs_is_named():
    """A loop that copies a large array a thousand times, put into a healthy step's program."""
    config, text = small_step()
    assert needs.warnings(config, Program(text), 1) == []
    sick = Program(SICK)
    (sentence,) = needs.warnings(config, sick, 1)
    needed = needs.needs_of(config, 1).bytes
    assert f"the step moves 8e+12 B, {8e12 / needed:.1f} times" in sentence
    assert sentence.endswith("most, 8e+12 B, by jit(step)/while/copy")


SICK = """
%body (p: f32[1000000,1000]) -> f32[1000000,1000] {
  %p = f32[1000000,1000]{1,0} parameter(0)
  ROOT %c = f32[1000000,1000]{1,0} copy(%p), metadata={op_name="jit(step)/while/copy"}
}

%condition (q: f32[1000000,1000]) -> pred[] {
  %q = f32[1000000,1000]{1,0} parameter(0)
  ROOT %t = pred[] constant(true)
}

ENTRY %main (x: f32[1000000,1000]) -> f32[1000000,1000] {
  %x = f32[1000000,1000]{1,0} parameter(0)
  ROOT %w = f32[1000000,1000]{1,0} while(%x), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"1000"}}
}
"""


def test_an_instruction_may_name_what_runs_before_it():
    """As libtpu 0.0.42 writes it; 3 x 5 by 5 x 7."""
    program = Program("""
ENTRY %main (a: f32[3,5], b: f32[5,7]) -> f32[3,7] {
  %a = f32[3,5]{1,0:T(8,128)} parameter(0)
  %b = f32[5,7]{1,0:T(8,128)} parameter(1)
  %c = f32[5,7]{1,0:T(8,128)} copy(%b), control-predecessors={%a}, metadata={op_name="jit(step)/copy" stack_frame_id=1}
  ROOT %d = f32[3,7]{1,0:T(8,128)S(1)} dot(%a, %c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""")
    assert program.matmul_flops() == 2 * 3 * 5 * 7
    assert program.main_memory_bytes() == 4 * (2 * 5 * 7 + 3 * 5 + 5 * 7)  # the copy, and what the product reads


def test_rows_without_an_expert_cost_no_product():
    text = KERNEL.format(operands="%b", b="4,16,24", n=24, declared="").replace("%y =", "%ragged-dot-none.1 =")
    assert Program(text).matmul_flops(filled=0.25) == 8 * 64 * 16 * 24 / 2


def test_rows_of_a_ragged_all_to_all_leave_their_device_in_equal_parts():
    """Text as XLA prints it, shortened: offsets and sizes are no rows, nor is the array that is filled."""
    text = """
ENTRY %main (x: bf16[64,8], y: bf16[128,8], o: s32[4]) -> bf16[128,8] {
  %x = bf16[64,8]{1,0} parameter(0)
  %y = bf16[128,8]{1,0} parameter(1)
  %o = s32[4]{0} parameter(2)
  ROOT %r = bf16[128,8]{1,0} ragged-all-to-all(%x, %y, %o, %o, %o, %o), replica_groups={{0,1,2,3}}
}
"""
    (found,) = Program(text).collectives()
    assert (found.kind, found.group, found.bytes) == ("ragged-all-to-all", 4, 64 * 8 * 2 * 3 // 4)


def test_a_gather_on_a_sparse_core_moves_its_rows_and_not_the_array_they_lie_in():
    """Text as XLA prints it, shortened: the call is prepared by its start, and gets its operands by an update."""
    text = """
%gathered (x: bf16[4096,8], i: s32[16]) -> bf16[16,8] {
  %x = bf16[4096,8]{1,0} parameter(0)
  %i = s32[16]{0} parameter(1)
  ROOT %g = bf16[16,8]{1,0} gather(%x, %i), offset_dims={1}, slice_sizes={1,8}
}

ENTRY %main (x: bf16[4096,8], i: s32[16]) -> bf16[16,8] {
  %x = bf16[4096,8]{1,0} parameter(0)
  %i = s32[16]{0} parameter(1)
  %start = ((), (), (s32[1]{0:S(2)})) call-start(), async_execution_thread="sparsecore", to_apply=%gathered
  %update = ((bf16[4096,8]{1,0}, s32[16]{0}), bf16[16,8]{1,0}) call-update(%start, %x, %i)
  ROOT %done = bf16[16,8]{1,0} call-done(%update)
}
"""
    assert Program(text).main_memory_bytes() == 2 * 16 * 8 * 2


def test_a_fusion_beside_other_work_moves_what_it_computes_with():
    """Text as XLA prints it for GPUs, shortened: the start has its operands among its results."""
    text = """
%sliced (x: bf16[32,64,8], i: s32[]) -> bf16[1,64,8] {
  %x = bf16[32,64,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %o = s32[] constant(0)
  ROOT %s = bf16[1,64,8]{2,1,0} dynamic-slice(%x, %i, %o, %o), dynamic_slice_sizes={1,64,8}
}

ENTRY %main (x: bf16[32,64,8], i: s32[]) -> bf16[1,64,8] {
  %x = bf16[32,64,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %start = ((bf16[32,64,8]{2,1,0}, s32[]), bf16[1,64,8]{2,1,0}, u32[]) fusion-start(%x, %i), kind=kLoop, calls=%sliced
  ROOT %done = bf16[1,64,8]{2,1,0} fusion-done(%start)
}
"""
    index = 4
    assert Program(text).main_memory_bytes() == 2 * 64 * 8 * 2 + index


def test_a_product_in_a_fusion_reads_its_operands():
    """As libtpu writes products: each operand passes a fusion of its own, which gives it another shape."""
    program = Program("""
%reshaped (p: bf16[1,64,16]) -> bf16[64,16] {
  %p = bf16[1,64,16]{2,1,0} parameter(0)
  ROOT %b = bf16[64,16]{1,0} bitcast(%p)
}

%fused (x: bf16[1,64,16], w: bf16[16,24]) -> bf16[64,24] {
  %x = bf16[1,64,16]{2,1,0} parameter(0)
  %w = bf16[16,24]{1,0} parameter(1)
  %r = bf16[64,16]{1,0} fusion(%x), kind=kLoop, calls=%reshaped
  ROOT %d = bf16[64,24]{1,0} dot(%r, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: bf16[1,64,16], w: bf16[16,24]) -> bf16[64,24] {
  %x = bf16[1,64,16]{2,1,0} parameter(0)
  %w = bf16[16,24]{1,0} parameter(1)
  ROOT %f = bf16[64,24]{1,0} fusion(%x, %w), kind=kOutput, calls=%fused
}
""")
    assert program.main_memory_bytes() == 2 * (64 * 16 + 16 * 24 + 64 * 24)


def test_a_fusion_writes_those_of_its_results_that_leave_the_chip():
    """The first result stays on the chip (S(1)), the second does not; then the other way round."""
    text = """
%fused (x: f32[64,16]) -> (f32[64], f32[64,16]) {{
  %x = f32[64,16]{{1,0}} parameter(0)
  %z = f32[] constant(0)
  %m = f32[64]{{0}} reduce(%x, %z), dimensions={{1}}, to_apply=%sum
  %n = f32[64,16]{{1,0}} negate(%x)
  ROOT %t = (f32[64]{{0}}, f32[64,16]{{1,0}}) tuple(%m, %n)
}}

ENTRY %main (x: f32[64,16]) -> (f32[64], f32[64,16]) {{
  %x = f32[64,16]{{1,0}} parameter(0)
  ROOT %f = (f32[64]{{0{first}}}, f32[64,16]{{1,0{second}}}) fusion(%x), kind=kLoop, calls=%fused
}}
"""
    read = 4 * 64 * 16
    assert Program(text.format(first=":S(1)", second="")).main_memory_bytes() == read + 4 * 64 * 16
    assert Program(text.format(first="", second=":S(1)")).main_memory_bytes() == read + 4 * 64


def test_a_gather_that_goes_on_beside_other_work_counts_once():
    """As libtpu writes it: a fusion starts the gather, a product passes its arrays on, a fusion ends it."""
    program = Program("""
%start (p: bf16[8,16]) -> (bf16[8,16], bf16[64,16]) {
  %p = bf16[8,16]{1,0} parameter(0)
  %g = bf16[64,16]{1,0} all-gather(%p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  ROOT %c = (bf16[8,16]{1,0}, bf16[64,16]{1,0}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%beside (p: bf16[8,16], q: bf16[64,16], x: f32[32,32]) -> (f32[32,32], bf16[8,16], bf16[64,16]) {
  %p = bf16[8,16]{1,0} parameter(0)
  %q = bf16[64,16]{1,0} parameter(1)
  %x = f32[32,32]{1,0} parameter(2)
  %y = f32[32,32]{1,0} negate(%x)
  ROOT %t = (f32[32,32]{1,0}, bf16[8,16]{1,0}, bf16[64,16]{1,0}) tuple(%y, %p, %q)
}

%done (p: bf16[8,16], q: bf16[64,16]) -> bf16[64,16] {
  %p = bf16[8,16]{1,0} parameter(0)
  %q = bf16[64,16]{1,0} parameter(1)
  %g = bf16[64,16]{1,0} all-gather(%p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  ROOT %c = bf16[64,16]{1,0} custom-call(%p, %q, %g), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (p: bf16[8,16], x: f32[32,32]) -> bf16[64,16] {
  %p = bf16[8,16]{1,0} parameter(0)
  %x = f32[32,32]{1,0} parameter(1)
  %s = (bf16[8,16]{1,0}, bf16[64,16]{1,0}) fusion(%p), kind=kCustom, calls=%start
  %s0 = bf16[8,16]{1,0} get-tuple-element(%s), index=0
  %s1 = bf16[64,16]{1,0} get-tuple-element(%s), index=1
  %b = (f32[32,32]{1,0}, bf16[8,16]{1,0}, bf16[64,16]{1,0}) fusion(%s0, %s1, %x), kind=kLoop, calls=%beside
  %b1 = bf16[8,16]{1,0} get-tuple-element(%b), index=1
  %b2 = bf16[64,16]{1,0} get-tuple-element(%b), index=2
  ROOT %d = bf16[64,16]{1,0} fusion(%b1, %b2), kind=kCustom, calls=%done
}
""")
    assert program.main_memory_bytes() == 2 * (8 * 16 + 64 * 16) + 4 * 2 * 32 * 32


def small(n_experts, n_blocks):
    config = quickstart.get_config()
    model = config.model
    model.d_model, model.n_heads, model.d_ff, model.vocab_size = 256, 4, 768, 1024
    model.n_experts, model.n_blocks, model.group_tokens = n_experts, n_blocks, 512
    config.data.seq_len = 64
    config.batch_tokens = ((0, 1_024),)
    config.remat = "full"
    return config


def flops_with_loops_once(program):
    """As XLA's cost analysis counts them."""
    instructions = [run.instruction for run in program.runs]
    return sum(instruction_flops.matmul_flops(i) + instruction_flops.elementwise_flops(i) for i in instructions)


@pytest.mark.parametrize(
    "n_experts, fields",
    [
        (1, dict(n_kv_heads=2, head_dim=96, qk_norm="head", tied_embeddings=True)),
        (32, dict(top_k=4, d_expert=192, n_shared_experts=1, balance="bias")),
    ],
)
def test_flops_per_token_agree_with_xlas_cost_analysis(n_experts, fields, record_property):
    """One layer, so that no loop over layers hides anything: 6 n_active per token and the stated differences."""
    config = small(n_experts, 1)
    config.model.update(fields)
    _, compiled = compile_step(config, jax.devices()[:1])
    program = Program(compiled.as_text())
    model, n_tokens = config.model, 1_024
    part = counts.matmul_flops_per_token(model, config.data.seq_len)
    items = {
        "6 n_active": 6 * counts.n_active(model),
        "embedding, looked up": -6 * model.d_model * model.vocab_size * (not model.tied_embeddings),
        "attention over the row": part["attention"],
        "router": part["router"],
        "layers run again": (expected_flops(config, 1) - sum(part.values())),
        "elementwise": program.elementwise_flops() / n_tokens,
    }

    in_loops = program.matmul_flops() + program.elementwise_flops() - flops_with_loops_once(program)
    by_xla = (compiled.cost_analysis()["flops"] + in_loops) / n_tokens
    lines = [f"{value / by_xla:8.1%} {name}" for name, value in items.items()]
    record_property("table", f"FLOPs per token, {n_experts} experts, of XLA's {by_xla:,.0f}:\n" + "\n".join(lines))
    assert sum(items.values()) == pytest.approx(by_xla, rel=0.01)
    assert items["elementwise"] < 0.1 * by_xla


@pytest.mark.parametrize("path", sorted(COMPILED.glob("*.json.xz")), ids=lambda path: path.name)
def test_flops_of_programs_for_tpus_agree_with_xlas_cost_analysis(path):
    """As libtpu compiled them, and counted their FLOPs."""
    kept = json.loads(lzma.decompress(path.read_bytes()))
    assert flops_with_loops_once(Program(kept["text"])) == pytest.approx(kept["flops"], rel=0.01)


def test_loops_count_as_often_as_they_run():
    config = small(16, 6)
    config.model.update(top_k=2, d_expert=384, n_dense_blocks=1)
    _, compiled = compile_step(config, jax.devices()[:1])
    program = Program(compiled.as_text())
    assert program.matmul_flops() == pytest.approx(expected_flops(config, 1_024), rel=0.005)
    once = flops_with_loops_once(program)
    assert once == pytest.approx(compiled.cost_analysis()["flops"], rel=0.01)
    assert once < 0.6 * program.matmul_flops()
