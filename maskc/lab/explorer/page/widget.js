// The page as a widget of anywidget: the same explorer, in a cell of a notebook.

import { Explorer } from "./app.js";

const NIGHT = { jupyter: "data-jp-theme-light", vscode: "data-vscode-theme-kind" };

/** The theme of the notebook around the cell: "dark", "light", or "" where it says nothing. */
function surrounding() {
  const { body, documentElement } = document;
  const lab = body.getAttribute(NIGHT.jupyter), code = body.getAttribute(NIGHT.vscode);
  if (lab) return lab === "false" ? "dark" : "light";
  if (code) return code.includes("light") ? "light" : "dark";
  for (const { classList } of [body, documentElement]) {  // marimo
    for (const theme of ["dark", "light"]) if (classList.contains(theme)) return theme;
  }
  return "";
}

function render({ model, el }) {
  const root = document.createElement("div");
  root.style.height = `${model.get("height")}px`;
  // A notebook's own keys would cut or delete the cell while one moves in the map.
  root.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });
  el.append(root);
  const explorer = new Explorer(root, JSON.parse(model.get("page")));
  explorer.shell.style.height = "100%";
  root.explorer = explorer;
  let theme = "";
  const follow = () => {
    if (theme === surrounding()) return;
    theme = surrounding();
    explorer.setTheme(theme);
  };
  follow();
  const observer = new MutationObserver(follow);
  for (const element of [document.body, document.documentElement]) {
    observer.observe(element, { attributes: true, attributeFilter: [...Object.values(NIGHT), "class"] });
  }
  // A notebook may put the style sheet beside the widget, and the widget into the page, later.
  const styled = () => getComputedStyle(explorer.shell).getPropertyValue("--full") !== "";
  let waiting = 0;
  const look = () => { waiting = styled() ? (explorer.changed(), 0) : requestAnimationFrame(look); };
  if (!styled()) look();
  return () => { observer.disconnect(); cancelAnimationFrame(waiting); };
}

export default { render };
