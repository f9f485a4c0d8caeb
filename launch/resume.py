"""A sweep started over an earlier form of itself: what goes on, what is kept as it is, and what is refused.

What is trained is what the sweep says now. A job that it still has, config and all, goes on from its checkpoints by the
code at hand; one that it has no more, because the sweep or a config was edited, is kept: its finished runs stay in
runs.csv, and it is trained no further. Either takes --mix, for runs.csv then holds two versions.
"""

import os
import sys

from jmoe.errors import UserError
from jmoe.storage.cache import cache_dir
from jmoe.text import corpus
from jmoe.version import code_version
from launch import record


def resume(sweep) -> dict:
    """The jobs of earlier starts in this workdir by name; the new jobs are given what is known of them, and those that
    the sweep has no more join it as kept ones.

    Raises:
      UserError: the code or the configs are others than those of jobs that have begun, and --mix does not allow it; or
        another backend has jobs still.
    """
    now = code_version()
    for job in sweep.jobs:
        job.code = [now]
    before = record.begun(sweep.workdir, sweep.backend)
    if before is None:
        return {}
    sweep.mix = sorted({*sweep.mix, *before.mix})
    busy = before.engine.states(before)
    if before.backend != sweep.backend and busy:
        raise UserError(f"{len(busy)} jobs are still with --backend={before.backend}; launch.cancel stops them")
    earlier = {job.name: job for job in before.jobs if job.name in busy or job.folder.exists()}
    _check_code(sweep, earlier, now)
    names = {job.name for job in sweep.jobs}
    gone = [job for name, job in earlier.items() if name not in names]
    if gone:
        _check_gone(sweep, gone, busy)
    for job in gone:
        job.kept = True
    for job in sweep.jobs:
        if job.name in earlier:
            code = earlier[job.name].code
            job.code = code if job.done() or code[-1] == now else [*code, now]
    sweep.jobs += gone
    return earlier


def _check_code(sweep, earlier, now) -> None:
    others = sorted({version for job in earlier.values() for version in job.code} - {now})
    if others and "code" not in sweep.mix:
        raise UserError(
            f"{os.fspath(sweep.workdir)} was begun with code {', '.join(others)}, and this is {now}: its runs would "
            "differ in more than the sweep says. Take another --workdir, that code, or --mix=code, which goes on with "
            "this one"
        )


def _check_gone(sweep, gone, busy) -> None:
    told = ", ".join(job.name for job in gone[:3]) + ", ..." * (len(gone) > 3)
    if "config" not in sweep.mix:
        raise UserError(
            f"{len(gone)} jobs in {os.fspath(sweep.workdir)} are not of this sweep any more ({told}): a config "
            "was edited, or the sweep. Undo that, take another --workdir, or --mix=config, which trains what the sweep "
            "says now and keeps what was trained"
        )
    if sweep.backend != "local" and (still := [job.name for job in gone if job.name in busy]):
        raise UserError(
            f"{len(still)} jobs that are not of this sweep any more are with --backend={sweep.backend} still "
            f"({', '.join(still[:3])}); launch.cancel stops them"
        )
    unfinished = sum(len(job.budgets) - len(job.results()) for job in gone)
    print(
        f"{len(gone)} jobs of an earlier form of the sweep are kept ({told}): their finished runs stay in runs.csv"
        + f", {unfinished} unfinished ones are trained no further" * bool(unfinished),
        file=sys.stderr,
    )


def pin_corpus(sweep, configs, earlier) -> dict:
    """Prepares each corpus once and gives its fingerprint to every job on it, later ones too: all see the same text.

    Returns:
      the corpora that are on this machine, by fingerprint.

    Raises:
      UserError: the corpus cannot be had, or the sweep has two and --mix does not allow it.
    """
    key = lambda job: configs[job.name].data.to_json(sort_keys=True)
    pins = {key(job): earlier[job.name].corpus for job in sweep.trained if job.name in earlier}
    fingerprints, found = {}, {}
    for job in sweep.trained:
        if key(job) not in fingerprints:
            data = configs[job.name].data.copy_and_resolve_references()
            data.fingerprint = pins.get(key(job)) or data.fingerprint
            # text that is known by its fingerprint need not be on a machine that only submits; trainers check it
            elsewhere = data.fingerprint and sweep.backend != "local" and not _is_cached(data.fingerprint)
            if not elsewhere:
                text = corpus.load(data)
                found[text.fingerprint] = text
            fingerprints[key(job)] = data.fingerprint if elsewhere else text.fingerprint
        job.corpus = fingerprints[key(job)]
    everywhere = sorted({job.corpus for job in sweep.trained})
    if len(everywhere) > 1 and "corpus" not in sweep.mix:
        raise UserError(
            f"the sweep's jobs have {len(everywhere)} corpora: {', '.join(everywhere)}; --mix=corpus allows it"
        )
    return found


def _is_cached(fingerprint: str) -> bool:
    return (cache_dir() / "tokens" / fingerprint).exists()
