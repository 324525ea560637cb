// The four panes beside the map: why, price, source, compare. Each has update(explorer).

import { count, heads, make, milliseconds, ofEach, percent, scaled, tileCounts, waste } from "./words.js";

function pane(title, note = "") {
  const remark = make("span", { class: "note" }, note);
  const body = make("div");
  const section = make("section", { class: "pane", "aria-label": title, tabindex: "-1" },
    make("div", { class: "head" }, make("h2", {}, title), remark), body);
  return { section, body, remark };
}

// ------------------------------------------------------------------ why

export class Why {
  constructor(explorer) {
    Object.assign(this, pane("Why"));
    this.explorer = explorer;
  }

  update() {
    const { explorer, body, remark } = this, box = explorer.pointedBox();
    if (!box || !explorer.drawable) {
      remark.textContent = explorer.drawable ? "point at the map" : "";
      body.replaceChildren();
      return;
    }
    const single = box.q1 - box.q0 === 1 && box.k1 - box.k0 === 1;
    remark.textContent = single ? `query ${box.q0}, key ${box.k0}`
      : `queries ${box.q0} to ${box.q1 - 1}, keys ${box.k0} to ${box.k1 - 1}`;
    const rows = explorer.termsAt(box).map(({ term, share }) => {
      const [mark, kind] = share === 1 ? ["✓ all", "yes"] : share === 0 ? ["✗ none", "no"] : [`◐ ${percent(share)}`, ""];
      const place = term.place ? `${term.place.file.split("/").pop()}:${term.place.line}` : "";
      const text = make("td", { class: "term" }, term.text);
      text.style.paddingLeft = `${term.depth * 14}px`;
      return make("tr", {},
        make("td", { class: `verdict ${kind}` }, single ? mark.replace(" all", " yes").replace(" none", " no") : mark), text,
        make("td", { class: "place" }, place ? make("button", { onclick: () => explorer.source.mark(term.place.line), title: `${place}: show in the source` }, make("bdi", { dir: "ltr" }, place)) : ""));
    });
    const proof = explorer.proof(box);
    body.replaceChildren(
      make("table", {}, make("tbody", {}, ...rows)),
      make("p", { class: "aside" }, proof.said),
      proof.steps.length ? make("ul", { class: "proof" }, ...proof.steps.map(([text, rest]) => make("li", {}, make("code", {}, text), ` ${rest}`))) : "",
      make("p", { class: "aside" }, explorer.tileWords()),
    );
  }
}

/** Why all pairs of a box are in, or none: the comparisons that decide, each with its margin. */
export function proofOf(node, box, wanted) {
  if (node.parts) {
    if (node.negates) return proofOf(node.parts[0], box, !wanted);
    if (node.all === wanted) return node.parts.flatMap((part) => proofOf(part, box, wanted));
    const first = node.parts.find((part) => part.fold({ ...box, open: [] }, []) === wanted);
    return first ? proofOf(first, box, wanted) : [];
  }
  if (!node.left) return [];
  node.left.range(box);
  const { low, high } = node.left;
  const words = (from, to) => (from === to ? `${from}` : `${from} to ${to}`);
  const range = words(low, high), apart = high < 0 ? words(-high, -low) : range;
  const said = {
    ">=": wanted ? `holds with ${range} to spare` : `fails by ${apart}`,
    "==": wanted ? "both sides are equal" : `the sides differ by ${apart}`,
    "!=": wanted ? `the sides differ by ${apart}` : "both sides are equal",
    "in": `the value is ${range}`,
  }[node.kind];
  return [[node.text, said]];
}

// ------------------------------------------------------------------ price

const LARGEST = 1 << 30;

export class Price {
  constructor(explorer) {
    Object.assign(this, pane("Price", "forward"));
    this.explorer = explorer;
    this.sliders = make("div");
    this.numbers = make("div");
    this.curve = make("div");
    this.body.append(this.sliders, this.numbers, this.curve);
    this.#sliders();
  }

  #sliders() {
    const { explorer } = this, { model } = explorer, rows = [], fixed = model.mask.fixed || explorer.model.other?.mask.fixed || "";
    const square = model.mask.n_q === model.mask.n_kv;
    if (square) rows.push(slider("N", "queries and keys", () => explorer.state.n_q, (value) => explorer.setLengths(value, value), 1, LARGEST, fixed));
    else {
      rows.push(slider("queries", "", () => explorer.state.n_q, (value) => explorer.setLengths(value, explorer.state.n_kv), 1, LARGEST, fixed));
      rows.push(slider("keys", "", () => explorer.state.n_kv, (value) => explorer.setLengths(explorer.state.n_q, value), 1, LARGEST, fixed));
    }
    for (const { name, label } of explorer.parameters) {
      rows.push(slider(label, "", () => explorer.state.params[name], (value) => explorer.setParam(name, value), 0, LARGEST, ""));
    }
    const words = (model.stuck ?? []).filter(([, value]) => !Number.isInteger(value));
    for (const [name, value] of (model.stuck ?? []).filter(([, own]) => Number.isInteger(own))) {
      const movable = explorer.rebuild !== null;
      rows.push(slider(name, "", () => value, (next) => explorer.rebuild({ [name]: next }), 0, LARGEST,
        movable ? "" : `${name} shapes the formula: \`maskc explore\` without -o moves it`, String(value)));
    }
    this.rows = rows;
    this.sliders.replaceChildren(...rows.map(({ element }) => element));
    if (words.length) this.sliders.append(make("p", { class: "aside" }, `as written: ${words.map(([name, value]) => `${name} = ${value}`).join(", ")}`));
    if (fixed) this.sliders.append(make("p", { class: "aside" }, `N stays as it is: ${fixed}`));
  }

  update() {
    const { explorer } = this;
    for (const row of this.rows) row.show();
    if (!explorer.drawable) { this.numbers.replaceChildren(); return; }
    const price = explorer.price(), of = (number) => `${number} ${number === 1 ? "head" : "heads"}`, rows = [
      ["live pairs", `${count(price.live)} of ${count(price.pairs)}`, percent(price.live / price.pairs)],
      [`tiles of ${price.tile.join(" x ")}`, tileCounts(price), Number.isNaN(price.empty) ? "" : `${count(price.empty)} empty`],
      ["waste", "run / live pairs", waste(price.area, price.live)],
      ...price.forms.map(({ label, said, only, totals }) => (totals
        ? [label.toLowerCase(), `${tileCounts(totals)}; ${said}`, waste(totals.area, price.live)]
        : [label.toLowerCase(), `none at these lengths: ${only}`, ""])),
      ...(price.ranks ? [["ranks", `${price.ranks.ranks}, for ${count(price.ranks.n)} tokens; at most this many keys travel to one`, count(Math.max(...price.ranks.halo))]] : []),
      ["work, traffic", `${scaled(price.flops, "FLOP")}`, scaled(price.bytes, "B")],
    ], times = [];
    if (price.roof) times.push([`roofline of ${of(price.roof.heads)}`, `${price.roof.by} bound, nothing cached`, milliseconds(price.roof.ms)]);
    if (price.predicted) times.push([`predicted, ${of(price.predicted.heads)}`, `on an ${price.predicted.card}`, milliseconds(price.predicted.ms)]);
    this.numbers.replaceChildren(table(ofEach(explorer.set().heads), rows), make("p", { class: "aside" }, price.checked, explorer.tileNote(), explorer.notes()),
      times.length ? table("Times of one sequence", times) : "");
    this.curve.replaceChildren(...curve(explorer));
  }
}

function table(title, rows) {
  return make("table", {}, make("caption", {}, title), make("tbody", {}, ...rows.map(([name, text, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, text), make("td", { class: "number" }, value)))));
}

function slider(label, title, get, set, least, most, fixed, shown) {
  const range = make("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": label, disabled: Boolean(fixed) });
  const number = make("input", { type: fixed ? "text" : "number", min: least, max: most, "aria-label": `${label}, exactly`, disabled: Boolean(fixed) });
  const top = () => Math.min(most, Math.max(1 << 20, 8 * get()));
  let ceiling = top();
  const toPlace = (value) => (1000 * Math.log2(1 + value)) / Math.log2(1 + ceiling);
  const fromPlace = (place) => rounded(2 ** ((place / 1000) * Math.log2(1 + ceiling)) - 1);
  range.addEventListener("input", () => set(Math.min(most, Math.max(least, fromPlace(Number(range.value))))));
  range.addEventListener("change", () => { ceiling = top(); });
  range.addEventListener("keydown", (event) => {  // one by one with the arrows
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 64, PageDown: -64 }[event.key];
    if (!step) return;
    event.preventDefault();
    set(Math.min(most, Math.max(least, get() + step * (event.shiftKey ? 16 : 1))));
  });
  number.addEventListener("change", () => {
    const value = Number(number.value);
    if (Number.isInteger(value) && value >= least && value <= most) set(value);
    else number.value = get();
  });
  const element = make("div", { class: "slider", title: fixed || title }, make("label", {}, label), range, number);
  return { element, show() {
    const value = get();
    if (value > ceiling) ceiling = top();
    if (!fixed && document.activeElement !== range) range.value = toPlace(value);
    if (fixed) range.value = Number.isInteger(value) ? toPlace(value) : 0;
    if (document.activeElement !== number) number.value = shown ?? value;
  } };
}

/** A round number near a large one: people do not mean 1037421. */
function rounded(value) {
  if (value < 64) return Math.round(value);
  const step = 2 ** (Math.floor(Math.log2(value)) - 5);
  return Math.round(value / step) * step;
}

function curve(explorer) {
  const points = explorer.curve();
  if (!points.length) return [make("p", { class: "aside" }, explorer.model.price?.why ?? "")];
  const width = 420, height = 190, left = 46, bottom = 26, right = 10, top = 10;
  const xs = points.map((point) => Math.log2(point.n));
  const ys = points.flatMap((point) => [point.dense, point.mask]).filter((y) => y > 0).map(Math.log10);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const x = (n) => left + ((Math.log2(n) - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (ms) => top + (1 - (Math.log10(ms) - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const line = (name, stroke, dashes) => make("polyline", { svg: true, fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": dashes,
    points: points.filter((point) => point[name] > 0).map((point) => `${x(point.n).toFixed(1)},${y(point[name]).toFixed(1)}`).join(" ") });
  const picture = make("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "predicted milliseconds against N, beside dense attention" });
  for (let at = Math.ceil(y0); at <= y1; at++) {
    picture.append(make("line", { svg: true, x1: left, x2: width - right, y1: y(10 ** at), y2: y(10 ** at), stroke: "var(--line)" }),
      make("text", { svg: true, x: left - 5, y: y(10 ** at) + 4, "text-anchor": "end" }, at < 0 ? `${Math.round(1000 * 10 ** at)} µs` : at < 3 ? `${10 ** at} ms` : `${10 ** (at - 3)} s`));
  }
  for (const { n } of points) {
    if (Math.log2(n) % 2 === 0) picture.append(make("text", { svg: true, x: x(n), y: height - 8, "text-anchor": "middle" }, n >= 1 << 20 ? `${n >> 20}M` : n >= 1024 ? `${n >> 10}k` : `${n}`));
  }
  picture.append(line("dense", "var(--both)", "5 4"), line("mask", "var(--full)", "none"));
  const now = explorer.state.n_q;
  if (now >= points[0].n && now <= points[points.length - 1].n) {
    picture.append(make("line", { svg: true, x1: x(now), x2: x(now), y1: top, y2: height - bottom, stroke: "var(--partial)", "stroke-width": 1.5 }));
  }
  const said = `solid: this mask; dashed: dense attention. ${explorer.curveWords()}`;
  if (!explorer.asBuilt()) return [picture, make("p", { class: "aside" }, said)];  // a share of pairs predicts no crossing
  const first = points.find((point, i) => point.mask < 0.95 * point.dense && points.slice(i).every((later) => later.mask < later.dense));
  const crossing = first ? `pays from N = ${count(first.n)} on` : "takes as long as dense attention at these lengths";
  return [picture, make("p", { class: "aside" }, `${said} The mask ${crossing}.`)];
}

// ------------------------------------------------------------------ source

export class Source {
  constructor(explorer) {
    Object.assign(this, pane("Source"));
    this.explorer = explorer;
    const files = explorer.model.source?.files ?? [];
    this.files = files;
    this.tabs = files.map((file, i) => make("button", { role: "tab", "aria-selected": "false", onclick: () => this.show(i) }, file.name));
    this.code = make("div", { class: "code", tabindex: "0", role: "tabpanel", "aria-label": "source; n and p go from linked line to linked line", onkeydown: (event) => this.#key(event) });
    this.body.append(make("div", { class: "tools", role: "tablist" }, ...this.tabs), this.code);
    if (files.length) this.show(0);
    else this.body.replaceChildren(make("p", { class: "aside" }, "no source of this mask"));
  }

  /** What files say is of the mask as the compiler was given it. */
  update() {
    const moved = "of the mask as it was written";
    if (!this.explorer.asBuilt()) this.remark.textContent = moved;
    else if (this.remark.textContent === moved) this.remark.textContent = "";
  }

  /** links of a file: [line, line of the pattern] pairs. */
  show(index) {
    const file = this.files[index];
    this.shown = index;
    this.place = null;
    this.tabs.forEach((tab, i) => { tab.setAttribute("aria-selected", String(i === index)); tab.setAttribute("aria-pressed", String(i === index)); });
    const meant = new Map(file.links);
    this.lines = file.text.split("\n").map((text, i) => {
      const line = make("div", {}, make("span", {}, String(i + 1)), make("span", {}, text || " "));
      if (meant.has(i + 1)) {
        line.classList.add("linked");
        line.addEventListener("click", () => this.mark(meant.get(i + 1), true));
      }
      return line;
    });
    this.code.replaceChildren(...this.lines);
    if (this.marked) this.#paint();
  }

  /** Mark what came from a line of the pattern; from another file, the pattern is shown. */
  mark(line, follow = false) {
    this.marked = line;
    if (!this.files.length) return;
    if (follow && this.files[this.shown].kind !== "pattern") this.show(0);
    else if (follow) this.remark.textContent = `line ${line} is marked in the other files, too`;
    this.#paint();
  }

  /** From one linked line to the next, and with Enter to where it came from. */
  #key(event) {
    const { links, kind } = this.files[this.shown], step = { n: 1, p: -1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || !links.length) return;
    if (step) {
      this.place = ((this.place ?? (step > 0 ? -1 : 0)) + step + links.length) % links.length;
      this.mark(links[this.place][1]);
      const line = this.lines[links[this.place][0] - 1];
      this.code.scrollTop = line.offsetTop - this.code.offsetTop - 60;
    } else if (event.key === "Enter" && this.marked && kind !== "pattern") {
      this.mark(this.marked, true);
      this.code.focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  #paint() {
    const meant = new Map(this.files[this.shown].links);
    let first = null;
    this.lines.forEach((element, i) => {
      const own = meant.get(i + 1) === this.marked;
      element.classList.toggle("marked", own);
      if (own && !first) first = element;
    });
    if (first) this.code.scrollTop = first.offsetTop - this.code.offsetTop - 60;
  }
}

// ------------------------------------------------------------------ compare

export class Compare {
  constructor(explorer) {
    Object.assign(this, pane("Compare"));
    this.explorer = explorer;
    this.answer = make("div");
    this.input = make("input", { type: "text", "aria-label": "a mask to compare with", placeholder: "causal() & window(1023)", size: 28 });
    this.said = make("p", { class: "aside" });
    const form = make("form", { class: "tools", onsubmit: (event) => {
      event.preventDefault();
      explorer.compareWith(this.input.value).catch((error) => { this.said.textContent = error.message; });
    } }, this.input, make("button", {}, "compare"));
    if (explorer.compareWith) this.body.append(form, this.said);
    else if (!explorer.model.other) this.body.append(make("p", { class: "aside" }, "maskc explore FILE --with \"expression\" puts another mask beside this one"));
    this.body.append(this.answer);
  }

  update() {
    const { explorer } = this, { other, verdict } = explorer.model;
    if (!other) { this.answer.replaceChildren(); return; }
    const found = explorer.differences();
    const rows = [[`only in ${explorer.model.name}`, found.first], [`only in ${other.name}`, found.second], ["in both", found.both]];
    const flight = explorer.witness();
    const proved = explorer.asBuilt();  // what was proved is of the masks as they were written
    this.answer.replaceChildren(
      make("p", {}, proved ? verdict.said : "Parameters were moved: nothing is proved of these masks. Below are the numbers at these lengths."),
      make("p", { class: "term" }, `${other.name}: ${other.mask.formula}`),
      make("table", {}, make("caption", {}, `${ofEach(explorer.comparedHeads)} at these lengths`), make("tbody", {}, ...rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "number" }, count(value)))))),
      make("p", { class: "aside" }, explorer.notes()),
      flight ? make("button", { onclick: () => explorer.flyToWitness() }, `fly to query ${flight.q}, key ${flight.k}`) : "",
      proved && verdict.witness ? make("p", { class: "aside" }, verdict.witness.text) : "",
    );
  }
}

export { heads };
