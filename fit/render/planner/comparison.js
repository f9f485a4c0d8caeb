// Several laws beside each other, on the page: what each would build, and how far they lie apart.

import { compareCommand } from "./command.js";
import { findingsOfLaws, lawAnswer } from "./compare.js";
import { data } from "./data.js";
import { byId, showLines } from "./elements.js";
import { defaultState, lawOf } from "./form.js";
import { withErrors } from "./messages.js";
import { amount, percentText } from "./numbers.js";

/** Shows what each law would build, and what they agree on; yields after each law. By hours the page knows the speeds
 *  of one law's models, and compares none.
 *  @type {(answer: Answer) => Generator} */
export function* showLaws({ state, options }) {
  const { law: chosen, reference, limits } = options;
  const usual = data.compare.laws.map(lawOf); // those of fit compare
  const laws = usual.includes(chosen) ? usual : [chosen, ...usual];
  byId("compare").textContent = compareCommand(options, laws.map(({ name }) => name));
  const rows = [];
  const isDefault = state.experts.trim() === defaultState(chosen).experts;
  for (const law of limits.speeds ? [] : laws) {
    const answered = withErrors(
      () => lawAnswer(law, options, isDefault ? null : options.experts),
      (why) => rows.push({ law: law.name, why }),
    );
    if (answered) rows.push(answered);
    yield;
  }
  const answers = rows.filter((row) => !row.why);
  const findings = [...findingsOfLaws(answers)];
  showLines("laws", rows.length ? [...lawsLines(rows, findings, chosen, reference)] : []);
  const json = { laws: answers, infeasible: rows.filter((row) => row.why), findings };
  if (reference) json.like = reference.counts;
  byId("laws-json").textContent = JSON.stringify(json, null, 1);
}

function* lawsLines(rows, findings, chosen, reference) {
  const answers = rows.filter((row) => !row.why);
  const mixtures = answers.filter((answer) => answer.mixtures && answer.like);
  if (reference && mixtures.length) {
    const saved = mixtures.map(({ like }) => 1 - (like.flops_share ?? 1));
    const ends = `${percentText(Math.min(...saved), 0)} to ${percentText(Math.max(...saved), 0)}`;
    const loss = `the loss of ${reference.counts.name}`;
    yield { value: `${mixtures.length} laws of mixtures would reach ${loss} with ${ends} of the FLOPs saved.` };
  }
  yield { value: findings.map(({ text }) => `${text}.`).join(" ") };
  yield { detail: lawsTable(rows, chosen, reference) };
  const n_outside = answers.filter((answer) => answer.extrapolation.length).length;
  const outside = `${n_outside} of ${answers.length} answers lie outside the data of their law.`;
  yield { value: `${data.compare.about} ${outside}` };
}

function lawsTable(rows, chosen, reference) {
  const ofDense = (textOf) => (row) => (row.n_experts === 1 || !row.dense ? "–" : textOf(row.dense));
  const columns = {
    law: (row) => row.law,
    E: (row) => String(row.n_experts),
    split: (row) => (row.n_experts > 1 && row.granularity > 1 ? String(row.granularity) : "–"),
    shared: (row) => (row.n_experts > 1 && row.shared ? String(row.shared) : "–"),
    active: (row) => amount(row.n_active),
    total: (row) => amount(row.n_total),
    tokens: (row) => amount(row.n_tokens),
    "loss below its dense model": ofDense((dense) => percentText(dense.loss_saved_share, 1)),
    "its FLOPs": ofDense(({ flops_ratio }) => (flops_ratio ? `× ${flops_ratio.toFixed(2)}` : "never")),
  };
  if (reference) {
    const share = ({ flops_share }) => (flops_share == null ? "more" : percentText(flops_share, 0));
    columns[`loss of ${reference.counts.name}`] = ({ like }) => (like ? like.loss.toFixed(4) : "not read");
    columns["share of these FLOPs that reaches it"] = ({ like }) => (like ? share(like) : "–");
  }
  return { columns, rows, best: rows.find((row) => row.law === chosen.name) };
}
