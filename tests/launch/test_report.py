"""launch.report: the page on a sweep, made from files as trainers leave them, from a bucket, and while a sweep runs."""

import json
import re
import subprocess

import helpers
import numpy as np
import pytest
import sweeps

from fit.fitted_law.law_files import load
from jmoe.storage import files as storage
from jmoe.storage import ownership
from launch import curves, sweep_law, sweepfile
from launch import report as report_lib
from launch.jobs import files_of

LAW = load("jmoe-bytes-2026")
WIDTHS = (16, 32, 48, 64)
EXPERTS = (1, 2, 4, 8)


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def log(job, share=1.0, resumed=False):
    """Metrics and speed of each segment, 40 lines each, of a loss that falls; drops and loads for mixtures."""
    for segment, (first, last) in job.segments.items():
        tokens = np.linspace(first, first + share * (last - first), 41)[1:]
        metrics = []
        speeds = []
        for step, n_tokens in enumerate(tokens):
            line = {"step": step, "n_tokens": int(n_tokens), "cross_entropy": 2 + 30 * (n_tokens + 1e4) ** -0.3}
            if job.n_experts > 1:
                line |= {"drop_rate": 0.1 + 0.001 * step, "max_load": 1.5}
            if job.n_experts == 8 and step > 20:  # as with config.router_health
                line |= {"unchosen": 3, "collapsed_layers": 2}
            metrics.append(line)
            seconds = 90.0 * (step + 1)
            if resumed and step >= 20:  # killed after line 19, whose clock said 1,800 s
                seconds -= 1_800
            speeds.append({"step": step, "tokens_per_second": 100.0, "seconds": seconds})
        write_lines(job.folder / segment / "metrics.jsonl", metrics)
        write_lines(job.folder / segment / "speed.jsonl", speeds)


def begin(folder, workdir=None, noise=1e-3):
    """A sweep of 16 jobs of two budgets: 14 are finished with a law's losses, one is half trained, one has failed."""
    jobs = [
        {"model.d_model": d_model, "model.n_experts": e, "n_tokens": (n_tokens // 4, n_tokens)}
        for d_model, n_tokens in zip(WIDTHS, (4_194_304, 2_097_152, 1_048_576, 524_288), strict=True)
        for e in EXPERTS
    ]
    path = sweeps.write_sweep(folder, "configs/quickstart.py", jobs)
    sweep = sweeps.begin(path, workdir or folder, n_chips=2, dollars_per_hour=3.0)
    rng = np.random.default_rng(0)
    *done, half, failed = sweep.jobs
    for job in done:
        sweeps.train(job)
        for branch, n_tokens in job.budgets.items():
            loss = LAW.predict(n_active=job.n_active, n_tokens=n_tokens, n_experts=job.n_experts)
            result = json.loads((job.folder / branch / "result.json").read_text())
            result["loss"] = float(loss * np.exp(noise * rng.standard_normal()))
            storage.write_whole(job.folder / branch / "result.json", json.dumps(storage.sealed(result)))
        log(job)
        (job.folder / "time.json").write_text(json.dumps({"seconds": 3_600}))
    log(half, share=0.5)
    failure = {"cause": "the loss is NaN at step 7 <b>", "tries": 3, "tokens": 0, "for_good": True}
    (failed.folder / "failure.json").write_text(json.dumps(failure))
    return sweep


def report(workdir):
    return helpers.succeeds("launch.report", f"--workdir={workdir}")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """(the sweep, the path of its page, what the command printed)."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = begin(folder)
    done = report(folder)
    return sweep, folder / "sweep.html", done


def test_hours_go_on_where_a_run_was_resumed(tmp_path):
    jobs = [{"n_tokens": (65_536, 262_144)}]
    sweep = sweeps.begin(sweeps.write_sweep(tmp_path, "configs/quickstart.py", jobs), tmp_path)
    (job,) = sweep.jobs
    log(job, resumed=True)
    trunk, *branches = curves.of_job(job, files_of(sweep.workdir))
    np.testing.assert_allclose(trunk.hours, 90 * np.arange(1, 41) / 3_600)
    assert [curve.segment for curve in (trunk, *branches)] == list(job.segments) and branches
    for branch in branches:
        left_at = job.segments[branch.segment][0]
        began = np.interp(left_at, trunk.n_tokens, trunk.hours)
        np.testing.assert_allclose(branch.hours, began + 90 * np.arange(1, 41) / 3_600)
        assert np.isnan(branch.drop_rate).all()  # a dense model drops nothing


def test_a_segment_that_is_being_written_is_read_as_far_as_it_is_whole(tmp_path):
    jobs = [{"n_tokens": (65_536,), "model.n_experts": 4}]
    sweep = sweeps.begin(sweeps.write_sweep(tmp_path, "configs/quickstart.py", jobs), tmp_path)
    (job,) = sweep.jobs
    log(job)
    path = job.folder / "trunk" / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    trunk = curves.of_job(job, files_of(sweep.workdir))[0]
    assert len(trunk.loss) == 39 and trunk.max_load[-1] == 1.5
    assert trunk.drop_rate[-1] == pytest.approx(0.1 + 0.001 * 38)


def test_the_page_says_how_each_job_stands(page):
    sweep, path, done = page
    text = path.read_text()
    for job in sweep.jobs:
        assert text.count(f"<td>{job.name}</td>") == 1
    assert "28 of 32 runs done" in text and "28 of 32 runs done" in done.stdout
    assert "14.00 hours of trainers so far, $84.00 (2 chips a job, $3 each an hour)" in text
    assert "the loss is NaN at step 7 &lt;b&gt;" in text and "7 <b>" not in text
    assert text.count("<svg ") == 6  # five of curves, one of the law
    assert text.count("routers of 2 layers have collapsed") == 3  # the jobs of 8 experts that have begun
    assert not re.findall(r"(?:src|[^:]href)=\"(?!#)", text)  # it loads nothing


def test_the_law_of_the_page_is_that_of_its_runs(page):
    sweep, path, _ = page
    (found,) = re.findall(r'id="answers">(.*?)</script>', path.read_text(), re.DOTALL)
    answers = [sweep_law.Answer.of(fields) for fields in json.loads(found)]
    n_runs = [answer.n_runs for answer in answers]
    assert n_runs == sorted(n_runs) and n_runs[-1] == 28 and len(n_runs) >= 2
    widths = [answer.loss[1] - answer.loss[0] for answer in answers]
    assert widths[-1] < widths[0]
    flops = 10 * max(6 * job.n_active * max(job.budgets.values()) for job in sweep.jobs)
    assert answers[-1].flops == pytest.approx(flops)
    assert "Runs to train next" in path.read_text()


def test_laws_of_fewer_runs_are_fitted_at_the_first_look_alone(monkeypatch):
    """What is asked of each law, which the page above shows, is left out."""
    monkeypatch.setattr(sweep_law, "_ask", lambda _, rows, with_next=False: (sweep_law.Answer(len(rows)), "", ""))
    for known, n_runs in (([], [4, 6, 8, 10]), ([sweep_law.Answer(9)], [9, 10])):
        answers = sweep_law.fit(None, [{}] * 10, known).answers
        assert [answer.n_runs for answer in answers] == n_runs


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_wider_than_the_screen(page, browser, width):
    _, path, _ = page
    tab = browser.new_page(viewport={"width": width, "height": 900})
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"file://{path}")
    assert tab.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert tab.locator("figure svg").count() == 6 and not errors
    boxes = [box.bounding_box() for box in tab.locator("figure svg").all()]
    assert all(200 < box["width"] <= width for box in boxes)
    tab.close()


def test_a_sweep_in_a_bucket(bucket, tmp_path):
    """Its page keeps what fewer runs said, though all of them make no law."""
    workdir = f"{bucket}/report"
    jobs = [{"n_tokens": (65_536,)}, {"n_tokens": (131_072,), "model.n_experts": 4}]
    sweep = sweeps.begin(sweeps.write_sweep(tmp_path, "configs/quickstart.py", jobs), workdir)
    for job in sweep.jobs:
        sweeps.train(job)
    page = sweep.workdir / "sweep.html"
    earlier = sweep_law.Answer(1, 1e15, 4, (1e6, 2e6), (1.5, 2.5))
    page.write_text(f'<script type="application/json" id="answers">{json.dumps([vars(earlier)])}</script>')
    report(workdir)
    text = page.read_text()
    assert "2 of 2 runs done" in text and "what the fit says" in text
    assert report_lib.answers_on(page) == [earlier]
    assert sweepfile.read(sweep.workdir).jobs[0].name in text


def test_it_watches_a_sweep_until_all_is_done(tmp_path):
    """As long as somebody works on it, in whose place this process stands."""
    jobs = [{"n_tokens": (65_536,)}, {"n_tokens": (131_072,)}]
    sweep = sweeps.begin(sweeps.write_sweep(tmp_path, "configs/quickstart.py", jobs), tmp_path)
    page = tmp_path / "sweep.html"
    with ownership.hold(sweep.lock, "launch.sweep"):
        watch = helpers.spawn("launch.report", f"--workdir={tmp_path}", "--watch=1", stdout=subprocess.PIPE)
        helpers.wait_until(lambda: page.exists() and "http-equiv" in page.read_text(), [watch])
        for job in sweep.jobs:
            sweeps.train(job)
    printed, _ = watch.communicate(timeout=300)
    assert watch.returncode == 0 and printed.splitlines()[-1].endswith("2 of 2 runs done"), printed
    assert "http-equiv" not in page.read_text() and page.read_text().count("<td>done</td>") == 2
