// Several laws beside each other, on the page: what each would build, and how far they lie apart.

import { fillTable } from "./answers.js";
import { $ } from "./chart.js";
import { compareCommand } from "./command.js";
import { conclusion, lawAnswer } from "./compare.js";
import { defaultState } from "./form.js";
import { withErrors } from "./messages.js";
import { amount } from "./numbers.js";

// The laws that are set beside each other: those of fit compare, and the one that is chosen.
function comparedLaws(data, chosen) {
  const usual = data.compare.laws.map((name) => data.laws.find((law) => law.name === name));
  return usual.includes(chosen) ? usual : [chosen, ...usual];
}

export function showLaws({ data, state, options }) {
  const { law: chosen, shape, limits, reference } = options;
  const sizes = { vocab_size: shape.vocab_size, width_per_block: shape.width_per_block };
  const defaultExperts = defaultState(chosen).experts;
  const isDefault = state.experts.trim() === defaultExperts;
  const experts = isDefault ? null : options.experts;
  const laws = comparedLaws(data, chosen);
  const rows = laws.map((law) => {
    let why = "";
    const ask = () => lawAnswer(data, law, sizes, limits, experts, reference);
    return withErrors(ask, (sentence) => (why = sentence)) ?? { law: law.name, why };
  });
  const answers = rows.filter((row) => !row.why);
  showLawTable(rows, chosen, reference);
  $("agreement").textContent = agreementInWords(data, answers, reference);
  const n_far = answers.filter((answer) => answer.extrapolation.length).length;
  $("laws-about").textContent =
    `${data.compare.about} ${n_far} of ${answers.length} answers lie outside the data of their law.`;
  const json = { laws: answers, infeasible: rows.filter((row) => row.why), conclusion: conclusion(data, answers) };
  if (reference) json.like = reference.counts;
  $("laws-json").textContent = JSON.stringify(json, null, 1);
  const shown = { ...options, experts: isDefault ? defaultExperts.split(",") : options.experts };
  $("compare").textContent = compareCommand(state, shown, laws.map(({ name }) => name));
}

const percent = (share, digits) => `${(100 * share).toFixed(digits)}%`;

function showLawTable(rows, chosen, reference) {
  const head = ["law", "E", "split", "shared", "active", "total", "tokens", "loss below its dense model", "its FLOPs"];
  if (reference) head.push(`loss of ${reference.counts.name}`, "share of these FLOPs that reaches it");
  const lines = rows.map((row) => {
    if (row.why) return [row.law, `not feasible: ${row.why}`];
    const mixture = [String(row.n_experts), row.split > 1 ? String(row.split) : "–", String(row.shared || "–")];
    const counts = [row.n_active, row.n_total, row.n_tokens].map(amount);
    const cells = [row.law, ...mixture, ...counts, ...denseCells(row)];
    return reference ? [...cells, ...referenceCells(row.like)] : cells;
  });
  fillTable("laws", head, lines, rows.findIndex((row) => row.law === chosen.name));
}

function denseCells({ n_experts, dense }) {
  if (n_experts === 1 || !dense) return ["–", "–"];
  const flops = dense.flops_ratio ? `× ${dense.flops_ratio.toFixed(2)}` : "never";
  return [percent(dense.loss_saved_share, 1), flops];
}

function referenceCells(like) {
  if (!like) return ["not read", "–"];
  return [like.loss.toFixed(4), like.flops_share == null ? "more" : percent(like.flops_share, 0)];
}

// What the laws say together, in the command line's sentences; and the place of the reference model among them.
function agreementInWords(data, answers, reference) {
  const sentences = conclusion(data, answers);
  const mixtures = answers.filter((answer) => answer.mixtures && answer.like);
  if (reference && mixtures.length) {
    const saved = mixtures.map(({ like }) => 1 - (like.flops_share ?? 1));
    const ends = `${percent(Math.min(...saved), 0)} to ${percent(Math.max(...saved), 0)}`;
    const loss = `the loss of ${reference.counts.name}`;
    sentences.unshift(`${mixtures.length} laws of mixtures would reach ${loss} with ${ends} of the FLOPs saved`);
  }
  return sentences.map((sentence) => `${sentence}.`).join(" ");
}
