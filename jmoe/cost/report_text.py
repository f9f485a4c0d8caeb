"""Reports of compiled steps (jmoe/cost/report.py) as lines to read."""

from typing import Any

from jmoe.cost.memory import gib

REFUSED = "DOES NOT FIT; the compiler says: "


def remat_table(results: dict[str, dict[str, Any]], title: str) -> str:
    """Reports by config.remat as lines to read."""
    lines = [f"{title}, per device and step", "  remat  temporaries  peak        FLOPs over the model's"]
    for name, result in results.items():
        if "flops" not in result:
            lines.append(f"  {name:5}  {REFUSED}{result['compiler']}")
            continue
        memory = result["memory_bytes"]
        ratio = result["flops"]["compiled_over_model"]
        verdict = "" if result["fits"] else "  DOES NOT FIT"
        lines.append(f"  {name:5}  {gib(memory['temporaries']):11}  {gib(memory['peak']):10}  {ratio:.3f}{verdict}")
        lines += [f"  warning: {sentence}" for sentence in result["warnings"]]
    fitting = [name for name, result in results.items() if result["fits"]]
    cheapest = min(fitting, key=lambda name: results[name]["flops"]["compiled_over_model"], default=None)
    lines.append(f"  the cheapest that fits: --config.remat={cheapest}" if cheapest else "  NONE FITS")
    return "\n".join(lines)


def table(result: dict[str, Any], title: str) -> str:
    """A report as lines to read."""
    if "flops" not in result:
        return f"{title}: {REFUSED}{result['compiler']}"
    mesh = ", ".join(f"{axis} {size}" for axis, size in result["mesh"].items())
    lines = [
        f"{title}: {_si(result['n_active'])} active, {_si(result['n_total'])} total; {result['n_devices']} devices "
        f"({mesh}), {result['n_tokens']:,} tokens a step",
        f"generating, each token of context keeps {_si(result['kv_cache_bytes_per_token'])}B of keys and values",
        "per device and step",
        _memory_line(result),
        *_flops_lines(result["flops"]),
        f"  main memory  {_si(result['main_memory_bytes'])}B read and written" + _estimated_bytes(result),
        *_collectives_lines(result),
        *_experts_lines(result["experts"]),
        "  largest arrays",
    ]
    for array in result["largest_arrays"][:4]:
        lines.append(f"    {gib(array['bytes']):10}  {array['array']:28} {array['source']}")
    lines += _rooflines(result)
    lines.append("  fits" if result["fits"] else "  DOES NOT FIT")
    lines += [f"warning: {sentence}" for sentence in result["warnings"]]
    return "\n".join(lines)


def _memory_line(result: dict[str, Any]) -> str:
    memory = result["memory_bytes"]
    capacity = result.get("chip", {}).get("capacity")
    of_capacity = f" of {gib(capacity)}" if capacity else ""
    return (
        f"  memory       peak {gib(memory['peak'])}{of_capacity}: arguments {gib(memory['arguments'])}, temporaries "
        f"{gib(memory['temporaries'])}, outputs beside the donated {gib(memory['outputs_not_donated'])}, program "
        f"{gib(memory['program'])}"
    )


def _flops_lines(flops: dict[str, Any]) -> list[str]:
    model_flops = sum(flops["model"].values())
    parts = ", ".join(f"{name} {_si(value)}" for name, value in flops["model"].items())
    lines = [
        f"  FLOPs        {_si(flops['matmul'] + flops['elementwise'])} compiled (matmuls {_si(flops['matmul'])}), "
        f"{flops['compiled_over_model']:.3f} times the model's {_si(model_flops)}: {parts}"
    ]
    if flops["estimated"]:
        lines.append(f"               {_si(flops['estimated'])} of them are estimated from the shapes of kernels")
    return lines


def _collectives_lines(result: dict[str, Any]) -> list[str]:
    """The collectives by kind, and those between slices."""
    lines = ["  collectives          number   sent", *_totals_lines(result["collectives"])]
    if result["n_slices"] > 1:
        n_bytes = sum(total["bytes"] for total in result["between_slices"].values())
        n_slices = result["n_slices"]
        lines.append(f"  between {n_slices} slices     number   sent, {_si(n_bytes)}B in all, not in the roofline")
        lines += _totals_lines(result["between_slices"])
    return lines


def _totals_lines(totals: dict[str, dict[str, int]]) -> list[str]:
    return [f"    {kind:20}{total['number']:5}  {_si(total['bytes'])}B" for kind, total in sorted(totals.items())]


def _experts_lines(traffic: dict[str, Any] | None) -> list[str]:
    """How tokens and experts come together, of _expert_traffic."""
    if traffic is None:
        return []
    here = traffic["here"]
    least = traffic["least"]
    how = "rows travel to their experts" if here["expert"] > 1 else "experts are gathered"
    better = ", the least"
    if least != here:
        better = f"; least with {least['expert']}: {_si(least['sent_bytes'])}B"
    return [f"  experts      {how} (mesh.expert {here['expert']}): {_si(here['sent_bytes'])}B, estimated{better}"]


def _rooflines(result: dict[str, Any]) -> list[str]:
    """The rooflines by published and by measured peaks."""
    if "mfu" in result:
        passes = f"float32 products in 6 bfloat16 passes: {_si(result['flops']['matmul_passes'])} FLOPs"
        lines = _roofline_lines(f"  roofline     {{}}; {passes}", result)
    else:
        lines = ["  roofline     unknown: the peaks of these devices are not listed here; config.chip takes them"]
    peaks = result.get("measured_peaks")
    if peaks:
        rates = f"{_si(peaks['flops'])}FLOP/s and {_si(peaks['bandwidth'])}B/s of {peaks['file']}"
        lines += _roofline_lines(f"  as measured  {{}}; by {rates}", peaks)
    return lines


def _estimated_bytes(result: dict[str, Any]) -> str:
    """The note in the line of main memory on kernels that declare nothing."""
    if not result["estimated_memory_bytes"]:
        return ""
    return f"; {_si(result['estimated_memory_bytes'])}B are estimated from the shapes of kernels"


def _roofline_lines(line: str, roofline: dict[str, Any]) -> list[str]:
    """Two lines of a roofline.

    Args:
      line: The first one, with {} for the times of compute, memory and network.
      roofline: "roofline_seconds" and "mfu" of report.report.
    """
    ms = {part: f"{1e3 * seconds:.1f} ms" for part, seconds in roofline["roofline_seconds"].items()}
    mfu = roofline["mfu"]
    step = f"step {ms['overlapped']} (MFU {mfu['overlapped']:.1%}) if all overlaps, "
    step += f"{ms['serial']} (MFU {mfu['serial']:.1%}) if nothing does"
    times = ", ".join(f"{part} {ms[part]}" for part in ("compute", "memory", "network"))
    return [line.format(times), f"               {step}"]


def _si(value: float) -> str:
    """Four digits and a prefix of 1000s."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "
