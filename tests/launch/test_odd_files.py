"""Odd files in a job's folder: status, collect and the page name them, and show the other jobs as before."""

import json
import os

import helpers
import hypothesis
import numpy as np
import pytest
import sweeps
from hypothesis import strategies as st

from jmoe.errors import UserError
from jmoe.storage import files as storage
from launch import collect, curves, job_files, local, report, status, sweep_law, sweepfile, trainer
from launch.jobs import files_of

BRANCH = "branch-65536"
HUGE = 10**400
FAILURE = {"cause": "it died", "tries": 1, "tokens": 0, "for_good": False}
METRICS = {"step": 1, "n_tokens": 60_000, "cross_entropy": 3.5, "drop_rate": 0.25, "max_load": 1.5}
SPEED = {"step": 1, "tokens_per_second": 100.0, "seconds": 90.0}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep of two jobs, the second of which `write` gives its files."""
    folder = tmp_path_factory.mktemp("odd")
    jobs = [{"n_tokens": (65_536,), "model.n_experts": n_experts} for n_experts in (4, 8)]
    return sweeps.begin(sweeps.write_sweep(folder, "configs/quickstart.py", jobs), folder)


@pytest.fixture(scope="module")
def finished(sweep) -> dict:
    """The result of the second job, as if it were finished."""
    job = sweep.jobs[1]
    for each in sweep.jobs:
        sweeps.train(each)
    values = storage.read_sealed(job.folder / BRANCH / "result.json")
    (job.folder / BRANCH / "result.json").unlink()
    return values


@pytest.fixture(scope="module")
def write(sweep, finished):
    """A function that writes the files of the second job, which trains, with other text for some of them."""
    good, odd = sweep.jobs
    texts = {"time.json": '{"seconds": 3600}', "failure.json": json.dumps(FAILURE)}
    for segment in odd.segments:
        texts[f"{segment}/metrics.jsonl"] = json.dumps(METRICS) + "\n"
        texts[f"{segment}/speed.jsonl"] = json.dumps(SPEED) + "\n"
    for file, text in texts.items():
        (good.folder / file).write_text(text)

    def write(**others: str | bytes) -> None:
        (odd.folder / BRANCH / "result.json").unlink(missing_ok=True)
        for file, text in (texts | others).items():
            (odd.folder / file).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))

    return write


def seen(sweep) -> tuple[dict, dict]:
    """The status of both jobs, each made into words and a page's table too; the second trains."""
    found = status.look(sweep, {sweep.jobs[1].name: "running"})
    assert status.in_words(found) and report.opening(found | {"trouble": None})
    all_curves, odd = curves.of_sweep(sweep, files_of(sweep.workdir))
    last = {curve.job: curve for curve in all_curves}
    for job in found["jobs"]:
        job["more"] = report._cells(job, last.get(job["name"]), odd[job["name"]])[-1]
    return found["jobs"][0], found["jobs"][1]


ODD_FILES = {
    "metrics.jsonl": (
        "trunk/metrics.jsonl",
        '{"step": 1, "n_tokens": -1}\n',
        "trunk/metrics.jsonl, line 1: n_tokens is -1, expected a number",
    ),
    "tokens_per_second": (
        "trunk/speed.jsonl",
        f'{{"step": 1, "tokens_per_second": {HUGE}}}\n',
        "trunk/speed.jsonl, line 1: tokens_per_second is 1000",
    ),
    "no text": ("trunk/metrics.jsonl", b"\xff\xfe\n", "trunk/metrics.jsonl, line 1: found"),
    "seconds": ("time.json", f'{{"seconds": {HUGE}}}', "time.json: seconds is 1000"),
    "nan seconds": ("time.json", '{"seconds": NaN}', "time.json: seconds is NaN, expected a number"),
    "no cause": ("failure.json", '{"for_good": true}', "failure.json is damaged: expected a text `cause`"),
    "an escape": ("time.json", '"\\u001b[31m"', r"time.json is damaged: found \"\u001b[31m\""),
}


@pytest.mark.parametrize("case", ODD_FILES)
def test_an_odd_file_is_named(case, sweep, write):
    file, text, sentence = ODD_FILES[case]
    write()
    before, _ = seen(sweep)
    write(**{file: text})
    good, odd = seen(sweep)
    assert good == before
    assert sentence.replace("\\", "") in odd["more"].replace("\\", "") and "\x1b" not in odd["more"]


def test_what_is_no_file_is_named(sweep, write, finished):
    """A folder, a pipe, which would never end, a link to itself or to nothing; a result that is cut or was altered."""
    write()
    whole = json.dumps(storage.sealed(finished)).encode()
    altered = whole.replace(b"3.25", b"2.25")
    assert altered != whole
    folder = sweep.jobs[1].folder
    for file, make, sentence in (
        ("time.json", lambda path: path.mkdir(), ""),  # what lies in it is listed, and it is not
        ("time.json", os.mkfifo, "time.json cannot be read: it is no regular file"),
        ("trunk/metrics.jsonl", os.mkfifo, "trunk/metrics.jsonl cannot be read: it is no regular file"),
        ("lock", lambda path: path.mkdir(), ""),
        ("lock", os.mkfifo, ""),
        (f"{BRANCH}/result.json", os.mkfifo, "result.json cannot be read: it is no regular file"),
        (f"{BRANCH}/result.json", lambda path: os.symlink("/nowhere", path), "result.json is damaged"),
        (f"{BRANCH}/result.json", lambda path: path.write_bytes(whole[:100]), "result.json is damaged"),
        (f"{BRANCH}/result.json", lambda path: path.write_bytes(altered), "result.json is damaged"),
        (
            "failure.json",
            lambda path: os.symlink(path, path),
            "failure.json cannot be read: too many levels of symbolic",
        ),
    ):
        path = folder / file
        path.unlink(missing_ok=True)
        make(path)
        _, odd = seen(sweep)
        collect.write(sweep)
        assert local.Local().states(sweep) == {}
        path.rmdir() if path.is_dir() else path.unlink()
        assert sentence in odd["more"]
    log = sweep.jobs[1].log
    log.symlink_to("/nowhere")
    assert str(log) in helpers.fails("launch.logs", f"--workdir={sweep.workdir}", f"--job={sweep.jobs[1].name}")
    log.unlink()


RESULTS = {
    "loss": (None, "loss is null, expected a number"),
    "n_active": ("12", 'n_active is "12", expected a count'),
    "n_experts": (0, "n_experts is 0, expected a count"),
    "record": ({"config": {"model": {}, "data": {}}}, "record.config.data.fingerprint is null, expected text"),
}


@pytest.mark.parametrize("field", RESULTS)
def test_an_odd_result_is_missing_from_the_table_and_named(field, sweep, write, finished):
    value, sentence = RESULTS[field]
    write(**{f"{BRANCH}/result.json": json.dumps(storage.sealed(finished | {field: value}))})
    report_of_collect, n_missing = collect.write(sweep)
    odd_run = f"jobs/{sweep.jobs[1].name}/{BRANCH}: result.json: {sentence}"
    assert (
        n_missing == 1 and odd_run in report_of_collect and "delete it and start the sweep again" in report_of_collect
    )
    assert (sweep.workdir / "runs.csv").read_text().count("\n") == 2  # the header and the good job's run
    good, odd = seen(sweep)
    assert (good["state"], odd["runs_done"]) == ("done", 0)
    assert f"{BRANCH}/result.json: {sentence}" in odd["more"]


def test_a_trainer_that_ends_with_an_odd_result_is_not_started_for_ever(sweep, write, finished):
    """It takes the run for finished; the pool does not, and must not start it again and again."""
    write(**{f"{BRANCH}/result.json": json.dumps(storage.sealed(finished | {"loss": None}))})
    job = sweep.jobs[1]
    sweep.options["threads"] = 1
    pool = local._Pool(sweep, [job])
    pool._handle_success(job)
    pool.close([])
    assert job.has_ended() and "loss is null, expected a number; delete it" in job.failure()["cause"]
    trainer.forget_cause(job)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([HUGE, -HUGE]) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FIELDS = {
    "trunk/metrics.jsonl": METRICS,
    "trunk/speed.jsonl": SPEED,
    "time.json": {"seconds": 1.0},
    "failure.json": FAILURE,
}


@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_any_value_in_any_file_of_a_job_leaves_the_others_as_they_are(sweep, write, finished, data):
    file = data.draw(st.sampled_from([*FIELDS, f"{BRANCH}/result.json"]))
    value = data.draw(VALUES)
    fields = FIELDS.get(file, finished)
    changed = fields | {data.draw(st.sampled_from(list(fields))): value}
    if file.endswith("result.json"):
        text = json.dumps(storage.sealed(changed))
    else:
        text = data.draw(st.sampled_from([json.dumps(changed), json.dumps(value)]) | st.text(max_size=20))
    write()
    before, _ = seen(sweep)
    write(**{file: f"{text}\n"})
    good, odd = seen(sweep)
    assert good == before
    assert odd["tokens"] >= 0 and odd["runs_done"] in (0, 1)
    if not isinstance(value, dict) and text == json.dumps(value):
        assert file in odd["more"]  # it is named
    sweep.mix = ["code", "corpus", "config"]
    collect.write(sweep)
    sweep.mix = []


NUMBERS = st.floats(-job_files.LARGEST, job_files.LARGEST) | st.just(float("nan"))


@hypothesis.settings(max_examples=6, phases=[hypothesis.Phase.generate])
@hypothesis.given(
    lines=st.lists(st.tuples(st.floats(0, job_files.LARGEST), NUMBERS, NUMBERS), min_size=1, max_size=5),
    panel=st.sampled_from(curves.PANELS),
)
def test_any_number_can_be_drawn(lines, panel, sweep, write):
    text = ""
    for step, (n_tokens, loss, other) in enumerate(lines):
        line = dict.fromkeys(curves.METRICS, other) | {"step": step, "n_tokens": n_tokens, "cross_entropy": loss}
        text += json.dumps(line) + "\n"
    write(**{"trunk/metrics.jsonl": text})
    all_curves, odd = curves.of_sweep(sweep, files_of(sweep.workdir))
    assert not odd[sweep.jobs[1].name]
    is_known = any(np.isfinite(getattr(curve, panel.value)).any() for curve in all_curves)
    assert curves.draw(all_curves, panel).startswith("<svg") == is_known


def test_the_page_of_a_sweep_with_odd_files(sweep, write):
    lines = '{"step": 1}\nnull\n'
    write(**{"trunk/metrics.jsonl": lines + json.dumps(METRICS) + "\n", "trunk/speed.jsonl": lines})
    job = sweep.jobs[0]
    n_experts = job.n_experts
    job.n_experts = 0  # as of a job that was rebuilt from its folder
    page = report.page(sweep, status.see(sweep.workdir), None, None)
    job.n_experts = n_experts
    assert "trunk/metrics.jsonl, line 1: n_tokens is missing (and 1 more line" in page
    assert "trunk/speed.jsonl, line 2: found null, expected a JSON object" in page
    assert f"<td>{job.name}</td><td>done</td>" in page and page.count("<svg ") == 4


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("mix", 5, "mix is 5, expected a list of words"),
        ("backend", None, "backend is null, expected text"),
        ("options", {"dollars_per_hour": HUGE}, "options.dollars_per_hour is 1000"),
        ("n_experts", "many", 'n_experts is "many", expected a count'),
        ("budgets", {BRANCH: "many"}, f'budgets.{BRANCH} is "many", expected a count'),
        ("segments", {"trunk": [5, 1]}, "segments.trunk is [5, 1], expected its first and its last token"),
        ("code", 5, "code is 5, expected a list of versions"),
    ],
)
def test_an_odd_field_of_sweep_json_is_named(field, value, sentence, sweep):
    text = (sweep.workdir / "sweep.json").read_text()
    fields = json.loads(text)
    name = sweep.jobs[1].name
    place = fields["jobs"][name] if field in fields["jobs"][name] else fields
    place[field] = value
    (sweep.workdir / "sweep.json").write_text(json.dumps(fields))
    where = f"job {name}: " if place is not fields else ""
    try:
        with pytest.raises(UserError) as refused:
            sweepfile.read(sweep.workdir)
    finally:
        (sweep.workdir / "sweep.json").write_text(text)
    assert f"sweep.json is damaged ({where}{sentence}" in str(refused.value)


def test_a_page_that_cannot_be_written_is_refused_before_any_work(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_law, "fit", None)  # not called
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert "is a folder: expected a file, such as" in helpers.fails(
        "launch.report", f"--workdir={sweep.workdir}", f"--out={tmp_path}"
    )
    with pytest.raises(NotADirectoryError):
        report.make_way(storage.absolute(tmp_path / "file" / "page.html"))
    report.make_way(storage.absolute(tmp_path / "new" / "folder" / "page.html"))
    assert (tmp_path / "new" / "folder").is_dir()


def test_an_earlier_page_with_other_answers_is_left_out(tmp_path):
    right = {"n_runs": 9, "flops": 1e15, "n_experts": 4, "n_active": [1e6, 2e6], "loss": [1.5, 2.5]}
    page = tmp_path / "page.html"
    for field, value in (("loss", ["a", "b"]), ("n_active", 5), ("n_runs", "many"), ("flops", HUGE), ("more", 1)):
        answers = json.dumps([right | {field: value}])
        page.write_text(f'<script type="application/json" id="answers">{answers}</script>')
        assert report.answers_on(page) == []
    page.write_text(f'<script type="application/json" id="answers">{json.dumps([right])}</script>')
    assert len(report.answers_on(page)) == 1
