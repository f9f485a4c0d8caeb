"""The laws that can be fitted. One more law is one more module here and its name in FORMS.

A law module holds COLUMNS (what it reads of a run besides the loss), COEFFICIENTS (as published), FREE (what the solver
moves) and its BOUNDS; log_loss, recentre, to_free, to_coefficients; hold, start and moving (coefficients held at given
values); starts (the published grid) and scaled_starts (in the measure of the runs); PRESETS (published coefficients
with their source); PROFILED and PINNED_BY (coefficients that data often leaves open, and the runs that would settle
them) and, where the law is a Chinchilla law at each number of experts, at_experts: that alone makes it plannable.
"""

from fit.laws import chinchilla, clark, joint

FORMS = {"joint": joint, "chinchilla": chinchilla, "clark": clark}
