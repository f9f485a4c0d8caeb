// Several laws beside each other, on the page: what each would build, and how far they lie apart.

import { fill } from "./answers.js";
import { $ } from "./chart.js";
import { command } from "./command.js";
import { agreement, compare, conclusion, counted } from "./compare.js";
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
  $("agreement").textContent = conclusionInWords(data, found, like);
  const far = found.filter((row) => row.extrapolation.length).length;
  $("laws-about").textContent =
    `${data.compare.about} ${far} of ${found.length} answers lie outside the data of their law.` +
    (like ? ` The last column: of these FLOPs, what the law's model needs to have the loss of ${like.counts.name}.` : "");
  const beside = { laws: found, infeasible: rows.filter((row) => row.why), agreement: agreement(data, counted(data, found)), conclusion: conclusion(data, found) };
  $("laws-json").textContent = JSON.stringify(like ? { ...beside, like: like.counts } : beside, null, 1);
  $("compare").textContent = command(ask.law, state, { ...ask, experts: experts ?? defaults(ask.law).experts.split(",") }, [
    ...new Set(lawsBeside(ask).map(({ name }) => name)),
  ]);
}

// What the laws say together, in the command line's sentences; and the place of a given model among them.
function conclusionInWords(data, rows, like) {
  const parts = conclusion(data, rows);
  const saved = rows.filter((row) => row.mixtures && row.like).map((row) => 1 - (row.like.flops_share ?? 1));
  if (like && saved.length) {
    const [low, high] = [Math.min(...saved), Math.max(...saved)].map((x) => `${fixed(100 * x, 0)}%`);
    parts.unshift(`${saved.length} laws of mixtures would reach the loss of ${like.counts.name} with ${low} to ${high} of the FLOPs saved`);
  }
  return parts.map((sentence) => `${sentence}.`).join(" ");
}
