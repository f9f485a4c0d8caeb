// Several laws beside each other, on the page: what each would build, and how far they lie apart.

import { fill } from "./answers.js";
import { $ } from "./chart.js";
import { command } from "./command.js";
import { agreement, compare } from "./compare.js";
import { defaults } from "./form.js";
import { amount, fixed, parsed } from "./numbers.js";
import { safely, say } from "./words.js";

// The laws that are set beside each other: those of fit compare, and the one that is chosen.
const lawsBeside = ({ data, law }) => [
  ...data.laws.filter(({ name }) => name === law.name && !data.compare.laws.includes(name)),
  ...data.compare.laws.map((name) => data.laws.find((law) => law.name === name)),
];

// What each law would build, and how far they lie apart; where a model is given, what it has by each of them.
export function showLaws({ ask }) {
  const { data, given, limits, like, state } = ask;
  if (typeof ask.chips?.mfu === "object") {
    for (const name of ["laws", "laws-about", "laws-json", "compare"]) $(name).replaceChildren();
    $("agreement").textContent = `${say("ONE_MFU", { value: state.mfu })}.`;
    return;
  }
  const experts = state.experts.trim() === defaults(ask.law).experts ? null : ask.experts;
  const used = state.used.trim() ? [parsed(state.used)] : null;
  const within = { ...limits, epochs: null };
  const rows = lawsBeside(ask).flatMap((law) => {
    let why = "";
    const one = safely(
      () => compare(data, [law], given, within, law.knows_experts ? experts : null, used, like),
      (sentence) => (why = sentence),
    );
    return one ? [...one.laws, ...one.infeasible] : { law: law.name, why };
  });
  const found = rows.filter((row) => !row.why);
  const head = ["law", "E", "split", "shared", "active", "total", "tokens", "loss below its dense model", "its FLOPs"];
  if (like) head.push(`loss of ${like.counts.name}`, "its FLOPs for that loss");
  const dense = ({ dense }) => [
    dense ? `${fixed(100 * dense.loss_saved_share, 1)}%` : "–",
    dense?.flops_ratio ? `× ${fixed(dense.flops_ratio, 2)}` : dense ? "never" : "–",
  ];
  const lines = rows.map((row) => {
    if (row.why) return [row.law, `not feasible: ${row.why}`];
    const counts = [row.n_active, row.n_total, row.n_tokens].map(amount);
    const mixture = [row.n_experts, row.split > 1 ? row.split : "–", row.shared || "–"].map(String);
    const cells = [row.law, ...mixture, ...counts, ...(row.n_experts > 1 ? dense(row) : ["–", "–"])];
    if (!like) return cells;
    const share = row.like?.flops_share;
    const verdict = share == null ? "more" : `${fixed(100 * share, 0)}%`;
    return [...cells, row.like ? fixed(row.like.loss, 4) : "not read", row.like ? verdict : "–"];
  });
  fill($("laws"), head, lines, rows.findIndex((row) => row.law === ask.law.name));
  $("agreement").textContent = agreementInWords(data, found, like);
  const far = found.filter((row) => row.extrapolation.length).length;
  $("laws-about").textContent =
    `${data.compare.about} ${far} of ${found.length} answers lie outside the data of their law.` +
    (like ? ` The last column: of these FLOPs, what the law's model needs to have the loss of ${like.counts.name}.` : "");
  const beside = { laws: found, infeasible: rows.filter((row) => row.why), agreement: agreement(data, found) };
  $("laws-json").textContent = JSON.stringify(like ? { ...beside, like: like.counts } : beside, null, 1);
  $("compare").textContent = command(ask.law, state, { ...ask, experts: experts ?? defaults(ask.law).experts.split(",") }, [
    ...new Set(lawsBeside(ask).map(({ name }) => name)),
  ]);
}

// One sentence on what laws of mixtures agree on, and what a given model's place is among them.
function agreementInWords(data, rows, like) {
  const saved = rows.filter((row) => row.mixtures && row.like).map((row) => 1 - (row.like.flops_share ?? 1));
  const parts = [];
  if (like && saved.length) {
    const [low, high] = [Math.min(...saved), Math.max(...saved)].map((x) => `${fixed(100 * x, 0)}%`);
    parts.push(`${saved.length} laws of mixtures would reach the loss of ${like.counts.name} with ${low} to ${high} of the FLOPs saved.`);
  }
  const names = { n_experts: "experts", n_active: "active parameters", n_total: "parameters", n_tokens: "tokens" };
  const best = agreement(data, rows).filter(({ of }) => of === "best");
  const of = ({ column, low, high, factor }) => `${names[column]} ${amount(low)} to ${amount(high)} (× ${fixed(factor, 1)})`;
  const split = best.filter(({ agree, limit }) => !agree && !limit).map(of);
  const same = best.filter(({ agree }) => agree).map(of);
  if (split.length) parts.push(`The laws disagree on ${split.join(", ")}: that is the largest uncertainty there is.`);
  if (same.length) parts.push(`They agree within a factor of ${data.compare.agree} on ${same.join(", ")}.`);
  return parts.join(" ");
}
