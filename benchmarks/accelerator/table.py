"""Tables of what benchmarks/accelerator measured, for benchmarks/README.md:

python -m benchmarks.accelerator.table DIR      # DIR/results.json to results/accelerators/NAME.json, and the README
python -m benchmarks.accelerator.table          # the README alone, from results/accelerators/
"""

import csv
import json
import pathlib
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "results" / "accelerators"
README = ROOT / "benchmarks" / "README.md"
BEGIN = "<!-- made by benchmarks/accelerator/table.py -->"
END = "<!-- end -->"
NONE = "None could be had yet.\n"


def publish(results: dict) -> None:
    """Writes results/accelerators/NAME.json, NAME_speeds.csv, and the README's section of all files there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = results["machine"]["name"]
    (FOLDER / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    rows = speeds(results)
    if rows:
        with open(FOLDER / f"{name}_speeds.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    write_readme()


def speeds(results: dict) -> list[dict]:
    """Returns rows for `fit plan --speeds`: the measured steps of models with a capacity, on one chip."""
    from benchmarks import train_step

    base, _ = train_step.gpu_config()
    rows = []
    for name in ("step 1", "step 8", "step 32", "step 8,2", "step 64,8"):
        measured = results["parts"].get(name, {}).get("result", {}).get("rows", [])
        if not measured or measured[0]["ms"] is None:
            continue
        _, config = train_step.with_experts(base, name.removeprefix("step "))
        model = config.model
        step = measured[0]
        row = {"chip": results["machine"]["name"], "n_chips": 1, "tokens_per_second": round(step["tokens/s"])}
        for column in ("d_model", "n_blocks", "n_heads", "n_experts", "top_k", "d_expert", "vocab_size"):
            row[column] = getattr(model, column)
        row |= {"batch_tokens": step["batch"], "microbatch_tokens": step["batch"]}
        row |= {"seq_len": config.data.seq_len, "remat": step["remat"]}
        rows.append(row)
    return rows


def write_readme() -> None:
    """Writes the sections into the page."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{measured()}{END}{rest.partition(END)[2]}", encoding="utf-8")


def measured() -> str:
    """Returns the sections of all files of results/accelerators/."""
    files = sorted(FOLDER.glob("*.json"))
    return "\n".join(section(json.loads(path.read_text())) for path in files) or NONE


def section(results: dict) -> str:
    """Returns everything that was measured on one kind of device, as Markdown."""
    machine = results["machine"]
    parts = results["parts"]
    published = machine["published"] or {}
    peak = parts.get("peak", {}).get("result", {})

    def rows_of(name: str) -> list[dict]:
        return parts.get(name, {}).get("result", {}).get("rows", [])

    def of_peak(rate: float) -> str:
        return _share(rate, peak.get("flops"))

    lines = [f"### {machine['kind']}", "", f"{machine['date']}, jax {machine['jax_version']}, one device."]
    lines += _earlier(parts, machine["date"])
    lines += _peaks(published, peak) + _checks(parts)
    steps = [row for name in parts if name.startswith("step ") for row in rows_of(name)]
    lines += _table(
        "model, batch, remat, layers, step, tokens/s, MFU, of measured peak, predicted, allocated",
        [_step(row, of_peak) for row in steps],
    )
    lines += _peers(parts)
    lines += _study(parts.get("study", {}).get("result", {"rows": []}))
    for name in parts:
        if name == "loop" and rows_of(name):
            lines += ["", parts[name]["result"]["notes"].splitlines()[-1]]
    lines += _layers(rows_of("layer"), published, of_peak)
    lines += _grouped(parts, of_peak)
    lines += _tiles(parts, of_peak)
    for name in parts:
        if name.startswith("profile ") and "result" in parts[name]:
            lines += _profile(parts[name]["result"])
    failed = [f"{name} ({part['error']})" for name, part in parts.items() if "error" in part]
    if failed:
        lines += ["", f"Failed: {'; '.join(failed)}."]
    return "\n".join(lines) + "\n"


def _earlier(parts: dict, date: str) -> list[str]:
    """Returns a line that names what was measured on another day than the newest parts."""
    names_of: dict[str, list[str]] = {}
    for name, part in parts.items():
        if part.get("date", date) != date and "result" in part:
            names_of.setdefault(part["date"], []).append(name)
    if not names_of:
        return []
    days = [f"on {day} {', '.join(names)}" for day, names in sorted(names_of.items())]
    return ["", f"Measured earlier: {'; '.join(days)}."]


def _peers(parts: dict) -> list[str]:
    """Returns the table of transformers beside our step, and the longest kernels of both where it is faster."""
    cells = []
    slower = []
    for name, part in parts.items():
        if not name.startswith("peers ") or "result" not in part:
            continue
        for row in part["result"]["rows"]:
            mfu = "unknown" if row["MFU"] is None else f"{row['MFU']:.1%}"
            memory = "-" if row["memory GB"] is None else f"{row['memory GB']:.3g} GB"
            losses = f"{row['first loss']:.3g} to {row['last loss']:.3g}"
            cells.append(
                [name.removeprefix("peers "), row["side"], f"{row['batch']:,}", f"{row['at once']:,}", _ms(row["ms"])]
                + [f"{row['tokens/s']:,.0f}", mfu, f"{row['x transformers']:.2f}", memory, losses, row["software"]]
            )
        for side, profile in part["result"]["profiles"].items():
            kernels = ", ".join(f"`{r['kernel'][:60]}` {r['ms']:.3g} ms" for r in profile["longest"][:6])
            slower += ["", f"{name}, transformers ahead, {side}'s longest kernels: {kernels}."]
    head = "model, side, batch, tokens at once, step, tokens/s, MFU, over transformers, memory, loss, software"
    return _table(head, cells) + slower


def _study(result: dict) -> list[str]:
    """Returns the table of the runs of results/third, and whether their steps were made beforehand."""
    cells = []
    for row in result["rows"]:
        mfu = "unknown" if row["mfu"] is None else f"{row['mfu']:.1%}"
        seconds = f"{row['all_seconds']:.0f} s"
        cells.append([row["cell"], f"{row['flops']:.2g}", f"{row['loss']:.4f}", seconds, mfu])
    lines = _table("run of results/third, FLOPs, loss in nats per byte, with compilation, MFU", cells)
    loaded = result.get("loaded step")
    if loaded:
        ratio = f"{loaded['time over fresh']:.2f} times as long as one compiled here"
        others = "loaded" if loaded["usable"] else "compiled here"
        lines += ["", f"A step compiled beforehand took {ratio}; the others were {others}."]
    return lines


def _peaks(published: dict, peak: dict) -> list[str]:
    source = published.get("source")
    lines = ["", f"Data sheet: {source}." if source else "No data sheet: jmoe/cost/chips.py does not list this device."]
    return lines + _table(
        "peak, measured, data sheet, ratio",
        [
            [
                what,
                f"{peak[key] / unit:.4g} {name}",
                f"{published[key] / unit:.4g}" if published.get(key) else "unknown",
                _share(peak[key], published.get(key)),
            ]
            for what, key, unit, name in (
                (f"bfloat16 product of {peak.get('n', 0):,}", "flops", 1e12, "TFLOP/s"),
                (f"copy of {peak.get('bytes', 0) / 1e9:.3g} GB, read and written", "bandwidth", 1e9, "GB/s"),
            )
            if peak
        ],
    )


def _checks(parts: dict) -> list[str]:
    rows = [row for name, part in parts.items() if name.startswith("check ") for row in part.get("result", [])]
    return _table(
        "against the CPU, relative error, tolerance, passed",
        [
            [
                row["check"],
                row["reason"] if row["error"] is None else f"{row['error']:.1e}",
                "-" if row["tolerance"] is None else f"{row['tolerance']:g}",
                "yes" if row["passed"] else "**no**",
            ]
            for row in rows
        ],
    )


def _step(row: dict, of_peak: Callable[[float], str]) -> list[str]:
    """Returns the cells of a train step."""
    shape = [row["model"], f"{row['batch']:,}", row["remat"], "unrolled" if row["unrolled"] else "scanned"]
    memory = [_gib(row["predicted GiB"]), _gib(row["allocated GiB"])]
    if row["ms"] is None:
        return [*shape, "does not fit", "-", "-", "-", *memory]
    mfu = "unknown" if row["MFU"] is None else f"{row['MFU']:.1%}"
    return [*shape, _ms(row["ms"]), f"{row['tokens/s']:,.0f}", mfu, of_peak(1e9 * row["GFLOP/s"]), *memory]


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} GiB"


def _layers(rows: list[dict], published: dict, of_peak: Callable[[float], str]) -> list[str]:
    """Returns the table of layers, compared with the dense one."""
    cells = []
    for row in rows:
        flops = 1e9 * row["GFLOP/s"] if "GFLOP/s" in row else row["MFU"] * published.get("flops", 0)
        cells.append([row["layer"], _ms(row["ms"]), f"{row['x dense']:.2f}", of_peak(flops)])
    return _table("layer, forward and backward, over dense, of measured peak", cells)


def _grouped(parts: dict, of_peak: Callable[[float], str]) -> list[str]:
    """Returns the table of products of rows sorted by expert."""
    cells = []
    for row in parts.get("grouped", {}).get("result", []):
        error = f"{row['error']:.1e}"
        cells.append([row["product"], row["kernel"], _ms(row["ms"]), of_peak(row["flops"]), error])
    return _table("grouped product, kernel, time under random loads, of measured peak, error under equal loads", cells)


def _tiles(parts: dict, of_peak: Callable[[float], str]) -> list[str]:
    """Returns the table of tiles of Mosaic's kernel."""
    cells = []
    for row in parts.get("tiles", {}).get("result", []):
        cells.append([row["product"], row["tiles"], _ms(row["ms"]), of_peak(row["flops"]), f"{row['error']:.1e}"])
    return _table("product by Mosaic, tiles, time under random loads, of measured peak, largest error", cells)


def _profile(profile: dict) -> list[str]:
    """Returns one traced step: time by kind of kernel, the longest kernels, gaps."""
    kinds = ", ".join(f"{k['kind']} {k['ms']:.3g} ms ({k['share']:.0%})" for k in profile["kinds"])
    lines = [
        "",
        f"Profile of {profile['model']}, {profile['batch']:,} tokens a step: {profile['span ms']:.4g} ms, of which "
        f"{profile['idle ms']:.3g} ms ({profile['idle share']:.1%}) without a kernel; {kinds}.",
    ]
    lines += _table(
        "longest kernels, kind, times a step, ms a step",
        [[f"`{r['kernel'][:60]}`", r["kind"], f"{r['times']:g}", f"{r['ms']:.3g}"] for r in profile["longest"]],
    )
    gaps = [[f"{g['us']:.0f} us", f"`{g['after'][:40]}`", f"`{g['before'][:40]}`"] for g in profile["gaps"][:3]]
    return lines + _table("longest gaps, after, before", gaps)


def _table(head: str, rows: list[list[str]]) -> list[str]:
    columns = head.split(", ")
    if rows and len(columns) < len(rows[0]):
        raise ValueError(f"{len(columns)} columns for {len(rows[0])} cells: {head}")
    if not rows:
        return []
    return ["", _row(columns), "|---" * len(columns) + "|", *(_row(cells) for cells in rows)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _share(part: float, whole: float | None) -> str:
    return f"{part / whole:.1%}" if whole else "unknown"


def _ms(value: float) -> str:
    return f"{value:.4g} ms"


if __name__ == "__main__":
    if sys.argv[1:]:
        publish(json.loads(pathlib.Path(sys.argv[1], "results.json").read_text()))
    else:
        write_readme()
