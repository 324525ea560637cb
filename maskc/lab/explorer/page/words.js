// How the page says numbers; elements are made with text, never with markup.

export const count = (value) => (Number.isNaN(value) ? "not counted" : value.toLocaleString("en-US"));

export function percent(share) {
  if (Number.isNaN(share)) return "not counted";
  if (share === 0 || share === 1) return `${100 * share} %`;
  const digits = share >= 0.1 ? 1 : share >= 0.001 ? 2 : 4;
  const text = (100 * share).toFixed(digits);
  return Number(text) >= 100 ? "99.9 %" : Number(text) ? `${text} %` : "under 0.0001 %";
}

export function scaled(value, unit) {
  if (Number.isNaN(value)) return "not counted";
  for (const [prefix, size] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${prefix}${unit}`;
  }
  return `${value.toFixed(0)} ${unit}`;
}

export function milliseconds(value) {
  return value >= 100 ? `${value.toFixed(0)} ms` : value >= 1 ? `${value.toFixed(2)} ms` : `${(1000 * value).toPrecision(3)} µs`;
}

/** How many pairs run for each live one. */
export function waste(area, live) {
  if (Number.isNaN(area + live)) return "not counted";
  return live ? `${(area / live).toFixed(2)} x` : "nothing runs";
}

/** Numbers of tiles; all are NaN where counting them takes too long. */
export const tileCounts = ({ full, partial }) => (Number.isNaN(full) ? "not counted" : `${count(full)} full, ${count(partial)} partial`);

/** An element; children that are no elements become text. */
export function make(kind, attributes = {}, ...children) {
  const element = kind === "svg" || attributes.svg
    ? document.createElementNS("http://www.w3.org/2000/svg", kind) : document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "svg") continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Whose numbers these are, where every one of some heads has as many. */
export function ofEach(ids) {
  if (!ids.length) return "One head";
  return ids.length > 1 ? `Each of ${heads(ids)}` : `Head ${ids[0]}`;
}

export function heads(ids) {
  if (!ids.length) return "all heads";
  const runs = [];
  for (const id of ids) {
    const last = runs[runs.length - 1];
    if (last && id === last[1] + 1) last[1] = id; else runs.push([id, id]);
  }
  const text = runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
  return `head${ids.length > 1 ? "s" : ""} ${text}`;
}
