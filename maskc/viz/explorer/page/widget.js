// The page as a widget of anywidget: the same explorer, in a cell of a notebook.

import { Explorer } from "./app.js";

function render({ model, el }) {
  const root = document.createElement("div");
  root.style.height = `${model.get("height")}px`;
  el.append(root);
  const explorer = new Explorer(root, JSON.parse(model.get("page")));
  explorer.shell.style.height = "100%";
}

export default { render };
