// Starts the page: the model stands in it, and a server may make others.

import { Explorer } from "./app.js";

const model = JSON.parse(document.getElementById("model").textContent);

/** Asks the server that sent the page for the model of other settings. */
async function ask({ settings, other, n_q, n_kv }) {
  const said = new URLSearchParams({ n: n_q, n_kv });
  for (const [name, value] of Object.entries(settings)) said.append("set", `${name}=${value}`);
  if (other) said.set("with", other);
  const answer = await fetch(`model?${said}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// Keys that no element has the focus of are the page's, too.
document.addEventListener("keydown", (event) => event.target === document.body && window.maskcExplorer.key(event));
window.maskcExplorer = new Explorer(document.getElementById("explorer"), model, model.served ? ask : null);
