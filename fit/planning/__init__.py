"""The best model under constraints: constraints.py, chips among them, and optimum.py; building.py, the model of whole
blocks and heads; planning.py makes the plan, plan_text.py puts it in words, plan_config.py writes its config. cost.py,
hours and dollars on chips; memory.py, what training takes of theirs; target.py, the least cost of a loss; repeats.py,
text read several times; compare.py, several laws asked about one budget; speedup.py, what compute a change saves;
step_time.py and speed.py, how fast a model trains, with a range, from speeds that others measured (measured.csv);
clock.py, timing.py and by_time.py, plans within hours at these speeds."""
