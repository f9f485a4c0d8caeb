// Several laws beside each other, on the page: what each would build, and how far they lie apart.

import { byId, fillTable } from "./elements.js";
import { compareCommand } from "./command.js";
import { conclusionOf, lawAnswer, questionOf } from "./compare.js";
import { defaultState } from "./form.js";
import { PlanError } from "./messages.js";
import { amount, percentText } from "./numbers.js";

// The laws that are set beside each other: those of fit compare, and the one that is chosen.
function comparedLaws(data, chosen) {
  const usual = data.compare.laws.map((name) => data.laws.find((law) => law.name === name));
  return usual.includes(chosen) ? usual : [chosen, ...usual];
}

// The law's answer, or why it has none.
function* answerOrWhy(data, law, question, experts) {
  try {
    return yield* lawAnswer(data, law, question, experts);
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    return { law: law.name, why: error.message };
  }
}

/** Shows what each law would build, and what they agree on; yields after each law.
 *  @type {(answer: Answer) => Generator} */
export function* showLaws({ data, state, options }) {
  const { law: chosen, reference, limits } = options;
  const laws = comparedLaws(data, chosen);
  byId("compare").textContent = compareCommand(state, options, laws.map(({ name }) => name));
  byId("beside").hidden = Boolean(limits.speeds); // the page has those of one law
  if (limits.speeds) return;
  const question = questionOf(options);
  const isDefault = state.experts.trim() === defaultState(chosen).experts;
  const experts = isDefault ? null : options.experts;
  const rows = [];
  for (const law of laws) {
    rows.push(yield* answerOrWhy(data, law, question, experts));
    yield;
  }
  const answers = rows.filter((row) => !row.why);
  const conclusion = conclusionOf(data, answers);
  showLawTable(rows, chosen, reference);
  byId("agreement").textContent = agreementText(conclusion, answers, reference);
  const n_outside = answers.filter((answer) => answer.extrapolation.length).length;
  const outside = `${n_outside} of ${answers.length} answers lie outside the data of their law.`;
  byId("laws-about").textContent = `${data.compare.about} ${outside}`;
  const json = { laws: answers, infeasible: rows.filter((row) => row.why), conclusion };
  if (reference) json.like = reference.counts;
  byId("laws-json").textContent = JSON.stringify(json, null, 1);
}

function showLawTable(rows, chosen, reference) {
  const isDense = ({ n_experts, dense }) => n_experts === 1 || !dense;
  const columns = {
    law: (row) => row.law,
    E: (row) => String(row.n_experts),
    split: (row) => (row.granularity > 1 ? String(row.granularity) : "–"),
    shared: (row) => String(row.shared || "–"),
    active: (row) => amount(row.n_active),
    total: (row) => amount(row.n_total),
    tokens: (row) => amount(row.n_tokens),
    "loss below its dense model": (row) => (isDense(row) ? "–" : percentText(row.dense.loss_saved_share, 1)),
  };
  columns["its FLOPs"] = (row) => (isDense(row) ? "–" : ratioText(row.dense.flops_ratio));
  if (reference) {
    columns[`loss of ${reference.counts.name}`] = ({ like }) => (like ? like.loss.toFixed(4) : "not read");
    columns["share of these FLOPs that reaches it"] = ({ like }) => (like ? shareText(like.flops_share) : "–");
  }
  fillTable("laws", columns, rows, rows.find((row) => row.law === chosen.name));
}

function ratioText(ratio) {
  return ratio ? `× ${ratio.toFixed(2)}` : "never";
}

function shareText(share) {
  return share == null ? "more" : percentText(share, 0);
}

// What the laws say together, in the command line's sentences; and the place of the reference model among them.
function agreementText(conclusion, answers, reference) {
  const sentences = [...conclusion];
  const mixtures = answers.filter((answer) => answer.mixtures && answer.like);
  if (reference && mixtures.length) {
    const saved = mixtures.map(({ like }) => 1 - (like.flops_share ?? 1));
    const ends = `${percentText(Math.min(...saved), 0)} to ${percentText(Math.max(...saved), 0)}`;
    const loss = `the loss of ${reference.counts.name}`;
    sentences.unshift(`${mixtures.length} laws of mixtures would reach ${loss} with ${ends} of the FLOPs saved`);
  }
  return sentences.map((sentence) => `${sentence}.`).join(" ");
}
