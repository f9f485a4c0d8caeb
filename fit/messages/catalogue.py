"""The catalogue of findings: for each code its template, severity and clauses.

A template is text with names in braces, which units.say fills in with the values of a finding: {n_tokens:amount} is
the value n_tokens, written as units.FORMATS["amount"] writes it; without a format, or with one of Python's, it is as
in str.format. The values are those of the call finding(code, name=value, ...) that makes the finding.

A part of a sentence that is not always known is a clause: a field of the template which is no value, but has templates
of its own. Lines of a plan that say a finding in other words are told by its code (plan_answer.IN_OTHER_WORDS).
"""

import dataclasses
from collections.abc import Mapping

URGENT = "urgent"  # the run fails, or wastes much of its budget
WARNING = "warning"  # the answer may be off
NOTE = "note"  # what else the numbers say
SEVERITIES = (URGENT, WARNING, NOTE)


@dataclasses.dataclass(frozen=True)
class Kind:
    """The findings of one code.

    Attributes:
      template: The sentence.
      severity: URGENT, WARNING or NOTE.
      clauses: {field of the template: templates of a clause}. It is the first of them whose values are known; "" where
        none is.
    """

    template: str
    severity: str = WARNING
    clauses: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


LEAVE_OUT = {"leave_out": ("; --where={where} leaves them out", "; leave them out")}
KEEP = {"keep": ("; --where={where} keeps those that compare",)}
MISTAKEN = ", and the law takes the difference for one of size or tokens{keep}"
CHECKPOINTS = (
    ". Losses before the decay lie above those of finished runs of as many tokens; if so, --where={last} keeps the "
    "last row of each size"
)
NOT_IDENTIFIED = "the runs do not pin down {name}: {span} ({level:.0%}), best {best:.4g}; "
SPAN_OF_PROFILE = (  # of a profile's interval: with both ends, one, none
    "anything from {low:.4g} to {high:.4g} fits as well",
    "unbounded above, anything from {low:.4g} up fits as well",
    "unbounded below, anything up to {high:.4g} fits as well",
    "unbounded both ways, any value tried fits as well",
)
SPAN = {"span": SPAN_OF_PROFILE}


CATALOGUE = {
    # the best model of a plan
    "worse_than_guess": Kind(
        "the law predicts a loss of {loss:.4g}, and a uniform guess among {vocab_size:,} tokens has {guess:.2f}: the "
        "budget is too small for the law to say what to train",
        URGENT,
    ),
    "best_outside": Kind("the best is {outside}"),
    "at_edge": Kind(
        "the best number of experts, {n_experts}, is the {which} of those compared: add numbers beyond it to --experts"
    ),
    "not_bounded": Kind(
        "by this law more experts are always better: only --experts limits their number; --memory_gb would limit it too"
    ),
    "tokens_per_parameter": Kind(
        "{what} {ratio:.3g} tokens per parameter, expected 0.1 to 100,000: is a number meant in billions?"
    ),
    "mostly_embedding": Kind(
        "mostly embedding: {share:.1%} of the best model's active parameters are embedding and head of "
        "{vocab_size:,} tokens, which take the FLOPs and add little to what its blocks learn",
        URGENT,
    ),
    "width_left_out": Kind("--shape=used:{used:g} is left out of the comparison: {why}"),
    # its draws
    "undecided": Kind("the best number of experts is undecided: of {draws} draws it is {wins}"),
    "forms_disagree": Kind(
        "the forms of the law disagree. By the additive form ({additive_draws} of {draws} draws) the best model has "
        "{additive_n_active:amount} active parameters and a loss of {additive_loss:.4f}. By the coupled form it has "
        "{coupled_n_active:amount} and {coupled_loss:.4f}. These are medians; the intervals hold both forms"
    ),
    # what the law does not know
    "not_read": Kind(
        "{asked}: the {form} law has no column for it. The plan assumes the loss of models with {own} at equal "
        "{columns}"
    ),
    "experts_not_read": Kind("the {form} law has no column for {names}: it predicts a model with {own}"),
    "whole_experts": Kind(
        "the {form} law reads {columns}. This plan's experts are as wide as a dense layer ({values}); fit compare "
        "tries narrower ones too"
    ),
    "no_range": Kind("the law does not say what range it was fitted to"),
    "shape_unknown": Kind("the law does not say the {names} of its models: the plan assumes {values}"),
    # the recipe
    "rates_differ": Kind(
        "published laws of the learning rate differ by a factor of {factor:.2g} for this run: {low:.2g} by "
        "{low_law}, {high:.2g} by {high_law}. Try several rates at a smaller size first"
    ),
    "batches_differ": Kind(
        "published laws of the batch differ by a factor of {factor:.2g} for this run: {low:amount} tokens by "
        "{low_law}, {high:amount} by {high_law}"
    ),
    "batch_of_layout": Kind(
        "the plan is timed and trained with batches of up to {tokens:,} tokens; which ones the law's runs had, it does "
        "not say. Its loss and rate hold for theirs: try both at a smaller size first",
        URGENT,
    ),
    "many_steps": Kind(
        "batches of {tokens:,} tokens make {steps:,} steps, more than {most:,}: a larger batch would be faster"
    ),
    "few_steps": Kind(
        "batches of {tokens:,} tokens make {steps:,} steps, fewer than {fewest:,}: a smaller batch would learn more"
    ),
    # repeated text
    "plateau": Kind(
        "larger models gain next to nothing: this one is the smallest whose loss is within {near:.2%} of the lowest"
    ),
    "repeats_dense": Kind("the law of repeated text was fitted on dense models only"),
    # the chips
    "chips_bind": Kind(
        "training a larger model takes more than {count} x {kind}. Without that limit the best model, E = "
        "{n_experts}{needed}, would have a loss {loss:.4f} lower"
    ),
    "chips_bind_by_time": Kind(
        "{count} x {kind} train no larger model with {n_experts} experts: their memory bounds its size"
    ),
    "sends_longer": Kind(
        "on {count} x {kind} a step sends {share:.2g} times as long as it computes at the assumed MFU, so training "
        "takes longer than planned",
        URGENT,
    ),
    "mesh_uneven": Kind(
        "--mesh={axis}:{size} does not divide the buildable model's {count} {what}: the trainer refuses it",
        URGENT,
    ),
    "data_axis_uneven": Kind(
        "--mesh leaves a data axis of {size} devices, which does not divide the buildable model's d_model of "
        "{d_model}: the trainer refuses it",
        URGENT,
    ),
    "step_too_large": Kind(
        "a step of the buildable model on {step_tokens:,} tokens at once takes about {need:.4g} GB, and {count} x "
        "{kind} have {limit:.4g} GB: set config.microbatch_tokens = {microbatch_tokens}",
        URGENT,
    ),
    # tables, and models beyond those of the law
    "outside": Kind("outside the fitted range: {outside}"),
    "law_used_outside": Kind("the law is used outside the fitted range: {outside}"),
    "losses_not_compared": Kind("measured losses are not compared: {why}"),
    "rows_without_loss": Kind("rows without a loss, which are skipped: {count}"),
    "beyond_baseline": Kind(
        "losses beyond the baseline's runs: {count}; the farthest takes {factor:.2f} times the largest of their costs"
    ),
    "other_table": Kind("{table} is not the table that --law={law} was fitted to: both changes count below"),
    "taken_from_table": Kind("the run leaves out what all runs of the table share; taken for it: {columns}"),
    # a table of runs: its columns and units
    "no_n_experts": Kind(
        "the table has no column n_experts: all its runs count as dense (n_experts = 1){column_of}{mixtures}",
        clauses={
            "column_of": ("; --columns=n_experts:{column} if {column} holds it",),
            "mixtures": (", but n_total is above n_active in {larger} of them, as in mixtures: give n_experts",),
        },
    ),
    "top_k_above_n_experts": Kind("a token uses more experts than there are (top_k above n_experts): {rows}"),
    "tokens_of_runs": Kind(
        "{count:,} of {runs:,} models, the first of them with {ratio:.3g} tokens per parameter, expected 0.1 to "
        "100,000: is a number meant in billions? {rows}"
    ),
    "flops_leave_out": Kind(
        "the column {column} counts {smallest:.1%} of n_active at the smallest model and {largest:.1%} at the largest: "
        "it leaves out embedding and head{vocabulary}. The law counts them: budgets of its plans are 6 n_active "
        "n_tokens",
        clauses={"vocabulary": (" of the vocabulary of {vocab_size:,}",)},
    ),
    "counts_without_embedding": Kind(
        "the column {column} is read as {name}, which counts embedding and head, but its name says that they are left "
        "out: small models count too little, and so do FLOPs; add vocab_size times d_model for each of the two"
    ),
    "flops_far_off": Kind(
        "the column {column} is {times:.3g} times 6 n_active n_tokens at the median run: are these columns what they "
        "are called?"
    ),
    "rival_column": Kind(
        "the column {column} is read, and {rival} is up to {apart:.0%} away: --columns={column}:{rival} reads what was "
        "trained, by its name"
    ),
    # its losses
    "losses_do_not_fall": Kind(
        "the losses do not fall with compute (rank correlation {correlation:+.2f}): no law is well fitted to that"
    ),
    "losses_named_otherwise": Kind(
        "the column {column} is read as nats per token, but its name says otherwise; say --units=loss:{factor}",
        clauses={"factor": ("{unit}", "FACTOR, with bytes per token as the factor, times 0.6931 for bits")},
    ),
    "losses_high": Kind(
        "the losses are {ratio:.2g} times what models of these sizes and tokens reach on web text: if they are {unit}, "
        "say --units=loss:{unit}; if they are nats per token, --units=loss:nats"
    ),
    "losses_low": Kind(
        "the losses are {ratio:.2g} times what models of these sizes and tokens reach on web text, so they are hardly "
        "nats per token: if they are per byte or per character, say --units=loss:FACTOR, with bytes per token as the "
        "factor, times 0.6931 for bits; if they are nats per token, --units=loss:nats. Sizes and tokens of plans hold "
        "in any such unit, losses are in the table's"
    ),
    "nothing_learnt": Kind(
        "{count} of {runs} runs have a loss of {limit}, as after a few steps or a crash: {rows}; leave them out",
        clauses={
            "limit": (
                "next to the logarithm of the vocabulary of {vocab_size:,}",
                "more than {times:g} times the median loss",
            )
        },
    ),
    # its rows
    "unfinished": Kind(
        "{count} of {runs} runs did not finish (column {column}: {states}): {rows}{leave_out}", clauses=LEAVE_OUT
    ),
    "marked_unfinished": Kind("{count} of {runs} runs have {column} {value}: {rows}{leave_out}", clauses=LEAVE_OUT),
    "rows_repeated": Kind(
        "{count} of {runs} rows repeat others ({rows}): they count twice and make intervals too narrow; leave them out"
    ),
    "run_twice": Kind(
        "{count} of {runs} rows have the name, size and tokens of others but another loss ({rows}): was a run exported "
        "twice?"
    ),
    "tokens_even": Kind(
        "{count} of {runs} rows look like points of {histories} runs, each of one size ({rows}): their tokens are "
        f"evenly spaced{CHECKPOINTS}"
    ),
    "losses_fall_at_end": Kind(
        "{count} of {runs} rows look like points of {histories} runs, each of one size ({rows}): the last of their "
        f"losses falls faster than those before, as at the end of a learning rate's decay{CHECKPOINTS}"
    ),
    "names_repeat": Kind(
        "{count} of {runs} rows are of {names} names in column {column} that repeat with rising tokens: if these are "
        "checkpoints of one run, --where={last} keeps the last of each"
    ),
    "rows_above_others": Kind(
        "{count} of {runs} rows have a loss at least {share:.0%} above that of a row of the same size with fewer "
        "tokens ({rows}): are they checkpoints before the learning rate decays, or trained worse in another way? Leave "
        "them out by --where"
    ),
    # its recipes
    "schedules_differ": Kind(
        "the runs have {count} learning-rate schedules (column {column}: {values}): a rate that has not decayed leaves "
        f"the loss higher{MISTAKEN}",
        clauses=KEEP,
    ),
    "row_lengths_differ": Kind(
        "the runs have {count} row lengths (column {column}: {values}): a longer row lowers the loss, since its tokens "
        f"see more text before them{MISTAKEN}",
        clauses=KEEP,
    ),
    "optimizers_differ": Kind(
        f"the runs have {{count}} optimizers (column {{column}}: {{values}}): each has its own losses{MISTAKEN}",
        clauses=KEEP,
    ),
    "rates_differ_in_table": Kind(
        "{column} differs between {varied} of {runs} runs at {models} pairs of size and tokens, where the losses "
        "differ by {spread:.1%} at the median: the law takes a rate that is too high or too low for a worse model; "
        "{named}--with_rate fits the best rate with the law{keep}",
        clauses={
            "named": ("--columns=peak_learning_rate:{name} ",),
            "keep": ("; --where={where} keeps the one that is best most often",),
        },
    ),
    # how its models are built
    "text_repeated": Kind(
        "runs that saw text more than once: {count}, up to {epochs:.3g} epochs; a law of fresh tokens does not hold "
        "for them"
    ),
    "values_differ": Kind(
        "the runs have {count} values of {column} ({values}): {used}",
        clauses={"used": ("the law uses that of most runs, {most}", "the law uses none of them")},
    ),
    "shapes_differ": Kind("the runs have {count} values of {column} ({values}): a plan's have {planned:.4g}"),
    "miscounted": Kind(
        "by the columns of the table the runs' n_active would be {off:.0%} off: they do not say all of how the models "
        "are built, and a plan's models may be others"
    ),
    "totals_miscounted": Kind(
        "by the other columns n_total over n_active would be {off:.0%} off the table's: they do not say all of how the "
        "mixtures are built, and a plan's may be others"
    ),
    "d_expert_unread": Kind("the column d_expert is not used: without d_model it does not say how wide experts are"),
    "n_total_unread": Kind(
        "the column n_total is not used: no experts of which a token uses {used} of {n_experts:g} make up {ratio:.3g} "
        "times n_active"
    ),
    "top_k_by_totals": Kind("the table does not say top_k: by its n_total, a token uses {top_k} of the experts"),
    "mixtures_assumed": Kind(
        "the table has neither top_k nor n_total: we assume that a token uses 1 of the experts, each as wide as a "
        "dense layer; give these columns, or --shape=used:…,granularity:… to a plan"
    ),
    "width_assumed": Kind(
        "no column says how wide experts are: we assume that the {used:g} of a token are together as wide as the dense "
        "layer"
    ),
    "top_k_assumed": Kind(
        "no column says top_k: we assume that a token uses {top_k} of the experts, together as wide as the dense layer"
    ),
    # what the runs say of a law
    "not_identified": Kind(NOT_IDENTIFIED + "{more} more runs with {what} would not be enough either", clauses=SPAN),
    "not_identified_open": Kind(
        NOT_IDENTIFIED + "how much {more} more runs with {what} would help cannot be told from this fit", clauses=SPAN
    ),
    "not_identified_yet": Kind(
        NOT_IDENTIFIED
        + "{more} more runs with {what} would bring its standard error from {now:.0%} to {then:.0%} of its "
        "value",
        clauses=SPAN,
    ),
    "signs_open": Kind(
        "the runs do not settle the sign of {names} (standard error larger than the value); use the law for "
        "predictions near its runs, not its coefficients"
    ),
    "lack_of_fit": Kind(
        "the {count} runs of the last two doublings of {column} lie {off:.2%} {side} this law on average, {errors:.1f} "
        "standard errors: the form does not hold there, and beyond them it may be further off than its intervals say, "
        "either way"
    ),
    "failed_tests": Kind(  # of laws in results/, whose make.py puts it into their law.json
        "beyond its runs this law failed its own tests: {models} models of {least:g} and {most:g} times its largest "
        "compute had losses {lowest:.0%} to {highest:.0%} below what it predicts ({page})"
    ),
    "prior_yields": Kind(
        "the {prior}'s prior yields: with it the law misses these runs by more than their scatter explains (the sum of "
        "squares grows by {cost:.3g} variances of a run; {accepted:g} is accepted), so the exponents come from these "
        "runs alone"
    ),
    "prior_by_default": Kind(
        "the runs are hardly more than the law's coefficients: what other sweeps have is the prior of its exponents "
        "and k (--prior={prior}; --prior=none turns it off)"
    ),
    "fewer_runs_than_coefficients": Kind(
        "{runs} runs are fewer than the {coefficients} coefficients of {form}: other sweeps say the rest "
        "(--prior={prior}). Exponents, k, floor and the share of size have their prior; we assume that a run scatters "
        "by {scatter:.2%}, and that the law drifts by {least_drift:.1%} to {most_drift:.1%} for each factor of e in "
        "compute beyond the runs"
    ),
    "fixed_in_coupled": Kind(
        "--fix holds {values} as coefficients of the form chosen, {form}: {formula}. Those of the additive form, "
        "{additive_formula}, are other numbers: --form={additive} holds them"
    ),
    "best_outside_tried": Kind(
        "the best {optimum} of {outside} of {models} models lies outside what was tried for them: it is extrapolated; "
        "widen the grids of {column}"
    ),
    "older_words": Kind("{sentence}"),  # of a law.json of version 1 or 2, or of a code that is not here any more
    # why a law has its form
    "form_better": Kind(
        "{best} predicts the fitted runs of more compute from those of less with an error of {error:.2%}, {other} with "
        "{other_error:.2%}",
        NOTE,
    ),
    "form_kept": Kind(
        "{form} predicts the fitted runs of more compute from those of less with an error of {error:.2%}, {other} with "
        "{other_error:.2%}; {other} is chosen only below {better:.0%} of the other's",
        NOTE,
    ),
    "forms_tie": Kind(
        "{form} and {other} predict the fitted runs of more compute from those of less with the same error, "
        "{error:.2%}; {other} is chosen only below {better:.0%} of the other's",
        NOTE,
    ),
    "form_not_compared": Kind(
        "{form}, for the runs are too few to say whether {other} or {form} predicts larger ones better: at half of the "
        "largest compute that takes {fewest} runs, and {fewest_above} above",
        NOTE,
    ),
    "form_of_enough_runs": Kind("the runs are too few for the coefficients of {other}", NOTE),
    "form_of_prior": Kind("the law {prior}, to which its exponents are drawn, has {has} k", NOTE),
    "form_of_fixed_k": Kind("k is held at a value", NOTE),
    "form_of_few_runs": Kind("{runs} are fewer than its coefficients; other sweeps say the rest", NOTE),
    # runs, and the law fitted to them
    "mixtures_unread": Kind(
        "{mixtures} of the {runs} runs are mixtures (n_experts {n_experts}): the {form} law knows no experts and "
        "fits one loss to all of them; use --form=joint, or the runs of one n_experts"
    ),
    "one_n_experts": Kind("every run has n_experts = {n_experts}: the {form} law holds for such mixtures alone"),
    "lonely_experts": Kind(
        "{row} alone says what n_experts = {n_experts:g} does: its error is the law's there; train more runs "
        "of it, at other sizes and tokens, or leave it out by --where=n_experts!={n_experts:g}"
    ),
    "transition": Kind(
        "{across} of {runs} runs gain far more than the others from the text before: {listed} nats from {early} to "
        "{late}, where the median of the others gains {median:.3f}. If that is a transition, no smooth law holds on "
        "both sides of it: fit the runs of one side"
    ),
    "far_off": Kind(
        "{count} of {runs} fitted runs {verb} far off the law, whose median error is {usual:.2%}: {listed}. "
        "Look at them before you use it"
    ),
    "plan_refuses": Kind(
        "this law's loss does not fall with {column} at n_experts = {n_experts} (exponent up to {exponent:.3g}): fit "
        "plan will refuse it there; give more runs, or hold coefficients by --fix"
    ),
    # one law among several
    "law_outside": Kind("outside its data: {outside}"),
    "law_mostly_embedding": Kind("{share:.1%} of its active parameters are embedding and head"),
    "law_at_edge": Kind("{n_experts} experts are at the edge of those compared: one beyond may be better"),
    "law_width": Kind("a token uses {active_width:g} experts' width, of {n_experts}", NOTE),
    "law_finest": Kind("experts split in {granularity} are the finest of its data: finer ones may be better"),
    "law_note": Kind("{sentence}", NOTE),
    "law_dense": Kind("its dense models follow {law}", NOTE),
    # several laws together
    "law_not_counted": Kind(
        "{law} does not count: its answer lies more than {furthest} times beyond the compute that it was fitted to",
        NOTE,
    ),
    "laws_prefer": Kind(
        "{for_mixtures} of {count} laws of mixtures prefer a mixture to a dense model, with a loss {least:.1%} to "
        "{most:.1%} below it",
        NOTE,
    ),
    "laws_vote": Kind(
        "Votes of {laws} laws: a mixture {mixture:.0%}; E = {counts}; E varies x {between:.2g} between{within_laws} "
        "laws",
        NOTE,
    ),
    "laws_disagree": Kind("The laws disagree, and this uncertainty is the largest: {what}", NOTE),
    "laws_agree": Kind("The laws agree within a factor of {agree:g}: {what}", NOTE),
}
