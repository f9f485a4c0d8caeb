"""From loss to tasks: accuracy as a bounded function of loss, whether the number of experts shifts it, and what a model
of a predicted loss is expected to answer."""
