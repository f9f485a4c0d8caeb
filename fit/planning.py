"""A plan: the optima under constraints, the best model that can be built, and what it saves against a dense one."""
import math

import numpy as np
from absl import flags

from fit import UserError
from fit import architecture as architecture_lib
from fit import optimum
from fit.architecture import FLOPS_PER_PARAMETER_INFERENCE as INFERENCE
from fit.architecture import FLOPS_PER_PARAMETER_TRAINING as TRAINING


def define_flags(f):
  """The flags of a plan; shared by plan and report."""
  flags.DEFINE_float("flops", None, "Training FLOPs (6 n_active n_tokens), shared with --inference_tokens.", flag_values=f)
  flags.DEFINE_float("memory_gb", None, "Memory of one device in GB (1e9 bytes), for weights and cache.", flag_values=f)
  flags.DEFINE_integer("devices", 1, "Devices that share weights and cache.", lower_bound=1, flag_values=f)
  flags.DEFINE_float("bytes_per_parameter", 2, "2 is bfloat16.", flag_values=f)
  flags.DEFINE_float("kv_tokens", 0, "Tokens in the key-value cache, over all sequences.", flag_values=f)
  flags.DEFINE_float("bytes_per_kv_element", 2, "2 is bfloat16.", flag_values=f)
  flags.DEFINE_float("inference_tokens", 0, "Tokens to serve over the model's life, at 2 n_active FLOPs each, out of "
                     "--flops.", flag_values=f)
  flags.DEFINE_float("max_tokens", None, "Training tokens that there are.", flag_values=f)
  flags.DEFINE_list("experts", [str(e) for e in optimum.EXPERTS], "Numbers of experts allowed.", flag_values=f)
  architecture_lib.define_flags(f)


def positive(f, name, zero=False):
  """The flag's value, None as it is; UserError unless it is a positive finite number (or 0 where zero)."""
  value = f[name].value
  if value is not None and not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
    raise UserError(f"--{name}={value:g}: expected a {'non-negative' if zero else 'positive'} number")
  return value


def positive_list(f, name):
  """The flag's values as numbers, which must be positive; UserError otherwise."""
  numbers = []
  for text in f[name].value:
    try:
      numbers.append(float(text))
    except ValueError:
      numbers.append(math.nan)
    if not 0 < numbers[-1] < math.inf:
      raise UserError(f"--{name}: found {text!r}, expected positive numbers separated by commas")
  return numbers


def experts_of(f):
  """The numbers of experts of --experts, sorted; UserError unless whole numbers from 1 up."""
  numbers = positive_list(f, "experts")
  if not numbers or any(e != int(e) or e > 1e6 for e in numbers):
    raise UserError(f"--experts={','.join(f.experts)}: expected whole numbers from 1 to 1000000, separated by commas")
  return sorted({int(e) for e in numbers})


def constraints_of(f):
  """(Constraints, experts) that the flags ask for; UserError where one is out of range."""
  memory = positive(f, "memory_gb")
  return optimum.Constraints(
      flops=positive(f, "flops"), memory_bytes=None if memory is None else memory * 1e9 * f.devices,
      bytes_per_parameter=positive(f, "bytes_per_parameter"), kv_tokens=positive(f, "kv_tokens", zero=True),
      bytes_per_kv_element=positive(f, "bytes_per_kv_element"),
      inference_tokens=positive(f, "inference_tokens", zero=True), max_tokens=positive(f, "max_tokens"),
  ), experts_of(f)


def plan(fitted, architecture, constraints, experts):
  """The whole plan as a dictionary of plain numbers, ready for JSON. Raises UserError if nothing is feasible."""
  found = optimum.optima(fitted, architecture, constraints, experts)
  low, high = optimum.near_optimal(fitted, architecture, constraints, found)
  rows, out = [], []
  for i, e in enumerate(found.n_experts):
    if not found.feasible[i]:
      out.append(dict(n_experts=int(e), why=optimum.why_infeasible(architecture, constraints, e)))
      continue
    row = dict(n_experts=int(e), n_active=float(found.n_active[i]), n_total=float(found.n_total[i]),
               n_tokens=float(found.n_tokens[i]), loss=float(found.loss[i]), d_model=float(found.d_model[i]),
               size_bound=str(found.size_bound[i]),
               memory_bytes=float(optimum.memory_bytes(architecture, constraints, found.d_model[i], e)),
               training_flops=float(TRAINING * found.n_active[i] * found.n_tokens[i]),
               inference_flops_per_token=float(INFERENCE * found.n_active[i]),
               near_optimal_n_active=[float(low[i]), float(high[i])] if np.isfinite(low[i]) else None)
    rows.append(row)
  best = min(rows, key=lambda row: row["loss"])
  return dict(law=fitted.name, form=fitted.form,
              constraints={k: v for k, v in vars(constraints).items() if v is not None},
              optima=rows, infeasible=out, best=best)


def amount(x):
  """A count for people: 9.71B, 1.68M."""
  for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
    if abs(x) >= size:
      return f"{x / size:.3g}{letter}" if abs(x) < 1000 * size else f"{x / size:.0f}{letter}"
  return f"{x:.3g}"


def text(plan):
  """The plan as a table for people."""
  lines = [f"{'n_experts':>9} {'n_active':>9} {'n_total':>9} {'n_tokens':>9} {'loss':>8} {'memory GB':>9}  size bound by"]
  for row in plan["optima"]:
    mark = " <- best" if row is plan["best"] else ""
    lines.append(f"{row['n_experts']:9d} {amount(row['n_active']):>9} {amount(row['n_total']):>9} "
                 f"{amount(row['n_tokens']):>9} {row['loss']:8.4f} {row['memory_bytes'] / 1e9:9.3g}  "
                 f"{row['size_bound'] or '-'}{mark}")
  for row in plan["infeasible"]:
    lines.append(f"{row['n_experts']:9d} not feasible: {row['why']}")
  return "\n".join(lines)
