// Tiles that are no rectangles of the map: boxes of a grid, and tiles of residue classes.
//
// A form answers for a rectangle of pairs: region(q0, q1, k0, k1) = { live, run }, the pairs that
// are live and those in a tile that runs; decided(...) = 1 where all are live, 0 where none runs,
// else null; totals() = { full, partial, tiles, area } of all tiles. All of it is counted.

import { condition } from "./formula.js";
import { Counter } from "./counting.js";

const MAX_TILES = 1 << 22;  // tiles of one question; beyond, it says NaN

/** Boxes of a grid whose tokens are numbered row by row: `extents` of all axes but the first. */
export class BoxTiles {
  constructor(form, counter, n) {
    Object.assign(this, { counter, n });
    this.sides = [form.q, form.k].map((tile) => new Side(form.extents, tile));
    this.tables = new Map();
    this.slabs = new Map();
    this.known = new Map();
  }

  decided(q0, q1, k0, k1) {
    const [q, k] = this.sides, { n } = this;
    const box = { q0: q.down(q0), q1: Math.min(q.up(q1), n), k0: k.down(k0), k1: Math.min(k.up(k1), n), open: [] };
    return once(this.known, `${box.q0} ${box.q1} ${box.k0} ${box.k1}`, () => {
      const found = this.counter.holds.fold(box, []);
      return found === null ? null : Number(found);
    });
  }

  pair(q, k) {
    const [down, right] = this.sides, found = this.#kinds(Math.floor(q / down.slab), Math.floor(k / right.slab));
    const kind = typeof found === "number" ? found : found[down.tileOf[q % down.slab] * right.count + right.tileOf[k % right.slab]];
    return !kind ? NOTHING : this.counter.holds.at(q, k) ? LIVE : RUN;
  }

  /** Classes of the tiles of two slabs, 0 empty, 1 partial, 2 full: a number for all, or a table. */
  #kinds(i, j) {
    return once(this.slabs, i * 2 ** 24 + j, () => this.#decideKinds(i, j));
  }

  #decideKinds(i, j) {
    const [q, k] = this.sides, { n } = this;
    const box = { q0: i * q.slab, q1: Math.min((i + 1) * q.slab, n), k0: j * k.slab, k1: Math.min((j + 1) * k.slab, n), open: [] };
    const key = [], found = this.counter.holds.fold(box, key);
    if (found !== null) return found ? 2 : 0;
    return once(this.tables, `${box.q1 - box.q0} ${box.k1 - box.k0} ${key.join(" ")}`, () => {
      const table = new Uint8Array(q.count * k.count);
      for (let a = 0; a < q.count; a++) {
        for (let b = 0; b < k.count; b++) table[a * k.count + b] = this.#kind(box, q.runs[a], k.runs[b]);
      }
      return table;
    });
  }

  #kind({ q0, q1, k0, k1 }, down, right) {
    let some = false, all = true;
    for (const [from, length] of down) {
      const top = q0 + from, bottom = Math.min(top + length, q1);
      if (top >= bottom) continue;
      for (const [start, width] of right) {
        const left = k0 + start, end = Math.min(left + width, k1);
        if (left >= end) continue;
        const live = this.counter.pairs(top, bottom, left, end);
        if (live > 0) some = true;
        if (live < (bottom - top) * (end - left)) all = false;
        if (some && !all) return 1;
      }
    }
    return some ? 2 : 0;
  }

  /** Of the tile that holds a pair: { kind, q, k }, its runs of tokens [first, end). */
  tileAt(q, k) {
    const [down, right] = this.sides, { n } = this;
    const i = Math.floor(q / down.slab), j = Math.floor(k / right.slab), a = down.inner(q), b = right.inner(k);
    const found = this.#kinds(i, j), runs = (side, slab, inner) => side.runs[inner].map(([from, length]) => [slab * side.slab + from, Math.min(slab * side.slab + from + length, n)]).filter(([from, end]) => from < end);
    return { kind: typeof found === "number" ? found : found[a * right.count + b], q: runs(down, i, a), k: runs(right, j, b), cross: true };
  }

  region(q0, q1, k0, k1) {
    const [q, k] = this.sides, down = q.weights(q0, q1), right = k.weights(k0, k1);
    let run = 0;
    for (const [i, heights, height] of down) {
      for (const [j, widths, width] of right) {
        const found = this.#kinds(i, j);
        if (typeof found === "number") { if (found) run += height * width; continue; }
        for (const [a, rows] of heights) for (const [b, columns] of widths) if (found[a * k.count + b]) run += rows * columns;
      }
    }
    return { live: this.counter.pairs(q0, q1, k0, k1), run };
  }

  totals() {
    const [q, k] = this.sides, { n } = this, total = { full: 0, partial: 0, tiles: 0, area: 0 };
    const slabs = (side) => Math.ceil(n / side.slab);
    let left = MAX_TILES;
    const sizes = (side, slab) => side.runs.map((runs) => runs.reduce((sum, [from, length]) => sum + Math.max(0, Math.min(slab * side.slab + from + length, n) - (slab * side.slab + from)), 0));
    const add = (i, j, found) => {
      const heights = sizes(q, i), widths = sizes(k, j);
      heights.forEach((rows, a) => widths.forEach((columns, b) => {
        const kind = typeof found === "number" ? found : found[a * k.count + b];
        if (!rows || !columns || !kind) return;
        total[kind === 2 ? "full" : "partial"]++;
        total.area += rows * columns;
      }));
    };
    const visit = (i0, i1, j0, j1) => {
      if (--left < 0) return;
      const found = this.decided(i0 * q.slab, Math.min(i1 * q.slab, n), j0 * k.slab, Math.min(j1 * k.slab, n));
      if (found === 0) return;
      if (i1 - i0 === 1 && j1 - j0 === 1) { add(i0, j0, this.#kinds(i0, j0)); return; }
      const i = i1 - i0 > 1 ? (i0 + i1) >> 1 : i1, j = j1 - j0 > 1 ? (j0 + j1) >> 1 : j1;
      for (const [a, b] of [[i0, i], [i, i1]]) for (const [c, d] of [[j0, j], [j, j1]]) if (a < b && c < d) visit(a, b, c, d);
    };
    visit(0, slabs(q), 0, slabs(k));
    const tiles = (side) => Array.from({ length: slabs(side) }, (_, slab) => sizes(side, slab).filter(Boolean).length).reduce((a, b) => a + b, 0);
    total.tiles = tiles(q) * tiles(k);
    return left < 0 ? { full: NaN, partial: NaN, tiles: total.tiles, area: NaN } : total;
  }
}

/** Tokens of a grid by tiles: a slab has as many steps along the first axis as a tile. */
class Side {
  constructor(extents, tile) {
    const period = extents.reduce((a, b) => a * b, 1);
    this.slab = tile[0] * period;
    this.period = period;
    this.last = extents[extents.length - 1];
    this.width = tile[tile.length - 1];
    this.extents = extents;
    this.tile = tile;
    this.boxes = extents.map((extent, axis) => Math.ceil(extent / tile[axis + 1]));
    this.count = this.boxes.reduce((a, b) => a * b, 1);
    this.runs = Array.from({ length: this.count }, () => []);
    this.tileOf = new Uint32Array(this.slab);  // of every token of a slab
    for (let start = 0; start < this.slab;) {
      const end = this.#end(start), own = this.inner(start);
      this.runs[own].push([start, end - start]);
      this.tileOf.fill(own, start, end);
      start = end;
    }
  }

  down(token) { return Math.floor(token / this.slab) * this.slab; }
  up(token) { return Math.ceil(token / this.slab) * this.slab; }

  /** Where the run of a token ends: at the side of its box, or of the grid. */
  #end(token) {
    const x = token % this.last;
    return token - x + Math.min(x - (x % this.width) + this.width, this.last);
  }

  /** Which of a slab's tiles holds a token. */
  inner(token) {
    let rest = token % this.period, size = this.period, found = 0;
    this.extents.forEach((extent, axis) => {
      size /= extent;
      found = found * this.boxes[axis] + Math.floor(Math.floor(rest / size) / this.tile[axis + 1]);
      rest %= size;
    });
    return found;
  }

  /** [slab, [[tile, tokens], ...], tokens] of the slabs that tokens [from, to) lie in. */
  weights(from, to) {
    const found = [];
    for (let start = from; start < to;) {
      const slab = Math.floor(start / this.slab), end = Math.min(to, (slab + 1) * this.slab), tiles = new Map();
      for (let at = start; at < end;) {
        const next = Math.min(this.#end(at), end), own = this.inner(at);
        tiles.set(own, (tiles.get(own) ?? 0) + next - at);
        at = next;
      }
      found.push([slab, [...tiles], end - start]);
      start = end;
    }
    return found;
  }
}

/** A part of a mask in tiles of residue classes: all classes, the keys of one, or all tokens. */
export class ClassTiles {
  constructor(part, env, ofAll) {
    const { n_q, n_kv } = env, { stride, keys } = part;
    Object.assign(this, { part, env, ofAll, n_q, n_kv, counters: new Map(), ofClass: [], known: new Map(), kinds: new Map() });
    this.strideQ = keys === null ? stride : 1;
    this.strideK = stride;
    this.tile = part.tile;
    for (let c = 0; c < this.strideQ; c++) this.#counter(c);
  }

  /** The class of keys that a class of queries meets: classes are of positions. */
  #partner(c) {
    if (this.part.keys !== null) return this.part.keys;
    return (((c + this.n_kv - this.n_q) % this.strideK) + this.strideK) % this.strideK;
  }

  #counter(c) { return (this.ofClass[c] ??= this.#named(c)); }

  /** Classes of the same lengths share what was counted. */
  #named(c) {
    const rows = index(this.n_q, c, this.strideQ), columns = index(this.n_kv, this.#partner(c), this.strideK);
    const name = `${rows} ${columns}`;
    if (!this.counters.has(name)) {
      const params = { ...this.env.params, [this.ofAll]: this.n_kv };
      const counter = new Counter(condition(this.part.keep, { ...this.env, n_q: rows, n_kv: columns, params }));
      this.counters.set(name, { counter, rows, columns, name, id: this.counters.size });
    }
    return this.counters.get(name);
  }

  /** Tiles of all classes that reach into a rectangle, by their coordinates in a class. */
  decided(q0, q1, k0, k1) {
    const [height, width] = this.tile, { strideQ, strideK } = this;
    const u0 = down(Math.floor(q0 / strideQ), height), u1 = up(Math.ceil(q1 / strideQ), height);
    const t0 = down(Math.floor(k0 / strideK), width), t1 = up(Math.ceil(k1 / strideK), width);
    return once(this.known, `${u0} ${u1} ${t0} ${t1}`, () => {
      let every = strideQ === 1 && strideK === 1;
      for (const { counter, rows, columns } of this.counters.values()) {
        const box = { q0: u0, q1: Math.min(u1, rows), k0: t0, k1: Math.min(t1, columns), open: [] };
        if (box.q0 >= box.q1 || box.k0 >= box.k1) continue;
        const found = counter.holds.fold(box, []);
        if (found !== false && !(found && every)) return null;
        every &&= found;
      }
      return every ? 1 : 0;
    });
  }

  pair(q, k) {
    const { strideQ, strideK } = this, c = q % strideQ;
    if (k % strideK !== this.#partner(c)) return NOTHING;
    const own = this.#counter(c), u = Math.floor(q / strideQ), t = Math.floor(k / strideK);
    const kind = this.#kind(own, u, t);
    return Number.isNaN(kind) ? UNKNOWN : !kind ? NOTHING : own.counter.holds.at(u, t) ? LIVE : RUN;
  }

  /** The class of the tile that holds a pair of a class: 0 empty, 1 partial, 2 full. */
  #kind({ counter, rows, columns, id }, u, t) {
    const [height, width] = this.tile, i = Math.floor(u / height), j = Math.floor(t / width);
    return once(this.kinds, (id * 2 ** 24 + i) * 2 ** 24 + j, () => {
      const { full, partial } = counter.tiles(i * height, Math.min((i + 1) * height, rows), j * width, Math.min((j + 1) * width, columns), height, width);
      return full ? 2 : partial ? 1 : full;
    });
  }

  /** Calls visit(counter, u0, u1, t0, t1, times) for all rectangles of classes in one of the map. */
  #classes(q0, q1, k0, k1, visit) {
    const { strideQ, strideK } = this, groups = new Map();
    const few = Math.min(strideQ, q1 - q0);
    for (let i = 0; i < few; i++) {
      const c = (q0 + i) % strideQ, partner = this.#partner(c);
      const u0 = index(q0, c, strideQ), u1 = index(q1, c, strideQ), t0 = index(k0, partner, strideK), t1 = index(k1, partner, strideK);
      if (u0 >= u1 || t0 >= t1) continue;
      const own = this.#counter(c), name = `${u0} ${u1} ${t0} ${t1} ${own.name}`, group = groups.get(name);
      if (group) group.times++;
      else groups.set(name, { own, box: [u0, u1, t0, t1], times: 1 });
    }
    for (const { own, box, times } of groups.values()) visit(own, ...box, times);
  }

  region(q0, q1, k0, k1) {
    let live = 0, run = 0;
    this.#classes(q0, q1, k0, k1, ({ counter, rows, columns }, u0, u1, t0, t1, times) => {
      live += times * counter.pairs(u0, u1, t0, t1);
      run += times * this.#run(counter, rows, columns, u0, u1, t0, t1);
    });
    return { live, run };
  }

  /** Pairs of a rectangle of a class that lie in tiles that run. */
  #run(counter, rows, columns, u0, u1, t0, t1) {
    const [height, width] = this.tile, ends = (from, to, side, length) => {
      if (down(from, side) === from && (to === length || to % side === 0)) return [[from, to, from, to]];
      const found = [];
      for (let at = down(from, side); at < to; at += side) found.push([Math.max(from, at), Math.min(to, at + side), at, Math.min(at + side, length)]);
      return found;
    };
    let run = 0;
    for (const [a, b, top, bottom] of ends(u0, u1, height, rows)) {
      for (const [c, d, left, right] of ends(t0, t1, width, columns)) {
        const whole = a === top && b === bottom && c === left && d === right;
        const { area } = counter.tiles(top, bottom, left, right, height, width);
        run += whole ? area : area ? (b - a) * (d - c) : 0;
        if (Number.isNaN(area)) return NaN;
      }
    }
    return run;
  }

  totals() {
    const total = { full: 0, partial: 0, tiles: 0, area: 0 }, [height, width] = this.tile;
    this.#classes(0, this.n_q, 0, this.n_kv, ({ counter, rows, columns }, u0, u1, t0, t1, times) => {
      const { full, partial, area } = counter.tiles(0, rows, 0, columns, height, width);
      total.full += times * full; total.partial += times * partial; total.area += times * area;
      total.tiles += times * Math.ceil(rows / height) * Math.ceil(columns / width);
    });
    return total;
  }

  /** Of the tile that holds a pair: { kind, q, k }; null where no tile of this part does. */
  tileAt(q, k) {
    const { strideQ, strideK } = this, [height, width] = this.tile, c = q % strideQ, partner = this.#partner(c);
    if (k % strideK !== partner) return null;
    const own = this.#counter(c), { rows, columns } = own, u = Math.floor(q / strideQ), t = Math.floor(k / strideK);
    const i = down(u, height), j = down(t, width);
    const tokens = (from, end, stride, residue) => (stride === 1 ? [[from, end]] : Array.from({ length: end - from }, (_, at) => [(from + at) * stride + residue, (from + at) * stride + residue + 1]));
    return { kind: this.#kind(own, u, t), q: tokens(i, Math.min(i + height, rows), strideQ, c), k: tokens(j, Math.min(j + width, columns), strideK, partner) };
  }
}

const NOTHING = { live: 0, run: 0 }, RUN = { live: 0, run: 1 }, LIVE = { live: 1, run: 1 }, UNKNOWN = { live: 0, run: NaN };
const KNOWN = 1 << 20;

/** What was found under a name before, or what `find` finds. */
function once(known, name, find) {
  let found = known.get(name);
  if (found === undefined) {
    found = find();
    if (known.size >= KNOWN) known.clear();
    known.set(name, found);
  }
  return found;
}

const down = (x, side) => Math.floor(x / side) * side, up = (x, side) => Math.ceil(x / side) * side;

/** How many tokens below `token` have a residue: the first of the others is at this index. */
const index = (token, residue, stride) => Math.max(0, Math.ceil((token - residue) / stride));

/** Live pairs of all parts in their colours, and what tiles run in vain. */
export function formPainter(parts, env, colors, layers, blended) {
  const shown = (shares) => {
    const live = shares.reduce((sum, share) => sum + share.live, 0), run = shares.reduce((sum, share) => sum + share.run, 0);
    if (Number.isNaN(live + run)) return colors.unknown;
    const vain = Math.max(0, Math.min(run - live, 1 - live));
    return blended([...shares.map((share) => share.live), vain], [...layers, colors.waste], colors.empty);
  };
  const single = (q, k) => {
    let run = 0;
    for (let i = 0; i < parts.length; i++) {
      const found = parts[i].pair(q, k);
      if (found.live) return layers[i];
      run += found.run;
    }
    return Number.isNaN(run) ? colors.unknown : run ? colors.waste : colors.empty;
  };
  const boxOf = (z, i0, i1, j0, j1) => {
    const size = 2 ** z;
    return [Math.min(i0 * size, env.n_q), Math.min(i1 * size, env.n_q), Math.min(j0 * size, env.n_kv), Math.min(j1 * size, env.n_kv)];
  };
  const whole = (z, i0, i1, j0, j1) => {
    const box = boxOf(z, i0, i1, j0, j1), size = 2 ** z;
    if (box[0] >= box[1] || box[2] >= box[3]) return colors.outside;
    if ((i1 * size > env.n_q || j1 * size > env.n_kv) && i1 - i0 > 1) return null;
    const found = parts.map((part) => part.decided(...box));
    return found.includes(null) ? null : shown(found.map((share) => ({ live: share, run: share })));
  };
  const cell = (z, i, j) => {
    if (z === 0) return single(i, j);
    const box = boxOf(z, i, i + 1, j, j + 1), area = (box[1] - box[0]) * (box[3] - box[2]);
    return shown(parts.map((part) => {
      const { live, run } = part.region(...box);
      return { live: live / area, run: run / area };
    }));
  };
  return { whole, cell };
}
