// Types and units of the scripts, for readers and editors. The page does not carry this file.

type Nats = number; // a loss, nats per token
type Flops = number;
type Bytes = number;
type Tokens = number;
type Parameters = number;
type Width = number; // d_model; a real number, as a plan is not rounded to whole blocks
type Experts = number; // a number of experts E; 1 is a dense model
type Hours = number;
type State = Record<string, string>; // texts as typed, by the names of the flags of `fit plan`
type Data = Record<string, any>; // what page.py gives the page

// What models of every width and number of experts share; see fit/model/architecture.py.
interface Shape {
  vocab_size: number;
  width_per_block: Width;
  final_norm: boolean; // whether a norm stands before the head
  granularity: number; // how many times narrower an expert is than the dense layer
  shared: number; // experts that all tokens use
  active_width: number; // width of the experts that a token uses, in widths of the dense layer
  n_dense: number; // leading dense blocks
  kv_share: number; // heads of keys and values over heads of queries
  attention: number; // width of all heads of queries over d_model
  ff: number; // width of the dense layer over d_model
  tied: boolean; // whether the head is the embedding
  counts_routed_experts: boolean; // whether E counts experts as the config does, and not widths of the dense layer
}

// The limits of a plan; null means no limit.
interface Limits {
  flops: Flops | null; // for training and for inference_tokens
  budget: string; // the flags that gave the FLOPs
  memory_bytes: Bytes | null; // for weights and cache
  bytes_per_parameter: Bytes;
  bytes_per_kv_element: Bytes;
  kv_tokens: Tokens; // in the key-value cache
  inference_tokens: Tokens; // tokens to serve, paid from the FLOPs
  max_tokens: Tokens | null; // training tokens that there are
  serving: Requirement | null;
  hours?: Hours; // where they are the budget, at modelled speeds, and FLOPs are not
  speeds?: Speeds;
}

// The grid of speeds as fit/planning/page_speeds.py makes it, and what is asked of it.
interface Speeds extends Data {
  asked: { count: number; flops: Flops; command: string }; // flops: the peak of a chip, a second
}

// How fast a model must decode: all sequences of the batch together, on these chips.
interface Requirement {
  tokens_per_second: number;
  batch: number;
  chips: { kind: string; count: number; memory: Bytes; bandwidth: number; flops: number }; // each a second, of all chips
}

// The chips as typed; `devices` share the model when it is served.
interface Chips {
  kind: string;
  count: number;
  mfu: number | null; // null: none is typed
  dollars_per_hour: number | null; // of one chip
  devices: number;
  serve_batch: number; // sequences that are decoded at once
}

// A law of page.py's data, with the fields of its form.
type Law = Data;

interface LawAtExperts {
  loss(model: Model, n_tokens: Tokens): Nats;
  lossOfCounts(counts: { n_active: Parameters; n_total: Parameters; n_tokens: Tokens }): Nats; // as the law counts
  exponents: number[]; // of size and data; none where the law has no closed form
}

// A model of any width, whole blocks or not.
interface Model {
  n_experts: Experts;
  n_active: Parameters;
  n_total: Parameters;
  d_model: Width;
  memory_bytes: Bytes; // of weights and cache
}

// A model on the training tokens that limits leave it.
interface Trained extends Model {
  n_tokens: Tokens;
  loss: Nats;
}

// The model of least loss at one number of experts; where `feasible` is false, only `n_experts` is there too.
interface Optimum extends Trained {
  feasible: boolean;
  size_bound: "" | "memory" | "serving" | "tokens" | "smallest"; // what fixed the size
  chips?: number; // of a plan by hours: those that train it, where some stand idle
}

// A bootstrap draw of a law.
interface Draw {
  coefficients: Record<string, number>;
  drift: number; // of ln loss for each factor of e in FLOPs beyond the fitted ones
}

// The largest width that a limit allows, and the limit's name.
interface Largest {
  width: Width;
  bound: "" | "memory" | "serving";
}

// A column of a model that lies outside the range of a law's runs, and by what factor.
interface Outside {
  column: string;
  value: number;
  low: number;
  high: number;
  factor: number | null;
}

// A published model: what it counts, and the shape of models built like it.
interface Reference {
  counts: Data;
  shape: Partial<Shape>;
  defaults: State; // of the form's sizes
}

// What the typed texts ask for.
interface Options {
  law: Law;
  like: string; // the published model to start from; "" for none
  typed: { vocab_size?: number; width_per_block?: number }; // sizes other than the usual ones
  shape: Shape;
  reference: Reference | null;
  limits: Limits;
  experts: Experts[];
  chips: Chips | null;
  memory_gb: number | null; // of one device
  devices: number;
  hours: Hours | null;
}

// What `fit plan --json` prints, by the same names.
type Plan = Data;
type Odds = Data;

// Something to know before trusting a result, as fit/messages/finding.py has it.
interface Finding {
  code: string;
  severity: "urgent" | "warning" | "note";
  values: Data; // of the template
  text: string;
}

// A line of an answer, as fit/messages/lines.py has it; its detail is a table.
interface Line {
  label?: string; // "warning" for a finding
  value?: string;
  detail?: { columns: Record<string, (row: object) => string>; rows: object[]; best: object }; // best: the row to mark
}

// A plan with the question that it answers.
interface Answer {
  state: State;
  options: Options;
  plan: Plan;
}

// The place of a picture on the page.
interface Picture {
  figure: HTMLElement;
  drawing: Element;
  note: HTMLElement;
}

interface Axis {
  low: number;
  high: number;
  label: string;
  format(value: number): string;
}

interface PictureSpec {
  x: Axis; // logarithmic
  y: Axis; // linear
  lines: { share: number; points: Point[] }[]; // share: of the colours; 0 is dense, 1 the most experts
  dots: { x: number; y: Nats; share?: number; r: number; kind: "dot" | "hollow" | "ring"; text: string }[];
  rule?: number | null; // where a vertical line stands
  note: string; // beside the caption
}

interface Point {
  x: number;
  y: Nats;
  isOutside: boolean; // of the law's data
  isTooLarge: boolean; // for the memory
}
