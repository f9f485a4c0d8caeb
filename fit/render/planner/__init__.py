"""One HTML file that plans in the browser: the laws as data, the scripts of this folder, and nothing from the network.

page.py      the page, and what it knows of laws, of their runs, of published models and of chips
formulas.py  the formulas that the laws' pages state in JavaScript
numbers.js   numbers as the command line writes them    counts.js      parameters, bytes and tokens of a model
serving.js   the speed of decoding and of prompts
law.js       the laws at a model, their ranges          solve.js       the best model under limits
speeds.js    the best model in hours, from Python's speeds (page_speeds.py)
odds.js      how often each number of experts is the best
cost.js      hours, dollars, speed                      plan.js        what `fit plan --json` prints
compare.js   what several laws would build              messages.js    sentences and findings, and refusals
findings.js  what to know before a plan is trusted      data.js        what page.py gives the scripts
form.js      fields, sliders, the state in the address  options.js     what the state means
command.js   the same question as a command             elements.js    elements of the page, lines and tables
chart.js     pictures in SVG                            pictures.js    the pictures of a plan
answers.js   the lines of a plan                        comparison.js  laws beside each other on the page
app.js       starts the page, and answers changes       page.html, page.css  what it looks like
types.d.ts   types and units of the scripts
"""
