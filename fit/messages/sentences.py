"""The sentences that the planner page says too, and the refusals, the recipe and the config of a plan.

Each is a template of units.say, which fills in the names in braces: {n_active:amount} is the value n_active as
units.FORMATS["amount"] writes it. Page and command fill in the same templates, so their words cannot differ. The
refusals, the recipe and the config of a plan stand here too, so that a reader finds its words together. Any other
sentence that only one file says stands in that file; what to know before trusting a result is a finding (finding.py).
"""

# What cannot be planned.
SMALLEST = "the smallest model (1 block of width {d:g}, n_experts = {e:g})"
SMALLEST_OF = "the smallest model ({blocks} blocks of width {d:g}, n_experts = {e:g})"
NO_WHOLE_CHOICE = "--shape={value}: experts of granularity {split:g}, {shared} of them shared, cannot make up {used:g}"
TOO_FEW_EXPERTS = "a token uses {used:g} experts, and there are {e:g}"
MEMORY_TOO_SMALL = (
    "{flag} cannot be met: {smallest} needs {need:.4g} GB with its cache, {times:.3g} times the {limit:.4g} GB "
    "there are"
)
CHIPS_TOO_FEW = (
    "--chips cannot be met: training {smallest} takes {need:.4g} GB, {times:.3g} times the {limit:.4g} GB of {count} x "
    "{kind}"
)
SERVED_TOO_SLOWLY = (
    "--serve=tokens_per_second:{wanted:g} cannot be met: {smallest} comes nearest, with {nearest:.4g} tokens per "
    "second at batch {batch} on {count} x {kind} (modelled)"
)
FLOPS_TOO_FEW = (
    "{budget} cannot be met: {smallest} needs {need:.4g} FLOPs to train on a single token{share}, "
    "{times:.3g} times the {limit:.4g} there are"
)
HOURS_BUDGET = "--hours={hours:g} of --chips={chips}"
HOURS_TOO_FEW = "{budget} leaves no token to train {smallest} on"
PAGE_WITHOUT_SPEEDS = (
    "mfu: the field is empty, and this page has no modelled speeds {missing}; this command answers: {command}"
)
NOTHING_TIMED = "--chips={kind}:{count}: no mesh of these chips trains a model of any size, so nothing can be timed"
NO_SPEED_OF_CHIPS = (
    "--speeds={path}: expected rows of {kind}, the kind of --chips, found none. The column chip names the kind of "
    "each row"
)
NOTHING_TRAINED = "no mesh of {count} x {kind} trains a model of {e:g} experts"
INFERENCE_SHARE = " ({inference:.4g} of it for --inference_tokens)"
NO_OPTIMUM = (
    "at n_experts = {at:g} this law's loss does not fall with n_active or n_tokens (exponents {mu:.4g}, {nu:.4g}): it "
    "has no optimum; fit it to more runs"
)
RISES = "at n_experts = {at:g} this law's loss does not fall with n_tokens: it has no optimum"
UNBOUNDED = "nothing bounds the plan: give --flops, or --hours with --chips, or both --memory_gb and --max_tokens"
NO_BUDGET_TO_SHARE = "--inference_tokens needs --flops, the budget that they share"
NOT_POSITIVE = "--{flag}={value:g}: expected a {kind} number up to {largest:g}"
LESS_THAN_A_TOKEN = "--max_tokens={value:g}: expected at least 1 token"
NOT_EXPERTS = "--experts={value}: expected whole numbers from 1 to 1000000, separated by commas"
NOT_NUMBERS = "--{flag}: found {text}, expected positive numbers separated by commas"
NO_CHIPS = "--chips={value}: expected KIND:COUNT, KIND:MACHINESxCOUNT or KIND, of {kinds}"
NEEDS_CHIPS = "--{flag} needs --chips"
NO_MFU = (
    "--mfu={value}: found {found}, expected a number from 1e-6 to 1, or JSON of such by number of experts, as "
    '{{"1": 0.45, "8": 0.38}}'
)
REPEATS_OWN_COUNTS = (
    "--epochs: --law={law} counts sizes without the embedding, so the worth of repeated text is not known. Leave "
    "--epochs out, or choose another law, such as joint-moe-2025"
)
NO_REPEATS = (
    "--epochs: the {form} law is no Chinchilla law at each number of experts, so the worth of its repeated text is "
    "not known"
)
NO_SUCH_MESH = (
    "{flags}: no model of the plan divides over such a mesh and fits into its devices: leave the mesh to the plan"
)
OUT_OF_REACH = (
    "--target_loss={loss:g} cannot be reached: whatever the budget, the other limits leave a loss of at least "
    "{least:.4f}"
)
DENSE_ALONE = "--law={law} is a law of dense models"
TARGET_KNOWS_NOTHING = (
    "--target_loss={loss:g}: expected less than {nothing:.2f}, the loss of a uniform guess among {size:,} tokens"
)
ONLY_DENSE = "--experts={value}: " + DENSE_ALONE
ONE_NUMBER = "--law={law} was fitted to mixtures of {own} experts alone and says nothing of other numbers of experts"
ONLY_ONE_NUMBER = "--experts={value}: " + ONE_NUMBER + ": expected {own}"

# The peak learning rate of the buildable model, and where it is from.
RATE_EQ_10 = "Eq. 10"
RATE_OF_RUNS = "by the law of the fitted runs' rates"
RATE_FITTED = "fitted with the law"
RATE_OF_THIS_LAW = "the runs of this law"
IN_CASES = ", {ends} in {share:g} of 100 cases"
BATCH_FITTED = "{tokens:amount} tokens is best, fitted with the law"
RATE_UNKNOWN = "the fitted runs followed no law of learning rates"
RATE_TOO_SMALL = "Eq. 10 was tuned on far larger models"
BATCH_OF_RUNS = "as the law's runs had it"
RATE_WITHIN = "plans beyond the law's runs take the rates of published laws, here {other:.1e}"
RATE_BEYOND = "the model lies beyond the law's runs, whose own rates would say {other:.1e}"
RECIPE_DIFFERS = (
    "the recipe is {base}, that of published models: rows of {sequence:,} tokens{instead}, their norms, batch and "
    "learning rate. The law's losses hold for the recipe, the tokenizer and the text of its own runs"
)
INSTEAD = " instead of {seq_len:,}"

# The plan in words.
ANSWER = (
    "Train {model} with {n_active:amount} active parameters{total} on {n_tokens:amount} tokens: loss {loss:.4f} nats "
    "per token{interval}{counted}{built}."
)
DENSE = "a dense model"
MIXTURE = "a mixture of {n_experts} experts"
TOTAL = " ({n_total:amount} in total)"
INTERVAL = ", {loss:.4f} between the {first:g}th and {last:g}th percentile of {draws} draws"

# Its price, and how sure it is.
CHIPS_IN_USE = "{used} of your {count} x {kind}"
SHORT_PRICE = "{training_hours:duration}{dollars} on {chips} at MFU {mfu:.3g}{assumed}"
SHORT_PRICE_TIME = "{training_hours:duration} ({ends:duration}){dollars} on {chips} at MFU {mfu:.2g}, {label}"
SHORT_DOLLARS = " and {training_dollars:dollars}"
SHORT_SERVED = "{memory_bytes:memory} to serve"
SHORT_SERVE = (
    "decodes {decode_tokens_per_second:amount} tokens/s at batch {batch} on {chips:amount} x {kind} (at least "
    "{wanted:amount} required) and reads prompts at {prefill:amount} tokens/s, {label}"
)
PAGE_MEDIANS = "best by the medians of law and speeds; the command below draws both, and says how sure that is"
ODDS_ONE_NUMBER = "one number of experts was compared"
ODDS_MIXTURE = "a mixture in {count} of {draws} draws"
ODDS_DENSE = "a dense model in {count} of {draws} draws"
WIN = "{n_experts} in {best_in_draws}"
ODDS_FIRST = "{n_experts} experts in {best_in_draws}"
ODDS_OF_DRAWS = " of {draws} draws"
ODDS_MEDIAN_ALONE = "no interval, as {why}; ask other laws by fit compare"
ODDS_NO_DRAWS = "the law has no draws (fit law --bootstrap=100 adds them)"
ODDS_SOURCE = "the law's draws are {source}"
ODDS_COSTS = "choosing {second} costs {loss:.4f} nats or {budget}"
ODDS_SAVES = "in the mean of these draws choosing {second} saves {loss:.4f} nats"
ODDS_SHARE = "{share:.1%} more compute"
ODDS_CLOSE = "a close call: {costs}{apart}"
ODDS_DIFFER = ", and the two differ in {apart}"
ODDS_BY_MEDIAN = "by the medians {best} is best"
SHORT_INSIDE = "nothing, it is within the law's runs"
SHORT_NO_RANGE = "not known, as the law does not say what it was fitted to"
SHORT_FACTOR = "{column} {factor:amount} times {side}"
SHORT_SIDE = "{column} {side}"  # where there is no factor
SHORT_EDGE = "{n_experts} experts are the {which} of those compared"
SERVING_NOTE = (
    "served on: the fewest chips that hold weights and cache; decoding: by reading the experts that a batch touches, "
    "and the whole cache, at {bandwidth_share:.0%} of the bandwidth; prefill: by FLOPs, at {products_share:.0%} of the "
    "peak"
)

# What several laws say together.
VOTE = "{n_experts} in {share:.0%}"
VOTES_OTHERS = "others {share:.0%}"
VOTES_WITHIN = ", x {within:.2g} within"
LAWS_SPAN = "{column} {low:amount} to {high:amount} (x {factor:.1f})"

# A model that others published, and what a law would build with its budget.
KNOWN = (
    "{n_active:amount} active of {n_total:amount} parameters ({n_active_without_embedding:amount} active "
    "without the input embedding), {whole_experts:.3g} times the experts that a token uses. It takes {cache:memory} "
    "of cache per token in bfloat16. Training takes {training_bytes:memory} of weights, moments and gradients, and "
    "{training_flops_per_token:flops} FLOPs per token. Counts leave out norms and routers"
)

# The config of a plan.
NOTHING_BUILT = "--emit_config: no model of whole blocks meets the constraints"
OPEN_CONFIG = "--emit_config: --law={law} does not say how its runs were trained: {why}{another}"
FAR_FROM_CONFIG = (
    "--emit_config: {outside}; learning rate, batch and warm-up of {base} were tuned far from there{another}"
)
FOREIGN_CONFIG = (
    "--{flag}: the law {law} was fitted to runs of the config file {base}, which is none of jmoe's own and would run "
    "with the training. If you trust it, add --base_config={base}"
)
CONFIG_RATE_OF_LAWS = "{low:.2g} to {high:.2g} by {source}"
CONFIG_BATCH_OF_LAWS = "{low:amount} to {high:amount} by {source}"
CONFIG_TEXT = "the text and the tokenizer of the law's runs"
CONFIG_TOKENIZER = (
    "set config.data.tokenizer to a tokenizer.json of at most {vocab_size:,} tokens: GPT-2's has {known:,}"
)
ANOTHER_CONFIG = "; name another config by --base_config"
