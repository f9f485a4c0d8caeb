"""One HTML file that plans in the browser: the laws as data, the scripts of this folder, and nothing from the network.

page.py      the page, and what it knows of laws, of their runs and of chips
formulas.py  the formulas that the laws' pages state in JavaScript
numbers.js   numbers as Python formats them         counts.js   parameters, bytes and tokens of a model
law.js       the laws at a model, draws, ranges     solve.js    the best model under limits
compare.js   what several laws would build          like.js     published models and config.json
cost.js      hours, dollars, a loss to reach        plan.js     what `fit plan --json` prints
words.js     its sentences                          form.js     fields, sliders and the state in the URL's hash
asked.js     what the state means                   command.js  the same question as a command
beside.js    laws beside each other                 drop.js     files that the reader drops on the page
chart.js     pictures in SVG                        pictures.js, map.js  the pictures of a plan
app.js       puts a plan on the page                page.html, page.css  what it looks like
"""
