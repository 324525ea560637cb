// The map: pan, zoom, axes, the pair under the pointer. What a cell looks like is not decided here.

import { CellPictures, SIDE } from "./cells.js";

const LEFT = 62, TOP = 30;   // CSS pixels of the axes
const NEAREST = 64;          // CSS pixels of a pair, at most
const FRAME = 9;             // milliseconds of a frame for new pictures, while one moves
const STILL = 60;            // the same while nothing moves
const SETTLED = 200;         // milliseconds after which nothing moves

export class MaskMap {
  /**
   * owner.scene(): { n_q, n_kv, name, painter, colors, ink, tile, pairs }, where pairs(view) draws
   * with the shader and returns whether it did. owner.pointed(q, k) and owner.moved() are told.
   */
  constructor(element, owner) {
    this.element = element;
    this.owner = owner;
    this.view = { q: 0, k: 0, scale: 1 };  // the pair at the corner, CSS pixels of a pair
    this.cells = new CellPictures();
    this.cursor = null;
    this.frames = [];
    this.movedAt = 0;
    this.pairCanvas = document.createElement("canvas");
    this.cellCanvas = document.createElement("canvas");
    this.overCanvas = document.createElement("canvas");
    this.overCanvas.className = "over";
    element.append(this.pairCanvas, this.cellCanvas, this.overCanvas);
    this.#listen();
    new ResizeObserver(() => this.resized()).observe(element);
  }

  get width() { return Math.max(1, this.element.clientWidth - LEFT); }
  get height() { return Math.max(1, this.element.clientHeight - TOP); }

  resized() {
    const ratio = window.devicePixelRatio || 1;
    this.ratio = ratio;
    const width = Math.max(1, Math.round(this.element.clientWidth * ratio));
    const height = Math.max(1, Math.round(this.element.clientHeight * ratio));
    const changed = this.cellCanvas.width !== width || this.cellCanvas.height !== height;
    if (changed) for (const canvas of [this.pairCanvas, this.cellCanvas, this.overCanvas]) Object.assign(canvas, { width, height });
    if (this.fitted) this.fit();
    if (changed) this.draw();  // at once: another size has emptied them, and they are shown so
    else this.redraw();
  }

  // ---------------------------------------------------------------- the view

  fit() {
    const { n_q, n_kv } = this.owner.scene();
    const scale = Math.min((this.width - 8) / Math.max(1, n_kv), (this.height - 8) / Math.max(1, n_q));
    this.setView({ q: 0, k: 0, scale });
    this.fitted = true;  // until one moves: another size of the window shows the whole again
  }

  setView({ q, k, scale }) {
    const { n_q, n_kv } = this.owner.scene();
    const least = 0.5 * Math.min(this.width / Math.max(1, n_kv), this.height / Math.max(1, n_q));
    this.view.scale = Math.min(NEAREST, Math.max(Math.min(least, NEAREST), scale));
    const inside = (at, count, pixels) => {
      const shown = pixels / this.view.scale;
      return Math.min(Math.max(at, Math.min(0, count - shown) - 0.25 * shown), Math.max(0, count - shown) + 0.25 * shown);
    };
    this.view.q = inside(q, n_q, this.height);
    this.view.k = inside(k, n_kv, this.width);
    this.movedAt = performance.now();
    this.redraw();
    this.owner.moved();
  }

  /** The pair in the middle of the map, `scale` CSS pixels wide. */
  flyTo(q, k, scale) {
    this.fitted = false;
    this.setView({ q: q + 0.5 - this.height / 2 / scale, k: k + 0.5 - this.width / 2 / scale, scale });
    this.point(q, k);
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    this.fitted = false;
    const { q, k, scale } = this.view;
    const { n_q, n_kv } = this.owner.scene();
    const least = 0.5 * Math.min(this.width / Math.max(1, n_kv), this.height / Math.max(1, n_q));
    const next = Math.min(NEAREST, Math.max(Math.min(least, NEAREST), scale * factor));
    this.setView({ q: q + y / scale - y / next, k: k + x / scale - x / next, scale: next });
  }

  pan(x, y) {
    this.fitted = false;
    const { q, k, scale } = this.view;
    this.setView({ q: q + y / scale, k: k + x / scale, scale });
  }

  /** log2 of the pairs along the side of a cell: 0 where a pair is at least a device pixel wide. */
  get level() {
    const pairs = 1 / (this.view.scale * (this.ratio || 1));
    return Math.max(0, Math.ceil(Math.log2(pairs) - 1e-9));
  }

  pairAt(x, y) {
    return { q: Math.floor(this.view.q + (y - TOP) / this.view.scale), k: Math.floor(this.view.k + (x - LEFT) / this.view.scale) };
  }

  point(q, k) {
    const { n_q, n_kv } = this.owner.scene();
    if (!n_q || !n_kv) return;
    this.cursor = { q: Math.min(Math.max(q, 0), n_q - 1), k: Math.min(Math.max(k, 0), n_kv - 1) };
    this.redraw();
    this.owner.pointed(this.cursor.q, this.cursor.k);
  }

  // ---------------------------------------------------------------- drawing

  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  draw() {
    const begun = performance.now();
    const scene = this.owner.scene();
    const byShader = this.level === 0 && scene.pairs && scene.pairs(this.#device());
    this.pairCanvas.style.visibility = byShader ? "visible" : "hidden";
    this.cellCanvas.style.visibility = byShader ? "hidden" : "visible";
    this.complete = byShader || this.#drawCells(scene, begun + (begun - this.movedAt > SETTLED ? STILL : FRAME));
    this.#drawOver(scene);
    this.frames.push(performance.now() - begun);
    if (this.frames.length > 240) this.frames.shift();
    if (!this.complete) this.redraw();
    else this.firstAt ??= performance.now();  // since the page was asked for
  }

  /** The view in device pixels, for the shader; its canvas includes the axes. */
  #device() {
    const size = this.view.scale * this.ratio;
    const k = this.view.k - LEFT / this.view.scale, q = this.view.q - TOP / this.view.scale;
    const origin = [Math.floor(k), Math.floor(q)];
    return { origin, size, shift: [(k - origin[0]) * size, (q - origin[1]) * size] };
  }

  #drawCells(scene, until) {
    const context = this.cellCanvas.getContext("2d"), { ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = css(scene.colors.outside);
    context.fillRect(0, 0, this.cellCanvas.width, this.cellCanvas.height);
    if (!scene.painter) return true;
    context.imageSmoothingEnabled = false;
    const z = this.level, step = SIDE * 2 ** z, { q, k, scale } = this.view;
    const lastX = Math.floor(Math.min(scene.n_kv - 1, k + this.width / scale) / step);
    const lastY = Math.floor(Math.min(scene.n_q - 1, q + this.height / scale) / step);
    let complete = true;
    for (let y = Math.max(0, Math.floor(q / step)); y <= lastY; y++) {
      for (let x = Math.max(0, Math.floor(k / step)); x <= lastX; x++) {
        const picture = this.cells.get(scene.name, z, x, y, scene.painter, until);
        if (!picture?.done) complete = false;
        if (!picture) continue;
        const left = Math.round((LEFT + (x * step - k) * scale) * ratio), top = Math.round((TOP + (y * step - q) * scale) * ratio);
        const right = Math.round((LEFT + ((x + 1) * step - k) * scale) * ratio), bottom = Math.round((TOP + ((y + 1) * step - q) * scale) * ratio);
        context.drawImage(picture.canvas, left, top, right - left, bottom - top);
      }
    }
    return complete;
  }

  #drawOver(scene) {
    const context = this.overCanvas.getContext("2d"), { ratio } = this, { q, k, scale } = this.view;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const width = this.element.clientWidth, height = this.element.clientHeight;
    context.clearRect(0, 0, width, height);
    const right = Math.min(width, LEFT + (scene.n_kv - k) * scale), bottom = Math.min(height, TOP + (scene.n_q - q) * scale);
    const lines = (step, style, strength) => {
      if (step * scale < 5) return;
      context.strokeStyle = style;
      context.globalAlpha = strength;
      context.beginPath();
      for (let at = Math.ceil(Math.max(0, k) / step) * step; at <= scene.n_kv; at += step) {
        const x = Math.round((LEFT + (at - k) * scale) * ratio) / ratio;
        if (x > width) break;
        context.moveTo(x, Math.max(TOP, TOP - q * scale)); context.lineTo(x, bottom);
      }
      context.stroke();
      context.globalAlpha = 1;
    };
    const rows = (step, style, strength) => {
      if (step * scale < 5) return;
      context.strokeStyle = style;
      context.globalAlpha = strength;
      context.beginPath();
      for (let at = Math.ceil(Math.max(0, q) / step) * step; at <= scene.n_q; at += step) {
        const y = Math.round((TOP + (at - q) * scale) * ratio) / ratio;
        if (y > height) break;
        context.moveTo(Math.max(LEFT, LEFT - k * scale), y); context.lineTo(right, y);
      }
      context.stroke();
      context.globalAlpha = 1;
    };
    context.lineWidth = 1 / ratio;
    if (scale >= 8) { lines(1, scene.ink.line, 0.7); rows(1, scene.ink.line, 0.7); }
    if (scene.tile) {
      context.lineWidth = 1;
      lines(scene.tile[1], scene.ink.ink, 0.55); rows(scene.tile[0], scene.ink.ink, 0.55);
    }
    if (scene.runs) this.#drawRuns(context, scene);
    if (this.cursor) {
      const side = Math.max(scale, 7), middle = (at, start, from) => from + (at + 0.5 - start) * scale;
      const x = middle(this.cursor.k, k, LEFT), y = middle(this.cursor.q, q, TOP);
      context.lineWidth = 3; context.strokeStyle = scene.ink.paper;
      context.strokeRect(x - side / 2, y - side / 2, side, side);
      context.lineWidth = 1.5; context.strokeStyle = scene.ink.ink;
      context.strokeRect(x - side / 2, y - side / 2, side, side);
    }
    context.fillStyle = scene.ink.paper;
    context.fillRect(0, 0, width, TOP); context.fillRect(0, 0, LEFT, height);
    context.strokeStyle = scene.ink.line;
    context.lineWidth = 1;
    context.strokeRect(LEFT - 0.5, TOP - 0.5, width, height);
    if (scene.strips) this.#drawStrips(context, scene.strips);
    context.fillStyle = scene.ink.quiet;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center"; context.textBaseline = "alphabetic";
    for (const at of ticks(k, Math.min(scene.n_kv, k + this.width / scale), this.width / 90)) {
      const x = LEFT + (at - k + (scale > 16 ? 0.5 : 0)) * scale;
      context.fillText(shortened(at), x, TOP - 9);
      context.fillRect(x, TOP - 5, 1, 4);
    }
    context.textAlign = "right"; context.textBaseline = "middle";
    for (const at of ticks(q, Math.min(scene.n_q, q + this.height / scale), this.height / 40)) {
      const y = TOP + (at - q + (scale > 16 ? 0.5 : 0)) * scale;
      context.fillText(shortened(at), LEFT - 9, Math.max(y, TOP + 6));  // below the axes' names
      context.fillRect(LEFT - 5, y, 4, 1);
    }
    context.textAlign = "left"; context.textBaseline = "alphabetic";
    context.fillText("keys →", 4, 12);
    context.fillText("↓ queries", 4, 25);
  }

  /** Beside both axes: who runs the queries, and who holds the keys. */
  #drawStrips(context, { edges, colors }) {
    const { q, k, scale } = this.view;
    colors.forEach((color, i) => {
      const span = (from, start, most) => [start + Math.max(0, (edges[i] - from) * scale), start + Math.min(most, (edges[i + 1] - from) * scale)];
      const [top, bottom] = span(q, TOP, this.height), [left, right] = span(k, LEFT, this.width);
      context.fillStyle = color;
      if (bottom > top) context.fillRect(LEFT - 5, top, 4, bottom - top);
      if (right > left) context.fillRect(left, TOP - 5, right - left, 4);
    });
  }

  /** Outlines of the tile under the pointer, all its stretches; where they are fine, their hull. */
  #drawRuns(context, scene) {
    const { q, k, scale } = this.view, MAX_LINES = 4096;
    context.strokeStyle = scene.ink.ink;
    context.lineWidth = 1.5;
    for (const { q: down, k: right } of scene.runs) {
      const fine = scale * Math.min(down[0][1] - down[0][0], right[0][1] - right[0][0]) < 3 || down.length * right.length > MAX_LINES;
      const hull = (runs) => (fine ? [[runs[0][0], runs[runs.length - 1][1]]] : runs);
      for (const [top, bottom] of hull(down)) {
        for (const [left, end] of hull(right)) {
          context.strokeRect(LEFT + (left - k) * scale, TOP + (top - q) * scale, (end - left) * scale, (bottom - top) * scale);
        }
      }
    }
  }

  // ---------------------------------------------------------------- pointer

  #listen() {
    const { element } = this, pointers = new Map();
    let moved = false;
    const place = (event) => {
      const box = element.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    element.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [x, y] = place(event);
      const unit = event.deltaMode === 1 ? 16 : 1;
      this.zoom(2 ** ((-event.deltaY * unit) / 240), x - LEFT, y - TOP);
    }, { passive: false });
    element.addEventListener("pointerdown", (event) => {
      element.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      moved = false;
    });
    element.addEventListener("pointermove", (event) => {
      const now = place(event), before = pointers.get(event.pointerId);
      if (!before) {
        if (!this.pinned && now[0] >= LEFT && now[1] >= TOP) {
          const { q, k } = this.pairAt(...now);
          const { n_q, n_kv } = this.owner.scene();
          if (q >= 0 && k >= 0 && q < n_q && k < n_kv) this.point(q, k);
        }
        return;
      }
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const apart = (one) => Math.hypot(one[0] - other[0], one[1] - other[1]);
        this.zoom(apart(now) / Math.max(1, apart(before)), (now[0] + other[0]) / 2 - LEFT, (now[1] + other[1]) / 2 - TOP);
      } else if (moved || Math.hypot(now[0] - before[0], now[1] - before[1]) > 3) {
        moved = true;
        element.classList.add("dragging");
        this.pan(before[0] - now[0], before[1] - now[1]);
      } else {
        return;
      }
      pointers.set(event.pointerId, now);
    });
    const ended = (event) => {
      if (pointers.delete(event.pointerId) && !moved && event.type === "pointerup") {
        const { q, k } = this.pairAt(...place(event));
        this.pinned = !(this.pinned && this.cursor?.q === q && this.cursor?.k === k);
        this.point(q, k);
      }
      element.classList.remove("dragging");
    };
    element.addEventListener("pointerup", ended);
    element.addEventListener("pointercancel", ended);
    element.addEventListener("dblclick", (event) => {
      const [x, y] = place(event);
      this.zoom(event.shiftKey ? 0.5 : 2, x - LEFT, y - TOP);
    });
  }
}

export const css = ([red, green, blue]) => `rgb(${red}, ${green}, ${blue})`;

/** Whole numbers from `first` to `last`, steps of powers of two from 64 on, else 1, 2, 5, 10, ... */
function ticks(first, last, most) {
  const least = (last - first) / Math.max(1, most);
  let step = 1;
  for (const size of [1, 2, 5, 10, 20, 32, 64]) if (step < least) step = size;
  while (step < least) step *= 2;
  const found = [];
  for (let at = Math.max(0, Math.ceil(first / step) * step); at < last; at += step) found.push(at);
  return found;
}

/** 4096 as it is, 1048576 as 1M, 131072 as 128k: powers of two, exactly or not at all. */
function shortened(value) {
  if (value >= 2 ** 20 && value % 2 ** 18 === 0) return `${value / 2 ** 20}M`;
  if (value >= 2 ** 14 && value % 2 ** 10 === 0) return `${value / 2 ** 10}k`;
  return String(value);
}
