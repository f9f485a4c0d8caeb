// The data of page.py: laws and runs, chips, templates of sentences, and constants of fit.

import { byId } from "./elements.js";

/** A dictionary of all of it; see page.py. @type {Data} */
export const data = JSON.parse(byId("data").textContent);
for (const law of data.laws) Object.assign(law, data.forms[law.form]);
