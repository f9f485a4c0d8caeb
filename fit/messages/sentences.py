"""The sentences of a plan, as templates of units.say. The command line and the planner page fill in the same ones.

Names in braces are filled in; those after a colon are formats of units.FORMATS.
"""

# What was never fitted; {end} is the end of the fitted range that lies nearest.
OUTSIDE = "outside the fitted range: {what}"
ABOVE = "{column} {factor} times above {end}"
BELOW = "{column} {factor} times below {end}"
TEXT_REPEATED = "n_tokens {factor} times the {end} of the text"

# A profile's interval: of both ends, of one, of none.
SPAN_OF_PROFILE = (
    "anything from {low:.4g} to {high:.4g} fits as well",
    "unbounded above, anything from {low:.4g} up fits as well",
    "unbounded below, anything up to {high:.4g} fits as well",
    "unbounded both ways, any value tried fits as well",
)

# What to know before the best is trusted.
CHIPS_NEEDED = " on {needed} chips"
WIN = "{n_experts} in {best_in_draws}"
BOOTSTRAP_FITS = "bootstrap fits"
FITS_OF_SOURCE = "fits {source}"

# What cannot be planned.
SMALLEST = "the smallest model (1 block of width {d:g}, n_experts = {e:g})"
SMALLEST_OF = "the smallest model ({blocks} blocks of width {d:g}, n_experts = {e:g})"
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
SPEEDS_NEED_TIME = "--speeds needs --chips, without --mfu and --shape=paper"
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
MFU_MISSING = (
    "--mfu={value}: expected a number for E = {missing}, found only {known}. --experts names the numbers of experts "
    "to compare"
)
ONE_MFU = "--mfu={value}: the compared laws have different numbers of experts: give one number"
REPEATS_OWN_COUNTS = (
    "--epochs: --law={law} counts sizes without the embedding, so the worth of repeated text is not known. Leave "
    "--epochs out, or choose another law, such as joint-moe-2025"
)
NO_REPEATS = (
    "--epochs: the {form} law is no Chinchilla law at each number of experts, so the worth of its repeated text is "
    "not known"
)
TOO_FEW_EPOCHS = "--epochs={value:g}: expected a number from 1 up"
NO_WHOLE_CHOICE = "--shape={value}: experts of granularity {split:g}, {shared} of them shared, cannot make up {used:g}"
USED_OF_MIXTURES = "--shape={value}: --law={law} is a law of dense models"
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
ONE_NUMBER_HAS_NO_DENSE = "--law={law} was fitted to mixtures of {own} experts alone: it says nothing of dense models"

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
BY_LAWS = "{low:.2g} to {high:.2g} by {source}, {beyond}"
BEYOND_LAWS = "up to {factor:amount} times beyond their runs"
WITHIN_LAWS = "within the sizes of their runs"
NEAR_OPTIMAL = "{source}; {low:.2g} to {high:.2g} costs little{beyond}"
BEYOND_RUNS = ", {factor:amount} times beyond the sizes of the runs"
BATCH_BY_LAWS = " ({low:amount} to {high:amount} by the same laws)"
ROWS_AND_WARMUP = "; rows of {sequence:,} tokens; warm-up over {warmup_tokens:amount} tokens"

# The plan in words.
ANSWER = (
    "Train {model} with {n_active:amount} active parameters{total} on {n_tokens:amount} tokens: loss {loss:.4f} nats "
    "per token{interval}{counted}{built}."
)
CONTINUOUS = (
    "Continuous optimum (sizes that need not be whole blocks and heads): {model} with {n_active:amount} active on "
    "{n_tokens:amount} tokens, loss {loss:.4f}, {apart:.4f} {which}{other}"
)
BUILT_OTHER = "; with whole blocks and heads none with this number of experts meets the limits"
BUILT_SPLIT = "; the law counts its {n_experts} experts as {law_experts:.4g} as wide as a dense layer"
NOT_BUILT = "; with whole blocks and heads no model meets the limits"
DENSE = "a dense model"
MIXTURE = "a mixture of {n_experts} experts"
TOTAL = " ({n_total:amount} in total)"
INTERVAL = ", {loss:.4f} between the {first:g}th and {last:g}th percentile of {draws} draws"
OF_DRAWS = "{first:g}th to {last:g}th percentile of {draws} draws of {of} ({drawn}):"
DRAWS_OF_SPEED = "by the spread of published speeds"
CAUSES = (
    "what decides between {recommended} and {second} experts: speeds have {speed_share:.0%} of the variance of the "
    "difference, the law has {law_share:.0%}"
)
BOUND_DECIDES = "a limit decides, too: {bound} bounds the size of a model with {recommended} or {second} experts"
AGAINST_DENSE = (
    "against the best dense model (n_active {n_active:amount}, {n_tokens:amount} tokens, loss {loss:.4f}): loss "
    "{loss_saved:.4f} lower, {flops}; serving a token takes {inference_flops_ratio:.0%} of the dense model's FLOPs"
)
FLOPS_SAVED = "reached with {flops_saved:.0%} fewer training FLOPs than a dense model needs for it"
HOURS_SAVED = "reached in {hours_saved:.0%} fewer hours on these chips than a dense model needs for it"
NEVER_DENSE = "which a dense model reaches with no budget"
TOKEN_CAP = "the cap on tokens costs {loss_of_token_cap:.4f} nats"
RULE_OF_THUMB_HEAD = (
    "the paper's rule of thumb: a mixture of the best dense model's total size, on E times its tokens, is better"
)
RULE_OF_THUMB = (
    "  E = {n_experts}: {so} here, loss {loss:.4f} against {dense_loss:.4f} (with {flops_ratio:.2f} times its FLOPs)"
)
MORE_THAN_THERE_IS = "; but it takes {n_tokens:amount} tokens, and there are {max_tokens:amount}"

# The plan in ten lines: what `fit plan` says without --verbose.
SHORT_KNOWN = (
    "{n_active:amount} active of {n_total:amount} parameters; this budget trains it on {its_tokens:amount} "
    "tokens; by the law {verdict}"
)
SHORT_KNOWN_SAVES = "{saved:.0%} fewer FLOPs would reach its loss"
SHORT_KNOWN_STANDS = "nothing reaches its loss with fewer FLOPs"
SHORT_TARGET = "loss {loss:.4f} takes {flops:flops} FLOPs at least"
SHORT_PRICE_FLOPS = (
    "{training_flops:flops} training FLOPs, {memory_bytes:memory} to serve; --chips=H100:64 adds hours, dollars, a mesh"
)
CHIPS_IN_USE = "{used} of your {count} x {kind}"
SHORT_PRICE = "{training_hours:duration}{dollars} on {chips} at MFU {mfu:g}{assumed}"
SHORT_ASSUMED = ", assumed"
SHORT_PRICE_TIME = "{training_hours:duration} ({ends:duration}){dollars} on {chips} at MFU {mfu:.2g}, {label}"
SHORT_DOLLARS = " and {training_dollars:dollars}"
SHORT_DEVICE = "training takes {step_bytes:memory} of a device's {device_memory:memory}"
SHORT_SERVED = "{memory_bytes:memory} to serve"
SHORT_SERVE = (
    "decodes {decode_tokens_per_second:amount} tokens/s at batch {batch} on {chips:amount} x {kind} (at least "
    "{wanted:amount} required) and reads prompts at {prefill:amount} tokens/s, {label}"
)
SHORT_ENERGY = "{kwh:,.0f} kWh at the chips' full {watts:g} W, without hosts and cooling"
SHORT_REPEATED = "{epochs:.2f} epochs of {unique_tokens:amount} tokens"
SHORT_SHAPE = "d_model {d_model}, {n_blocks} blocks, {n_heads} heads{shared_heads}{widths}, vocabulary {vocab_size:,}"
SHORT_KV_HEADS = " ({heads} key-value)"
SHORT_WIDTH = ", d_ff {d_ff}"
SHORT_EXPERTS = ", {n_experts} experts of width {width} (top {top_k})"
SHORT_SHARED = ", {n_shared_experts} shared"
SHORT_DENSE_BLOCKS = ", {n_dense_blocks} dense of d_ff {d_ff}"
SHORT_MESH = "{data} x {expert} x {model} (data x expert x model), remat {remat}, {tokens_at_once:,} tokens at once"
SHORT_BATCH = "{ramp}{source}; rows of {sequence:,}"
SHORT_BATCH_FIRST = "{tokens:amount} tokens"
SHORT_BATCH_FROM = "{tokens:amount} from {start:amount}"
SHORT_BATCH_OPEN = "{batch_from}; rows of {sequence:,} tokens"
SHORT_BATCH_OF_LAWS = " ({ends:amount} by the same laws{best})"
SHORT_BATCH_BEST = ", mean {best:amount}"
SHORT_RATE = "{learning_rate:.2e} ({ends} by {learning_rate_from}, {beyond})"
SHORT_RATE_OF_RUNS = "{learning_rate:.3e} ({learning_rate_from}; {ends} costs little)"
SHORT_RATE_OPEN = "not known ({learning_rate_from})"
SHORT_INTERVAL = "{what} lies from {ends:.4f} in {share:g} of 100 cases"
OF_A_RUN = "a run's loss"
OF_THE_LAW = "the law's loss"
PAGE_MEDIANS = "best by the medians of law and speeds; the command below draws both, and says how sure that is"
ODDS_ONE_NUMBER = "one number of experts was compared"
ODDS_MIXTURE = "a mixture in {count} of {draws} draws"
ODDS_DENSE = "a dense model in {count} of {draws} draws"
ODDS_FIRST = "{n_experts} experts in {best_in_draws}"
ODDS_OF_DRAWS = " of {draws} draws"
ODDS_SPEEDS_ALONE = "only speeds are drawn, as {why}"
ODDS_MEDIAN_ALONE = "no interval, as {why}; ask other laws by fit compare"
ODDS_NO_DRAWS = "the law has no draws (fit law --bootstrap=100 adds them)"
ODDS_SOURCE = "the law's draws are {source}"
ODDS_COSTS = "choosing {second} costs {loss:.4f} nats or {budget}"
ODDS_HOURS = "{hours:duration}"
ODDS_SHARE = "{share:.1%} more compute"
ODDS_CLOSE = "a close call: {costs}{apart}"
ODDS_DIFFER = ", and the two differ in {apart}"
ODDS_BY_MEDIAN = "by the medians {best} is best"
VOTE = "{n_experts} in {share:.0%}"
VOTES_OTHERS = "others {share:.0%}"
VOTES_WITHIN = ", x {within:.2g} within"
MEASURE_SPEEDS = "An hour of both on these chips{dollars}"
MEASURE_DOLLARS = " ({dollars:dollars})"
MEASURE_RUNS = "{runs} more runs for the law"
MEASURE_SETTLES = "would settle it"
MEASURE_HELPS = "would tell the better of the two in {sure:.0%} of cases"
SHORT_INSIDE = "nothing, it is within the law's runs"
SHORT_NO_RANGE = "not known, as the law does not say what it was fitted to"
SHORT_FACTOR = "{column} {factor:amount} times {side}"
SHORT_EDGE = "{n_experts} experts are the {which} of those compared"
SHORT_RECIPE = "recipe of published models, configs/pretrain.py"
MORE_WARNINGS = " ({count} more: --verbose)"
NEXT_EMIT = "add --emit_config=planned.py, which writes the training config (--verbose: tables and all warnings)"
NEXT_TRAIN = "train it on your text (--config.data.path); the run ends with its loss against this prediction"
NEXT_SWEEP = (
    "check the start by this dry run; then replace its last two flags by --backend and your text (--config.data.path)"
)

BUILT_SHAPE = (
    "n_experts {n_experts}, d_model {d_model}, {n_blocks} blocks, {n_heads} heads, d_ff {d_ff}, vocabulary "
    "{vocab_size:,}; {n_tokens:,} tokens, loss {loss:.4f}, {memory_bytes:memory}"
)
BUILT_MORE = (
    "top_k {top_k}, d_expert {d_expert}, {n_shared_experts} shared experts, {n_dense_blocks} dense blocks, "
    "{n_kv_heads} heads of keys and values, head_dim {head_dim}{tied}"
)
TIED = ", embedding and head tied"
BUILT_PARAMETERS = (
    "parameters {exact_parameters:,} with norms and routers ({n_active:,} active, {n_total:,} in total as the law "
    "counts)"
)
BUILT_FLOPS = (
    "training FLOPs {training_flops:.4g} as the law counts, {exact_training_flops:.4g} exactly ({sequence} tokens of "
    "context)"
)
BUILT_RATE = "learning rate {rate} ({source}){batch}"
NOT_KNOWN = "not known"
BATCH = "{tokens:,} tokens"
BATCH_FROM = "{tokens:,} tokens from {start:amount}"

# What it costs, what its text is worth when read again, and what reaches a loss.
COST_HEAD = "on {count} x {kind} at MFU {mfu}{dollars}:"
DOLLARS_EACH = " and ${dollars_per_hour:g} an hour each"
COST_NOTE = (
    "training: {label}, by that MFU; training takes: modelled, after compiled steps; chips: the fewest that hold it, "
    "with at least 512 tokens at work on each and 8,192 in all"
)
SERVING_HEAD = (
    "serving on {kind} ({label}): tokens/s of decoding, all sequences of a batch together, and of reading prompts "
    "(prefill):"
)
SERVING_NOTE = (
    "served on: the fewest chips that hold weights and cache; decoding: by reading the experts that a batch touches, "
    "and the whole cache, at {bandwidth_share:.0%} of the bandwidth; prefill: by FLOPs, at {products_share:.0%} of the "
    "peak"
)
SERVING_HEAD_LAWS = (
    "Serving each law's best on the fewest chips that hold it ({label}), tokens/s: decoding, all sequences together, "
    "and prefill:"
)
SERVING_ROW_LAW = (
    "  {law}, E = {n_experts}, on {chips:amount}: decodes {speeds}; prefill {prefill_tokens_per_second:amount}"
)
SERVING_BATCH = "{decode_tokens_per_second:amount} at batch {batch}"
STEP_TAKES = (
    "a step of the buildable model takes about {step_bytes:memory} over all chips with {step_tokens:,} tokens at once, "
    "by the paper's recipe"
)
ON_MESH = (
    "the buildable model on a mesh of {data} x {expert} x {model} (data x expert x model) with remat {remat}: a device "
    "takes {least_bytes:memory} at least{step}, and has {limit:memory}; {needed}"
)
LAYOUT = (
    "trained on a mesh of {data} x {expert} x {model} (data x expert x model) with remat {remat}, {tokens_at_once:,} "
    "tokens at once in groups of {group_tokens:,}: {step_bytes:memory} of each device's {device_memory:memory}; a "
    "device sends {sent_bytes:memory} in a step"
)
ON_MESH_STEP = ", {step_bytes:memory} with {step_tokens:,} tokens at once"
ON_MESH_CHIPS = "{chips} chips are the fewest that hold it"
ON_MESH_NONE = "no number of such chips holds it"
MESH_OF_CHIPS = "--mesh=expert:{expert},model:{model} does not divide the {count} chips of --chips"
# How many times the compute a law's recipe needs for the losses of other runs.
SPAN = " ({ends:.2f})"
SPEEDUP = "for the same losses {law} needs {factor:.2f} times the {what} of these {count} runs{span}{change}."
CHANGES = "; it {how} with compute, x {change:.2f}{span} for ten times as much"
CHANGE_OPEN = "; whether that grows or falls with compute is open (x {change:.2f}{span} for ten times as much)"
NO_SPEEDUP = (
    "--law={law}: the {form} law is no Chinchilla law at each number of experts, so it does not say what compute a "
    "loss takes"
)
NONE_REACHED = "{file}: --law={law} reaches none of these losses with up to {furthest:g} times the compute"
REPEATED = (
    "{epochs:.2f} epochs of {unique_tokens:amount} tokens are worth {effective_tokens:amount} fresh tokens, and "
    "{n_active:amount} active parameters on them {effective_n_active:amount}. The loss is {loss_saved:.4f} lower than "
    "with one epoch ({source})"
)
TARGET_HEAD = "least cost of loss {loss:.4f}, of training{inference}:"
AND_INFERENCE = " and {inference_tokens:amount} inference tokens"

# The modelled speed of models.
CLOCK_HEAD = "speed on these chips ({label}; in brackets 80% ranges), for each number of experts:"
CLOCK_HEAD_LAWS = "speed on these chips ({label}; in brackets 80% ranges), of each law's best model:"
CLOCK_ROW_LAW = "  {law}, E = {n_experts}, {n_active:amount} active: {words}"
CLOCK_ROW = "  E = {n_experts}, {n_active:amount} active: {words}"
CLOCK_SPEED = (
    "{tokens_per_second:amount} tokens/s ({tokens_per_second_ends:amount}), MFU {mfu:.0%} ({mfu_ends:.0%}), "
    "{hours:duration} ({hours_ends:duration})"
)
CLOCK_ROW_ASSUMED = "  E = {n_experts}: not modelled, as no mesh of these chips trains it; at MFU {mfu:g}, assumed"
CLOCK_DIFFERS = (
    "By FLOPs {by_flops} experts are best, by wall-clock time {by_time}: at {n_active:amount} active parameters "
    "{by_flops} train at {ratio:.2f} ({ends:.2f}) times the speed of {by_time} on these chips ({label})"
)
CLOCK_DIFFERS_BY_SIZE = (
    "By FLOPs {by_flops} experts are best, by wall-clock time {by_time}: these chips and limits allow at most "
    "{largest:amount} active parameters with {by_flops}"
)

# What several laws say together.
LAWS_SPAN = "{column} {low:amount} to {high:amount} (x {factor:.1f})"

# A model that others published, and what a law would build with its budget.
KNOWN = (
    "{n_active:amount} active of {n_total:amount} parameters ({n_active_without_embedding:amount} active "
    "without the input embedding), {whole_experts:.3g} times the experts that a token uses. It takes {cache:memory} "
    "of cache per token in bfloat16. Training takes {training_bytes:memory} of weights, moments and gradients, and "
    "{training_flops_per_token:flops} FLOPs per token. Counts leave out norms and routers"
)
KNOWN_BY_LAW = (
    "this budget trains it on {its_tokens:amount} tokens; the law would build {n_active:amount} active of "
    "{n_total:amount} on {n_tokens:amount} tokens (E = {n_experts}), {verdict}{far}"
)
KNOWN_SAVES = "which has its loss with {saved:.0%} of the FLOPs saved"
KNOWN_STANDS = "which is no better"
KNOWN_FAR = "; outside the law's data: {outside}"

# The config of a plan.
NOTHING_BUILT = "--emit_config: no model of whole blocks meets the constraints"
SEVERAL_CONFIGS = "its runs had {count} configs: {names}"
NO_CONFIG = "it names no config"
OPEN_CONFIG = "--emit_config: --law={law} does not say how its runs were trained: {why}{another}"
OTHER_VOCABULARY = (
    "--emit_config: the tokenizer of {base} goes with a vocabulary of {known:,}, the model has {asked:,}{another}"
)
FAR_FROM_CONFIG = (
    "--emit_config: {outside}; learning rate, batch and warm-up of {base} were tuned far from there{another}"
)
FOREIGN_CONFIG = (
    "--{flag}: the law {law} was fitted to runs of the config file {base}, which is none of jmoe's own and would run "
    "with the training. If you trust it, add --base_config={base}"
)
CONFIG_MODEL = (
    "{n_experts} experts, {n_active:amount} active and {n_total:amount} total parameters, {n_tokens:amount} tokens; "
    "predicted loss {loss:.4f} nats per token."
)
CONFIG_PLANNED = "Planned by the law {law} under: {given}."
CONFIG_OUTSIDE = "It is {outside}."
NO_SUCH_MESH = (
    "{flags}: no model of the plan divides over such a mesh and fits into its devices: leave the mesh to the plan"
)
CONFIG_LAYOUT = "for {count} x {kind}, a mesh of {data} x {expert} x {model}: fit plan --chips for others"
CONFIG_MICROBATCH = "what {count} x {kind} hold at once"
CONFIG_EXACT = "Exactly {exact_parameters:,} parameters and {exact_training_flops:.4g} training FLOPs."
CONFIG_RATE = "The peak learning rate is {learning_rate:.4e} ({learning_rate_from})."
CONFIG_RATE_RANGE = "The peak learning rate is {learning_rate:.2e}; {low:.2g} to {high:.2g} by {learning_rate_from}."
CONFIG_RATE_OF_LAWS = "{low:.2g} to {high:.2g} by {source}"
CONFIG_BATCH_OF_LAWS = "{low:amount} to {high:amount} by {source}"
CONFIG_TEXT = "the text and the tokenizer of the law's runs"
CONFIG_TOKENIZER = (
    "set config.data.tokenizer to a tokenizer.json of at most {vocab_size:,} tokens: GPT-2's has {known:,}"
)
ANOTHER_CONFIG = "; name another config by --base_config"
